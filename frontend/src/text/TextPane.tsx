// A pane of text. Stand-in: plain lines without highlighting; see text/ for what becomes of it.

import type { PaneProps } from "../panes/registry";
import { value } from "../builds";

export function TextPane({ pane, build }: PaneProps) {
  let text = "";
  if (pane.kind === "stage") text = value(build.stage(pane.arg).value)?.text ?? "";
  else if (pane.kind === "model") text = value(build.model.value)?.text ?? "";
  else {
    const code = value(build.code(pane.arg).value);
    text = (pane.kind === "loops" ? code?.loops : pane.kind === "llvm" ? code?.llvm : code?.asm)?.join("\n") ?? "";
  }
  return <pre class="plain">{text}</pre>;
}
