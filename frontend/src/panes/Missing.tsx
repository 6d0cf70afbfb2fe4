import type { PaneProps } from "./props";

/** Stands where a pane's component is not written yet. */
export function Missing({ pane }: PaneProps) {
  return <p class="empty">{pane.kind} is not shown yet</p>;
}
