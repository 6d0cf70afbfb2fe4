// Returns layouts from a cache, or from a worker that can be stopped.

import text from "worker:./layout.worker.ts";
import type { Placed, Progress, ToPlace } from "./place";

export interface Pending {
  readonly placed: Promise<Placed>;
  cancel(): void;
}

const KEPT = 32;
const kept = new Map<string, Placed>();
let idle: Worker | null = null;

/** Lays out a graph; the result is cached under `key`, which names the graph and its collapse state. */
export function layOut(key: string, make: () => ToPlace, progress: Progress): Pending {
  const known = kept.get(key);
  if (known) {
    kept.delete(key);
    kept.set(key, known);
    return { placed: Promise.resolve(known), cancel: () => undefined };
  }
  const worker = idle ?? new Worker(workerUrl());
  idle = null;
  let over = false;
  const placed = new Promise<Placed>((resolve, reject) => {
    worker.onmessage = (event: MessageEvent<{ progress?: number; placed?: Placed; failed?: string }>) => {
      const answer = event.data;
      if (answer.progress !== undefined) return progress(answer.progress);
      over = true;
      idle ??= worker;
      if (answer.placed) {
        keep(key, answer.placed);
        resolve(answer.placed);
      } else reject(new Error(answer.failed ?? "no layout"));
    };
    worker.onerror = (event) => reject(new Error(event.message || "the layout's worker did not start"));
    worker.postMessage(make());
  });
  return {
    placed,
    cancel: () => {
      if (!over) worker.terminate();
    },
  };
}

function keep(key: string, placed: Placed): void {
  kept.set(key, placed);
  const oldest = kept.keys().next();
  if (kept.size > KEPT && !oldest.done) kept.delete(oldest.value);
}

let url = "";
function workerUrl(): string {
  url ||= URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  return url;
}
