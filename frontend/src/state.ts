// The state of the page: panes communicate only through it, and never reference each
// other. Everything but `hover` is in the URL (url.ts).

import { batch, computed, signal, type ReadonlySignal } from "@preact/signals";
import { buildOf, builds, LOADING, value, type Build } from "./builds";
import { format, type Here, type Ref } from "./refs";
import { NOTHING, union, type Reach } from "./thread";

/** Kinds of panes; panes/registry.ts has their components. */
export type PaneKind =
  | "model" | "stage" | "kernels" | "loops" | "llvm" | "asm"
  | "time" | "roofline" | "timeline" | "tokens" | "schedule" | "diff";

/**
 * `arg` is the stage or kernel that is shown; `view` is "" for text or the only view, or "graph";
 * `at` is the place inside the pane's contents, if it has places: the step of a schedule.
 */
export interface Pane {
  readonly key: number;
  readonly build: string;
  readonly kind: PaneKind;
  readonly arg: number;
  readonly view: "" | "graph";
  readonly at?: number;
}

export type Metric = "" | "backend" | "time" | "flops" | "bytes" | "peak" | "error" | "quantization";
export type Theme = "auto" | "dark" | "light";
export type Dialog = "" | "palette" | "search" | "help" | "build";

export const panes = signal<readonly Pane[]>([]);
export const hover = signal<Here | null>(null);
export const selected = signal<Here | null>(null);
export const metric = signal<Metric>("");
export const theme = signal<Theme>("auto");
export const story = signal(true);
export const threads = signal(false);
/** Whether stories of layers show their values in a run; which result, and in a loop which
 * iteration, from 0: null is the last. */
export const values = signal(false);
export const result = signal(0);
export const iteration = signal<number | null>(null);
export const dialog = signal<Dialog>("");
/** The query in the search, kept for when the search is opened again. */
export const searched = signal("");
/** The build that the film strip shows. */
export const current = signal("a");

/** A request to show something: panes that can show `here` scroll to it; `from` is the pane of origin. */
export interface Reveal {
  readonly here: Here;
  readonly from: number;
}
export const reveal = signal<Reveal | null>(null);

/** The pane that was opened or changed last: it is scrolled into view. */
export const opened = signal<{ readonly key: number } | null>(null);

let keys = 0;

export function makePane(build: string, kind: PaneKind, arg = 0, view: "" | "graph" = ""): Pane {
  return { key: ++keys, build, kind, arg, view };
}

/** Opens a pane, or reuses the pane of the same kind and build. */
export function open(build: string, kind: PaneKind, arg = 0, view?: "" | "graph", beside = false): void {
  const known = beside ? undefined : panes.peek().find((p) => p.build === build && p.kind === kind);
  const pane = known ?? makePane(build, kind, arg, view ?? "");
  if (known) update(known.key, { arg, ...(view === undefined ? {} : { view }) });
  else panes.value = [...panes.peek(), pane];
  opened.value = { key: pane.key };
}

/** Scrolls an open pane into view. */
export function bringIntoSight(pane: Pane): void {
  opened.value = { key: pane.key };
}

export function update(key: number, change: Partial<Omit<Pane, "key">>): void {
  panes.value = panes.peek().map((p) => (p.key === key ? { ...p, ...change } : p));
}

export function close(key: number): void {
  panes.value = panes.peek().filter((p) => p.key !== key);
}

/** Hovers something, or nothing. */
export function point(here: Here | null): void {
  const was = hover.peek();
  if (was === here) return;
  if (was && here && was.build === here.build && format(was.ref) === format(here.ref)) return;
  hover.value = here;
}

/** Selects something: every pane that can show it goes there. `from` is the clicked pane. */
export function go(here: Here, from = -1): void {
  batch(() => {
    const was = selected.peek();
    if (was?.build !== here.build || format(was.ref) !== format(here.ref)) result.value = 0;
    selected.value = here;
    hover.value = null;
    for (const build of builds.peek()) {
      const refs = build.id === here.build ? [here.ref] : translate(here, build.id);
      if (refs[0]) follow(build, refs[0], from);
    }
    reveal.value = { here, from };
  });
}

/** Switches panes of code to a kernel that the ref leads to, unless they already show one of these. */
function follow(build: Build, ref: Ref, from: number): void {
  const thread = build.thread.peek();
  if (!thread) return;
  const kernels = thread.reach(ref, build).kernels;
  const first = kernels.keys().next();
  if (first.done) return;
  const code = new Set<PaneKind>(["loops", "llvm", "asm", "schedule"]);
  panes.value = panes.peek().map((pane) =>
    pane.build === build.id && pane.key !== from && code.has(pane.kind) && !kernels.has(pane.arg)
      ? { ...pane, arg: first.value }
      : pane,
  );
}

/** Goes to a ref and makes sure that a pane shows it; `beside` opens one more. */
export function show(here: Here, beside = false): void {
  batch(() => {
    const { build, ref } = here;
    if (ref.kind === "stage" || ref.kind === "node") open(build, "stage", ref.stage, undefined, beside);
    else if (ref.kind === "source") open(build, "model", 0, "", beside);
    else if (ref.kind === "loop") open(build, "loops", ref.kernel, undefined, beside);
    else if (ref.kind === "llvm" || ref.kind === "asm") open(build, ref.kind, ref.kernel, undefined, beside);
    else if (ref.kind === "layer" && (beside || !shows(build, LAYERS))) open(build, "model", 0, undefined, beside);
    else if (ref.kind === "region" && (beside || !shows(build, STAGES))) openLast(build, beside);
    else if (ref.kind === "kernel" && (beside || !shows(build, KERNELS))) open(build, "loops", ref.kernel, undefined, beside);
    go(here);
  });
}

/** Opens the drawing of the last stage, which has the regions. */
function openLast(build: string, beside: boolean): void {
  const stages = value(buildOf(build)?.overview.peek() ?? LOADING)?.stages.length ?? 1;
  open(build, "stage", stages - 1, "graph", beside);
}

/** Panes in which a layer, a region or a kernel can be seen. */
const STAGES: readonly PaneKind[] = ["stage"];
const LAYERS: readonly PaneKind[] = ["model", "stage"];
const KERNELS: readonly PaneKind[] = ["kernels", "loops", "llvm", "asm"];

function shows(build: string, kinds: readonly PaneKind[]): boolean {
  return panes.peek().some((pane) => pane.build === build && kinds.includes(pane.kind));
}

/** The hovered thing, else the selection. */
export const focus: ReadonlySignal<Here | null> = computed(() => hover.value ?? selected.value);

const reaches = new Map<string, ReadonlySignal<Reach>>();

/** The things that the focus leads to in a build. */
export function reachIn(id: string): ReadonlySignal<Reach> {
  let found = reaches.get(id);
  if (!found) {
    found = computed(() => {
      const here = focus.value;
      const build = buildOf(id);
      const thread = build?.thread.value;
      if (!here || !build || !thread) return NOTHING;
      const refs = here.build === id ? [here.ref] : translate(here, id);
      return union(refs.map((ref) => thread.reach(ref, build)));
    });
    reaches.set(id, found);
  }
  return found;
}

/** Returns the counterpart of a thing in another build; compare/ sets it. */
export const translation = signal<((here: Here, build: string) => readonly Ref[]) | null>(null);

function translate(here: Here, id: string): readonly Ref[] {
  return translation.value?.(here, id) ?? [];
}
