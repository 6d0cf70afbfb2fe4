// The panes that a page starts with, where its URL names none.

import { builds, started, value } from "../builds";
import { arrange } from "../arrange";
import { panes } from "../state";
import { besides } from "./builder";

/** Two builds that are being compared stand side by side; else the current build is laid out. */
export function starter(): void {
  if (panes.peek().length) return;
  const [a, b] = builds.peek();
  const start = value(started.peek());
  const ready = [a, b].every((build) => build?.info.peek().state === "ready" && value(build.overview.peek()));
  if (start?.diff && a && b) {
    if (ready) besides(a, b);
    else void b.overview.value;
  } else arrange();
}
