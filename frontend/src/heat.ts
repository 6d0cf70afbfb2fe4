// Colour by a figure: time, FLOPs, bytes, share of peak, error. plots/ measures and shows the scale.

import { computed, type ReadonlySignal } from "@preact/signals";
import { metric } from "./state";
import type { Here } from "./refs";

/** Gives the heat of a thing, as a colour, or null where heat is off or nothing is known of it. */
export type HeatColor = (here: Here) => string | null;

export const heatColor: ReadonlySignal<HeatColor> = computed(() => {
  void metric.value;
  return () => null;
});
