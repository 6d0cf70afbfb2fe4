// Lays out graphs off the page's thread: one message in, progress and one answer out.

import { layered } from "./layered";
import type { Placed, ToPlace } from "./place";

interface Scope {
  onmessage: ((event: MessageEvent<ToPlace>) => void) | null;
  postMessage(message: { progress: number } | { placed: Placed } | { failed: string }, transfer?: Transferable[]): void;
}
const scope = self as unknown as Scope;

scope.onmessage = (event) => {
  let told = 0;
  try {
    const placed = layered(event.data, (share) => {
      if (share - told < 0.02) return;
      told = share;
      scope.postMessage({ progress: share });
    });
    scope.postMessage({ placed });
  } catch (error) {
    scope.postMessage({ failed: error instanceof Error ? error.message : String(error) });
  }
};
