// Steps through the turns of a loop: first, previous, a typed number, next, last. Arrows do the same.

import { Icon } from "../parts/Icon";
import { nearest, stepped, typed, type Step, type Turns } from "./turns";

interface StepperProps {
  readonly turns: Turns;
  /** The turn that is shown, from 0. */
  readonly at: number;
  readonly onTurn: (turn: number) => void;
}

const KEYS: Readonly<Record<string, Step>> = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last" };

export function Stepper({ turns, at, onTurn }: StepperProps) {
  const to = (step: Step): void => {
    const turn = stepped(turns, at, step);
    if (turn !== at) onTurn(turn);
  };
  const button = (step: Step, icon: "first" | "back" | "forward" | "last") => (
    <button
      class="quiet"
      title={`${step[0]?.toUpperCase()}${step.slice(1)} turn`}
      aria-label={`${step[0]?.toUpperCase()}${step.slice(1)} turn`}
      // Not `disabled`, which would take the keyboard from whoever steps to the end.
      aria-disabled={stepped(turns, at, step) === at}
      onClick={() => to(step)}
    >
      <Icon name={icon} />
    </button>
  );
  return (
    <div
      class="stepper"
      role="group"
      aria-label="Turn of the loop"
      onKeyDown={(event) => {
        const step = KEYS[event.key];
        const typing = event.target instanceof HTMLInputElement;
        if (!step || typing || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        event.stopPropagation();
        to(step);
      }}
    >
      {button("first", "first")}
      {button("previous", "back")}
      <label>
        turn
        <input
          type="number"
          min={1}
          max={turns.total}
          value={at + 1}
          aria-label={`Turn, of ${turns.total}`}
          onChange={(event) => {
            const turn = typed(event.currentTarget.value);
            const found = turn === null ? at : nearest(turns, turn);
            event.currentTarget.value = String(found + 1);
            if (found !== at) onTurn(found);
          }}
        />
        of {turns.total.toLocaleString("en")}
      </label>
      {button("next", "forward")}
      {button("last", "last")}
    </div>
  );
}
