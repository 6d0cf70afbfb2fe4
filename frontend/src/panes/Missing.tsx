import type { PaneProps } from "./props";

/** A placeholder for a pane without a component. */
export function Missing({ pane }: PaneProps) {
  return <p class="empty">{pane.kind} is not shown yet</p>;
}
