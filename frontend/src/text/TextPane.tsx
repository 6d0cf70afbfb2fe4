// A pane of text: the model, graph IR at a stage, a loop nest, LLVM, instructions.

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Build } from "../builds";
import { ErrorBox } from "../parts/ErrorBox";
import type { PaneProps } from "../panes/props";
import { reachIn, update, type Pane } from "../state";
import { contentOf } from "./content";
import { TextSession } from "./session";

const NAMES: Partial<Record<Pane["kind"], string>> = {
  model: "The model",
  stage: "Graph IR",
  loops: "Loop nest",
  llvm: "LLVM",
  asm: "Assembly",
};

export function TextPane({ pane, build }: PaneProps) {
  const shown = useSignal(pane);
  if (shown.peek() !== pane) shown.value = pane;
  const asked = useComputed(() => contentOf(shown.value, build));
  const host = useRef<HTMLDivElement>(null);
  const [session, setSession] = useState<TextSession | null>(null);
  const now = asked.value;

  useEffect(() => {
    if (!host.current) return undefined;
    const begun = new TextSession(host.current, pane.key, build, asked, NAMES[pane.kind] ?? pane.kind);
    setSession(begun);
    return () => begun.end();
  }, [build]);

  return (
    <div class="code-pane" data-state={now.state}>
      <div class="code-host" ref={host} hidden={now.state !== "ready"} />
      {now.state === "failed" && <ErrorBox error={now.error} />}
      {now.state === "loading" && <Waiting />}
      {now.state === "ready" && now.value.text === "" && <p class="empty">There is no text here.</p>}
      {now.state === "ready" && session && <Status pane={pane} build={build} session={session} />}
    </div>
  );
}

/** A placeholder for lines that are loading. */
function Waiting() {
  return (
    <div class="waiting" role="status" aria-label="Loading">
      {[1, 2, 3, 4, 5, 6, 7].map((n) => (
        <i key={n} />
      ))}
    </div>
  );
}

interface StatusProps {
  readonly pane: Pane;
  readonly build: Build;
  readonly session: TextSession;
}

/** The number of places, and the other kernels with more of them. */
function Status({ pane, build, session }: StatusProps) {
  const { lines, at } = session.places.value;
  const isCode = pane.kind === "loops" || pane.kind === "llvm" || pane.kind === "asm";
  const others = isCode ? [...reachIn(build.id).value.kernels.keys()].filter((k) => k !== pane.arg).sort((a, b) => a - b) : [];
  if (!lines.length && !others.length) return null;
  return (
    <footer class="places">
      {lines.length > 0 && (
        <span data-places={lines.length}>
          {at >= 0 ? `${at + 1} of ${lines.length}` : `${lines.length} ${lines.length === 1 ? "place" : "places"}`}
          {lines.length > 1 && (
            <span class="dim">
              {" · "}
              <kbd>n</kbd> <kbd>p</kbd>
            </span>
          )}
        </span>
      )}
      {others.length > 0 && (
        <span class="dim">
          {lines.length ? "also in kernel " : "not here: in kernel "}
          {others.slice(0, 4).map((k) => (
            <button key={k} class="link" onClick={() => update(pane.key, { arg: k })}>
              {k}
            </button>
          ))}
          {others.length > 4 && ` and ${others.length - 4} more`}
        </span>
      )}
    </footer>
  );
}
