// Sharing the current view. The page's address contains the server's token, which lets anyone who has it
// see everything the server shows, and start compilations: so the state can also be shared alone.

import { buildOf, value } from "./builds";
import { copy } from "./parts/saving";
import { current } from "./state";
import { write } from "./url";

export function copyLink(): void {
  const live = buildOf(current.peek())?.source.live ?? false;
  const what = live ? "The link (it contains this server's token; it works on this machine while the server runs)" : "The link";
  void copy(`${location.href.replace(/#.*$/, "")}#${write()}`, what);
}

export function copyState(): void {
  void copy(`#${write()}`, "The state (append it to the address of any page of this model)");
}

export function copyReportCommand(): void {
  const build = buildOf(current.peek());
  const model = (build && value(build.overview.peek())?.model) ?? "model.onnx";
  const quoted = /^[\w./-]+$/.test(model) ? model : `'${model.replaceAll("'", "'\\''")}'`;
  void copy(`clew report ${quoted} -o report.html`, "The command");
}
