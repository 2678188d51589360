// SPDX-License-Identifier: Apache-2.0
package bench;

import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutionException;

/** The command line of a peer: MEASURE and its numbers in, one JSON line or one complaint out. */
public final class Bench {
    private static final long LIMIT_MS = 120_000;
    private static final String USAGE = "usage: run enqueue_single|enqueue_batch|lifecycle|"
            + "lifecycle_http|drain|burst|burst_http N, or: run lateness RATE SECONDS";

    /** Opens a peer on a database. */
    @FunctionalInterface
    public interface Opener {
        Peer open(Database database) throws Exception;
    }

    private Bench() {
    }

    /** The size of the pool: PEER_CONNECTIONS where it is set, as for a slow disk. */
    public static int connections(int usual) {
        String value = System.getenv("PEER_CONNECTIONS");
        return value == null || value.isEmpty() ? usual : Integer.parseInt(value);
    }

    /** Ends the process. */
    public static void main(Opener opener, String[] args) {
        limitTime();
        try {
            String measure = args.length > 0 ? args[0] : "";
            HttpCall call = measure.endsWith("_http")
                    ? new HttpCall(environment("RECEIVER_URL")) : null;
            Peer peer = opener.open(Database.of(environment("DATABASE_URL")));
            Map<String, Number> figures = measure(new Measures(peer, call), measure, args);
            System.out.println(json(measure, figures));
            System.out.flush();
            Runtime.getRuntime().halt(0);
        } catch (Exception | Error e) {
            fail(e);
        }
    }

    private static Map<String, Number> measure(Measures measures, String name, String[] args)
            throws Exception {
        return switch (name) {
            case "enqueue_single" -> measures.enqueueSingle(number(args, 1));
            case "enqueue_batch" -> measures.enqueueBatch(number(args, 1));
            case "lifecycle", "lifecycle_http" -> measures.lifecycle(number(args, 1));
            case "drain" -> measures.drain(number(args, 1));
            case "lateness" -> measures.lateness(number(args, 1), number(args, 2));
            case "burst", "burst_http" -> measures.burst(number(args, 1));
            default -> throw new IllegalArgumentException(USAGE);
        };
    }

    private static int number(String[] args, int index) {
        if (index >= args.length || !args[index].matches("[1-9][0-9]{0,8}")) {
            throw new IllegalArgumentException(USAGE);
        }
        return Integer.parseInt(args[index]);
    }

    private static String environment(String name) {
        String value = System.getenv(name);
        if (value == null || value.isEmpty()) {
            throw new IllegalArgumentException(name + " is not set");
        }
        return value;
    }

    private static String json(String measure, Map<String, Number> figures) {
        StringBuilder line = new StringBuilder("{\"measure\":\"" + measure + "\"");
        figures.forEach((name, value) -> {
            String format = value instanceof Integer ? "%d" : "%.2f";
            line.append(",\"").append(name).append("\":")
                    .append(String.format(Locale.ROOT, format, value));
        });
        return line.append('}').toString();
    }

    private static void limitTime() {
        Thread watch = new Thread(() -> {
            try {
                Thread.sleep(LIMIT_MS);
            } catch (InterruptedException e) {
                return;
            }
            fail(new IllegalStateException("not done within " + LIMIT_MS / 1_000 + " s"));
        });
        watch.setDaemon(true);
        watch.start();
    }

    /** Halts, because the peer's own threads may be what is stuck. */
    private static void fail(Throwable error) {
        Throwable shown = error;
        while (shown.getCause() != null && (shown instanceof ExecutionException
                || shown.getMessage() == null)) {
            shown = shown.getCause();
        }
        System.err.println(String.valueOf(shown).lines().findFirst().orElse("failed"));
        System.err.flush();
        Runtime.getRuntime().halt(1);
    }
}
