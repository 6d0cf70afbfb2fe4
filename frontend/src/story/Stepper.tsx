// Steps through the iterations of a loop: first, previous, a typed number, next, last. Arrows do the same.

import { Icon } from "../parts/Icon";
import { nearest, stepped, typed, type Step, type Iterations } from "./iterations";

interface StepperProps {
  readonly iterations: Iterations;
  /** The iteration that is shown, from 0. */
  readonly at: number;
  readonly onIteration: (iteration: number) => void;
}

const KEYS: Readonly<Record<string, Step>> = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last" };

export function Stepper({ iterations, at, onIteration }: StepperProps) {
  const to = (step: Step): void => {
    const iteration = stepped(iterations, at, step);
    if (iteration !== at) onIteration(iteration);
  };
  const button = (step: Step, icon: "first" | "back" | "forward" | "last") => (
    <button
      class="quiet"
      title={`${step[0]?.toUpperCase()}${step.slice(1)} iteration`}
      aria-label={`${step[0]?.toUpperCase()}${step.slice(1)} iteration`}
      // Not `disabled`, which would remove the focus at the end.
      aria-disabled={stepped(iterations, at, step) === at}
      onClick={() => to(step)}
    >
      <Icon name={icon} />
    </button>
  );
  return (
    <div
      class="stepper"
      role="group"
      aria-label="Iteration of the loop"
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
        iteration
        <input
          type="number"
          min={1}
          max={iterations.total}
          value={at + 1}
          aria-label={`Iteration, of ${iterations.total}`}
          onChange={(event) => {
            const iteration = typed(event.currentTarget.value);
            const found = iteration === null ? at : nearest(iterations, iteration);
            event.currentTarget.value = String(found + 1);
            if (found !== at) onIteration(found);
          }}
        />
        of {iterations.total.toLocaleString("en")}
      </label>
      {button("next", "forward")}
      {button("last", "last")}
    </div>
  );
}
