// A pane as text or as a drawing, to copy or to save. Panes that are more than a text say what their
// text is through panekeys.ts.

import { buildOf, value } from "../builds";
import { tell } from "../notices";
import { keysOf } from "../panekeys";
import { copy, save } from "../parts/saving";
import type { Pane } from "../state";
import { focused } from "./moves";

export async function copyPane(pane = focused()): Promise<void> {
  const text = pane && textOf(pane);
  if (text) await copy(text, "The pane");
  else tell("This pane has no text");
}

export async function savePane(pane = focused()): Promise<void> {
  const text = pane && textOf(pane);
  if (pane && text) save(`${nameOf(pane)}.txt`, text);
  else tell("This pane has no text");
}

export async function savePaneDrawing(pane = focused()): Promise<void> {
  const drawn = pane && (await keysOf(pane.key).svg?.());
  if (pane && drawn) save(`${nameOf(pane)}.svg`, drawn, "image/svg+xml");
  else tell("This pane has no drawing");
}

export function nameOf(pane: Pane): string {
  const build = buildOf(pane.build);
  const model = (build && value(build.overview.peek())?.model) ?? "model";
  return `${model}-${pane.kind}${["model", "time", "kernels", "roofline", "timeline", "tokens", "diff"].includes(pane.kind) ? "" : `-${pane.arg}`}`;
}

function textOf(pane: Pane): string {
  const own = keysOf(pane.key).text?.();
  if (own !== undefined) return own;
  const build = buildOf(pane.build);
  if (!build) return "";
  if (pane.kind === "model") return value(build.model.peek())?.text ?? "";
  if (pane.kind === "stage") return value(build.stage(pane.arg).peek())?.text ?? "";
  if (pane.kind !== "loops" && pane.kind !== "llvm" && pane.kind !== "asm") return "";
  return value(build.code(pane.arg).peek())?.[pane.kind].join("\n") ?? "";
}
