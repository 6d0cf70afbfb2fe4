// A node's figure at a stage: an operator's own share, or for a kernel's call that of the kernel.

import type { Heat, Overview } from "../wire";

type Table = ReadonlyMap<number, number>;

const tables = new WeakMap<Heat, Map<number, Table>>();
const calls = new WeakMap<Overview, Table>();

export function nodeFigure(overview: Overview, heat: Heat, stage: number, number: number): number | null {
  const kernel = callsOf(overview).get(number);
  if (kernel !== undefined) return heat.kernels[kernel] ?? null;
  // A stage that changed nothing has the figures of the previous stage.
  let at = stage;
  while (at > 0 && !overview.stages[at]?.changed) at--;
  return tableOf(heat, at).get(number) ?? null;
}

function callsOf(overview: Overview): Table {
  let found = calls.get(overview);
  if (!found) calls.set(overview, (found = new Map(overview.kernels.map((kernel) => [kernel.call, kernel.index]))));
  return found;
}

function tableOf(heat: Heat, stage: number): Table {
  let stages = tables.get(heat);
  if (!stages) tables.set(heat, (stages = new Map()));
  let found = stages.get(stage);
  if (!found) {
    const columns = heat.nodes[stage];
    found = new Map(columns?.number.map((node, row) => [node, columns.figure[row] ?? 0]));
    stages.set(stage, found);
  }
  return found;
}
