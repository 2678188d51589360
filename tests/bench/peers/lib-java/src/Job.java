// SPDX-License-Identifier: Apache-2.0
package bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** One job of a measurement. Its number is its identity, and part of its payload. */
public record Job(int number, long dueMs) {
    private static final String HEAD = "{\"orderId\":\"";
    private static final int DIGITS = 20;
    private static final String TAIL =
            "\",\"amount\":12999,\"currency\":\"EUR\",\"reason\":\"payment time-out\"}";

    public String id() {
        return Integer.toString(number);
    }

    public String payload() {
        return HEAD + String.format(Locale.ROOT, "%0" + DIGITS + "d", number) + TAIL;
    }

    /** The number of the job that has this payload. */
    public static int numberOf(String payload) {
        return Integer.parseInt(payload, HEAD.length(), HEAD.length() + DIGITS, 10);
    }

    /** The jobs numbered from (inclusive) to (exclusive), all due at the same time. */
    public static List<Job> range(int from, int to, long dueMs) {
        List<Job> jobs = new ArrayList<>(to - from);
        for (int number = from; number < to; number++) {
            jobs.add(new Job(number, dueMs));
        }
        return jobs;
    }
}
