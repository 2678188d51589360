// SPDX-License-Identifier: Apache-2.0
package bench;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.util.Arrays;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.quartz.JobBuilder;
import org.quartz.JobDetail;
import org.quartz.Scheduler;
import org.quartz.SchedulerException;
import org.quartz.SimpleScheduleBuilder;
import org.quartz.Trigger;
import org.quartz.TriggerBuilder;
import org.quartz.impl.StdSchedulerFactory;

/**
 * Quartz with a clustered JDBC store: one durable job that a failed node's survivors run again, and
 * a one-shot trigger with the payload for each job of the bench.
 */
public final class QuartzPeer implements Peer {
    private static final int THREADS = 50;
    /**
     * Its manual advises more than there are workers, but on two cores those only queue for one row
     * lock: 60 connections cost the database 1.4 times the CPU, and neither single enqueues nor
     * lifecycles gained.
     */
    private static final int CONNECTIONS = 10;
    /** A batch holds the lock that workers wait for, so a larger one gains nothing. */
    private static final int BATCH = 100;
    private static final String TABLES = "/org/quartz/impl/jdbcjobstore/tables_postgres.sql";
    private static final String EMPTY = "TRUNCATE qrtz_job_details, qrtz_fired_triggers,"
            + " qrtz_scheduler_state, qrtz_locks CASCADE";

    private final Database database;
    private final Connection connection;
    private final JobDetail job = JobBuilder.newJob(DeliverJob.class)
            .withIdentity("deliver").storeDurably().requestRecovery().build();
    private boolean isMade;
    private Scheduler scheduler;
    private volatile Handler handler;

    private QuartzPeer(Database database) throws Exception {
        if (!database.kind().equals(Database.POSTGRES)) {
            throw new IllegalArgumentException("DATABASE_URL has to be one of PostgreSQL");
        }
        this.database = database;
        connection = database.connect();
    }

    public static void main(String[] args) {
        Bench.main(QuartzPeer::new, args);
    }

    @Override
    public void reset() throws Exception {
        if (scheduler != null) {
            scheduler.shutdown(true);
        }
        Database.execute(connection, isMade ? List.of(EMPTY) : tables());
        isMade = true;
        scheduler = new StdSchedulerFactory(settings()).getScheduler();
        scheduler.setJobFactory((bundle, whose) -> new DeliverJob(handler));
        scheduler.addJob(job, false);
    }

    @Override
    public void enqueue(Job one) throws SchedulerException {
        scheduler.scheduleJob(trigger(one));
    }

    @Override
    public void enqueueBatch(List<Job> jobs) throws SchedulerException {
        Set<Trigger> triggers = jobs.stream().map(this::trigger).collect(Collectors.toSet());
        scheduler.scheduleJobs(Map.of(job, triggers), true);
    }

    @Override
    public int batchSize() {
        return BATCH;
    }

    @Override
    public void start(Handler newHandler) throws SchedulerException {
        handler = newHandler;
        scheduler.start();
    }

    @Override
    public void stop() throws SchedulerException {
        scheduler.shutdown(true);
        scheduler = null;
    }

    @Override
    public void analyze() throws Exception {
        Database.execute(connection, List.of("ANALYZE"));
    }

    @Override
    public boolean isFinished() throws Exception {
        return !Database.hasRow(connection, "SELECT 1 FROM qrtz_fired_triggers LIMIT 1")
                && !Database.hasRow(connection, "SELECT 1 FROM qrtz_triggers LIMIT 1");
    }

    /** A trigger that is late fires all the same, without the detour through misfire handling. */
    private Trigger trigger(Job one) {
        return TriggerBuilder.newTrigger().withIdentity(one.id()).forJob(job)
                .startAt(new Date(one.dueMs())).usingJobData(DeliverJob.PAYLOAD, one.payload())
                .withSchedule(SimpleScheduleBuilder.simpleSchedule()
                        .withMisfireHandlingInstructionIgnoreMisfires())
                .build();
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "org.quartz.scheduler.instanceName", "bench",
                "org.quartz.scheduler.instanceId", "AUTO",
                "org.quartz.scheduler.skipUpdateCheck", "true",
                "org.quartz.scheduler.batchTriggerAcquisitionMaxCount", "" + THREADS,
                "org.quartz.threadPool.class", "org.quartz.simpl.SimpleThreadPool",
                "org.quartz.threadPool.threadCount", "" + THREADS));
        settings.putAll(Map.of(
                "org.quartz.jobStore.class", "org.quartz.impl.jdbcjobstore.JobStoreTX",
                "org.quartz.jobStore.driverDelegateClass",
                "org.quartz.impl.jdbcjobstore.PostgreSQLDelegate",
                "org.quartz.jobStore.dataSource", "bench",
                "org.quartz.jobStore.useProperties", "true",
                "org.quartz.jobStore.isClustered", "true",
                "org.quartz.jobStore.acquireTriggersWithinLock", "true",
                "org.quartz.jobStore.lockOnInsert", "false"));
        settings.putAll(Map.of(
                "org.quartz.dataSource.bench.provider", "hikaricp",
                "org.quartz.dataSource.bench.driver", "org.postgresql.Driver",
                "org.quartz.dataSource.bench.URL", database.jdbcUrl(),
                "org.quartz.dataSource.bench.user", database.user(),
                "org.quartz.dataSource.bench.password", database.password(),
                "org.quartz.dataSource.bench.maxConnections", "" + Bench.connections(CONNECTIONS)));
        return settings;
    }

    /** Quartz's own script, which also drops what is there. */
    private static List<String> tables() throws IOException {
        try (InputStream script = Scheduler.class.getResourceAsStream(TABLES)) {
            String text = new String(script.readAllBytes(), StandardCharsets.UTF_8);
            return Arrays.stream(text.replaceAll("(?m)^--.*$", "").split(";"))
                    .map(String::strip).filter(sql -> !sql.isEmpty()).toList();
        }
    }
}
