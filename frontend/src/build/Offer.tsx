// Announces a new build, and offers to compare it with the previous one.

import { batch } from "@preact/signals";
import { letter } from "../compare/Badge";
import { become, besides, offered, titleOf } from "./builder";

export function Offer() {
  const offer = offered.value;
  if (!offer) return null;
  const { fresh, before } = offer;
  return (
    <aside class="offer" role="status">
      <p>
        <b class={`badge of-${fresh.id}`}>{letter(fresh.id)}</b> {titleOf(fresh)} is ready.
      </p>
      <p class="build-actions">
        <button class="primary" data-action="compare-before" onClick={() => besides(before, fresh)}>
          Compare with {letter(before.id)}
        </button>
        <button
          onClick={() => {
            batch(() => {
              become(before);
              offered.value = null;
            });
          }}
        >
          Back to {letter(before.id)}
        </button>
        <button aria-label="Close" onClick={() => (offered.value = null)}>×</button>
      </p>
    </aside>
  );
}
