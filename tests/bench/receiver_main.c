/* SPDX-License-Identifier: Apache-2.0 */
/* jfreceiver PORT [stub]: the bench's business service as a program of its own, for the peers' HTTP
 * calls. Prints the port once it listens, and goes on until SIGTERM or SIGINT. As a stub it answers
 * as a node would that stores nothing: what HTTP alone costs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/receiver.h"

/* As long as a node's answer to a submission, and all that jfbench asks a node for. */
#define STUB_BODY                                                                                  \
    "jobflow_tasks_finished_total{status=\"SUCCESS\"} 0\n"                                         \
    "................................................................................"

int main(int argc, char **argv)
{
    static const char stub[] = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                               "Content-Length: 129\r\n\r\n" STUB_BODY;
    bool is_stub = argc == 3 && !strcmp(argv[2], "stub");
    struct receiver *r;
    sigset_t ends;
    int which;

    if (argc != 2 && !is_stub) {
        (void)fprintf(stderr, "usage: jfreceiver PORT (0 = a free one) [stub]\n");
        return 2;
    }
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL); /* before the thread is made: it inherits this */
    r = receiver_start((uint16_t)atoi(argv[1]), NULL, is_stub ? STR(stub) : (struct str){0});
    (void)printf("%u\n", receiver_port(r));
    (void)fflush(stdout);
    (void)sigwait(&ends, &which);
    receiver_stop(r);
    return 0;
}
