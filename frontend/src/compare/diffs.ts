// The differences of pairs of builds: their states, requests for them, and the counterparts of
// things in other builds.

import { computed, signal, type ReadonlySignal } from "@preact/signals";
import { buildOf, builds, errorInfo, LOADING, started, theSource, value, type Asked, type Build } from "../builds";
import { runJob } from "../jobs";
import type { Here, Ref } from "../refs";
import { translation, type Pane } from "../state";
import type { Diff, ErrorInfo } from "../wire";
import { Alignment, counterparts } from "./align";

/** Not computed yet, computed, or failed; `null` is a difference that was not requested. */
export type DiffState = Asked<Diff | null>;

const known = signal<ReadonlyMap<string, DiffState>>(new Map());

function pairOf(a: string, b: string): string {
  return `${a}/${b}`;
}

function put(a: string, b: string, state: DiffState): void {
  known.value = new Map(known.peek()).set(pairOf(a, b), state);
}

/** The state of the difference of two builds; requests it from the source once. */
export function diffOf(a: string, b: string): DiffState {
  const state = known.value.get(pairOf(a, b));
  if (!state) queueMicrotask(() => void load(a, b));
  return state ?? LOADING;
}

/** Whether the difference of two builds has been loaded. */
export function isCompared(a: string, b: string): boolean {
  const state = known.peek().get(pairOf(a, b));
  return !!state && value(state) !== null;
}

/** Takes the difference from the source, if it has it. */
async function load(a: string, b: string): Promise<void> {
  if (known.peek().has(pairOf(a, b))) return;
  put(a, b, LOADING);
  const [first, second] = builds.peek();
  // `clew explore A B` already compares these: another request returns its job, to be followed.
  if (theSource().live && value(started.peek())?.diff && first?.id === a && second?.id === b) {
    return compare(a, b, true, true);
  }
  try {
    put(a, b, { state: "ready", value: await theSource().diff(a, b) });
  } catch (error) {
    const info = errorInfo(error);
    if (theSource().live && NOT_COMPUTED.has(info.code)) put(a, b, { state: "ready", value: null });
    else put(a, b, { state: "failed", error: info });
  }
}

/** The server's error for a difference that was not requested, or was cancelled. */
const NOT_COMPUTED: ReadonlySet<string> = new Set(["I211", "I220"]);

export function diffTitle(a: string, b: string): string {
  return `Comparing ${a.toUpperCase()} and ${b.toUpperCase()}`;
}

/** Requests a comparison of two builds; `time` and `numerics` run both, which takes longer. */
export async function compare(a: string, b: string, time: boolean, numerics: boolean): Promise<void> {
  let failed: ErrorInfo | null = null;
  const found = await runJob<Diff>(a, "diff", { a, b, time, numerics }, diffTitle(a, b), {
    onError: (error) => (failed = error),
  });
  if (found) put(a, b, { state: "ready", value: found });
  else put(a, b, failed ? { state: "failed", error: failed } : { state: "ready", value: null });
}

/** Clears a failed difference, so that it can be requested again. */
export function retry(a: string, b: string): void {
  put(a, b, { state: "ready", value: null });
}

/** The build that another one is compared with, of which a difference pane is the pane: the one after
 * it, or before; one that could not be made only where there is no other. */
export function partner(build: Build, arg: number): Build | null {
  const all = builds.value.filter((b) => b !== build);
  const made = all.filter((b) => b.info.value.state !== "failed");
  const others = made.length ? made : all;
  const at = builds.value[arg];
  return at && at !== build ? at : (others.find((b) => builds.value.indexOf(b) > builds.value.indexOf(build)) ?? others[0] ?? null);
}

/** Two builds in order of creation: a difference goes from the first to the second. */
export function inOrder(x: Build, y: Build): readonly [Build, Build] {
  return builds.value.indexOf(x) <= builds.value.indexOf(y) ? [x, y] : [y, x];
}

/** Whether a pane shows the difference that would be opened for a build. */
export function showsDiff(pane: Pane, build: Build): boolean {
  const of = pane.kind === "diff" ? buildOf(pane.build) : null;
  const other = partner(build, 0);
  return of !== null && other !== null && pairOf(...ids(of, partner(of, pane.arg))) === pairOf(...ids(build, other));
}

function ids(x: Build, y: Build | null): readonly [string, string] {
  const [a, b] = y ? inOrder(x, y) : [x, x];
  return [a.id, b.id];
}

const alignments = new Map<string, ReadonlySignal<Alignment | null>>();

/** The alignment of two builds' layers: as computed, else by name; null until both are loaded. */
function alignment(a: string, b: string): ReadonlySignal<Alignment | null> {
  const pair = pairOf(a, b);
  let found = alignments.get(pair);
  if (!found) {
    found = computed(() => {
      const there = computedDiff(a, b);
      if (there) return Alignment.of(there.layers);
      const back = computedDiff(b, a);
      if (back) return Alignment.of(back.layers).turned;
      const from = overviewOf(a);
      const to = overviewOf(b);
      return from && to ? Alignment.named(from.layers, to.layers) : null;
    });
    alignments.set(pair, found);
  }
  return found;
}

function computedDiff(a: string, b: string): Diff | null {
  const state = known.value.get(pairOf(a, b));
  return state ? value(state) : null;
}

function overviewOf(id: string) {
  const build = buildOf(id);
  return build?.info.value.state === "ready" ? value(build.overview.value) : null;
}

/** The counterpart of a thing of one build in another. */
export function translated(here: Here, to: string): readonly Ref[] {
  const from = buildOf(here.build);
  const thread = from?.thread.value;
  const layers = overviewOf(to)?.layers;
  const pairs = alignment(here.build, to).value;
  return from && thread && layers && pairs ? counterparts(here.ref, thread, from, pairs, layers) : [];
}

/** Links hovered things in one build with the others from now on. */
export function linkBuilds(): void {
  translation.value = translated;
}
