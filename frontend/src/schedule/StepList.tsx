import { useEffect, useMemo, useRef } from "preact/hooks";
import { diffLines } from "../compare/lineDiff";
import type { ScheduleStep } from "../wire";
import { readCall } from "./edit";

interface Props {
  readonly steps: readonly ScheduleStep[];
  readonly at: number;
  readonly rules: readonly string[];
  readonly onStep: (step: number) => void;
}

/** The recorded primitives, the current one marked. */
export function StepList({ steps, at, rules, onStep }: Props) {
  const list = useRef<HTMLOListElement>(null);
  const touched = useMemo(() => steps.map((step, n) => (n ? touches(steps[n - 1]?.loops ?? [], step.loops) : 0)), [steps]);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  return (
    <div class="steps">
      {rules.length > 0 && (
        <p class="rules" title="The rules that chose this schedule">
          by {rules.map((rule, n) => <code key={n}>{rule}</code>)}
        </p>
      )}
      <ol ref={list} aria-label="Steps">
        {steps.map((step, n) => (
          <li key={n} aria-current={n === at ? "step" : undefined} class={n < at ? "done" : ""} data-step={n}>
            <button tabIndex={-1} title={step.text || "the nest before all steps"} onClick={() => onStep(n)}>
              <span class="number">{n}</span>
              <StepText step={step} />
              <span class="touched">{touched[n] ? `±${touched[n]}` : ""}</span>
            </button>
          </li>
        ))}
      </ol>
    </div>
  );
}

function StepText({ step }: { readonly step: ScheduleStep }) {
  if (!step.primitive) return <span class="plain-step">{step.text || "start"}</span>;
  const call = readCall(step.text);
  return (
    <span class="call">
      <b>{call.name}</b>{" "}
      {call.values.map((v, n) => (
        <span key={n} title={v.name}>{v.value}</span>
      ))}
    </span>
  );
}

/** The number of lines that a step changes, ignoring leading blanks. */
function touches(before: readonly string[], after: readonly string[]): number {
  return diffLines(before, after).filter((row) => row.kind !== "same" && row.kind !== "indented").length;
}
