// Short messages in a corner: errors, and actions without a visible effect.

import { signal } from "@preact/signals";
import type { ErrorInfo } from "./wire";

/** An `error` stays until it is dismissed; a mere `text` disappears by itself. */
export interface Notice {
  readonly key: number;
  readonly text: string;
  readonly error: ErrorInfo | null;
}

export const notices = signal<readonly Notice[]>([]);

const SHOWN_MS = 5000;
let keys = 0;

/** Shows a message for some seconds, an error until it is dismissed. */
export function tell(text: string, error: ErrorInfo | null = null): void {
  const key = ++keys;
  notices.value = [...notices.peek(), { key, text, error }];
  if (!error) setTimeout(() => putAway(key), SHOWN_MS);
}

export function putAway(key: number): void {
  notices.value = notices.peek().filter((notice) => notice.key !== key);
}
