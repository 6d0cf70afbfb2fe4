// The page's state as the hash of its URL, and back. A link opens the same view.

import { batch, effect } from "@preact/signals";
import { format, parse, type Here } from "./refs";
import {
  current, go, makePane, metric, panes, result, selected, story, theme, threads, iteration, values,
  type Metric, type Pane, type PaneKind, type Theme,
} from "./state";

const KINDS: readonly PaneKind[] = [
  "model", "stage", "kernels", "loops", "llvm", "asm", "time", "roofline", "timeline", "tokens",
  "schedule", "diff",
];
const METRICS: readonly Metric[] = ["", "backend", "time", "flops", "bytes", "peak", "error", "quantization"];
const THEMES: readonly Theme[] = ["auto", "dark", "light"];

export function paneText(pane: Pane): string {
  const view = pane.view ? `!${pane.view}` : "";
  const at = pane.at === undefined ? "" : `@${pane.at}`;
  return `${pane.build}/${pane.kind}:${pane.arg}${at}${view}`;
}

export function readPane(text: string): Pane | null {
  const found = /^([a-z][a-z0-9]*)\/([a-z]+):(\d{1,6})(?:@(\d{1,5}))?(!graph)?$/.exec(text);
  const kind = KINDS.find((k) => k === found?.[2]);
  if (!found?.[1] || !kind) return null;
  const pane = makePane(found[1], kind, Number(found[3]), found[5] ? "graph" : "");
  return found[4] === undefined ? pane : { ...pane, at: Number(found[4]) };
}

function hereText(here: Here): string {
  return `${here.build}/${format(here.ref)}`;
}

function readHere(text: string): Here | null {
  const at = text.indexOf("/");
  const ref = at > 0 ? parse(text.slice(at + 1)) : null;
  return ref ? { build: text.slice(0, at), ref } : null;
}

export function write(): string {
  const query = new URLSearchParams();
  for (const pane of panes.value) query.append("p", paneText(pane));
  if (selected.value) query.set("at", hereText(selected.value));
  if (metric.value) query.set("heat", metric.value);
  if (theme.value !== "auto") query.set("theme", theme.value);
  if (!story.value) query.set("story", "0");
  if (threads.value) query.set("threads", "1");
  if (values.value) query.set("values", "1");
  // As people count: from 1.
  if (iteration.value !== null) query.set("iteration", String(iteration.value + 1));
  if (result.value) query.set("result", String(result.value));
  if (current.value !== "a") query.set("build", current.value);
  // As legible as a fragment may be (RFC 3986, section 3.5).
  return query.toString().replace(/%(2F|3A|21|40)/g, decodeURIComponent);
}

/** Applies the state in a hash; unknown parts are ignored. */
export function read(hash: string): void {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const opened = query.getAll("p").map(readPane).filter((p) => p !== null);
  batch(() => {
    if (opened.length) panes.value = opened;
    metric.value = METRICS.find((m) => m === query.get("heat")) ?? "";
    theme.value = THEMES.find((t) => t === query.get("theme")) ?? "auto";
    story.value = query.get("story") !== "0";
    threads.value = query.get("threads") === "1";
    current.value = query.get("build") ?? "a";
    const at = readHere(query.get("at") ?? "");
    if (at) go(at);
    else selected.value = null;
    values.value = query.get("values") === "1";
    const wished = query.get("iteration") ?? "";
    iteration.value = /^[1-9]\d{0,14}$/.test(wished) ? Number(wished) - 1 : null;
    const which = query.get("result") ?? "";
    result.value = /^\d{1,6}$/.test(which) ? Number(which) : 0;
  });
}

/** Keeps URL and state together from now on: back and forward work, hovering leaves no entries. */
export function connect(): void {
  let written = location.hash.replace(/^#/, "");
  let place = "";
  effect(() => {
    const text = write();
    const now = [...panes.value.map((p) => paneText(p).replace(/@\d+/, "")), selected.value ? hereText(selected.value) : ""].join(" ");
    if (text === written) return;
    written = text;
    // A new history entry for states that the user may want to return to.
    if (place && now !== place) history.pushState(null, "", `#${text}`);
    else history.replaceState(null, "", `#${text}`);
    place = now;
  });
  addEventListener("popstate", () => {
    written = location.hash.replace(/^#/, "");
    read(location.hash);
  });
}
