// The panes that are open at first, from left to right: the times, the model as in its file, and if
// there is room the loops of the kernel with the most work. Anything else is a click away.

import { buildOf, builds, value } from "./builds";
import { countedOf } from "./panes/counted";
import { current, makePane, panes } from "./state";

/** From this width on there is room for a third pane beside the story. */
const WIDE = 1700;

export function arrange(): void {
  const build = buildOf(current.peek()) ?? builds.peek()[0];
  if (!build || panes.peek().length) return;
  const overview = value(build.overview.peek());
  if (!overview) return;
  const code = innerWidth >= WIDE && overview.kernels.length > 0;
  panes.value = [
    makePane(build.id, "time"),
    // A model without layers, such as one made in Python, shows its imported graph.
    overview.layers.length ? makePane(build.id, "model", 0, "graph") : makePane(build.id, "stage", 0, "graph"),
    ...(code ? [makePane(build.id, "loops", countedOf(build, "loops"))] : []),
  ];
}
