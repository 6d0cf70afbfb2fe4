import { cancelJob, type JobState } from "../jobs";

/** A job's current work, its progress, and a button to cancel it. */
export function Progress({ job }: { readonly job: JobState }) {
  const share = job.fraction === null ? undefined : job.fraction;
  return (
    <div class="job-progress" role="status">
      <p class="what">
        <b>{job.title}</b>
        <span class="seconds">{job.seconds >= 1 ? `${job.seconds.toFixed(0)} s` : ""}</span>
      </p>
      <progress value={share} max={1} aria-label={job.title} />
      <p class="doing">{job.state === "cancelling" ? "cancelling …" : job.text || "starting …"}</p>
      <button data-action="cancel" disabled={job.state !== "running"} onClick={() => cancelJob(job.key)}>
        Cancel
      </button>
    </div>
  );
}
