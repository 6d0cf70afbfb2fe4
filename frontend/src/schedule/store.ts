// The state of a kernel's schedule that outlives panes: edits and their results.

import { signal, type Signal } from "@preact/signals";
import { runJob } from "../jobs";
import type { ErrorInfo, ScheduleTrial } from "../wire";
import { begin, type Edit } from "./edit";

/** The outcome of a trial of an edited schedule; `steps` are the tried ones. */
export type Tried =
  | { readonly state: "none" | "running" }
  | { readonly state: "done"; readonly steps: readonly string[]; readonly trial: ScheduleTrial }
  | { readonly state: "failed"; readonly steps: readonly string[]; readonly error: ErrorInfo };

export interface Kept {
  readonly edit: Signal<Edit | null>;
  readonly tried: Signal<Tried>;
}

const kept = new Map<string, Kept>();

export function keptOf(build: string, kernel: number): Kept {
  const key = `${build}/${kernel}`;
  let found = kept.get(key);
  if (!found) kept.set(key, (found = { edit: signal(null), tried: signal<Tried>({ state: "none" }) }));
  return found;
}

export function edit(of: Kept, steps: readonly string[]): void {
  of.edit.value ??= begin(steps);
}

export function trialTitle(kernel: number): string {
  return `Trying a schedule of kernel ${kernel}`;
}

/** Recompiles a kernel with other steps, and runs both versions. */
export async function trySteps(of: Kept, build: string, kernel: number, steps: readonly string[]): Promise<void> {
  let error: ErrorInfo | null = null;
  of.tried.value = { state: "running" };
  const trial = await runJob<ScheduleTrial>(build, "schedule", { kernel, steps }, trialTitle(kernel), {
    onError: (found) => (error = found),
  });
  if (trial) of.tried.value = { state: "done", steps, trial };
  else of.tried.value = error ? { state: "failed", steps, error } : { state: "none" };
}

/** The step that an error is about, from 0; -1 if the error names none. */
export function failedStep(error: ErrorInfo): number {
  const found = /^step (\d+)$/.exec(error.stage);
  return found ? Number(found[1]) - 1 : -1;
}

/** Where a step that failed stands among steps that may have been edited since: as it was, else at
 * its old place, where it was edited; -1 where there is no such place. */
export function placeOf(failed: number, text: string, steps: readonly string[]): number {
  if (steps[failed] === text) return failed;
  const found = steps.indexOf(text);
  return found >= 0 || failed >= steps.length ? found : failed;
}

export function sameSteps(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((step, n) => step === b[n]);
}
