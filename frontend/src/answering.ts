// The capabilities of a source of answers: a server has all of them, a report only answers.

import type { Answers, BuildInfo, Diff, JobEvent, Options, Start } from "./wire";

export interface Job {
  readonly id: string;
  cancel(): Promise<void>;
}

export interface Source {
  /** Whether models can be compiled and measured; false in a report. */
  readonly live: boolean;
  start(): Promise<Start>;
  /** `path` is a route of src/clew/explorer/routes.py, such as `stage/3`. */
  get<K extends keyof Answers>(build: string, path: K | `${K}/${string}`): Promise<Answers[K]>;
  /** The available iterations of a layer's result, from 0, in order; null for all. */
  iterations(build: string, output: number, layer: string): Promise<readonly number[] | null>;
  diff(a: string, b: string): Promise<Diff>;
  /** Starts a build of a known model, or of files: the model, then those of its weights. Its job is in the answer. */
  build(model: string | readonly File[], options: Options, onSent?: (share: number) => void, stop?: AbortSignal): Promise<BuildInfo>;
  /** Starts an action of a build (profile, errors, schedule), or `diff`; returns the job's id. */
  act(build: string, action: string, params: Record<string, unknown>): Promise<string>;
  /** Follows a job to its end; resolves to its result. */
  follow<T>(job: string, onEvent: (event: JobEvent) => void): Promise<T>;
  cancel(job: string): Promise<void>;
}
