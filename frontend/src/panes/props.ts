// What every pane's component is given.

import type { Build } from "../builds";
import type { Pane } from "../state";

export interface PaneProps {
  readonly pane: Pane;
  readonly build: Build;
}
