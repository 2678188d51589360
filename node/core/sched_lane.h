/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler reads of the due index (sched_scan.c). Only sched*.c include this. */
#ifndef JF_CORE_SCHED_LANE_H
#define JF_CORE_SCHED_LANE_H

#include "common/heap.h"
#include "node/core/sched.h"

struct svc;

/* Position in the due index. */
struct cursor {
    wall_ms time;
    int64_t id;
};

enum lane_reads { READ_ON, READ_SLACK, READ_LOOK };

/* One (service, shard, lane): what is read of it. */
struct lane {
    struct heap_node scan; /* first; in `scans` unless paused, reading or stopped */
    struct svc *svc;
    struct cursor cursor; /* everything up to here was read once */
    struct cursor missed; /* while reading: its end does not move the cursor past here */
    wall_ms full_at;      /* when to read from the start again */
    wall_ms due_at;       /* when the next regular scan is due */
    struct cursor resume; /* where it was when it began at the start */
    wall_ms seen;         /* up to here all was read that commits within the slack */
    wall_ms slack_at;     /* when the slack may be read again */
    wall_ms asked_at;     /* while reading: since when */
    wall_ms look_at;      /* when to read the times from look_from to look_to; WALL_MAX = never */
    wall_ms look_from, look_to;
    uint32_t n_tracked; /* WAITING and READY */
    int32_t shard, number;
    uint8_t n_full_failed; /* reads from the start, one after the other */
    bool truncated;        /* more stands behind the cursor, within the look-ahead */
    bool reading;          /* a SCAN of it is out */
    uint8_t reads;         /* enum lane_reads: what that one is for */
    bool owned;            /* by this node; of all lanes of a shard alike */
};

void scan_plan(struct sched *s, struct actions *out);
/* The lane may read on when it has room: after an entry left it, or the cursor was set back. */
void lane_wake(struct sched *s, struct lane *l);
void lane_set_back(struct lane *l, wall_ms time, int64_t id); /* read on from that task */
/* Reads the rows of that time again at the next interval, wherever the cursor is. */
void lane_look_again(struct sched *s, struct lane *l, wall_ms time);
void lane_start(struct sched *s, struct lane *l); /* (re)enters the scans */
void lane_stop(struct sched *s, struct lane *l);

#endif
