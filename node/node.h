/* SPDX-License-Identifier: Apache-2.0 */
/* One running node: the wiring of store, scheduler, dispatcher and HTTP interface. */
#ifndef JF_NODE_H
#define JF_NODE_H

#include "node/config.h"

/* Runs until SIGTERM or SIGINT and returns the exit status of the process: 0 after an orderly stop,
 * 1 when it could not start or had to give up, 3 when another process took over the node's name. A
 * second signal ends the grace time at once. */
int node_run(const struct config *cfg, struct log *log);

#endif
