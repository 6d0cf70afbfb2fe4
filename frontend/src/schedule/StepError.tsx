import type { ErrorInfo } from "../wire";

interface Props {
  readonly error: ErrorInfo;
  /** Named where the error does not stand at its step. */
  readonly step?: number;
  readonly text?: string;
  readonly id?: string;
}

/** Why a step is refused. */
export function StepError({ error, step, text, id }: Props) {
  return (
    <p class="step-error" role="alert" id={id} data-failed={step}>
      {step !== undefined && <>line {step}, <code>{text}</code>: </>}
      <code class="error-code">{error.code}</code> {error.message}
      {error.hint && <span class="dim"> {error.hint}</span>}
    </p>
  );
}
