// SPDX-License-Identifier: Apache-2.0
package bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/** Many small pieces of work, a given number at once. */
final class Parallel {
    @FunctionalInterface
    interface Work {
        void run(int number) throws Exception;
    }

    private Parallel() {
    }

    /** Runs the work for the numbers below n, in ascending order; throws what a piece throws. */
    static void run(int threads, int n, Work work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<?>> futures = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                futures.add(pool.submit(() -> {
                    for (int at = next.getAndIncrement(); at < n; at = next.getAndIncrement()) {
                        work.run(at);
                    }
                    return null;
                }));
            }
            for (Future<?> future : futures) {
                future.get();
            }
        } finally {
            pool.shutdownNow();
        }
    }
}
