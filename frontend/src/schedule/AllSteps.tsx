// All steps of an edited schedule as one text, one step per line, with errors at their lines.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { StepError, type Failure } from "./StepError";

interface Props {
  readonly steps: readonly string[];
  /** The step with an error, from 0, and the error. */
  readonly failed: number;
  readonly failure: Failure | null;
  readonly onText: (text: string) => void;
}

export function AllSteps({ steps, failed, failure, onText }: Props) {
  const text = steps.join("\n");
  const [typed, setTyped] = useState(text);
  const field = useRef<HTMLTextAreaElement>(null);
  const numbers = useRef<HTMLOListElement>(null);
  const id = useId();
  useEffect(() => setTyped(text), [text]);
  const error = failure?.error;
  const wrong = failure && !failure.stale ? failed : -1;
  // The field still has the tried text: scroll to the line that failed.
  useEffect(() => {
    if (wrong < 0 || !field.current || !numbers.current) return;
    const line = numbers.current.children[wrong] as HTMLElement | undefined;
    if (line) field.current.scrollTop = line.offsetTop - field.current.clientHeight / 2;
  }, [wrong, error]);
  const follow = (): void => {
    if (field.current && numbers.current) numbers.current.style.transform = `translateY(${-field.current.scrollTop}px)`;
  };
  return (
    <div class="all-steps-box">
      <div class="all-steps">
        <ol class="line-numbers" ref={numbers} aria-hidden="true">
          {typed.split("\n").map((_, n) => (
            <li key={n} class={n === wrong ? "failed" : ""} data-line={n + 1}>{n + 1}</li>
          ))}
        </ol>
        <textarea
          ref={field}
          aria-label="Schedule as text"
          aria-invalid={wrong >= 0 ? true : undefined}
          aria-describedby={wrong >= 0 ? id : undefined}
          spellcheck={false}
          wrap="off"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onChange={(event) => onText(event.currentTarget.value)}
          onScroll={follow}
        />
      </div>
      {failure && <StepError id={id} step={failed < 0 ? undefined : failed + 1} failure={failure} />}
    </div>
  );
}
