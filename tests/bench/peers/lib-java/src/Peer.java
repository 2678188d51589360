// SPDX-License-Identifier: Apache-2.0
package bench;

import java.util.List;

/**
 * A scheduler that is measured. The order of calls is reset, enqueues, start, more enqueues, stop,
 * and again from reset; the enqueues may come from several threads at once.
 */
public interface Peer {
    /**
     * Empties the tables and gets ready to take jobs. The first call makes the tables; later ones
     * leave the statistics that the database has of them.
     */
    void reset() throws Exception;

    /** Stores one job, as an application would that has just one. */
    void enqueue(Job job) throws Exception;

    /** Stores the jobs by the peer's best call for many, all with the same due time. */
    void enqueueBatch(List<Job> jobs) throws Exception;

    /** How many jobs that call takes best. */
    int batchSize();

    void start(Handler handler) throws Exception;

    /** Waits for the handlers that run. */
    void stop() throws Exception;

    /** Brings the database's statistics up to date, as it does itself for tables in use. */
    void analyze() throws Exception;

    /** Whether each stored job has run and its completion is stored as well. */
    boolean isFinished() throws Exception;
}
