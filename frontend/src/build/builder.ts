// Makes builds: a model is uploaded, compiled as a job that all clients may follow, and then shown.

import { batch, effect, signal } from "@preact/signals";
import { addBuild, buildOf, builds, errorInfo, started, theSource, value, type Build } from "../builds";
import { compare, inOrder, isCompared } from "../compare/diffs";
import { followJob } from "../jobs";
import { tell } from "../notices";
import { sizes } from "../panes/sizes";
import { arrange } from "../arrange";
import { current, dialog, makePane, panes, selected } from "../state";
import type { Choices, ErrorInfo, Options } from "../wire";
import { checked, HEAD_BYTES } from "./files";
import { DEFAULTS, optionWords } from "./options";
import { retargeted } from "./retarget";

/** The model in the dialog: one that the server knows by name, or files. */
export const chosenModel = signal<string | readonly File[] | null>(null);
/** The options that the dialog starts with; null for those of the current build. */
export const startOptions = signal<Options | null>(null);
/** The error about dropped, selected or uploaded files. */
export const buildError = signal<ErrorInfo | null>(null);
/** The uploaded fraction of the model; null if no upload is running. */
export const sending = signal<number | null>(null);
/** The build that the dialog started and waits for. */
export const awaited = signal<Build | null>(null);
/** A build that has just become the current one, and the previous one. */
export const offered = signal<{ readonly fresh: Build; readonly before: Build } | null>(null);

export function choices(): Choices | null {
  return value(started.value)?.choices ?? null;
}

export function titleOf(build: Build): string {
  const { model, options } = build.info.value;
  return `${model} (${optionWords(options)})`;
}

/** Opens the dialog for dropped or selected files, or reports why they are rejected: the server says
 * what a file is that has no model's suffix.
 */
export function takeFiles(files: readonly File[]): void {
  const offers = choices();
  if (!offers) return;
  const found = checked(files, offers.suffixes, offers.max_upload_bytes);
  batch(() => {
    if ("error" in found) {
      buildError.value = found.error;
      chosenModel.value = null;
    } else if (found.asked) {
      chosenModel.value = null;
      void compile(found.files.map((file) => new File([file.slice(0, HEAD_BYTES)], file.name)), DEFAULTS);
    } else {
      buildError.value = null;
      chosenModel.value = found.files;
      awaited.value = null;
    }
    dialog.value = "build";
  });
}

/** Opens the dialog on a build's model, with its options. */
export function again(build: Build): void {
  batch(() => {
    chosenModel.value = build.info.value.model;
    startOptions.value = build.info.value.options;
    buildError.value = null;
    awaited.value = null;
    dialog.value = "build";
  });
}

let stopSending: AbortController | null = null;

/** Cancels an upload. */
export function cancelSending(): void {
  stopSending?.abort();
}

/** Compiles; true if the server has accepted it. The build's state has the progress. */
export async function compile(model: string | readonly File[], options: Options): Promise<boolean> {
  buildError.value = null;
  sending.value = 0;
  stopSending = new AbortController();
  try {
    const onSent = (share: number): void => void (sending.value = share);
    const info = await theSource().build(model, options, onSent, stopSending.signal);
    const build = addBuild(info);
    batch(() => {
      awaited.value = build;
      // If there is nothing else to show, the page itself shows the progress.
      if (buildOf(current.peek())?.info.peek().state !== "ready" || current.peek() === build.id) {
        current.value = build.id;
        dialog.value = "";
      }
    });
    watch(build);
    return true;
  } catch (error) {
    const info = errorInfo(error);
    if (info.code !== "W002") buildError.value = info;
    return false;
  } finally {
    sending.value = null;
  }
}

/** Compiles a build's model again with the same options. */
export function retry(build: Build): void {
  const { model, options } = build.info.value;
  void compile(model, options);
}

const watched = new Set<string>();

/** Follows a compiling build to its end; a ready build becomes the current one. */
function watch(build: Build): void {
  const { job } = build.info.value;
  if (!job || watched.has(job)) return;
  watched.add(job);
  const onError = (error: ErrorInfo): void => {
    const seen = current.peek() === build.id || (awaited.peek() === build && dialog.peek() === "build");
    if (!seen) tell(buildTitle(build), error);
  };
  void followJob(job, build.id, buildTitle(build), { onError }).then(async () => {
    await refresh();
    if (build.info.peek().state === "ready" && awaited.peek() === build) become(build);
  });
}

export function buildTitle(build: Build): string {
  return `Compiling ${build.id.toUpperCase()}`;
}

/** Updates the states of all builds. */
async function refresh(): Promise<void> {
  try {
    const start = await theSource().start();
    batch(() => {
      for (const info of start.builds) addBuild(info);
      started.value = { state: "ready", value: start };
    });
  } catch {
    // The server is gone: the next request reports it.
  }
}

/** Shows a build; panes of the previous build switch to it. */
export function become(build: Build): void {
  const before = buildOf(current.peek()) ?? builds.peek().find((b) => b !== build) ?? null;
  const unsubscribe = effect(() => {
    const overview = value(build.overview.value);
    if (!overview) return;
    queueMicrotask(() => unsubscribe());
    batch(() => {
      const was = before && before !== build && before.info.peek().state === "ready" ? before : null;
      const alike = was?.info.peek().model === build.info.peek().model;
      current.value = build.id;
      if (was && alike) panes.value = retargeted(panes.peek(), was.id, build.id, value(was.overview.peek()), overview);
      else panes.value = [];
      const at = selected.peek();
      if (at && at.build !== build.id) selected.value = alike && at.ref.kind === "layer" ? { ...at, build: build.id } : null;
      if (awaited.peek() === build) {
        awaited.value = null;
        if (dialog.peek() === "build") dialog.value = "";
      }
      offered.value = was ? { fresh: build, before: was } : null;
    });
    arrange();
  });
}

/** The width of the table of differences, relative to a graph. */
const TABLE_SHARE = 1.25;

/** Shows two builds side by side: the differences, and the last graph of each. */
export function besides(one: Build, other: Build, start = true): void {
  const [a, b] = inOrder(one, other);
  batch(() => {
    offered.value = null;
    const stages = (build: Build): number => (value(build.overview.peek())?.stages.length ?? 1) - 1;
    const table = makePane(a.id, "diff", builds.peek().indexOf(b));
    sizes.value = new Map(sizes.peek()).set(table.key, TABLE_SHARE);
    panes.value = [
      table,
      makePane(a.id, "stage", stages(a)),
      makePane(b.id, "stage", stages(b)),
    ];
  });
  if (start && theSource().live && !isCompared(a.id, b.id)) void compare(a.id, b.id, true, true);
}

/** Watches compiling builds, including those started elsewhere. */
export function watchBuilds(): void {
  effect(() => {
    for (const build of builds.value) if (build.info.value.state === "compiling") watch(build);
  });
}
