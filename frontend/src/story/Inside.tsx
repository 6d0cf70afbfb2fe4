// What a backend tells about the inside of a region: tables, a timeline of its engines, its text.

import { useMemo, useRef, useState } from "preact/hooks";
import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { ErrorBox } from "../parts/ErrorBox";
import { RefLink } from "../parts/RefLink";
import { Marks } from "../plots/Marks";
import { useSize } from "../plots/size";
import { drawn } from "../plots/timeline";
import { Tip } from "../plots/Tip";
import { useView } from "../plots/view";
import { point, reachIn, show } from "../state";
import type { Overview, RegionDetails, RegionTable } from "../wire";
import { alike, amounts, endOf, linesWith, piecesOf, type Piece } from "./pieces";

const HEAD = 16;
const TITLE = 15;
const LANE = 26;
/** The lines to show at first, and to add. */
const PAGE = 200;

export function Inside({ build, region }: { readonly build: Build; readonly region: number }) {
  const overview = value(build.overview.value);
  if (!overview?.regions[region]?.described) return null;
  const asked = build.ask(`details/${region}`).value;
  if (asked.state === "loading") return <p class="empty">Reading …</p>;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  const details = asked.value;
  return (
    <section class="inside" aria-label="Inside" key={`${build.id}/${region}`}>
      <h3>Inside</h3>
      <p>{details.summary}</p>
      {details.tracks.length > 0 && <Engines build={build} overview={overview} details={details} />}
      {details.tables.map((table) => <Table key={table.title} build={build} overview={overview} table={table} />)}
      {details.lines.length > 0 && <Lines build={build} overview={overview} details={details} />}
    </section>
  );
}

interface Props {
  readonly build: Build;
  readonly overview: Overview;
  readonly details: RegionDetails;
}

interface Over {
  readonly piece: Piece;
  readonly count: number;
  readonly x: number;
  readonly y: number;
}

function Engines({ build, overview, details }: Props) {
  const space = useRef<HTMLDivElement>(null);
  const { width } = useSize(space);
  const span = useMemo(() => endOf(details), [details]);
  const tracks = useMemo(() => details.tracks.map((track) => ({ name: track.name, pieces: piecesOf(track) })), [details]);
  const { view, setView, whole, zoom, onPointerDown, onPointerMove, dragged } = useView(space, width, span, true);
  const [over, setOver] = useState<Over | null>(null);
  const reach = reachIn(build.id).value;
  const height = HEAD + tracks.length * (LANE + TITLE);
  const { total, joined } = amounts(details);
  const hereOf = (piece: Piece) => {
    const name = overview.layers[piece.layers[0] ?? -1]?.name;
    return name === undefined ? null : { build: build.id, ref: { kind: "layer", name } as const };
  };
  return (
    <>
      <div class="plot-head timeline-head">
        <span>{count(view.from)} to {count(view.to)} {details.unit}</span>
        <span class="grow" />
        <button aria-label="Zoom out" title="Zoom out (Ctrl wheel)" disabled={whole} onClick={() => zoom(0.5)}>−</button>
        <button aria-label="Zoom in" title="Zoom in (Ctrl wheel)" onClick={() => zoom(2)}>+</button>
        <button disabled={whole} onClick={() => setView({ from: 0, to: span })}>All</button>
      </div>
      <div
        class="inside-tracks"
        ref={space}
        onPointerDown={onPointerDown}
        onPointerMove={onPointerMove}
        onPointerLeave={() => { setOver(null); point(null); }}
      >
        {width > 0 && (
          <svg width={width} height={height} class="plot" role="img" aria-label="Timeline of the engines">
            <Marks view={view} width={width} top={HEAD} height={height} text={count} />
            {tracks.map(({ name, pieces }, n) => (
              <g key={name} data-track={name} transform={`translate(0 ${HEAD + n * (LANE + TITLE)})`}>
                <text class="lane-title" x={2} y={TITLE - 4}>{name}</text>
                {drawn(pieces, view, width, alike).map((one, m) => {
                  const piece = one.first;
                  const lit = piece.layers.some((layer) => reach.layers.has(layer));
                  const fill = piece.layers[0] === undefined ? {} : { fill: layerColor(piece.layers[0]) };
                  return (
                    <g
                      key={m}
                      class={`slice ${lit ? "" : reach.layers.size ? "faint" : ""} ${piece.layers.length ? "" : "bare"}`}
                      onPointerEnter={() => {
                        setOver({ piece, count: one.count, x: Math.max(0, one.x), y: HEAD + n * (LANE + TITLE) + TITLE });
                        point(hereOf(piece));
                      }}
                      onClick={(event) => {
                        const still = !dragged();
                        const here = hereOf(piece);
                        if (here && still) show(here, event.ctrlKey || event.metaKey);
                      }}
                    >
                      <rect x={one.x} y={TITLE} width={Math.max(0.8, one.width - (one.width > 3 ? 0.8 : 0))} height={LANE - 6} style={fill} />
                    </g>
                  );
                })}
              </g>
            ))}
          </svg>
        )}
        {over && (
          <Tip x={over.x} y={over.y + LANE - 6}>
            <About overview={overview} details={details} over={over} />
          </Tip>
        )}
      </div>
      <p class="dim">{`${count(total)} ${details.lines_are}${joined ? "; neighbors of the same layers are drawn together" : ""}.`}</p>
    </>
  );
}

function About({ overview, details, over }: { readonly overview: Overview; readonly details: RegionDetails; readonly over: Over }) {
  const { piece } = over;
  const names = piece.layers.map((layer) => overview.layers[layer]?.name ?? "");
  const more = [piece.count > 1 && `the first of ${count(piece.count)}`, over.count > 1 && `with ${count(over.count - 1)} narrower beside it`];
  return (
    <>
      <b class="code">{piece.text}</b>
      {more.some(Boolean) && <p class="dim">{more.filter(Boolean).join(", ")}: zoom in to see each</p>}
      {names.length > 0 && <p>{names.join(", ")}</p>}
      <p>{`${count(piece.start_ns)} to ${count(piece.start_ns + piece.ns)}: ${count(piece.busy)} ${details.unit}`}</p>
      {piece.waited > 0 && <p class="dim">{`waited ${count(piece.waited)} ${details.unit}${piece.waitedFor && ` for ${piece.waitedFor}`}`}</p>}
    </>
  );
}

function Table({ build, overview, table }: { readonly build: Build; readonly overview: Overview; readonly table: RegionTable }) {
  return (
    <div class="inside-table">
      <table>
        <caption>{table.title}</caption>
        <thead>
          <tr>{table.columns.map((name) => <th key={name} scope="col">{name}</th>)}</tr>
        </thead>
        <tbody>
          {table.rows.map((row, n) => (
            <tr key={n}>
              <th scope="row"><Layered build={build} overview={overview} layers={table.layers[n] ?? []} text={row[0] ?? ""} /></th>
              {row.slice(1).map((cell, m) => <td key={m} class={/^[\d,.]+%?$/.test(cell) ? "right" : ""}>{cell}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A text that leads to the first of its layers. */
function Layered({ build, overview, layers, text }: { readonly build: Build; readonly overview: Overview; readonly layers: readonly number[]; readonly text: string }) {
  const first = layers[0];
  const name = overview.layers[first ?? -1]?.name;
  if (first === undefined || name === undefined) return <>{text}</>;
  return (
    <>
      <i class="dot" aria-hidden="true" style={{ background: layerColor(first) }} />
      <RefLink build={build.id} to={`layer:${name}`}>{text}</RefLink>
    </>
  );
}

function Lines({ build, overview, details }: Props) {
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState(PAGE);
  const found = useMemo(() => linesWith(details, wanted, (layer) => overview.layers[layer]?.name ?? ""), [details, wanted]);
  const held = details.lines.length;
  return (
    <details class="inside-lines">
      <summary>{`${count(details.total_lines)} ${details.lines_are}${held < details.total_lines ? `, the first ${count(held)} here` : ""}`}</summary>
      <input type="search" placeholder="Search text and layers" aria-label={`Search ${details.lines_are}`} value={wanted} onInput={(event) => { setWanted(event.currentTarget.value); setShown(PAGE); }} />
      <ol>
        {found.slice(0, shown).map((n) => (
          <li key={n} class="code">
            <Layered build={build} overview={overview} layers={details.line_layers[n] ?? []} text={details.lines[n] ?? ""} />
          </li>
        ))}
      </ol>
      {found.length > shown && <button class="quiet" onClick={() => setShown(shown + PAGE)}>{`${count(found.length - shown)} more`}</button>}
      {found.length === 0 && <p class="dim">None found.</p>}
    </details>
  );
}

function count(n: number): string {
  return Math.round(n).toLocaleString("en");
}
