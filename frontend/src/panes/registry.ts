// What shows each kind of pane. A new kind is a line here and a component of its own.

import type { ComponentType } from "preact";
import type { PaneKind } from "../state";
import { DiffPane } from "../compare/DiffPane";
import { GraphPane } from "../graph/GraphPane";
import { SchedulePane } from "../schedule/SchedulePane";
import { TextPane } from "../text/TextPane";
import { KernelTable } from "./KernelTable";
import { RooflinePane } from "../plots/RooflinePane";
import { TimelinePane } from "../plots/TimelinePane";
import { TimePane } from "../plots/TimePane";
import type { PaneProps } from "./props";

export interface Shown {
  readonly title: string;
  /** Whether the pane can be drawn as a graph, too. */
  readonly graph: boolean;
  /** What `pane.arg` counts: stages, kernels or nothing. */
  readonly arg: "" | "stage" | "kernel";
  readonly text: ComponentType<PaneProps>;
  readonly drawn?: ComponentType<PaneProps>;
}

export const REGISTRY: Readonly<Record<PaneKind, Shown>> = {
  model: { title: "Model", graph: true, arg: "", text: TextPane, drawn: GraphPane },
  stage: { title: "Graph", graph: true, arg: "stage", text: TextPane, drawn: GraphPane },
  kernels: { title: "Kernels", graph: false, arg: "", text: KernelTable },
  loops: { title: "Loops", graph: false, arg: "kernel", text: TextPane },
  llvm: { title: "LLVM", graph: false, arg: "kernel", text: TextPane },
  asm: { title: "Assembly", graph: false, arg: "kernel", text: TextPane },
  time: { title: "Where the time goes", graph: false, arg: "", text: TimePane },
  roofline: { title: "Roofline", graph: false, arg: "", text: RooflinePane },
  timeline: { title: "Timeline", graph: false, arg: "", text: TimelinePane },
  schedule: { title: "Schedule", graph: false, arg: "kernel", text: SchedulePane },
  diff: { title: "Difference", graph: false, arg: "", text: DiffPane },
};
