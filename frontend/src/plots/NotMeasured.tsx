// A placeholder for a figure before its measurement: describes the measurement and starts it.

import type { Build } from "../builds";
import { COMPARING, MEASURING, measureFor, NEEDS } from "../heat";
import { isRunning } from "../jobs";
import type { Metric } from "../state";

export function NotMeasured({ build, what }: { readonly build: Build; readonly what: Metric }) {
  const errors = NEEDS[what] === "errors";
  return (
    <div class="not-measured">
      <p>{errors ? "Values have not been compared with f32 yet." : "No time has been measured yet."}</p>
      {build.source.live ? (
        <>
          <MeasureButton build={build} what={what} />
          <p class="dim">
            {errors
              ? "Compiles the model again at opt level 0 in f32, runs both on inputs drawn from a seed, and compares each layer's value that is in memory."
              : "Runs the model for some seconds on inputs drawn from a seed, with timers and sampled instructions."}
          </p>
        </>
      ) : (
        <p class="dim">This report was written without measurements; clew report --profile includes them.</p>
      )}
    </div>
  );
}

/** A button that runs a metric's measurement, and shows when it is running. */
export function MeasureButton({ build, what, again = false }: { readonly build: Build; readonly what: Metric; readonly again?: boolean }) {
  const errors = NEEDS[what] === "errors";
  const running = isRunning(build.id, errors ? COMPARING : MEASURING);
  const label = errors ? "Compare with f32" : again ? "Measure again" : "Measure";
  return (
    <button class={again ? "quiet" : "primary"} disabled={running} onClick={() => measureFor(what, build.id)}>
      {running ? (errors ? "Comparing …" : "Measuring …") : label}
    </button>
  );
}
