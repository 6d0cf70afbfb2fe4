// Color by backend: which of them runs a thing, the CPU included.

import { computed, type ReadonlySignal } from "@preact/signals";
import { builds, value, type Build } from "./builds";
import { readLook } from "./graph/look";
import { layerRgb } from "./graph/rgb";
import { palette } from "./plots/scale";
import type { Here, Ref } from "./refs";
import type { Overview } from "./wire";

export const CPU = "cpu";
/** Fates of layers that the CPU runs, or that are part of the memory of values that it writes. */
const ON_CPU: ReadonlySet<string> = new Set(["kernel", "kept", "view", "joined"]);

/** The backends of all builds, in the order of the legend: the CPU, then those of the regions. */
export const backendNames: ReadonlySignal<readonly string[]> = computed(() => {
  const found = new Set([CPU]);
  for (const build of builds.value) {
    const overview = value(build.overview.value);
    for (const region of overview?.regions ?? []) found.add(region.backend);
  }
  return [...found];
});

/** A backend's color, from those of layers: neighbors differ in hue and in lightness. */
export const backendColor: ReadonlySignal<(backend: string) => string> = computed(() => {
  const names = backendNames.value;
  void palette.value; // read again after a change of the theme
  const { dark } = readLook();
  return (backend) => plain(layerRgb(dark, Math.max(0, names.indexOf(backend))));
});

/** The backend that runs a thing; "" if it is not known, or if nothing of it runs. */
export function backendOf({ build: id, ref }: Here): string {
  const build = builds.peek().find((one) => one.id === id);
  const overview = build && value(build.overview.peek());
  return build && overview ? of(build, overview, ref) : "";
}

function of(build: Build, overview: Overview, ref: Ref): string {
  switch (ref.kind) {
    case "region":
      return overview.regions[ref.region]?.backend ?? "";
    case "kernel":
    case "loop":
    case "llvm":
    case "asm":
      return CPU;
    case "layer":
      return ofLayer(overview, build.thread.peek()?.layer(ref.name) ?? -1);
    case "source":
      return ofLayer(overview, value(build.model.peek())?.line_layers[ref.line - 1] ?? -1);
    case "node":
      return ofNodes(build, overview)[ref.stage]?.get(ref.number) ?? "";
    default:
      return "";
  }
}

function ofLayer(overview: Overview, layer: number): string {
  const region = overview.regions.find((one) => one.layers.includes(layer));
  return region?.backend ?? (ON_CPU.has(overview.layers[layer]?.fate ?? "") ? CPU : "");
}

const found = new WeakMap<object, readonly ReadonlyMap<number, string>[]>();

/** The backends of nodes, by stage: those that the operators of kernels and regions were made of. */
function ofNodes(build: Build, overview: Overview): readonly ReadonlyMap<number, string>[] {
  const thread = build.thread.peek();
  if (!thread) return [];
  let all = found.get(thread);
  if (!all) {
    const made = overview.stages.map(() => new Map<number, string>());
    const put = (backend: string, ref: Ref) => {
      thread.reach(ref, build).nodes.forEach((numbers, stage) => {
        for (const number of numbers) made[stage]?.set(number, backend);
      });
    };
    for (const kernel of overview.kernels) put(CPU, { kind: "kernel", kernel: kernel.index });
    // After the kernels: those that convert values at borders were made of the region's call.
    for (const region of overview.regions) put(region.backend, { kind: "region", region: region.index });
    for (const kernel of overview.kernels) {
      for (const number of [kernel.call, ...kernel.numbers]) made[thread.last]?.set(number, CPU);
    }
    found.set(thread, (all = made));
  }
  return all;
}

/** `#rrggbb` in the form of the scale of heat. */
function plain(hex: string): string {
  return `rgb(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(" ")})`;
}
