// Moves between panes, and keyboard actions of the focused pane.

import { buildOf, value } from "../builds";
import { focusedPane, keysOf, type PaneKeys } from "../panekeys";
import { close, current, open, panes, point, selected, update, type Pane } from "../state";

/** The pane that has the keyboard, else the first. */
export function focused(): Pane | undefined {
  const all = panes.peek();
  return all.find((pane) => pane.key === focusedPane.peek()) ?? all[0];
}

/** Does something with the focused pane's keys; returns what that returns. */
export function inPane<T>(use: (keys: PaneKeys) => T): T {
  return use(keysOf(focused()?.key ?? -1));
}

export function focusPane(pane: Pane | undefined): void {
  if (!pane) return;
  focusedPane.value = pane.key;
  const body = document.querySelector<HTMLElement>(`.pane[data-key="${pane.key}"] .body`);
  if (!body) return;
  // Text panes take keys themselves, for selecting and copying; others are focused as they are.
  const text = body.querySelector(".code-host")?.shadowRoot?.querySelector<HTMLElement>("[role=document]");
  if (!text && !body.hasAttribute("tabindex")) body.tabIndex = -1;
  (text ?? body).focus({ preventScroll: true });
  body.closest(".pane")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

export function focusNth(n: number): void {
  focusPane(panes.peek()[n]);
}

export function focusNeighbor(by: number): void {
  const all = panes.peek();
  const at = all.findIndex((pane) => pane.key === focusedPane.peek());
  focusPane(at < 0 ? all[by > 0 ? 0 : all.length - 1] : all[at + by]);
}

export function graphOrText(): void {
  const pane = focused();
  if (pane && (pane.kind === "model" || pane.kind === "stage")) update(pane.key, { view: pane.view ? "" : "graph" });
}

export function closePane(): void {
  const pane = focused();
  if (!pane) return;
  const all = panes.peek();
  const next = all[all.indexOf(pane) + 1] ?? all[all.indexOf(pane) - 1];
  close(pane.key);
  focusPane(next);
}

/** Brings the pane of a stage to the next or previous stage that changed something. */
export function stepStage(by: number): void {
  const here = focused();
  const pane = here?.kind === "stage" ? here : panes.peek().find((p) => p.kind === "stage");
  const build = buildOf(pane?.build ?? current.peek());
  const stages = build && value(build.overview.peek())?.stages;
  if (!build || !stages) return;
  let at = (pane?.arg ?? stages.length) + by;
  // The last stage is the one that is compiled: it counts even if its pass changed nothing.
  while (stages[at] && !stages[at]?.changed && at !== stages.length - 1) at += by;
  if (!stages[at]) return;
  if (pane) update(pane.key, { arg: at });
  else open(build.id, "stage", at);
}

export function clearSelection(): void {
  point(null);
  selected.value = null;
}
