// SPDX-License-Identifier: Apache-2.0
package bench;

import java.time.Instant;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** The handler of a run of n jobs: notes when each one starts, and that it does so only once. */
final class Tally implements Handler {
    private final HttpCall call;
    private final AtomicIntegerArray runs;
    private final long[] lateUs;
    private final AtomicLong firstStartNs = new AtomicLong(Long.MAX_VALUE);
    private final CountDownLatch left;
    private final AtomicReference<Exception> failure = new AtomicReference<>();

    /** Without a call the handler does nothing else. */
    Tally(int n, HttpCall call) {
        this.call = call;
        runs = new AtomicIntegerArray(n);
        lateUs = new long[n];
        left = new CountDownLatch(n);
    }

    @Override
    public void handle(String payload, long dueMs) {
        long startNs = System.nanoTime();
        Instant now = Instant.now();
        try {
            int number = Job.numberOf(payload);
            if (runs.getAndIncrement(number) > 0) {
                throw new IllegalStateException("job " + number + " ran a second time");
            }
            firstStartNs.accumulateAndGet(startNs, Math::min);
            lateUs[number] = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000
                    - dueMs * 1_000;
            if (call != null) {
                call.post(payload);
            }
            left.countDown();
        } catch (Exception e) {
            failure.compareAndSet(null, e);
        }
    }

    /** Waits until each job has run; throws what went wrong in one of them. */
    void await() throws Exception {
        boolean all;
        do {
            all = left.await(20, TimeUnit.MILLISECONDS);
            if (failure.get() != null) {
                throw failure.get();
            }
        } while (!all);
    }

    /** By System.nanoTime(). */
    long firstStartNs() {
        return firstStartNs.get();
    }

    /** Start minus due time of all jobs in ascending order. */
    long[] sortedLateUs() {
        long[] sorted = lateUs.clone();
        Arrays.sort(sorted);
        return sorted;
    }
}
