// The searchable contents of a build: its index, and the lines of loaded texts.

import { value, type Build } from "../builds";
import type { Code, Index, Overview, Source, Stage } from "../wire";
import { part, type Item, type Part } from "./corpus";
import { KINDS, type Kind } from "./query";

/** Parts by the answer they were made of: they are made once. */
const made = new WeakMap<object, Part>();

/** Returns the entries that can be searched now; grows as answers arrive. Loads those that are always searched. */
export function corpusOf(build: Build): Part[] {
  const overview = value(build.overview.value);
  if (!overview) return [];
  const index = build.index.value;
  const parts: Part[] = [];
  if (index.state === "ready") parts.push(once(index.value, () => entries(index.value)));
  else parts.push(once(overview, () => names(overview)));
  const model = value(build.model.value);
  if (model) parts.push(once(model, () => modelLines(model)));
  void build.stage(overview.stages.length - 1).value;
  for (const [path, answer] of build.loaded()) {
    if (path.startsWith("stage/")) parts.push(once(answer as Stage, () => stageLines(answer as Stage)));
    else if (path.startsWith("code/")) parts.push(once(answer as Code, () => codeLines(answer as Code, overview)));
  }
  return parts;
}

function once(answer: object, items: () => Item[]): Part {
  let found = made.get(answer);
  if (!found) made.set(answer, (found = part(items())));
  return found;
}

function entries(index: Index): Item[] {
  const known = new Set<string>(KINDS);
  return index.entries.filter((entry) => known.has(entry.kind)).map((entry) => ({ ...entry, kind: entry.kind as Kind }));
}

/** The entries from the overview, until the index is loaded. */
function names(overview: Overview): Item[] {
  return [
    ...overview.layers.map((l): Item => ({ kind: "layer", text: l.name, detail: l.op, ref: `layer:${l.name}` })),
    ...overview.kernels.map((k): Item => ({ kind: "kernel", text: k.name, detail: k.rules.join(", "), ref: `kernel:${k.index}` })),
    ...overview.regions.map((r): Item => ({ kind: "region", text: r.name, detail: r.backend, ref: `region:${r.index}` })),
    ...overview.stages.map((s): Item => ({ kind: "stage", text: s.name, detail: s.changed ? "" : "unchanged", ref: `stage:${s.index}` })),
  ];
}

function modelLines(model: Source): Item[] {
  return model.text.split("\n").flatMap((text, n): Item[] =>
    text.trim() ? [{ kind: "model line", text: text.trim(), detail: `line ${n + 1}`, ref: `source:${n + 1}` }] : [],
  );
}

/** Lines that a node stands on; the others are brackets. */
function stageLines(stage: Stage): Item[] {
  const lines = stage.text.split("\n");
  const items: Item[] = [];
  let last = 0;
  stage.nodes.line.forEach((line, n) => {
    const text = lines[line - 1]?.trim();
    if (!text || line === last) return;
    last = line;
    const ref = `node:${stage.index}:${stage.nodes.number[n]}`;
    items.push({ kind: "graph line", text, detail: `${stage.name}, line ${line}`, ref });
  });
  return items;
}

function codeLines(code: Code, overview: Overview): Item[] {
  const name = overview.kernels[code.kernel]?.name ?? "";
  const of = (kind: Kind, ref: string, lines: readonly string[]): Item[] =>
    lines.flatMap((line, n) => {
      const text = line.trim();
      if (text.length < 2) return [];
      return [{ kind, text, detail: `${name}, line ${n + 1}`, ref: `${ref}:${code.kernel}:${n + 1}` }];
    });
  return [
    ...of("loop line", "loop", code.loops),
    ...of("LLVM line", "llvm", code.llvm),
    ...of("instruction", "asm", code.asm),
  ];
}
