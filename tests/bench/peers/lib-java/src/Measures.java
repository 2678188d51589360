// SPDX-License-Identifier: Apache-2.0
package bench;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/** The measures by name. Each one returns its figures in the order in which they are printed. */
final class Measures {
    private static final int SINGLE_THREADS = 64;
    private static final int PACED_THREADS = 16;
    private static final int WARM_UP_JOBS = 500;
    private static final long WARM_UP_NS = 4_000_000_000L;
    private static final long FAR_MS = 3_600_000;
    private static final long AHEAD_MS = 1_000;
    private static final long BURST_LEAD_MS = 3_000;
    private static final long BURST_LEAD_MIN_MS = 1_000;

    private final Peer peer;
    private final HttpCall call;

    /** Handlers make the call where there is one. */
    Measures(Peer peer, HttpCall call) {
        this.peer = peer;
        this.call = call;
    }

    Map<String, Number> enqueueSingle(int n) throws Exception {
        warmUp();
        long dueMs = System.currentTimeMillis() + FAR_MS;
        long startNs = System.nanoTime();
        Parallel.run(SINGLE_THREADS, n, number -> peer.enqueue(new Job(number, dueMs)));
        return rate(n, startNs, System.nanoTime());
    }

    Map<String, Number> enqueueBatch(int n) throws Exception {
        warmUp();
        long startNs = System.nanoTime();
        enqueueAll(n, System.currentTimeMillis() + FAR_MS);
        return rate(n, startNs, System.nanoTime());
    }

    /** From the first enqueue to the last completion that is stored. */
    Map<String, Number> lifecycle(int n) throws Exception {
        warmUp();
        Tally tally = new Tally(n, call);
        peer.start(tally);
        long startNs = System.nanoTime();
        enqueueDueNow(n);
        return rate(n, startNs, awaitStored(tally));
    }

    /** From the first handler's start to the last completion that is stored. */
    Map<String, Number> drain(int n) throws Exception {
        warmUp();
        enqueueAll(n, System.currentTimeMillis());
        Tally tally = new Tally(n, call);
        peer.start(tally);
        long endNs = awaitStored(tally);
        return rate(n, tally.firstStartNs(), endNs);
    }

    Map<String, Number> lateness(int perSecond, int seconds) throws Exception {
        warmUp();
        int n = Math.multiplyExact(perSecond, seconds);
        Tally tally = new Tally(n, call);
        peer.start(tally);
        long startNs = System.nanoTime();
        Parallel.run(PACED_THREADS, n, number -> {
            sleepUntil(startNs + number * 1_000_000_000L / perSecond);
            peer.enqueue(new Job(number, System.currentTimeMillis() + AHEAD_MS));
        });
        double took = (System.nanoTime() - startNs) / 1e9;
        if (took > seconds * 1.1 + 0.5) {
            throw new IllegalStateException("the peer takes fewer than " + perSecond
                    + " single jobs a second");
        }
        tally.await();
        long[] late = tally.sortedLateUs();
        Map<String, Number> figures = new LinkedHashMap<>();
        figures.put("n", n);
        figures.put("p50_ms", percentileMs(late, 0.5));
        figures.put("p99_ms", percentileMs(late, 0.99));
        figures.put("p999_ms", percentileMs(late, 0.999));
        figures.put("max_ms", percentileMs(late, 1));
        return figures;
    }

    /**
     * The jobs are stored before the workers start. Their common due time has to be known before
     * that, so a first helping tells how long storing takes.
     */
    Map<String, Number> burst(int n) throws Exception {
        warmUp();
        long probeNs = System.nanoTime();
        enqueueAll(WARM_UP_JOBS, System.currentTimeMillis() + FAR_MS);
        double storeMs = (System.nanoTime() - probeNs) / 1e6 * n / WARM_UP_JOBS;
        peer.reset();
        long dueMs = System.currentTimeMillis() + (long) (storeMs * 1.3) + BURST_LEAD_MS;
        enqueueAll(n, dueMs);
        Tally tally = new Tally(n, call);
        peer.start(tally);
        if (System.currentTimeMillis() > dueMs - BURST_LEAD_MIN_MS) {
            throw new IllegalStateException("the jobs were not stored in time for the burst");
        }
        tally.await();
        Map<String, Number> figures = new LinkedHashMap<>();
        figures.put("n", n);
        figures.put("all_ms", percentileMs(tally.sortedLateUs(), 1));
        return figures;
    }

    /**
     * A JVM starts cold and a server does not: whole lifecycles for some seconds, with single and
     * batch enqueues, before anything is measured. Statistics of a filled table spare the peer bad
     * plans that a database makes for tables that it knows nothing of. Ends with empty tables.
     */
    private void warmUp() throws Exception {
        peer.reset();
        enqueueAll(WARM_UP_JOBS, System.currentTimeMillis() + FAR_MS);
        peer.analyze();
        long endNs = System.nanoTime() + WARM_UP_NS;
        do {
            peer.reset();
            Tally tally = new Tally(2 * WARM_UP_JOBS, call);
            peer.start(tally);
            enqueueDueNow(WARM_UP_JOBS);
            long dueMs = System.currentTimeMillis();
            Parallel.run(SINGLE_THREADS, WARM_UP_JOBS,
                    number -> peer.enqueue(new Job(WARM_UP_JOBS + number, dueMs)));
            awaitStored(tally);
            peer.stop();
        } while (System.nanoTime() < endNs);
        peer.reset();
    }

    private void enqueueDueNow(int n) throws Exception {
        for (int from = 0; from < n; from += peer.batchSize()) {
            int to = Math.min(n, from + peer.batchSize());
            peer.enqueueBatch(Job.range(from, to, System.currentTimeMillis()));
        }
    }

    private void enqueueAll(int n, long dueMs) throws Exception {
        for (int from = 0; from < n; from += peer.batchSize()) {
            peer.enqueueBatch(Job.range(from, Math.min(n, from + peer.batchSize()), dueMs));
        }
    }

    private long awaitStored(Tally tally) throws Exception {
        tally.await();
        while (!peer.isFinished()) {
            Thread.sleep(1);
        }
        return System.nanoTime();
    }

    private static void sleepUntil(long ns) {
        for (long left = ns - System.nanoTime(); left > 0; left = ns - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private static Map<String, Number> rate(int n, long startNs, long endNs) {
        Map<String, Number> figures = new LinkedHashMap<>();
        figures.put("n", n);
        figures.put("per_second", n / ((endNs - startNs) / 1e9));
        return figures;
    }

    private static double percentileMs(long[] sortedUs, double part) {
        int index = (int) Math.ceil(part * sortedUs.length) - 1;
        return sortedUs[Math.max(index, 0)] / 1e3;
    }
}
