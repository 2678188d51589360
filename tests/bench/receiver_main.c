/* SPDX-License-Identifier: Apache-2.0 */
/* jfreceiver PORT: the bench's business service as a program of its own, for the peers' HTTP calls.
 * Prints the port once it listens, and goes on until SIGTERM or SIGINT. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/receiver.h"

int main(int argc, char **argv)
{
    struct receiver *r;
    sigset_t ends;
    int which;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: jfreceiver PORT (0 = a free one)\n");
        return 2;
    }
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL); /* before the thread is made: it inherits this */
    r = receiver_start((uint16_t)atoi(argv[1]), NULL);
    (void)printf("%u\n", receiver_port(r));
    (void)fflush(stdout);
    (void)sigwait(&ends, &which);
    receiver_stop(r);
    return 0;
}
