// Decides which stage or kernel a new pane shows, for the
// palette, the film strip, the menus and the panes a page starts with.

import { timeOf } from "../story/shares";
import { value, type Build } from "../builds";
import { panes, reachIn, selected, type PaneKind } from "../state";
import { COUNTED } from "./kinds";

/** The one of the selection, else the one that panes show, else the last stage or the hottest kernel. */
export function countedOf(build: Build, kind: PaneKind): number {
  const counted = COUNTED[kind];
  return counted === "stage" ? stageOf(build) : counted === "kernel" ? kernelOf(build) : 0;
}

function stageOf(build: Build): number {
  const at = selected.peek();
  if (at?.build === build.id && (at.ref.kind === "node" || at.ref.kind === "stage")) return at.ref.stage;
  return shown(build, "stage") ?? Math.max(0, (value(build.overview.peek())?.stages.length ?? 1) - 1);
}

function kernelOf(build: Build): number {
  const kernels = chosenKernels(build);
  const open = shown(build, "kernel");
  if (open !== undefined && (!kernels.length || kernels.includes(open))) return open;
  return kernels[0] ?? open ?? hottest(build);
}

/** The kernels of the selection; for a kernel or layer they are known before the links are loaded. */
function chosenKernels(build: Build): readonly number[] {
  const at = selected.peek();
  if (at?.build === build.id) {
    const { ref } = at;
    if (ref.kind === "kernel" || ref.kind === "loop" || ref.kind === "llvm" || ref.kind === "asm") return [ref.kernel];
    if (ref.kind === "layer") {
      const layer = value(build.overview.peek())?.layers.find(({ name }) => name === ref.name);
      if (layer) return layer.kernels;
    }
  }
  return [...reachIn(build.id).peek().kernels.keys()];
}

function shown(build: Build, counted: "stage" | "kernel"): number | undefined {
  return panes.peek().find((pane) => pane.build === build.id && COUNTED[pane.kind] === counted)?.arg;
}

/** The kernel with the most time; before a measurement, the one with the most FLOPs. */
function hottest(build: Build): number {
  const kernels = value(build.overview.peek())?.kernels ?? [];
  const times = timeOf(build)?.kernels;
  const figure = (n: number): number => (times ? times[n] : kernels[n]?.flops) ?? 0;
  return kernels.reduce((best, { index }) => (figure(index) > figure(best) ? index : best), 0);
}
