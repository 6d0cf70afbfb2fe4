// The iteration of a loop that is shown, out of all or of those in a report.

/** Iterations that can be shown, from 0: all of `total`, or those in `held`. */
export interface Iterations {
  readonly total: number;
  readonly held: readonly number[] | null;
}

export type Step = "first" | "previous" | "next" | "last";

/** The iteration that a step leads to; the same one at the ends. */
export function stepped({ total, held }: Iterations, at: number, step: Step): number {
  const all = held ?? null;
  const last = all ? (all.at(-1) ?? at) : Math.max(0, total - 1);
  if (step === "first") return all ? (all[0] ?? at) : 0;
  if (step === "last") return last;
  if (step === "next") return all ? (all.find((iteration) => iteration > at) ?? at) : Math.min(last, at + 1);
  return all ? (all.findLast((iteration) => iteration < at) ?? at) : Math.max(0, at - 1);
}

/** The available iteration nearest to a requested one. */
export function nearest({ total, held }: Iterations, iteration: number): number {
  if (!held) return Math.max(0, Math.min(total - 1, iteration));
  return held.reduce((best, one) => (Math.abs(one - iteration) < Math.abs(best - iteration) ? one : best), held[0] ?? iteration);
}

/** The typed iteration, counted from 1; null if the text is not a number. */
export function typed(text: string): number | null {
  return /^\s*\d{1,15}\s*$/.test(text) && Number(text) >= 1 ? Number(text) - 1 : null;
}
