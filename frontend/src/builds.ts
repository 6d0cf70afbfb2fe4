// The builds that the page knows, and their cached answers. Most answers never change; those that
// depend on measurements are requested again (see heat.ts).

import { computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type { Source } from "./answering";
import { coded, Coded } from "./coded";
import { Thread, type CodeLines } from "./thread";
import type { Ref } from "./refs";
import type { Answers, BuildInfo, Code, ErrorInfo, Heat, Index, Links, Overview, Source as ModelSource, Stage, Start, Story } from "./wire";

/** A requested answer: loading, ready, or failed. */
export type Asked<T> =
  | { readonly state: "loading" }
  | { readonly state: "ready"; readonly value: T }
  | { readonly state: "failed"; readonly error: ErrorInfo };

export const LOADING: Asked<never> = { state: "loading" };

export class Build implements CodeLines {
  private readonly kept = new Map<string, Signal<Asked<unknown>>>();
  readonly thread: ReadonlySignal<Thread | null>;

  constructor(
    readonly id: string,
    readonly info: Signal<BuildInfo>,
    readonly source: Source,
  ) {
    this.thread = computed(() => {
      const overview = value(this.overview.value);
      const links = value(this.links.value);
      if (!overview || !links) return null;
      const thread = new Thread(overview, links);
      setTimeout(() => thread.warm(), 500);
      return thread;
    });
  }

  /** Returns the answer to a route, requested once; `fresh` requests it again. */
  ask<K extends keyof Answers>(path: K | `${K}/${string}`, fresh = false): ReadonlySignal<Asked<Answers[K]>> {
    let found = this.kept.get(path) as Signal<Asked<Answers[K]>> | undefined;
    if (found && !fresh) return found;
    if (!found) {
      found = signal<Asked<Answers[K]>>(LOADING);
      this.kept.set(path, found as Signal<Asked<unknown>>);
    }
    const asked = found;
    compiled(this.info).then(() => this.source.get<K>(this.id, path)).then(
      (answer) => (asked.value = { state: "ready", value: answer }),
      (error: unknown) => (asked.value = { state: "failed", error: errorInfo(error) }),
    );
    return asked;
  }

  get overview(): ReadonlySignal<Asked<Overview>> {
    return this.ask("overview");
  }

  get links(): ReadonlySignal<Asked<Links>> {
    return this.ask("links");
  }

  stage(index: number): ReadonlySignal<Asked<Stage>> {
    // Stages that change nothing share the previous stage's text: request that.
    const stages = value(this.overview.peek())?.stages;
    let at = index;
    while (stages && at > 0 && !stages[at]?.changed) at--;
    return this.ask(`stage/${at}`);
  }

  code(kernel: number): ReadonlySignal<Asked<Code>> {
    return this.ask(`code/${kernel}`);
  }

  get model(): ReadonlySignal<Asked<ModelSource>> {
    return this.ask("source");
  }

  get index(): ReadonlySignal<Asked<Index>> {
    return this.ask("index");
  }

  /** The story of the thing that a ref names. */
  story(ref: string): ReadonlySignal<Asked<Story>> {
    return this.ask(`story/${ref}`);
  }

  /** A figure for all parts of the build, requested again after a new measurement. */
  heat(metric: string): ReadonlySignal<Asked<Heat>> {
    return this.ask(`heat/${metric}`);
  }

  /** Answers that have arrived, with their paths. */
  loaded(): [path: string, answer: object][] {
    return [...this.kept].flatMap(([path, asked]): [string, object][] => {
      const found = value(asked.peek());
      return found ? [[path, found]] : [];
    });
  }

  /** The line of the loop nest behind a line of code; 0 if it is unknown or not loaded. */
  loopOf(ref: Ref): number {
    if (ref.kind === "loop") return ref.line;
    if (ref.kind !== "llvm" && ref.kind !== "asm") return 0;
    const code = value(this.code(ref.kernel).value);
    const lines = ref.kind === "llvm" ? code?.llvm_loop : code?.asm_loop;
    return lines?.[ref.line - 1] ?? 0;
  }

  /** The operator that a line of the loop nest computes, -1 for all of the kernel's. */
  opOf(kernel: number, loop: number): number {
    return value(this.code(kernel).value)?.loop_op[loop - 1] ?? -1;
  }
}

/**
 * Resolves when a build is no longer compiling. Requests that wait at the server would occupy the
 * browser's six connections, and leave none for progress and cancellation.
 */
function compiled(info: Signal<BuildInfo>): Promise<void> {
  return new Promise((resolve) => {
    const unsubscribe = effect(() => {
      if (info.value.state === "compiling") return;
      queueMicrotask(() => unsubscribe());
      resolve();
    });
  });
}

export function value<T>(asked: Asked<T>): T | null {
  return asked.state === "ready" ? asked.value : null;
}

export function errorInfo(error: unknown): ErrorInfo {
  if (error instanceof Coded) return error.info;
  return coded("W003", error instanceof Error ? error.message : String(error)).info;
}

/** All builds, in order of creation, and whether more can be made. */
export const builds = signal<readonly Build[]>([]);
export const started = signal<Asked<Start>>(LOADING);

let origin: Source | null = null;

export function theSource(): Source {
  if (!origin) throw coded("W003", "the page has not started");
  return origin;
}

export async function begin(source: Source): Promise<void> {
  origin = source;
  try {
    const start = await source.start();
    for (const info of start.builds) addBuild(info);
    started.value = { state: "ready", value: start };
  } catch (error) {
    started.value = { state: "failed", error: errorInfo(error) };
  }
}

/** Adds a build, or updates a known one. */
export function addBuild(info: BuildInfo): Build {
  const known = builds.peek().find((b) => b.id === info.id);
  if (known) {
    known.info.value = info;
    return known;
  }
  const build = new Build(info.id, signal(info), theSource());
  builds.value = [...builds.peek(), build];
  return build;
}

export function buildOf(id: string): Build | null {
  return builds.value.find((b) => b.id === id) ?? null;
}

export { effect };
