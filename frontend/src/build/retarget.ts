// Switches panes of one build to the corresponding parts of another.

import type { Pane } from "../state";
import type { Overview } from "../wire";

/** Returns panes with those of build `from` switched to `to`: stages by name, kernels by their layers. */
export function retargeted(panes: readonly Pane[], from: string, to: string, a: Overview | null, b: Overview): Pane[] {
  return panes.map((pane) => {
    if (pane.build !== from || pane.kind === "diff") return pane;
    const { at: _, ...rest } = pane;
    return { ...rest, build: to, arg: place(pane, a, b) };
  });
}

function place(pane: Pane, a: Overview | null, b: Overview): number {
  if (pane.kind === "stage") {
    const last = a !== null && pane.arg === a.stages.length - 1;
    const named = b.stages.findIndex((stage) => stage.name === a?.stages[pane.arg]?.name);
    return last || named < 0 ? b.stages.length - 1 : named;
  }
  const kernel = a?.kernels[pane.arg];
  if (!kernel || !a) return 0;
  const wanted = new Set(kernel.layers.map((layer) => a.layers[layer]?.name));
  let best = 0;
  let most = 0;
  b.kernels.forEach((other, n) => {
    const shared = other.layers.filter((layer) => wanted.has(b.layers[layer]?.name)).length;
    if (shared > most) [best, most] = [n, shared];
  });
  return best;
}
