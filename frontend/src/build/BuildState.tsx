// Shown instead of panes while a build is not ready: its progress or its error.

import { theSource, type Build } from "../builds";
import { jobs } from "../jobs";
import { ErrorBox } from "../parts/ErrorBox";
import { Progress } from "../parts/Progress";
import { again, buildTitle, retry, titleOf } from "./builder";

export function BuildState({ build }: { readonly build: Build }) {
  const { state, error } = build.info.value;
  const job = jobs.value.find((j) => j.state !== "done" && j.title === buildTitle(build));
  const live = theSource().live;
  return (
    <div class="build-state" data-state={state}>
      {state === "compiling" && (
        <section>
          <h2>{titleOf(build)}</h2>
          {job ? <Progress job={job} /> : <p class="dim">Compiling …</p>}
        </section>
      )}
      {state === "failed" && (
        <section>
          <h2>{titleOf(build)} does not compile</h2>
          {error && <ErrorBox error={error} />}
        </section>
      )}
      {state === "cancelled" && (
        <section>
          <h2>{titleOf(build)}: cancelled</h2>
          <p class="dim">Compilation was stopped.</p>
        </section>
      )}
      {live && (state === "failed" || state === "cancelled") && (
        <p class="build-actions">
          <button class={state === "failed" ? "" : "primary"} data-action="retry" onClick={() => retry(build)}>Try again</button>
          <button class={state === "failed" ? "primary" : ""} data-action="other-options" onClick={() => again(build)}>Try other options</button>
        </p>
      )}
    </div>
  );
}
