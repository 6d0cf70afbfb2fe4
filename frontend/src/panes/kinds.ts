// What `Pane.arg` counts in each kind of pane.

import type { PaneKind } from "../state";

export const COUNTED: Readonly<Record<PaneKind, "" | "stage" | "kernel">> = {
  model: "", stage: "stage", kernels: "", loops: "kernel", llvm: "kernel", asm: "kernel",
  time: "", roofline: "", timeline: "", tokens: "", schedule: "kernel", diff: "",
};
