// What the page shows while it has no build that panes could show.

import { started, type Build } from "../builds";
import { panes } from "../state";
import { BuildState } from "./BuildState";
import { Empty } from "./Empty";

/** Whether there is nothing for panes to show yet. */
export function waits(build: Build | null): boolean {
  return !build || (!panes.value.length && build.info.value.state !== "ready");
}

export function Waiting({ build }: { readonly build: Build | null }) {
  if (build) return <BuildState build={build} />;
  return started.value.state === "ready" ? <Empty /> : <p class="empty waiting">Loading …</p>;
}
