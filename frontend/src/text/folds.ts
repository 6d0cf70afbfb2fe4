// Foldable ranges: lines that are indented deeper than the line above. This works for all
// languages of the page, as all are written indented.

import { foldService } from "@codemirror/language";
import type { Extension, Text } from "@codemirror/state";
import type { Language } from "./content";

/** Returns by line (from 1) the last line of the foldable range below it, 0 for none. */
export function foldEnds(lines: readonly string[], language: Language): Int32Array {
  const depth = lines.map((line) => depthOf(line, language));
  const ends = new Int32Array(lines.length + 2);
  // Lines to come that stand no deeper than this one: the nearest ends what is below it.
  const stack: number[] = [];
  for (let at = lines.length - 1; at >= 0; at--) {
    while (stack.length && (depth[stack.at(-1) ?? 0] ?? 0) > (depth[at] ?? 0)) stack.pop();
    const next = stack.at(-1) ?? lines.length;
    let last = next - 1;
    // `fn(` and its parameters go on with `) -> type {` and the body.
    if (language === "graph" && last > at && lines[next]?.trimStart().startsWith(")") && depth[next] === depth[at]) {
      last = Math.max(last, (ends[next + 1] ?? 0) - 1);
    }
    ends[at + 1] = last > at && !(language === "llvm" && lines[at] === "}") ? last + 1 : 0;
    stack.push(at);
  }
  return ends;
}

function depthOf(line: string, language: Language): number {
  // LLVM writes blocks of a function no deeper than its head.
  if (language === "llvm" && (line.startsWith("define ") || line.startsWith("}"))) return -1;
  return line.length - line.trimStart().length;
}

export function folds(language: Language): Extension {
  let known: { doc: Text; ends: Int32Array } | null = null;
  return foldService.of((state, start, end) => {
    if (known?.doc !== state.doc) known = { doc: state.doc, ends: foldEnds([...state.doc.iterLines()], language) };
    const last = known.ends[state.doc.lineAt(start).number] ?? 0;
    return last ? { from: end, to: state.doc.line(last).to } : null;
  });
}
