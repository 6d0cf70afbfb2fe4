import type { ErrorInfo } from "../wire";
import { Prose } from "./Prose";

/** A coded error as clew prints it: message, location and hint. */
export function ErrorBox({ error }: { readonly error: ErrorInfo }) {
  return (
    <div class="error" role="alert">
      <p>
        <code>error[{error.code}]</code> {error.message}
      </p>
      <dl>
        {error.layer && (<><dt>layer</dt><dd>{error.layer}</dd></>)}
        {error.stage && (<><dt>stage</dt><dd>{error.stage}</dd></>)}
        {error.pass_name && (<><dt>pass</dt><dd>{error.pass_name}</dd></>)}
        {error.hint && (<><dt>hint</dt><dd><Prose text={error.hint} /></dd></>)}
      </dl>
    </div>
  );
}
