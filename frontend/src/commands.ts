// All commands of the page in one table, from which the keyboard, the palette and the help
// are made. To add a command, add a line. Commands that depend on the model (a stage, a kernel)
// are made by `targets`, for the palette only.

import { buildOf, builds, theSource, value, type Build } from "./builds";
import { showsDiff } from "./compare/diffs";
import { countedOf } from "./panes/counted";
import { openCounterpart } from "./panes/counterpart";
import { compareErrors, measure, setMetric } from "./heat";
import { copyPane, savePane, savePaneDrawing } from "./panes/exports";
import { COUNTED } from "./panes/kinds";
import { clearSelection, closePane, focusNeighbor, focusNth, graphOrText, inPane, stepStage } from "./panes/moves";
import { copyLink, copyReportCommand, copyState } from "./share";
import {
  bringIntoSight, current, dialog, focus, metric, open, panes, show, story, theme, threads,
  type Metric, type PaneKind, type Theme,
} from "./state";
import { copyStory, saveStory } from "./story/exports";

export type CommandGroup = "Find" | "Move" | "Panes" | "Show" | "Color" | "Measure" | "Build" | "Share" | "Help";

export interface Command {
  readonly id: string;
  readonly group: CommandGroup;
  readonly title: string;
  /** In the notation of keyboard.ts: `ctrl+k`, `/`, `Enter`; the first is shown. */
  readonly keys?: readonly string[];
  readonly run: () => void;
  /** Whether it can be done now. */
  readonly when?: () => boolean;
}

const build = (): Build | null => buildOf(current.peek()) ?? builds.peek()[0] ?? null;
const live = (): boolean => build()?.source.live ?? false;
const anyPane = (): boolean => panes.peek().length > 0;

function pane(kind: PaneKind, title: string, view?: "" | "graph"): Command {
  const id = `open.${kind}${view ? `.${view}` : ""}`;
  return { id, group: "Panes", title: `Open ${title}`, run: () => opened(kind, view), when: () => build() !== null };
}

function opened(kind: PaneKind, view?: "" | "graph"): void {
  const of = build();
  if (!of) return;
  // A difference belongs to both of its builds.
  const same = kind === "diff" ? panes.peek().find((p) => showsDiff(p, of)) : undefined;
  if (same) {
    bringIntoSight(same);
    return;
  }
  const shown = panes.peek().find((p) => p.build === of.id && p.kind === kind);
  open(of.id, kind, COUNTED[kind] || !shown ? countedOf(of, kind) : shown.arg, view);
}

function color(by: Metric, title: string): Command {
  return { id: `heat.${by || "off"}`, group: "Color", title, run: () => setMetric(by), when: () => metric.peek() !== by };
}

function themed(to: Theme, title: string): Command {
  return { id: `theme.${to}`, group: "Show", title, run: () => (theme.value = to), when: () => theme.peek() !== to };
}

const NINE = ["1", "2", "3", "4", "5", "6", "7", "8", "9"] as const;

export const COMMANDS: readonly Command[] = [
  { id: "search", group: "Find", title: "Search everything", keys: ["/"], run: () => (dialog.value = "search") },
  { id: "palette", group: "Find", title: "All commands", keys: ["ctrl+k", ":"], run: () => (dialog.value = "palette") },
  { id: "find", group: "Find", title: "Find in the pane", keys: ["ctrl+f", "f"], run: () => inPane((keys) => keys.find?.()), when: () => inPane((keys) => keys.find !== undefined) },

  { id: "line.next", group: "Move", title: "Next line", keys: ["j", "ArrowDown"], run: () => inPane((keys) => keys.move?.(1)), when: () => inPane((keys) => keys.move !== undefined) },
  { id: "line.previous", group: "Move", title: "Previous line", keys: ["k", "ArrowUp"], run: () => inPane((keys) => keys.move?.(-1)), when: () => inPane((keys) => keys.move !== undefined) },
  { id: "line.choose", group: "Move", title: "Choose the line: its counterparts, its story", keys: ["Enter"], run: () => inPane((keys) => keys.choose?.()), when: () => inPane((keys) => keys.choose !== undefined) },
  { id: "line.fold", group: "Move", title: "Fold or unfold", keys: ["z"], run: () => inPane((keys) => keys.fold?.()), when: () => inPane((keys) => keys.fold !== undefined) },
  { id: "place.next", group: "Move", title: "Next place in the pane that belongs to the selection", keys: ["n"], run: () => inPane((keys) => keys.step?.(1)), when: () => inPane((keys) => keys.step !== undefined) },
  { id: "place.previous", group: "Move", title: "Previous place that belongs to it", keys: ["p"], run: () => inPane((keys) => keys.step?.(-1)), when: () => inPane((keys) => keys.step !== undefined) },
  { id: "line.open", group: "Move", title: "Open the next level down beside", keys: ["o"], run: openCounterpart, when: () => focus.peek() !== null },
  { id: "stage.previous", group: "Move", title: "Previous stage that changed something", keys: ["["], run: () => stepStage(-1) },
  { id: "stage.next", group: "Move", title: "Next stage that changed something", keys: ["]"], run: () => stepStage(1) },
  { id: "back", group: "Move", title: "Back to the previous view", keys: ["alt+ArrowLeft"], run: () => history.back() },
  { id: "forward", group: "Move", title: "Forward again", keys: ["alt+ArrowRight"], run: () => history.forward() },
  { id: "clear", group: "Move", title: "Clear the selection", keys: ["Escape"], run: clearSelection },

  { id: "pane.left", group: "Panes", title: "To the pane on the left", keys: ["h"], run: () => focusNeighbor(-1), when: anyPane },
  { id: "pane.right", group: "Panes", title: "To the pane on the right", keys: ["l"], run: () => focusNeighbor(1), when: anyPane },
  ...NINE.map((key, n): Command => ({
    id: `pane.${key}`, group: "Panes", title: `To pane ${key}`, keys: [key], run: () => focusNth(n), when: () => panes.peek().length > n,
  })),
  { id: "pane.graph", group: "Panes", title: "Graph or text", keys: ["g"], run: graphOrText, when: anyPane },
  { id: "pane.close", group: "Panes", title: "Close the pane", keys: ["x"], run: closePane, when: anyPane },
  pane("time", "where the time goes"),
  pane("model", "the model"),
  pane("model", "the model as a graph", "graph"),
  pane("stage", "the graph IR of a stage"),
  pane("stage", "a stage's graph", "graph"),
  pane("kernels", "the table of kernels"),
  pane("loops", "a kernel's loops"),
  pane("schedule", "a kernel's schedule, step by step"),
  pane("llvm", "a kernel's LLVM code"),
  pane("asm", "a kernel's instructions"),
  pane("roofline", "the roofline"),
  pane("timeline", "the timeline of a run"),
  pane("tokens", "the cost of a token of a language model"),
  { ...pane("diff", "the difference of two builds"), when: () => builds.peek().length > 1 },

  { id: "story", group: "Show", title: "Story on or off", keys: ["s"], run: () => (story.value = !story.peek()) },
  { id: "links", group: "Show", title: "Links between panes on or off", keys: ["t"], run: () => (threads.value = !threads.peek()) },
  themed("auto", "Theme of the system"),
  themed("dark", "Dark theme"),
  themed("light", "Light theme"),

  color("backend", "Color by backend"),
  color("time", "Color by time"),
  color("flops", "Color by arithmetic (FLOP)"),
  color("bytes", "Color by memory traffic (bytes)"),
  color("peak", "Color by share of peak"),
  color("error", "Color by numeric error"),
  color("quantization", "Color by quantization error"),
  color("", "Color by layer only"),

  { id: "measure.time", group: "Measure", title: "Measure where the time goes", keys: ["m"], run: () => void measure(), when: live },
  { id: "measure.error", group: "Measure", title: "Compare each layer's values with f32", run: () => void compareErrors(), when: live },

  { id: "build.new", group: "Build", title: "Try another build, or another model", keys: ["b"], run: () => (dialog.value = "build"), when: () => theSource().live },

  { id: "share.link", group: "Share", title: "Copy a link to the current view", keys: ["y"], run: copyLink },
  { id: "share.state", group: "Share", title: "Copy only the state (#…), without the server's token", run: copyState },
  { id: "share.report", group: "Share", title: "Copy the command that writes a report file", run: copyReportCommand, when: live },
  { id: "pane.copy", group: "Share", title: "Copy the pane as text", run: () => void copyPane(), when: anyPane },
  { id: "pane.save", group: "Share", title: "Save the pane as text", run: () => void savePane(), when: anyPane },
  { id: "pane.svg", group: "Share", title: "Save the pane as SVG", run: () => void savePaneDrawing(), when: () => inPane((keys) => keys.svg !== undefined) },
  { id: "story.copy", group: "Share", title: "Copy the story as text", run: copyStory, when: () => story.peek() },
  { id: "story.save", group: "Share", title: "Save the story as text", run: saveStory, when: () => story.peek() },

  { id: "help", group: "Help", title: "Help and keys", keys: ["?"], run: () => (dialog.value = "help") },
];

/** Places to go to in this model, for the palette: stages, and kernels. */
export function targets(): Command[] {
  const of = build();
  const overview = of && value(of.overview.peek());
  if (!of || !overview) return [];
  const go = (id: string, title: string, run: () => void): Command => ({ id, group: "Move", title, run });
  return [
    ...overview.stages.map((s) =>
      go(`stage.${s.index}`, `Stage ${s.index}: ${s.name}${s.changed ? "" : " (unchanged)"}`, () =>
        show({ build: of.id, ref: { kind: "stage", stage: s.index } }),
      ),
    ),
    ...overview.regions.map((r) =>
      go(`region.${r.index}`, `Region ${r.index}: ${r.name} on ${r.backend}`, () =>
        show({ build: of.id, ref: { kind: "region", region: r.index } }),
      ),
    ),
    ...overview.kernels.map((k) =>
      go(`kernel.${k.index}`, `Kernel ${k.index}: ${k.name}`, () =>
        show({ build: of.id, ref: { kind: "kernel", kernel: k.index } }),
      ),
    ),
  ];
}

export function commandOf(key: string): Command | undefined {
  return COMMANDS.find((c) => c.keys?.includes(key) && (c.when?.() ?? true));
}
