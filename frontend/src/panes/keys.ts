// Keys that have to do with several panes; keyboard.ts has those of the page as a whole.

import { buildOf, value } from "../builds";
import { focusedPane } from "../panekeys";
import { focus, go, open, panes, threads, type Pane, type PaneKind } from "../state";
import { turn } from "./order";
import { steps } from "./steps";

/** The ways down from the model to the instructions. */
const LEVELS: readonly PaneKind[] = ["model", "stage", "loops", "llvm", "asm"];

export function listen(): () => void {
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

function pressed(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
  if (document.querySelector("dialog[open]")) return;
  if (act(event.key)) event.preventDefault();
}

function isTyping(event: Event): boolean {
  const target = event.composedPath()[0];
  return target instanceof HTMLElement && (target.matches("input, textarea, select") || target.isContentEditable);
}

function act(key: string): boolean {
  const pane = panes.peek().find((p) => p.key === focusedPane.peek()) ?? panes.peek()[0];
  if (/^[1-9]$/.test(key)) return focusPane(panes.peek()[Number(key) - 1]);
  if (key === "t") {
    threads.value = !threads.peek();
    return true;
  }
  if (!pane) return false;
  if (key === "n") return steps.step(pane.key, 1);
  if (key === "p") return steps.step(pane.key, -1);
  if (key === "o") return openCounterpart(pane);
  const build = buildOf(pane.build);
  if (build && (key === "[" || key === "]")) {
    turn(pane, build, key === "]" ? 1 : -1);
    return true;
  }
  return false;
}

export function focusPane(pane: Pane | undefined): boolean {
  if (!pane) return false;
  const section = document.querySelector(`.pane[data-key="${pane.key}"]`);
  const host = section?.querySelector(".code-host");
  const inside = host?.shadowRoot?.querySelector<HTMLElement>(".cm-content");
  const other = section?.querySelector<HTMLElement>(".body [tabindex='0'], .body button, .body input");
  focusedPane.value = pane.key;
  (inside ?? other ?? section?.querySelector<HTMLElement>("button"))?.focus();
  return true;
}

/** Opens the next level that no pane shows yet, at what is in focus. */
function openCounterpart(pane: Pane): boolean {
  const here = focus.peek();
  const build = buildOf(pane.build);
  const overview = build && value(build.overview.peek());
  const thread = build?.thread.peek();
  if (!here || !build || !overview || !thread || here.build !== build.id) return false;
  const reach = thread.reach(here.ref, build);
  const kernel = [...reach.kernels.keys()][0];
  const from = LEVELS.indexOf(pane.kind);
  const order = [...LEVELS.slice(from + 1), ...LEVELS.slice(0, Math.max(0, from)).reverse()];
  const shown = new Set(panes.peek().filter((p) => p.build === build.id).map((p) => p.kind));
  const kind = order.find((k) => !shown.has(k) && (k === "model" ? reach.layers.size > 0 : k === "stage" || kernel !== undefined));
  if (!kind) return false;
  open(build.id, kind, kind === "stage" ? overview.stages.length - 1 : kind === "model" ? 0 : (kernel ?? 0), "", true);
  go(here, pane.key);
  return true;
}
