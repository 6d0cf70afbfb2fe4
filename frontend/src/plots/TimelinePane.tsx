// One run of median times, left to right: layers, the kernels that compute them, their operators.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { heatColor, isMeasured, wholeScale } from "../heat";
import { paneKeys } from "../panekeys";
import type { PaneProps } from "../panes/props";
import { ErrorBox } from "../parts/ErrorBox";
import { format, parse, type Ref } from "../refs";
import { metric, point, reachIn, selected, show } from "../state";
import { timeText, iterationsText } from "../parts/figures";
import { percent } from "../story/shares";
import type { Reach } from "../thread";
import type { Overview, Slice, Timeline } from "../wire";
import { NotMeasured } from "./NotMeasured";
import { colorAt, palette } from "./scale";
import { Marks } from "./Marks";
import { useSize } from "./size";
import { standalone } from "./svg";
import { drawn, moved, spanOf, TRACKS, tracksOf, type Drawn, type Track, type View } from "./timeline";
import { Tip } from "./Tip";
import { useView } from "./view";
import { doing } from "./words";

const HEAD = 16;
const LANE = 40;
const TITLE = 15;
const LETTER = 6.3;
/** Of a slice's width, for a name in it to make sense. */
const LEAST_NAME = 24;
const LONGEST_IN_VIEW = 14;

export function TimelinePane({ pane, build }: PaneProps) {
  const overview = value(build.overview.value);
  if (!overview) return <p class="empty">Loading …</p>;
  if (!isMeasured(build, "time")) return <NotMeasured build={build} what="time" />;
  const asked = build.ask("timeline").value;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  if (asked.state === "loading") return <p class="empty">Loading …</p>;
  return <Run pane={pane.key} build={build} overview={overview} timeline={asked.value} />;
}

interface RunProps {
  readonly pane: number;
  readonly build: Build;
  readonly overview: Overview;
  readonly timeline: Timeline;
}

interface Over {
  readonly track: Track;
  readonly slice: Slice;
  readonly x: number;
  readonly y: number;
}

function Run({ pane, build, overview, timeline }: RunProps) {
  const space = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const { width } = useSize(space);
  const span = useMemo(() => spanOf(timeline), [timeline]);
  const tracks = useMemo(() => tracksOf(timeline), [timeline]);
  const { view, setView, whole, zoom, onPointerDown, onPointerMove, dragged } = useView(space, width, span);
  const [over, setOver] = useState<Over | null>(null);
  const kernels = tracks.get("kernels") ?? [];
  const cursor = useRef(-1);
  const height = HEAD + TRACKS.length * (LANE + TITLE);
  const pick = (ref: Ref | null, beside = false): void => {
    if (ref) show({ build: build.id, ref }, beside);
  };
  const zoomTo = (slice: Slice): void => {
    const room = slice.ns * 0.05;
    setView({ from: Math.max(0, slice.start_ns - room), to: Math.min(span, slice.start_ns + slice.ns + room) });
  };
  useEffect(
    () =>
      paneKeys(pane, {
        move: (by) => {
          cursor.current = Math.min(kernels.length - 1, Math.max(0, cursor.current + by));
          const slice = kernels[cursor.current];
          const ref = slice && parse(slice.ref);
          if (slice && (slice.start_ns < view.from || slice.start_ns + slice.ns > view.to)) {
            setView(moved(view, slice.start_ns + slice.ns / 2 - (view.from + view.to) / 2, span));
          }
          point(ref ? { build: build.id, ref } : null);
        },
        choose: () => pick(parse(kernels[cursor.current]?.ref ?? "")),
        text: () => timeline.slices.map((s) => [s.track, s.start_ns.toFixed(0), s.ns.toFixed(0), s.text].join("\t")).join("\n"),
        svg: () => (svg.current ? standalone(svg.current, `Timeline of ${overview.model}`) : ""),
      }),
    [timeline, view],
  );
  const picked = selected.value;
  const wanted = picked?.build === build.id ? format(picked.ref) : "";
  const chosen = wanted ? timeline.slices.find((slice) => slice.ref === wanted) : undefined;
  return (
    <div class="timeline">
      <div class="plot-head timeline-head">
        <span>
          {whole ? `One run: ${timeText(timeline.wall_ns)}` : `${timeText(view.from)} to ${timeText(view.to)} of ${timeText(span)}`}
        </span>
        <span class="grow" />
        <button aria-label="Zoom out" title="Zoom out (wheel)" disabled={whole} onClick={() => zoom(0.5)}>−</button>
        <button aria-label="Zoom in" title="Zoom in (wheel)" onClick={() => zoom(2)}>+</button>
        <button disabled={!chosen} title="Zoom to the selection" onClick={() => chosen && zoomTo(chosen)}>Chosen</button>
        <button disabled={whole} onClick={() => setView({ from: 0, to: span })}>All</button>
      </div>
      <div
        class="plot-space tracks"
        ref={space}
        onPointerDown={onPointerDown}
        onPointerMove={onPointerMove}
        onPointerLeave={() => { setOver(null); point(null); }}
      >
        {width > 0 && (
          <svg ref={svg} width={width} height={height} class="plot" role="img" aria-label={`Timeline of ${overview.model}`}>
            <Marks view={view} width={width} top={HEAD} height={height} text={(at) => (at ? timeText(at) : "0")} />
            {TRACKS.map((track, n) => (
              <Lane
                key={track}
                build={build}
                overview={overview}
                track={track}
                y={HEAD + n * (LANE + TITLE)}
                pieces={drawn(tracks.get(track) ?? [], view, width)}
                enter={(piece) => {
                  const slice = piece.slice;
                  setOver(slice ? { track, slice, x: Math.max(0, piece.x), y: HEAD + n * (LANE + TITLE) + TITLE } : null);
                  const ref = slice && parse(slice.ref);
                  point(ref ? { build: build.id, ref } : null);
                }}
                choose={(piece, beside) => {
                  if (!dragged() && piece.slice) pick(parse(piece.slice.ref), beside);
                }}
              />
            ))}
          </svg>
        )}
        {over && (
          <Tip x={over.x} y={over.y + LANE - 6}>
            <b>{over.slice.text}</b>
            <p>{timeText(over.slice.ns)}, {percent(over.slice.ns / (timeline.wall_ns || span))} of the run</p>
            <Iterations build={build} slice={over.slice} />
            <p class="dim">{over.track.slice(0, -1)}, from {timeText(over.slice.start_ns)}</p>
          </Tip>
        )}
      </div>
      <Longest build={build} overview={overview} slices={kernels} view={view} span={timeline.wall_ns || span} pick={pick} />
    </div>
  );
}

interface LaneProps {
  readonly build: Build;
  readonly overview: Overview;
  readonly track: Track;
  readonly y: number;
  readonly pieces: readonly Drawn[];
  readonly enter: (piece: Drawn) => void;
  readonly choose: (piece: Drawn, beside: boolean) => void;
}

function Lane({ build, overview, track, y, pieces, enter, choose }: LaneProps) {
  const reach = reachIn(build.id).value;
  const heat = heatColor.value;
  const scale = wholeScale.value;
  const timed = metric.value === "time" && scale !== null;
  const thread = build.thread.value;
  const some = reach.layers.size > 0 || reach.kernels.size > 0;
  return (
    <g class="lane" data-track={track} transform={`translate(0 ${y})`}>
      <text class="lane-title" x={2} y={TITLE - 4}>{track}</text>
      <g transform={`translate(0 ${TITLE})`}>
        {pieces.map((piece, n) => {
          const ref = piece.slice ? parse(piece.slice.ref) : null;
          const layers = ref ? layersOf(ref, overview, thread?.links.layers ?? [], (name) => thread?.layer(name)) : [];
          // Each slice has its own time; other figures are those of the thing it shows.
          const level = piece.slice && ref && timed ? scale.level(piece.slice.ns) : null;
          const hot = level === null ? ref && heat({ build: build.id, ref }) : colorAt(palette.value, level);
          const color = hot ?? (layers[0] !== undefined ? layerColor(layers[0]) : null);
          const lit = some && ref !== null && isLit(ref, reach, layers);
          const name = piece.slice && piece.width >= LEAST_NAME ? piece.slice.text.replace(/^nn\./, "") : "";
          return (
            <g
              key={n}
              class={`slice ${lit ? "lit" : some ? "faint" : ""} ${ref ? "" : "bare"}`}
              data-ref={ref ? format(ref) : undefined}
              onPointerEnter={() => enter(piece)}
              onClick={(event) => choose(piece, event.ctrlKey || event.metaKey)}
            >
              <rect x={piece.x} width={Math.max(0.8, piece.width - (piece.width > 3 ? 0.8 : 0))} height={LANE - 8} style={color ? { fill: color } : {}} />
              {name && <Name text={name} x={piece.x} width={piece.width} />}
            </g>
          );
        })}
      </g>
    </g>
  );
}

/** How often a kernel in a loop ran, and the time of an iteration. */
function Iterations({ build, slice }: { readonly build: Build; readonly slice: Slice }) {
  const text = iterationsOf(build, slice);
  return text ? <p>{text}</p> : null;
}

function iterationsOf(build: Build, slice: Slice): string {
  const ref = parse(slice.ref);
  return ref?.kind === "kernel" ? iterationsText(slice.ns, value(build.heat("time").value)?.runs[ref.kernel]) : "";
}

/** A name in a slice, cut to fit, on its own background so that it is readable on any color. */
function Name({ text, x, width }: { readonly text: string; readonly x: number; readonly width: number }) {
  const left = Math.max(0, x);
  const room = Math.floor((x + width - left - 8) / LETTER);
  if (room < Math.min(4, text.length)) return null;
  const shown = text.length > room ? `${text.slice(0, room - 1)}…` : text;
  return (
    <g class="slice-name">
      <rect class="ground" x={left + 2} y={LANE / 2 - 13} width={Math.min(x + width - left - 4, shown.length * LETTER + 5)} height={17} rx={2} />
      <text x={left + 4} y={LANE / 2}>{shown}</text>
    </g>
  );
}

function layersOf(ref: Ref, overview: Overview, nodes: readonly number[][], layer: (name: string) => number | undefined): readonly number[] {
  if (ref.kind === "kernel") return overview.kernels[ref.kernel]?.layers ?? [];
  if (ref.kind === "region") return overview.regions[ref.region]?.layers ?? [];
  if (ref.kind === "node") return nodes[ref.number] ?? [];
  const place = ref.kind === "layer" ? layer(ref.name) : undefined;
  return place === undefined ? [] : [place];
}

function isLit(ref: Ref, reach: Reach, layers: readonly number[]): boolean {
  if (ref.kind === "kernel") return reach.kernels.has(ref.kernel);
  if (ref.kind === "node") return reach.nodes[ref.stage]?.has(ref.number) ?? false;
  return layers.some((layer) => reach.layers.has(layer));
}

interface LongestProps {
  readonly build: Build;
  readonly overview: Overview;
  readonly slices: readonly Slice[];
  readonly view: View;
  readonly span: number;
  readonly pick: (ref: Ref | null, beside: boolean) => void;
}

/** The kernels in view that take longest. */
function Longest({ build, overview, slices, view, span, pick }: LongestProps) {
  const seen = slices
    .filter((slice) => slice.start_ns < view.to && slice.start_ns + slice.ns > view.from)
    .sort((a, b) => b.ns - a.ns)
    .slice(0, LONGEST_IN_VIEW);
  const most = seen[0]?.ns ?? 1;
  return (
    <ol class="ranking longest" aria-label="Longest in view" onPointerLeave={() => point(null)}>
      {seen.map((slice) => {
        const ref = parse(slice.ref);
        const kernel = ref?.kind === "kernel" ? overview.kernels[ref.kernel] : undefined;
        return (
          <li
            key={slice.start_ns}
            title={slice.text}
            onPointerEnter={() => point(ref ? { build: build.id, ref } : null)}
            onClick={(event) => pick(ref, event.ctrlKey || event.metaKey)}
          >
            <span class="rank-percent">{percent(slice.ns / span)}</span>
            <span class="rank-figure">{timeText(slice.ns)}</span>
            <span class="rank-title">{kernel ? doing(overview, kernel) : slice.text}</span>
            <span class="rank-share">
              <span class="rank-bar" style={{ width: `${(100 * slice.ns) / most}%` }} />
            </span>
            <span class="rank-detail">
              {kernel?.layers.slice(0, 4).map((layer) => <i key={layer} class="dot" style={{ background: layerColor(layer) }} />)}
              {kernel && [iterationsOf(build, slice), slice.text].filter(Boolean).join(" · ")}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
