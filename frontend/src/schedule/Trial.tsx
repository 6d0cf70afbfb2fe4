// The effect of an edited schedule: times, results, and its nest and instructions.

import { useMemo, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { value, type Build } from "../builds";
import { CodeDiff, type Side } from "../compare/CodeDiff";
import { Faster } from "../compare/Faster";
import { errorText, timeText } from "../parts/figures";
import type { ScheduleTrial, ScheduleView } from "../wire";
import { layerStripes } from "./reading";

interface Props {
  readonly build: Build;
  readonly view: ScheduleView;
  readonly trial: ScheduleTrial;
  /** Whether steps have been changed since. */
  readonly stale: boolean;
  readonly beside: boolean;
  readonly whose: "recorded" | "tried";
  readonly onWhose: (whose: "recorded" | "tried") => void;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

type Tab = "steps" | "loops" | "asm";

export function Trial({ build, view, trial, stale, beside, whose, onWhose, onClose, children }: Props) {
  const [tab, setTab] = useState<Tab>("loops");
  const tabs: readonly (readonly [Tab, string])[] = [["loops", "Loops"], ["asm", "Assembly"], ["steps", "Steps"]];
  return (
    <>
      <section class="trial" aria-label="Result" data-same={trial.same_bits}>
        <p class="trial-figures">
          <span class="trial-figure"><small>recorded</small><b>{timeText(trial.before_ns)}</b></span>
          <span aria-hidden="true">→</span>
          <span class="trial-figure"><small>edited</small><b>{timeText(trial.after_ns)}</b></span>
          <Faster before={trial.before_ns} after={trial.after_ns} />
          <span class="results">
            {trial.same_bits ? (
              <span class="good">✓ the same bits</span>
            ) : (
              <span class={trial.error > 1e-3 ? "bad" : ""}>relative error {errorText(trial.error)}</span>
            )}
          </span>
          {stale && <span class="dim">of the steps before the last change</span>}
          <span class="grow" />
          <button aria-label="Close the result" title="Close" onClick={onClose}>×</button>
        </p>
        <div class="trial-tabs" role="tablist">
          {tabs.map(([name, title]) => (
            <button key={name} role="tab" aria-selected={tab === name} onClick={() => setTab(name)}>{title}</button>
          ))}
          {tab === "steps" && (
            <select aria-label="whose steps" value={whose} onChange={(event) => onWhose(event.currentTarget.value as "recorded" | "tried")}>
              <option value="recorded">of the recorded schedule</option>
              <option value="tried">of the edited schedule</option>
            </select>
          )}
        </div>
      </section>
      {tab === "steps" ? children : <Compared build={build} view={view} trial={trial} beside={beside} tab={tab} />}
    </>
  );
}

interface ComparedProps {
  readonly build: Build;
  readonly view: ScheduleView;
  readonly trial: ScheduleTrial;
  readonly beside: boolean;
  readonly tab: "loops" | "asm";
}

/** The recorded code and the new one. */
function Compared({ build, view, trial, beside, tab }: ComparedProps) {
  const code = value(build.code(view.kernel).value);
  const sides = useMemo(() => {
    if (!code) return null;
    const side = (of: typeof code): Side => ({
      lines: tab === "loops" ? of.loops : of.asm,
      color: (line) => {
        const loop = tab === "loops" ? line : (of.asm_loop[line - 1] ?? 0);
        return layerStripes(build, view.kernel, of.loop_op[loop - 1] ?? -1);
      },
      lit: () => "",
    });
    return { a: side(code), b: side(trial.code) };
  }, [code, trial, tab]);
  if (!sides) return <p class="empty">Loading the recorded code …</p>;
  if (sides.a.lines.join("\n") === sides.b.lines.join("\n")) return <p class="empty">Both are equal, line by line.</p>;
  return (
    <div class="nest" data-scrolls>
      <p class="totals dim">
        {sides.a.lines.length} {tab === "asm" ? "instructions" : "lines"} before, {sides.b.lines.length} after
      </p>
      <CodeDiff a={sides.a} b={sides.b} sideBySide={beside} context={4} label={`${tab} before and after`} />
    </div>
  );
}
