// The film strip: every stage from the model to the instructions, with its changes. Stages that
// change nothing are slivers, so that all fit; a click shows a stage, Shift opens it beside.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { focusedPane } from "../panekeys";
import { AddPane } from "../panes/AddPane";
import { countedOf } from "../panes/counted";
import { DRAGGED, writeDragged } from "../panes/drag";
import { open, panes, selected, update } from "../state";
import { NOTHING } from "../thread";
import { duration, framesOf, short, touchedStages, type Frame } from "./frames";

/** Whether stages that change nothing are as wide as others. */
const expanded = signal(false);

export function FilmStrip({ build }: { readonly build: Build }) {
  const asked = build.overview.value;
  const overview = value(asked);
  const totals = useTotals(build, overview !== null);
  const list = useRef<HTMLOListElement>(null);
  if (!overview) return <nav class="strip" aria-label="Stages" aria-busy={asked.state === "loading"} />;
  const frames = framesOf(overview, totals);
  const slowest = Math.max(...frames.map((f) => f.seconds ?? 0), 1e-9);
  const chosen = selected.value;
  const reach = (chosen?.build === build.id && build.thread.value?.reach(chosen.ref, build)) || NOTHING;
  const marked = touchedStages(reach);
  const color = reach.layers.size ? layerColor([...reach.layers][0] ?? 0) : "var(--hot)";
  const walk = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by || !list.current) return;
    const all = [...list.current.querySelectorAll<HTMLElement>("button")];
    all[all.indexOf(event.target as HTMLElement) + by]?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <nav class="strip" aria-label="Stages">
      <ol ref={list} class={expanded.value ? "expanded" : ""} onKeyDown={walk}>
        {frames.map((frame) => (
          <FrameCard
            key={`${frame.kind}${frame.arg}`}
            frame={frame}
            build={build}
            share={(frame.seconds ?? 0) / slowest}
            mark={frame.kind === "stage" && marked.has(frame.arg) ? color : ""}
          />
        ))}
      </ol>
      <div class="strip-tools">
        <AddPane build={build} />
        <button
          class="pane-icon"
          aria-pressed={expanded.value}
          title={expanded.value ? "Stages that change nothing as slivers" : "Show stages that change nothing in full"}
          onClick={() => (expanded.value = !expanded.value)}
        >
          ⟷
        </button>
      </div>
    </nav>
  );
}

interface CardProps {
  readonly frame: Frame;
  readonly build: Build;
  readonly share: number;
  /** The color of the selection, if its nodes changed here. */
  readonly mark: string;
}

function FrameCard({ frame, build, share, mark }: CardProps) {
  const shown = panes.value.flatMap((pane, n) =>
    pane.build === build.id && pane.kind === frame.kind && (frame.kind !== "stage" || pane.arg === frame.arg) ? [n + 1] : [],
  );
  const sliver = frame.sliver && !expanded.value;
  const data = { "data-frame": frame.kind, "data-arg": frame.arg, "data-shown": shown.length || undefined };
  return (
    <li class={sliver ? "sliver" : ""}>
      <button
        {...data}
        class={`frame${frame.sliver ? " same" : ""}${shown.length ? " shown" : ""}`}
        title={describe(frame)}
        aria-label={sliver ? describe(frame) : undefined}
        data-touched={mark ? "" : undefined}
        draggable
        onDragStart={(event) => {
          event.dataTransfer?.setData(DRAGGED, writeDragged(build.id, frame.kind, argOf(frame, build)));
        }}
        onClick={(event) => showFrame(frame, build, event.shiftKey)}
      >
        {mark && <i class="touched" style={{ backgroundColor: mark }} />}
        {!sliver && <Details frame={frame} share={share} shown={shown} />}
      </button>
    </li>
  );
}

function Details({ frame, share, shown }: { readonly frame: Frame; readonly share: number; readonly shown: readonly number[] }) {
  const { added, removed, rewritten, remarks } = frame;
  return (
    <>
      <b>{humps(frame.name)}</b>
      <span class="count">
        {frame.count === null ? "…" : short(frame.count)} <small>{frame.unit}</small>
      </span>
      <span class="changes">
        {added > 0 && <span class="added">+{short(added)}</span>}
        {removed > 0 && <span class="removed">−{short(removed)}</span>}
        {rewritten > 0 && <span class="rewritten">~{short(rewritten)}</span>}
        {remarks > 0 && <span class="remarks">¶{short(remarks)}</span>}
        {!frame.changed && <span class="dim">unchanged</span>}
      </span>
      {frame.seconds !== null && (
        <span class="time">
          <i style={{ width: `${Math.max(2, share * 100)}%` }} />
          <span>{duration(frame.seconds)}</span>
        </span>
      )}
      {shown.length > 0 && <span class="in-panes">{shown.join(" ")}</span>}
    </>
  );
}

/** Lets long names of passes break between their words. */
function humps(name: string) {
  return name.split(/(?<=[a-z])(?=[A-Z])/).map((part, n) => <span key={n}>{part}</span>);
}

function describe(frame: Frame): string {
  const { added, removed, rewritten, remarks } = frame;
  const facts = [
    frame.count === null ? "" : `${frame.count} ${frame.unit}`,
    frame.kind === "stage" && !frame.changed ? "changes nothing" : "",
    added ? `${added} added` : "",
    removed ? `${removed} removed` : "",
    rewritten ? `${rewritten} rewritten` : "",
    remarks ? `${remarks} remarks` : "",
    frame.seconds === null ? "" : duration(frame.seconds),
  ];
  return [frame.name, frame.summary, facts.filter(Boolean).join(", ")].filter(Boolean).join("\n");
}

/** A frame belongs to one stage, but code belongs to the current kernel. */
function argOf(frame: Frame, build: Build): number {
  return frame.kind === "stage" ? frame.arg : countedOf(build, frame.kind);
}

function showFrame(frame: Frame, build: Build, beside: boolean): void {
  const arg = argOf(frame, build);
  const mine = panes.peek().find((p) => p.key === focusedPane.peek());
  const known = panes.peek().some((p) => p.build === build.id && p.kind === frame.kind && p.arg === arg);
  if (beside) open(build.id, frame.kind, arg, undefined, true);
  else if (known) return;
  else if (mine?.build === build.id && mine.kind === frame.kind) update(mine.key, { arg });
  else open(build.id, frame.kind, arg);
}

/** The amount of code: requested when the page is idle, because it requires scheduling. */
function useTotals(build: Build, ready: boolean) {
  const [wanted, setWanted] = useState("");
  useEffect(() => {
    if (!ready) return undefined;
    const timer = setTimeout(() => setWanted(build.id), 400);
    return () => clearTimeout(timer);
  }, [build, ready]);
  return wanted === build.id ? value(build.ask("totals").value) : null;
}
