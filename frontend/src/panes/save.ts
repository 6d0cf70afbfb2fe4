// Saves what a pane shows as a file.

import { keysOf } from "../panekeys";
import type { Pane } from "../state";

function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The download has begun by then; the browser may read the blob a little later.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const ENDINGS: Partial<Record<Pane["kind"], string>> = { llvm: "ll", asm: "s", kernels: "tsv" };

/** A file's name for a pane: the model's, and what is shown of it. */
export function fileName(model: string, pane: Pane, ending: string): string {
  const stem = model.replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "_") || "model";
  return `${stem}-${pane.kind}-${pane.arg}.${ending}`;
}

export function canSave(pane: Pane): { readonly text: boolean; readonly svg: boolean } {
  const keys = keysOf(pane.key);
  return { text: keys.text !== undefined, svg: keys.svg !== undefined };
}

export function saveText(model: string, pane: Pane): void {
  const text = keysOf(pane.key).text?.();
  if (text !== undefined) download(fileName(model, pane, ENDINGS[pane.kind] ?? "txt"), "text/plain;charset=utf-8", text);
}

export async function saveSvg(model: string, pane: Pane): Promise<void> {
  const svg = await keysOf(pane.key).svg?.();
  if (svg !== undefined) download(fileName(model, pane, "svg"), "image/svg+xml", svg);
}

export async function copyText(pane: Pane): Promise<void> {
  const text = keysOf(pane.key).text?.();
  if (text !== undefined) await navigator.clipboard.writeText(text);
}
