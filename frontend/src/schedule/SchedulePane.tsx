// The schedule player: the recorded primitives of a kernel, and its loop nest before and after each.

import { useEffect, useRef, useState } from "preact/hooks";
import { theSource, type Build } from "../builds";
import { paneKeys } from "../panekeys";
import type { PaneProps } from "../panes/props";
import { Icon } from "../parts/Icon";
import { ErrorBox } from "../parts/ErrorBox";
import { update, type Pane } from "../state";
import type { ScheduleStep, ScheduleView } from "../wire";
import { Editor } from "./Editor";
import { NestDiff } from "./NestDiff";
import { StepList } from "./StepList";
import { edit, keptOf, sameSteps, type Kept } from "./store";
import { Trial } from "./Trial";
import { written } from "./reading";

export function SchedulePane({ pane, build }: PaneProps) {
  const asked = build.ask(`schedule/${pane.arg}`).value;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  if (asked.state === "loading") return <p class="empty">Loading the schedule …</p>;
  return <Player key={pane.arg} pane={pane} build={build} view={asked.value} />;
}

interface PlayerProps {
  readonly pane: Pane;
  readonly build: Build;
  readonly view: ScheduleView;
}

const PLAY_MS = 1100;
/** The preferred width of two nests, in pixels. */
const ROOM_FOR_TWO = 780;

function Player({ pane, build, view }: PlayerProps) {
  const kept = keptOf(build.id, view.kernel);
  const tried = kept.tried.value;
  const trial = tried.state === "done" ? tried.trial : null;
  const [whose, setWhose] = useState<"recorded" | "tried">("recorded");
  const steps = whose === "tried" && trial ? trial.steps : view.steps;
  const last = steps.length - 1;
  const at = Math.max(0, Math.min(last, pane.at ?? 1));
  const [playing, setPlaying] = useState(false);
  const [chosenLayout, setLayout] = useState<"" | "beside" | "unified">("");
  const [width, setWidth] = useState(1000);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => {
    if (!box.current) return;
    const sized = new ResizeObserver(([entry]) => setWidth(entry?.contentRect.width ?? 0));
    sized.observe(box.current);
    return () => sized.disconnect();
  }, []);
  useEffect(() => {
    if (!playing) return;
    if (at >= last) return setPlaying(false);
    const timer = setTimeout(() => update(pane.key, { at: at + 1 }), PLAY_MS);
    return () => clearTimeout(timer);
  }, [playing, at, last]);

  const to = (step: number): void => {
    setPlaying(false);
    update(pane.key, { at: Math.max(0, Math.min(last, step)) });
  };
  useEffect(() => paneKeys(pane.key, { move: (by) => to(at + by), text: () => asText(steps) }));

  const editing = kept.edit.value !== null;
  const room = width * (editing ? 0.58 : 0.73);
  const beside = (chosenLayout || (room > ROOM_FOR_TWO ? "beside" : "unified")) === "beside";
  return (
    <div
      ref={box}
      class="schedule"
      tabIndex={0}
      onKeyDown={(event) => {
        if (event.target instanceof HTMLElement && event.target.matches("input, textarea, select")) return;
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
        if (target === undefined) return;
        event.preventDefault();
        to(target);
      }}
    >
      <div class="controls">
        <span class="buttons">
          <button title="First (Home)" aria-label="First step" disabled={at === 0} onClick={() => to(0)}><Icon name="first" size={13} /></button>
          <button title="Back (←)" aria-label="Step back" disabled={at === 0} onClick={() => to(at - 1)}><Icon name="back" size={13} /></button>
          <button
            title={playing ? "Pause" : "Play"}
            aria-label={playing ? "Pause" : "Play"}
            data-action="play"
            onClick={() => {
              if (!playing && at >= last) update(pane.key, { at: 0 });
              setPlaying(!playing);
            }}
          >
            <Icon name={playing ? "pause" : "play"} size={13} />
          </button>
          <button title="Forward (→)" aria-label="Step forward" disabled={at === last} onClick={() => to(at + 1)}><Icon name="forward" size={13} /></button>
          <button title="Last (End)" aria-label="Last step" disabled={at === last} onClick={() => to(last)}><Icon name="last" size={13} /></button>
        </span>
        <input
          type="range"
          min={0}
          max={last}
          value={at}
          aria-label="step"
          aria-valuetext={steps[at]?.text || "before all steps"}
          onInput={(event) => to(Number(event.currentTarget.value))}
        />
        <span class="count" data-step={at}>{at} / {last}</span>
        <button aria-pressed={beside} title="Side by side, or one below the other" onClick={() => setLayout(beside ? "unified" : "beside")}>
          {beside ? "side by side" : "unified"}
        </button>
        <EditButton kept={kept} view={view} editing={editing} />
      </div>
      <div class="playing">
        {editing ? (
          <Editor build={build} view={view} kept={kept} at={at} onStep={to} />
        ) : (
          <StepList steps={steps} at={at} rules={view.rules} onStep={to} />
        )}
        <div class="nests">
          {trial && (
            <Trial
              build={build}
              view={view}
              trial={trial}
              stale={tried.state === "done" && editing && !sameSteps(tried.steps, kept.edit.value?.steps ?? [])}
              beside={beside}
              whose={whose}
              onWhose={setWhose}
              onClose={() => {
                kept.tried.value = { state: "none" };
                setWhose("recorded");
              }}
            >
              <NestDiff pane={pane} build={build} view={view} steps={steps} at={at} beside={beside} mine={whose === "recorded"} />
            </Trial>
          )}
          {!trial && <NestDiff pane={pane} build={build} view={view} steps={steps} at={at} beside={beside} mine />}
        </div>
      </div>
    </div>
  );
}

interface EditProps {
  readonly kept: Kept;
  readonly view: ScheduleView;
  readonly editing: boolean;
}

function EditButton({ kept, view, editing }: EditProps) {
  const live = theSource().live;
  return (
    <button
      class={editing ? "" : "primary"}
      data-action="edit"
      disabled={!live}
      title={live ? "Change steps, recompile and compare" : "A report can neither compile nor measure: use clew explore"}
      onClick={() => {
        if (editing) kept.edit.value = null;
        else edit(kept, written(view.steps));
      }}
    >
      {editing ? "Stop editing" : "Edit"}
    </button>
  );
}

function asText(steps: readonly ScheduleStep[]): string {
  return steps.map((step, n) => `# ${n} ${step.text || "before all steps"}\n${step.loops.join("\n")}`).join("\n\n");
}
