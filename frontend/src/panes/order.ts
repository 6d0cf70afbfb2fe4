// The order of panes, and their contents.

import { buildOf, value, type Build } from "../builds";
import { makePane, panes, update, type Pane, type PaneKind } from "../state";
import { countedOf } from "./counted";
import type { Dragged } from "./drag";
import { COUNTED } from "./kinds";

/** Moves a pane to the place of another. */
export function moveTo(key: number, to: number): void {
  const now = [...panes.peek()];
  const from = now.findIndex((p) => p.key === key);
  const [pane] = from < 0 ? [] : now.splice(from, 1);
  if (!pane) return;
  now.splice(Math.max(0, Math.min(to, now.length)), 0, pane);
  panes.value = now;
}

/** Shows another kind in a pane's place. */
export function become(pane: Pane, kind: PaneKind): void {
  if (kind === pane.kind) return;
  const build = buildOf(pane.build);
  const alike = COUNTED[kind] !== "" && COUNTED[kind] === COUNTED[pane.kind];
  const arg = alike ? pane.arg : build ? countedOf(build, kind) : 0;
  // Another component with other state: a new pane in the old one's place.
  const made = makePane(pane.build, kind, arg);
  panes.value = panes.peek().map((p) => (p.key === pane.key ? made : p));
}

/** The next or previous stage or kernel; of stages those that change something. */
export function turn(pane: Pane, build: Build, by: number): void {
  const overview = value(build.overview.peek());
  const counted = COUNTED[pane.kind];
  if (!overview || !counted) return;
  const last = (counted === "stage" ? overview.stages : overview.kernels).length - 1;
  let at = pane.arg + by;
  while (counted === "stage" && at > 0 && at < last && !overview.stages[at]?.changed) at += by;
  update(pane.key, { arg: Math.max(0, Math.min(last, at)) });
}

export function drop(pane: Pane, dragged: Dragged): void {
  if (dragged.key >= 0) {
    moveTo(dragged.key, panes.peek().findIndex((p) => p.key === pane.key));
    return;
  }
  const { build, kind, arg } = dragged;
  if (pane.kind === kind && pane.build === build) update(pane.key, { arg });
  else panes.value = panes.peek().map((p) => (p.key === pane.key ? makePane(build, kind, arg) : p));
}
