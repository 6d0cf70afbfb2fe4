// The frames of the film strip: from the model over every pass to the instructions.

import type { CodeTotals, Overview } from "../wire";
import type { PaneKind } from "../state";
import type { Reach } from "../thread";

export interface Frame {
  /** The pane that shows it: a kind and, for stages, the number. */
  readonly kind: PaneKind;
  readonly arg: number;
  readonly name: string;
  readonly summary: string;
  readonly changed: boolean;
  /** Whether it may be drawn as a sliver to save room. */
  readonly sliver: boolean;
  /** Null while it is unknown. */
  readonly count: number | null;
  readonly unit: string;
  /** Null if it is part of another frame's. */
  readonly seconds: number | null;
  readonly added: number;
  readonly removed: number;
  readonly rewritten: number;
  readonly remarks: number;
}

const PLAIN = { arg: 0, summary: "", changed: true, sliver: false, seconds: null, added: 0, removed: 0, rewritten: 0, remarks: 0 };

/** A stage's name: the last one is the input of kernels, whatever its pass is called. */
export function stageTitle({ stages }: Overview, index: number): string {
  const name = stages[index]?.name ?? String(index);
  return index > 0 && index === stages.length - 1 ? `as compiled (${name})` : name;
}

export function framesOf(overview: Overview, totals: CodeTotals | null): Frame[] {
  const distinct = new Set(overview.kernels.map((k) => k.distinct)).size;
  const stages = overview.stages.map((stage): Frame => {
    const first = stage.index === 0;
    const last = stage.index === overview.stages.length - 1 && !first;
    return {
      kind: "stage",
      arg: stage.index,
      name: last && !stage.changed ? "as compiled" : stage.name,
      summary: first ? "The model as imported." : last ? `The graph that kernels are made from, after the last pass (${stage.name}).` : stage.summary,
      changed: stage.changed,
      sliver: !stage.changed && !last,
      count: stage.nodes,
      unit: "nodes",
      seconds: first ? (overview.seconds["import"] ?? stage.seconds) : stage.seconds,
      added: first ? 0 : stage.added,
      removed: stage.removed,
      rewritten: stage.rewritten,
      remarks: stage.remarks,
    };
  });
  return [
    { ...PLAIN, kind: "model", name: "model", count: overview.layers.length, unit: "layers", summary: "The model as its file has it." },
    ...stages,
    {
      ...PLAIN, kind: "kernels", name: "kernels", count: overview.kernels.length, unit: "calls",
      seconds: overview.seconds["kernels"] ?? null,
      summary: `${overview.kernels.length} kernels run, ${distinct} of them distinct; the time is that of scheduling and compiling them.`,
    },
    { ...PLAIN, kind: "loops", name: "loops", count: totals?.loop_lines ?? null, unit: "lines", summary: "Loop nests, over distinct kernels." },
    { ...PLAIN, kind: "llvm", name: "LLVM", count: totals?.llvm_lines ?? null, unit: "lines", summary: "LLVM text, over distinct kernels." },
    {
      ...PLAIN, kind: "asm", name: "assembly", count: totals?.instructions ?? null, unit: "instr.",
      seconds: overview.seconds["program"] ?? null,
      summary: "Instructions, over distinct kernels; the time is that of linking the program.",
    },
  ];
}

/** Stages at which the nodes of a reach change. */
export function touchedStages(reach: Reach): ReadonlySet<number> {
  const found = new Set<number>();
  reach.nodes.forEach((nodes, stage) => {
    const before = reach.nodes[stage - 1];
    if (!before || before === nodes) return;
    if (nodes.size !== before.size || [...nodes].some((number) => !before.has(number))) found.add(stage);
  });
  return found;
}

/** `1.2 ms`, `4.1 s`; times of passes, in which nobody needs more digits. */
export function duration(seconds: number): string {
  if (seconds >= 9.95) return `${seconds.toFixed(0)} s`;
  if (seconds >= 0.9995) return `${seconds.toFixed(1)} s`;
  const ms = seconds * 1e3;
  if (ms >= 9.95) return `${ms.toFixed(0)} ms`;
  return ms >= 0.05 ? `${ms.toFixed(1)} ms` : "0 ms";
}

/** 1234567 as `1.23 M`. */
export function short(count: number): string {
  if (count < 1e4) return String(count);
  if (count < 1e6) return `${(count / 1e3).toFixed(count < 1e5 ? 1 : 0)} k`;
  return `${(count / 1e6).toFixed(2)} M`;
}
