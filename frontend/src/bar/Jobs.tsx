// Running jobs: their progress, and buttons to cancel them.

import { cancelJob, jobs, type JobState } from "../jobs";
import { Icon } from "../parts/Icon";

export function Jobs() {
  return (
    <div class="jobs" role="status" aria-label="Work under way">
      {jobs.value.map((job) => (
        <Job key={job.key} job={job} />
      ))}
    </div>
  );
}

function Job({ job }: { readonly job: JobState }) {
  const known = job.fraction !== null;
  const said = job.state === "done" ? `done in ${job.seconds.toFixed(1)} s` : job.state === "cancelling" ? "cancelling …" : job.text;
  return (
    <div class={`job ${job.state}`} data-job={job.id} title={`${job.title}: ${said}`}>
      <span class="job-title">{job.title}</span>
      <span class="job-text">{said}</span>
      {job.state !== "done" && (
        <>
          <div
            class={known ? "track" : "track unknown"}
            role="progressbar"
            aria-label={job.title}
            aria-valuenow={known ? Math.round(100 * (job.fraction ?? 0)) : undefined}
          >
            <div class="fill" style={known ? { width: `${100 * (job.fraction ?? 0)}%` } : {}} />
          </div>
          <button class="quiet" aria-label={`Cancel ${job.title}`} title="Cancel" disabled={job.state === "cancelling"} onClick={() => cancelJob(job.key)}>
            <Icon name="close" size={12} />
          </button>
        </>
      )}
    </div>
  );
}
