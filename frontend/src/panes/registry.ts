// The component of each kind of pane. A new kind is a line here and a component.

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
import { TokensPane } from "../plots/TokensPane";
import type { PaneProps } from "./props";

export interface Shown {
  readonly title: string;
  /** Whether the pane can be drawn as a graph, too. */
  readonly graph: boolean;
  readonly text: ComponentType<PaneProps>;
  readonly drawn?: ComponentType<PaneProps>;
}

export const REGISTRY: Readonly<Record<PaneKind, Shown>> = {
  model: { title: "Model", graph: true, text: TextPane, drawn: GraphPane },
  stage: { title: "Graph", graph: true, text: TextPane, drawn: GraphPane },
  kernels: { title: "Kernels", graph: false, text: KernelTable },
  loops: { title: "Loops", graph: false, text: TextPane },
  llvm: { title: "LLVM", graph: false, text: TextPane },
  asm: { title: "Assembly", graph: false, text: TextPane },
  time: { title: "Where the time goes", graph: false, text: TimePane },
  roofline: { title: "Roofline", graph: false, text: RooflinePane },
  timeline: { title: "Timeline", graph: false, text: TimelinePane },
  tokens: { title: "Cost of a token", graph: false, text: TokensPane },
  schedule: { title: "Schedule", graph: false, text: SchedulePane },
  diff: { title: "Difference", graph: false, text: DiffPane },
};
