// SPDX-License-Identifier: Apache-2.0
package bench;

/** What a peer's workers call for each job, from any number of threads. Throws nothing. */
@FunctionalInterface
public interface Handler {
    void handle(String payload, long dueMs);
}
