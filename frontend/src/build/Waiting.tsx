// The page while it has no build to show in panes.

import { started, type Build } from "../builds";
import { panes } from "../state";
import { BuildState } from "./BuildState";
import { Empty } from "./Empty";

/** Whether panes have nothing to show yet. */
export function waits(build: Build | null): boolean {
  return !build || (!panes.value.length && build.info.value.state !== "ready");
}

export function Waiting({ build }: { readonly build: Build | null }) {
  if (build) return <BuildState build={build} />;
  return started.value.state === "ready" ? <Empty /> : <p class="empty waiting">Loading …</p>;
}
