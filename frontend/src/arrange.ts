// What is open at first: what a performance engineer asks first, from left to right. Where the time
// goes; what the model became; the loops of the kernel that has most to do.

import { buildOf, builds, value, type Build } from "./builds";
import { current, makePane, panes, type Pane } from "./state";

/** From this width on there is room for the model as well. */
const WIDE = 1700;

export function arrange(): void {
  const build = buildOf(current.peek()) ?? builds.peek()[0];
  if (!build || panes.peek().length) return;
  const overview = value(build.overview.peek());
  if (!overview) return;
  panes.value = [
    makePane(build.id, "time"),
    ...(innerWidth >= WIDE ? [makePane(build.id, "model")] : []),
    makePane(build.id, "stage", overview.stages.length - 1, "graph"),
    ...(overview.kernels.length ? [makePane(build.id, "loops", hottest(build))] : []),
  ] satisfies Pane[];
}

/** The kernel with most arithmetic: a guess, until times are measured. */
function hottest(build: Build): number {
  const kernels = value(build.overview.peek())?.kernels ?? [];
  return kernels.reduce((best, k) => (k.flops > (kernels[best]?.flops ?? -1) ? k.index : best), 0);
}
