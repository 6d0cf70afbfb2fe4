import type { ErrorInfo } from "../wire";

/** A step that was tried and failed. */
export interface Failure {
  readonly error: ErrorInfo;
  readonly text: string;
  /** Whether steps have been changed since. */
  readonly stale: boolean;
}

interface Props {
  readonly failure: Failure;
  /** Shown if the error is not displayed at its step. */
  readonly step?: number | undefined;
  readonly id?: string;
}

/** Shows a step's error. */
export function StepError({ failure, step, id }: Props) {
  const { error, text, stale } = failure;
  return (
    <p class={`step-error${stale ? " stale" : ""}`} role="alert" id={id} data-failed={step}>
      {stale && "before the last change: "}
      {step !== undefined && <>line {step}, <code>{text}</code>: </>}
      <code class="error-code">{error.code}</code> {error.message}
      {error.hint && <span class="dim"> {error.hint}</span>}
    </p>
  );
}
