// Opens the next level down beside the existing panes.

import { buildOf, value } from "../builds";
import { focus, go, open, panes, type PaneKind } from "../state";
import { focused } from "./moves";

/** The ways down from the model to the instructions. */
const LEVELS: readonly PaneKind[] = ["model", "stage", "loops", "llvm", "asm"];

/** Opens the next level that no pane shows yet, at the focus. */
export function openCounterpart(): void {
  const pane = focused();
  if (!pane) return;
  const here = focus.peek();
  const build = buildOf(pane.build);
  const overview = build && value(build.overview.peek());
  const thread = build?.thread.peek();
  if (!here || !build || !overview || !thread || here.build !== build.id) return;
  const reach = thread.reach(here.ref, build);
  const kernel = [...reach.kernels.keys()][0];
  const from = LEVELS.indexOf(pane.kind);
  const order = [...LEVELS.slice(from + 1), ...LEVELS.slice(0, Math.max(0, from)).reverse()];
  const shown = new Set(panes.peek().filter((p) => p.build === build.id).map((p) => p.kind));
  const kind = order.find((k) => !shown.has(k) && (k === "model" ? reach.layers.size > 0 : k === "stage" || kernel !== undefined));
  if (!kind) return;
  open(build.id, kind, kind === "stage" ? overview.stages.length - 1 : kind === "model" ? 0 : (kernel ?? 0), "", true);
  go(here, pane.key);
}
