// The shown story: that of the selection. Hovering does not change it.

import { computed, type ReadonlySignal } from "@preact/signals";
import { buildOf, LOADING, value, type Asked, type Build } from "../builds";
import { format, type Ref } from "../refs";
import { selected } from "../state";
import type { Story } from "../wire";

export interface Told {
  readonly build: Build;
  readonly ref: Ref;
  readonly story: Asked<Story>;
}

/** The thing whose story is shown; null without a selection. */
export const told: ReadonlySignal<Told | null> = computed(() => {
  const here = selected.value;
  const build = here && buildOf(here.build);
  if (!build) return null;
  const ref = subject(build, here.ref);
  return ref ? { build, ref, story: build.story(format(ref)).value } : { build, ref: here.ref, story: LOADING };
});

/** A line of the model pane stands for its layer. Null while that is unknown. */
function subject(build: Build, ref: Ref): Ref | null {
  if (ref.kind !== "source") return ref;
  const model = value(build.model.value);
  const overview = value(build.overview.value);
  if (!model || !overview) return null;
  const layer = overview.layers[model.line_layers[ref.line - 1] ?? -1];
  return layer ? { kind: "layer", name: layer.name } : ref;
}
