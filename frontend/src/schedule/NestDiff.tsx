// A loop nest before and after a step. Lines of the last nest are those of the kernel's code; lines
// of earlier ones lead to the operator that they compute.

import { value, type Build } from "../builds";
import { CodeDiff, type Side } from "../compare/CodeDiff";
import { format, type Ref } from "../refs";
import { Prose } from "../parts/Prose";
import { go, point, reachIn, type Pane } from "../state";
import type { ScheduleStep, ScheduleView } from "../wire";
import { about, layerStripes } from "./reading";

interface Props {
  readonly pane: Pane;
  readonly build: Build;
  readonly view: ScheduleView;
  readonly steps: readonly ScheduleStep[];
  readonly at: number;
  readonly beside: boolean;
  /** Whether these are the build's own steps: an edited schedule's last nest is not its code. */
  readonly mine: boolean;
}

export function NestDiff({ pane, build, view, steps, at, beside, mine }: Props) {
  const step = steps[at];
  const before = steps[at - 1];
  if (!step) return <p class="empty">The schedule has no steps.</p>;
  const last = steps.length - 1;
  const after = nestSide(pane, build, view.kernel, step, mine && at === last);
  return (
    <>
      <StepHead view={view} step={step} at={at} />
      <div class="nest" data-scrolls tabIndex={-1} onMouseLeave={() => point(null)}>
        <CodeDiff
          a={before ? nestSide(pane, build, view.kernel, before, false) : after}
          b={after}
          sideBySide={beside && before !== undefined}
          label={before ? `The loop nest before and after step ${at}` : "The loop nest before all steps"}
        />
      </div>
    </>
  );
}

/** Describes the step: its text, and the primitive's signature and description. */
function StepHead({ view, step, at }: { readonly view: ScheduleView; readonly step: ScheduleStep; readonly at: number }) {
  if (at === 0) return <p class="step-head">The loop nest of the operators' definitions, before all steps.</p>;
  if (!step.primitive) return <p class="step-head">The simplified nest, the input of code generation.</p>;
  const { signature, text } = about(view, step.primitive);
  return (
    <p class="step-head">
      <code>{step.text}</code>
      <span class="about" title={signature}><Prose text={text} /></span>
    </p>
  );
}

/** One nest; `isCode` says that its lines are those of the kernel's code. */
export function nestSide(pane: Pane, build: Build, kernel: number, step: ScheduleStep, isCode: boolean): Side {
  const reach = reachIn(build.id).value;
  const overview = value(build.overview.value);
  const info = overview?.kernels[kernel];
  const positions = reach.kernels.get(kernel);
  const stage = (overview?.stages.length ?? 1) - 1;
  const op = (line: number): number => step.loop_op[line - 1] ?? -1;
  const refOf = (line: number): Ref => {
    if (isCode) return { kind: "loop", kernel, line };
    const number = info?.numbers[op(line)];
    return number === undefined ? { kind: "kernel", kernel } : { kind: "node", stage, number };
  };
  return {
    lines: step.loops,
    color: (line) => layerStripes(build, kernel, op(line)),
    lit: (line) => {
      if (isCode && reach.line?.kernel === kernel && reach.line.loop === line) return "exact";
      return positions?.has(op(line)) ? "hot" : "";
    },
    refOf: (line) => format(refOf(line)),
    onPoint: (line) => point({ build: build.id, ref: refOf(line) }),
    onChoose: (line) => go({ build: build.id, ref: refOf(line) }, pane.key),
  };
}
