// Changes of a stage: `+` for added nodes, `~` for changed ones. A node that was
// rebuilt only because an operand was rebuilt is neither.

import type { Links, Stage } from "../wire";
import type { Change, GraphNode } from "./graph";
import { attributes } from "./fromStage";

export function changesOf(nodes: readonly GraphNode[], stage: Stage, before: Stage, links: Links): Change[] {
  const was = new Map<number, number>();
  const step = links.stages[stage.index];
  step?.new.forEach((fresh, n) => {
    if (step.same[n]) was.set(fresh, step.old[n] as number);
  });
  const now = factsOf(stage);
  const then = factsOf(before);
  return nodes.map((node) => {
    if (node.number < 0 || links.born[node.number] !== stage.index) return "";
    const old = was.get(node.number);
    if (old === undefined) return "+";
    return now.get(node.number) === then.get(old) ? "" : "~";
  });
}

/** A node as one text: operator, type, attributes. */
function factsOf(stage: Stage): Map<number, string> {
  const { number, title, type, line, kind } = stage.nodes;
  const lines = stage.text.split("\n");
  return new Map(
    number.map((mine, at) => {
      const more = kind[at] === "Call" ? attributes(lines[(line[at] ?? 0) - 1] ?? "") : "";
      return [mine, `${title[at]} ${type[at]} ${more}`];
    }),
  );
}
