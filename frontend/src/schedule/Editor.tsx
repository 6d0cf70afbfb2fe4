// Edits a schedule: its steps as fields, or all of it as text. A trial uses the current text.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Build } from "../builds";
import { jobs } from "../jobs";
import { Icon } from "../parts/Icon";
import { ErrorBox } from "../parts/ErrorBox";
import { Prose } from "../parts/Prose";
import { Progress } from "../parts/Progress";
import type { ScheduleView } from "../wire";
import { AllSteps } from "./AllSteps";
import { insert, move, redo, remove, replace, undo, write, type Edit } from "./edit";
import { about, written } from "./reading";
import { StepError, type Failure } from "./StepError";
import { failedStep, placeOf, sameSteps, trialTitle, trySteps, type Kept } from "./store";

interface Props {
  readonly build: Build;
  readonly view: ScheduleView;
  readonly kept: Kept;
  readonly at: number;
  readonly onStep: (step: number) => void;
}

export function Editor({ build, view, kept, at, onStep }: Props) {
  const edit = kept.edit.value;
  const [asText, setAsText] = useState(false);
  const tried = kept.tried.value;
  const running = jobs.value.find((job) => job.state !== "done" && job.build === build.id && job.title === trialTitle(view.kernel));
  if (!edit) return null;
  const original = written(view.steps);
  const changed = edit.steps.length !== original.length || edit.steps.some((step, n) => step !== original[n]);
  const to = (next: Edit): void => {
    kept.edit.value = next;
  };
  const error = tried.state === "failed" ? tried.error : null;
  // An error stays until steps are tried again. If it disappeared when a field loses focus, the
  // pressed button would move away from the pointer.
  const of = tried.state === "failed" ? tried.steps : [];
  const failed = error ? failedStep(error) : -1;
  const failure: Failure | null = error && failed >= 0 ? { error, text: of[failed] ?? "", stale: !sameSteps(of, edit.steps) } : null;
  const place = failure ? placeOf(failed, failure.text, edit.steps) : -1;
  return (
    <div
      class="steps editor"
      onKeyDown={(event) => {
        if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
        if (event.target instanceof HTMLElement && event.target.matches("[data-dirty]")) return;
        event.preventDefault();
        to(event.shiftKey ? redo(edit) : undo(edit));
      }}
    >
      <p class="edit-bar">
        <button disabled={!edit.past.length} title="Undo (Ctrl Z)" onClick={() => to(undo(edit))}>Undo</button>
        <button disabled={!edit.future.length} title="Redo (Ctrl Shift Z)" onClick={() => to(redo(edit))}>Redo</button>
        <button disabled={!changed} onClick={() => to(write(edit, original.join("\n")))}>Reset</button>
        <span class="grow" />
        <button aria-pressed={asText} onClick={() => setAsText(!asText)}>{asText ? "as steps" : "as text"}</button>
      </p>
      {asText ? (
        <AllSteps steps={edit.steps} failed={place} failure={failure} onText={(text) => to(write(edit, text))} />
      ) : (
        <ol aria-label="Steps to edit">
          {edit.steps.map((step, n) => (
            <StepField
              key={n}
              n={n}
              step={step}
              edit={edit}
              view={view}
              isNew={step !== original[n]}
              isCurrent={n + 1 === at}
              failure={n === place ? failure : null}
              to={to}
              onStep={onStep}
            />
          ))}
          <li>
            <Fresh onText={(text) => to(insert(edit, edit.steps.length, text))} />
          </li>
        </ol>
      )}
      <datalist id="primitives">
        {Object.entries(view.primitives).map(([name, signature]) => (
          <option key={name} value={`${name}(`}>{signature.split("\n")[0]}</option>
        ))}
      </datalist>
      <div class="try">
        {running ? (
          <Progress job={running} />
        ) : (
          <button class="primary" data-action="try" onClick={() => void trySteps(kept, build.id, view.kernel, edit.steps)}>
            Recompile &amp; compare
          </button>
        )}
        {error && failed < 0 && <ErrorBox error={error} />}
      </div>
    </div>
  );
}

interface FieldProps {
  readonly n: number;
  readonly step: string;
  readonly edit: Edit;
  readonly view: ScheduleView;
  readonly isNew: boolean;
  readonly isCurrent: boolean;
  readonly failure: Failure | null;
  readonly to: (edit: Edit) => void;
  readonly onStep: (step: number) => void;
}

function StepField({ n, step, edit, view, isNew, isCurrent, failure, to, onStep }: FieldProps) {
  const [typed, setTyped] = useState(step);
  const [open, setOpen] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => setTyped(step), [step]);
  const primitive = /^\s*(\w*)/.exec(typed)?.[1] ?? "";
  const { signature, text } = about(view, primitive);
  const take = (): void => to(replace(edit, n, typed));
  return (
    <li class={`${isNew ? "new" : ""} ${isCurrent ? "current" : ""} ${failure ? "failed" : ""}`} data-edit={n + 1}>
      <div class="field">
        <span class="number">{n + 1}</span>
        <input
          ref={field}
          value={typed}
          aria-label={`step ${n + 1}`}
          aria-invalid={failure && !failure.stale ? true : undefined}
          spellcheck={false}
          autocomplete="off"
          title={typed}
          data-dirty={typed === step ? undefined : ""}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onFocus={() => {
            setOpen(true);
            if (!isNew) onStep(n + 1);
          }}
          onBlur={() => {
            setOpen(false);
            take();
          }}
          onPaste={(event) => {
            const pasted = event.clipboardData?.getData("text") ?? "";
            if (!pasted.trim().includes("\n")) return;
            event.preventDefault();
            to(replace(edit, n, pasted));
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") take();
            else if (event.key === "Escape" && typed !== step) setTyped(step);
            else if (event.altKey && event.key === "ArrowUp") to(move(edit, n, -1));
            else if (event.altKey && event.key === "ArrowDown") to(move(edit, n, 1));
            else return;
            event.stopPropagation();
            event.preventDefault();
          }}
        />
        <span class="tools">
          <button tabIndex={-1} title="Move up (Alt ↑)" aria-label={`Move step ${n + 1} up`} disabled={n === 0} onClick={() => to(move(edit, n, -1))}><Icon name="up" size={12} /></button>
          <button tabIndex={-1} title="Move down (Alt ↓)" aria-label={`Move step ${n + 1} down`} disabled={n === edit.steps.length - 1} onClick={() => to(move(edit, n, 1))}><Icon name="down" size={12} /></button>
          <button tabIndex={-1} title="Insert a copy above" aria-label={`Insert above step ${n + 1}`} onClick={() => to(insert(edit, n, step))}><Icon name="plus" size={12} /></button>
          <button title="Delete" aria-label={`Delete step ${n + 1}`} onClick={() => to(remove(edit, n))}><Icon name="close" size={12} /></button>
        </span>
      </div>
      {open && signature && (
        <p class="signature"><code>{signature}</code> <Prose text={text} /></p>
      )}
      {failure && <StepError failure={failure} />}
    </li>
  );
}

/** An empty field at the end, for another step. */
function Fresh({ onText }: { readonly onText: (text: string) => void }) {
  const [typed, setTyped] = useState("");
  const take = (): void => {
    if (typed.trim()) onText(typed);
    setTyped("");
  };
  return (
    <div class="field">
      <span class="number">+</span>
      <input
        value={typed}
        list="primitives"
        aria-label="another step"
        placeholder="add a step, as split(loop='i', factor=8)"
        spellcheck={false}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onBlur={take}
        onKeyDown={(event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          take();
        }}
      />
    </div>
  );
}
