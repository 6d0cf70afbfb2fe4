// Remarks of passes about a stage's nodes: remarks name nodes of the pass's input, the nodes
// shown are those made from them.

import type { Links, Stage } from "../wire";
import type { Graph } from "./graph";

/** Remarks by the node's number in this stage. */
export function remarksOf(stage: Stage, links: Links | null): Map<number, string[]> {
  const found = new Map<number, string[]>();
  const became = new Map<number, number[]>();
  const step = links?.stages[stage.index];
  step?.old.forEach((old, n) => {
    const fresh = step.new[n];
    if (fresh === undefined) return;
    const list = became.get(old);
    if (list) list.push(fresh);
    else became.set(old, [fresh]);
  });
  for (const remark of stage.remarks) {
    for (const number of [remark.number, ...(became.get(remark.number) ?? [])]) {
      const text = `${remark.pass_name}: ${remark.text}`;
      const list = found.get(number);
      if (!list) found.set(number, [text]);
      else if (!list.includes(text)) list.push(text);
    }
  }
  return found;
}

/** Why the ends of an edge are in two kernels: the remarks about its ends, those about both first. */
export function betweenRemarks(graph: Graph, remarks: ReadonlyMap<number, readonly string[]>, source: number, target: number): string[] {
  const from = graph.nodes[source];
  const to = graph.nodes[target];
  if (!from || !to || (from.kernel >= 0 && from.kernel === to.kernel)) return [];
  const apart = (texts: readonly string[]) => texts.filter((text) => text.includes("not fused"));
  const out = apart(remarks.get(from.number) ?? []);
  const about = out.filter((text) => text.includes(`${to.title} not fused into`) || text.includes(`not fused into ${to.title}`) || text.includes("into its user"));
  if (about.length) return about;
  // A remark about the target concerns its successors, unless it names the source.
  const into = apart(remarks.get(to.number) ?? []).filter((text) => text.includes(`into ${from.title}`));
  return [...out, ...into];
}
