// SPDX-License-Identifier: Apache-2.0
package bench;

import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.SchedulerBuilder;
import com.github.kagkarlsson.scheduler.SchedulerClient;
import com.github.kagkarlsson.scheduler.jdbc.AutodetectJdbcCustomization;
import com.github.kagkarlsson.scheduler.jdbc.JdbcCustomization;
import com.github.kagkarlsson.scheduler.serializer.Serializer;
import com.github.kagkarlsson.scheduler.task.SchedulableInstance;
import com.github.kagkarlsson.scheduler.task.helper.OneTimeTask;
import com.github.kagkarlsson.scheduler.task.helper.Tasks;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.time.Duration;
import java.time.Instant;
import java.util.List;

/**
 * db-scheduler with one-time tasks, set up as its page on performance says: 50 threads,
 * lock-and-fetch (on MariaDB, which it does not have that for, fetch as by default).
 */
public final class DbSchedulerPeer implements Peer {
    private static final int THREADS = 50;
    /** HikariCP's default, near to what its manual reckons for two cores; best of 10, 20 and 50. */
    private static final int CONNECTIONS = 10;
    /** Best of 100, 500 and 1,000. */
    private static final int BATCH = 500;
    /** For the lateness; a drain gains some 20 % by a second instead, and nothing by 100 ms. */
    private static final Duration POLL = Duration.ofMillis(10);
    private static final String TABLE = "scheduled_tasks";

    private final Database database;
    private final HikariDataSource pool;
    private final OneTimeTask<String> task;
    private boolean isMade;
    private SchedulerClient client;
    private Scheduler scheduler;
    private volatile Handler handler;

    /** Payloads are text already. */
    private static final class TextSerializer implements Serializer {
        @Override
        public byte[] serialize(Object data) {
            return data == null ? null : ((String) data).getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public <T> T deserialize(Class<T> type, byte[] data) {
            return data == null ? null : type.cast(new String(data, StandardCharsets.UTF_8));
        }
    }

    private DbSchedulerPeer(Database database) {
        this.database = database;
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(database.jdbcUrl());
        config.setUsername(database.user());
        config.setPassword(database.password());
        config.setMaximumPoolSize(Bench.connections(CONNECTIONS));
        pool = new HikariDataSource(config);
        task = Tasks.oneTime("bench", String.class).execute((instance, context) -> handler.handle(
                instance.getData(), context.getExecution().executionTime.toEpochMilli()));
    }

    public static void main(String[] args) {
        Bench.main(DbSchedulerPeer::new, args);
    }

    @Override
    public void reset() throws Exception {
        try (Connection connection = pool.getConnection()) {
            Database.execute(connection, isMade ? List.of("TRUNCATE TABLE " + TABLE) : tables());
        }
        isMade = true;
        client = SchedulerClient.Builder.create(pool, task)
                .serializer(new TextSerializer())
                .jdbcCustomization(customization())
                .build();
    }

    @Override
    public void enqueue(Job job) {
        client.scheduleIfNotExists(task.instance(job.id(), job.payload()),
                Instant.ofEpochMilli(job.dueMs()));
    }

    @Override
    public void enqueueBatch(List<Job> jobs) {
        client.scheduleBatch(jobs.stream().<SchedulableInstance<?>>map(job ->
                SchedulableInstance.of(task.instance(job.id(), job.payload()),
                        Instant.ofEpochMilli(job.dueMs()))).toList());
    }

    @Override
    public int batchSize() {
        return BATCH;
    }

    /** From here on the scheduler itself takes the jobs, so that it knows of those due at once. */
    @Override
    public void start(Handler newHandler) {
        handler = newHandler;
        SchedulerBuilder builder = Scheduler.create(pool, task)
                .serializer(new TextSerializer())
                .jdbcCustomization(customization())
                .threads(THREADS)
                .pollingInterval(POLL)
                .enableImmediateExecution();
        scheduler = (isPostgres()
                ? builder.pollUsingLockAndFetch(0.5, 4.0)
                : builder.pollUsingFetchAndLockOnExecute(0.5, 3.0)).build();
        scheduler.start();
        client = scheduler;
    }

    @Override
    public void stop() {
        scheduler.stop();
    }

    @Override
    public void analyze() throws Exception {
        try (Connection connection = pool.getConnection()) {
            Database.execute(connection,
                    List.of(isPostgres() ? "ANALYZE" : "ANALYZE TABLE " + TABLE));
        }
    }

    @Override
    public boolean isFinished() throws Exception {
        try (Connection connection = pool.getConnection()) {
            return !Database.hasRow(connection, "SELECT 1 FROM " + TABLE + " LIMIT 1");
        }
    }

    private boolean isPostgres() {
        return database.kind().equals(Database.POSTGRES);
    }

    /** With times in UTC on MariaDB, whose datetime has no zone. */
    private JdbcCustomization customization() {
        return new AutodetectJdbcCustomization(pool, !isPostgres());
    }

    /** The columns and indexes that db-scheduler asks for where priorities are not in use. */
    private List<String> tables() {
        boolean postgres = isPostgres();
        String name = postgres ? "text" : "varchar(100)";
        String blob = postgres ? "bytea" : "blob";
        String time = postgres ? "timestamptz" : "datetime(6)";
        String create = "CREATE TABLE " + TABLE + " (task_name " + name + " NOT NULL,"
                + " task_instance " + name + " NOT NULL, task_data " + blob + ","
                + " execution_time " + time + " NOT NULL, picked boolean NOT NULL,"
                + " picked_by " + name + ", last_success " + time + " NULL,"
                + " last_failure " + time + " NULL, consecutive_failures int,"
                + " last_heartbeat " + time + " NULL, version bigint NOT NULL, priority smallint,"
                + " PRIMARY KEY (task_name, task_instance))";
        return List.of("DROP TABLE IF EXISTS " + TABLE, create,
                "CREATE INDEX execution_time_idx ON " + TABLE + " (execution_time)",
                "CREATE INDEX last_heartbeat_idx ON " + TABLE + " (last_heartbeat)");
    }
}
