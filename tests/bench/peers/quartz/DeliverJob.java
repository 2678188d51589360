// SPDX-License-Identifier: Apache-2.0
package bench;

import org.quartz.Job;
import org.quartz.JobExecutionContext;

/** What Quartz runs for each trigger. */
public final class DeliverJob implements Job {
    static final String PAYLOAD = "payload";

    private final Handler handler;

    DeliverJob(Handler handler) {
        this.handler = handler;
    }

    @Override
    public void execute(JobExecutionContext context) {
        handler.handle(context.getMergedJobDataMap().getString(PAYLOAD),
                context.getScheduledFireTime().getTime());
    }
}
