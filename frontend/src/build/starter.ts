// The panes that a page starts with if its URL names none.

import { effect } from "@preact/signals";
import { arrange } from "../arrange";
import { buildOf, builds, started, value, type Build } from "../builds";
import { current, panes } from "../state";
import { besides } from "./builder";

/** Lays out panes as soon as there is something to show and nothing is shown. */
export function startPanes(): void {
  effect(() => {
    const [a, b] = builds.value;
    const start = value(started.value);
    const pair = start?.diff && a && b && current.value === a.id;
    if (pair ? !(isHere(a) && isHere(b)) : !isHere(buildOf(current.value) ?? a)) return;
    if (panes.peek().length) return;
    if (pair) besides(a, b, false);
    else arrange();
  });
}

/** Whether a build is compiled and its overview has come. */
function isHere(build: Build | undefined): boolean {
  return build?.info.value.state === "ready" && value(build.overview.value) !== null;
}
