// Jobs of the server for the page: compiling, measuring, trying a schedule. Code that starts
// some calls `runJob` (or `followJob` for a job that is under way); the bar shows its progress and
// cancels it, and an error comes up as a notice unless the caller takes it.

import { signal } from "@preact/signals";
import { errorInfo, theSource } from "./builds";
import { tell } from "./notices";
import type { ErrorInfo, JobEvent } from "./wire";

export interface JobState {
  readonly key: number;
  /** The server's name for it, "" until it has one. */
  readonly id: string;
  readonly build: string;
  readonly title: string;
  readonly state: "running" | "cancelling" | "done";
  /** The job's description of its current work. */
  readonly text: string;
  /** From 0 to 1, null if the end is unknown. */
  readonly fraction: number | null;
  readonly seconds: number;
}

export interface JobOptions {
  /** Takes the error instead of the notice. */
  readonly onError?: (error: ErrorInfo) => void;
  readonly onEvent?: (event: JobEvent) => void;
}

/** Running jobs, and for some seconds finished ones; oldest first. */
export const jobs = signal<readonly JobState[]>([]);

const DONE_SHOWN_MS = 4000;
/** The code that the server and source.ts use for a cancelled job. */
const CANCELLED = new Set(["W002"]);
let keys = 0;

/**
 * Has an action done to a build (src/clew/explorer/actions) and returns its result; null where it
 * failed or was cancelled, which the user has been told.
 */
export async function runJob<T>(
  build: string,
  action: string,
  params: Record<string, unknown>,
  title: string,
  options: JobOptions = {},
): Promise<T | null> {
  return watch<T>(add(build, title), () => theSource().act(build, action, params), options);
}

/** Follows a running job, such as `BuildInfo.job`, and returns its result, else null. */
export async function followJob<T>(
  id: string,
  build: string,
  title: string,
  options: JobOptions = {},
): Promise<T | null> {
  return watch<T>(add(build, title), () => Promise.resolve(id), options);
}

/** Cancels a job; one without a server name yet is cancelled as soon as it has one. */
export function cancelJob(key: number): void {
  const job = jobs.peek().find((j) => j.key === key);
  if (!job || job.state !== "running") return;
  change(key, { state: "cancelling" });
  if (job.id) void theSource().cancel(job.id);
}

/** Whether a job of this title runs for a build, for buttons that start one. */
export function isRunning(build: string, title: string): boolean {
  return jobs.value.some((j) => j.build === build && j.title === title && j.state !== "done");
}

async function watch<T>(key: number, start: () => Promise<string>, options: JobOptions): Promise<T | null> {
  const cancelling = () => jobs.peek().some((j) => j.key === key && j.state === "cancelling");
  try {
    const id = await start();
    const early = cancelling();
    change(key, { id });
    if (early) void theSource().cancel(id);
    const result = await theSource().follow<T>(id, (event) => {
      const { text, fraction, seconds } = event;
      change(key, { text, fraction, seconds });
      options.onEvent?.(event);
    });
    change(key, { state: "done", fraction: 1 });
    setTimeout(() => remove(key), DONE_SHOWN_MS);
    return result;
  } catch (error) {
    const title = jobs.peek().find((j) => j.key === key)?.title ?? "";
    remove(key);
    const info = errorInfo(error);
    if (CANCELLED.has(info.code)) tell(`${title}: cancelled`);
    else if (options.onError) options.onError(info);
    else tell(title, info);
    return null;
  }
}

function add(build: string, title: string): number {
  const key = ++keys;
  const state = "running" as const;
  jobs.value = [...jobs.peek(), { key, id: "", build, title, state, text: "", fraction: null, seconds: 0 }];
  return key;
}

function change(key: number, to: Partial<JobState>): void {
  jobs.value = jobs.peek().map((j) => (j.key === key ? { ...j, ...to } : j));
}

function remove(key: number): void {
  jobs.value = jobs.peek().filter((j) => j.key !== key);
}
