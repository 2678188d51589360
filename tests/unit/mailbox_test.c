/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/mailbox.h"

#define DEADLINE_MS 20000

struct note {
    struct mail mail; /* first, so that a mail is its note */
    unsigned sender;
    unsigned number;
    struct mailbox *repost; /* posts itself there once more when delivered */
};

#define N_SENDERS 4
#define N_NOTES 20000

static unsigned next_number[N_SENDERS];
static atomic_uint n_delivered;

static bool is_readable(struct mailbox *mb, int wait_ms)
{
    struct pollfd p = {.fd = mailbox_fd(mb), .events = POLLIN};
    return poll(&p, 1, wait_ms) == 1 && (p.revents & POLLIN);
}

static void on_note(struct mail *m)
{
    struct note *note = (struct note *)m;
    assert_int_equal(note->number, next_number[note->sender]);
    next_number[note->sender]++;
    struct mailbox *repost = note->repost;
    if (repost) {
        note->repost = NULL;
        note->number++;
        mailbox_post(repost, &note->mail);
    } else {
        free(note);
    }
    atomic_fetch_add(&n_delivered, 1);
}

static struct note *note_new(unsigned sender, unsigned number)
{
    struct note *note = calloc(1, sizeof(*note));
    if (!note)
        abort();
    *note = (struct note){.mail.on_delivery = on_note, .sender = sender, .number = number};
    return note;
}

static int reset(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_SENDERS; i++)
        next_number[i] = 0;
    atomic_store(&n_delivered, 0);
    return 0;
}

static void test_order_and_wake_ups(void **state)
{
    (void)state;
    struct mailbox *mb;
    assert_int_equal(mailbox_new(&mb), 0);
    assert_false(is_readable(mb, 0));
    assert_int_equal(mailbox_deliver(mb), 0);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 5; i++)
            mailbox_post(mb, &note_new(0, round * 5 + i)->mail);
        assert_true(is_readable(mb, 0));
        assert_int_equal(mailbox_deliver(mb), 5);
        assert_false(is_readable(mb, 0));
    }
    assert_int_equal(next_number[0], 15);
    mailbox_free(mb);
    mailbox_free(NULL);
}

static void test_one_wake_up_for_many(void **state)
{
    (void)state;
    struct mailbox *mb;
    assert_int_equal(mailbox_new(&mb), 0);
    for (unsigned i = 0; i < 5; i++)
        mailbox_post(mb, &note_new(0, i)->mail);
    uint64_t count = 0;
    assert_int_equal(read(mailbox_fd(mb), &count, sizeof(count)), sizeof(count));
    assert_int_equal(count, 1);
    assert_int_equal(mailbox_deliver(mb), 5);
    mailbox_free(mb);
}

static void test_posting_while_delivering(void **state)
{
    (void)state;
    struct mailbox *mb;
    assert_int_equal(mailbox_new(&mb), 0);
    struct note *note = note_new(0, 0);
    note->repost = mb;
    mailbox_post(mb, &note->mail);
    assert_int_equal(mailbox_deliver(mb), 1);
    assert_true(is_readable(mb, 0));
    assert_int_equal(mailbox_deliver(mb), 1);
    assert_int_equal(mailbox_deliver(mb), 0);
    assert_int_equal(next_number[0], 2);
    mailbox_free(mb);
}

struct sender {
    pthread_t thread;
    struct mailbox *mb;
    unsigned index;
    bool waits; /* posts a note only when all before it were delivered */
};

static void *send_notes(void *arg)
{
    struct sender *s = arg;
    for (unsigned i = 0; i < N_NOTES; i++) {
        while (s->waits && atomic_load(&n_delivered) < i)
            sched_yield();
        mailbox_post(s->mb, &note_new(s->index, i)->mail);
    }
    return NULL;
}

/* The receiver goes by the descriptor alone, so a lost wake-up shows as a missed deadline. */
static void run_senders(unsigned n, bool waits)
{
    struct mailbox *mb;
    struct sender senders[N_SENDERS];
    assert_int_equal(mailbox_new(&mb), 0);
    for (unsigned i = 0; i < n; i++) {
        senders[i] = (struct sender){.mb = mb, .index = i, .waits = waits};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_notes, &senders[i]), 0);
    }
    while (atomic_load(&n_delivered) < n * N_NOTES) {
        assert_true(is_readable(mb, DEADLINE_MS));
        mailbox_deliver(mb);
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(senders[i].thread, NULL);
        assert_int_equal(next_number[i], N_NOTES);
    }
    assert_int_equal(mailbox_deliver(mb), 0);
    mailbox_free(mb);
}

static void test_many_senders(void **state)
{
    (void)state;
    run_senders(N_SENDERS, false);
}

static void test_ping_pong(void **state)
{
    (void)state;
    run_senders(1, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_order_and_wake_ups, reset),
        cmocka_unit_test_setup(test_one_wake_up_for_many, reset),
        cmocka_unit_test_setup(test_posting_while_delivering, reset),
        cmocka_unit_test_setup(test_many_senders, reset),
        cmocka_unit_test_setup(test_ping_pong, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
