// The layers of two builds, aligned: a table that renders only visible rows.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Build } from "../builds";
import { layerColor } from "../colors";
import { paneKeys } from "../panekeys";
import { digits, errorText, timeText } from "../parts/figures";
import type { Here } from "../refs";
import { go, point, reachIn, reveal, type Pane } from "../state";
import type { Diff, Layer, LayerChange } from "../wire";
import { extentOf, gain, listed, UNCHANGED, type Order } from "./rows";

interface Props {
  readonly pane: Pane;
  readonly a: Build;
  readonly b: Build;
  readonly layersA: readonly Layer[];
  readonly layersB: readonly Layer[];
  readonly diff: Diff;
}

const ROW = 25;
const BEYOND = 12;

export function ChangeTable(props: Props) {
  const { pane, diff, layersA, layersB } = props;
  const [kinds, setKinds] = useState<ReadonlySet<string>>(new Set());
  const [order, setOrder] = useState<Order>("model");
  const [text, setText] = useState("");
  const [at, setAt] = useState(-1);
  const view = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);

  const nameA = (change: LayerChange): string => layersA[change.a]?.name ?? "";
  const nameB = (change: LayerChange): string => layersB[change.b]?.name ?? "";
  const rows = listed(diff, { kinds, order, text }, (change) => `${nameA(change)} ${nameB(change)}`);
  const here = (change: LayerChange): Here =>
    change.a >= 0
      ? { build: props.a.id, ref: { kind: "layer", name: nameA(change) } }
      : { build: props.b.id, ref: { kind: "layer", name: nameB(change) } };

  const scrollTo = (n: number): void => {
    const box = view.current;
    if (!box) return;
    if (n * ROW < box.scrollTop) box.scrollTop = n * ROW;
    else if ((n + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (n + 1) * ROW - box.clientHeight;
  };
  const move = (by: number): void => {
    const next = Math.max(0, Math.min(rows.length - 1, at + by));
    const change = rows[next];
    if (!change) return;
    setAt(next);
    scrollTo(next);
    point(here(change));
  };
  const choose = (n: number): void => {
    const change = rows[n];
    if (!change) return;
    setAt(n);
    go(here(change), pane.key);
  };

  useEffect(() => paneKeys(pane.key, { move, choose: () => choose(at), text: () => asText(props, rows) }));
  useEffect(() => {
    const box = view.current;
    if (!box) return;
    const sized = new ResizeObserver(() => setTall(box.clientHeight));
    sized.observe(box);
    return () => sized.disconnect();
  }, []);
  // Scrolls to what was selected elsewhere.
  const wish = reveal.value;
  useEffect(() => {
    if (!wish || wish.from === pane.key) return;
    const n = rows.findIndex((change) => isReached(props, change));
    if (n < 0) return;
    setAt(n);
    scrollTo(n);
  }, [wish]);

  const toggle = (kind: string): void => {
    const next = new Set(kinds);
    if (!next.delete(kind)) next.add(kind);
    setKinds(next);
    setAt(-1);
  };
  const { times: hasTime, errors: hasError, largest, kinds: kindsThere } = useMemo(() => extentOf(diff), [diff]);
  const hasNames = useMemo(() => diff.layers.some((c) => c.a >= 0 && c.b >= 0 && nameA(c) !== nameB(c)), [diff]);
  const has = { untimed: !hasTime, unvalued: !hasError, renamed: hasNames };
  const classes = Object.entries(has).filter(([, is]) => is).map(([name]) => name);
  const first = Math.max(0, Math.floor(top / ROW) - BEYOND);
  const shown = rows.slice(first, first + Math.ceil(tall / ROW) + 2 * BEYOND);
  const chosen = rows[at];

  return (
    <>
      <div class="filters">
        <span class="chips">
          {kindsThere.map(([kind, count]) => (
            <button key={kind} class="chip" aria-pressed={kinds.has(kind)} data-filter={kind} onClick={() => toggle(kind)}>
              {kind} <span>{count}</span>
            </button>
          ))}
        </span>
        <span class="order">
          <input
            type="search"
            placeholder="filter layers"
            aria-label="filter layers"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
          <select aria-label="order" value={order} onChange={(event) => setOrder(event.currentTarget.value as Order)}>
            <option value="model">model's order</option>
            {hasTime && <option value="time">change of time</option>}
            {hasError && <option value="error">error</option>}
          </select>
        </span>
      </div>
      <div
        ref={view}
        class={["changes", ...classes].join(" ")}
        style={{ "--columns": columns(hasNames, hasTime, hasError), "--narrow-columns": narrowColumns(hasTime, hasError) }}
        role="grid"
        aria-label="Layers of both builds"
        aria-rowcount={rows.length}
        tabIndex={0}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onMouseLeave={() => point(null)}
        onKeyDown={(event) => {
          const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 }[event.key];
          if (by !== undefined) move(by);
          else if (event.key === "Enter") choose(at);
          else return;
          event.preventDefault();
        }}
      >
        <div class="change head" role="row">
          <span role="columnheader">{hasNames ? "A" : "layer"}</span>
          {hasNames && <span role="columnheader" class="wide">B</span>}
          {hasNames && <span role="columnheader" class="wide">paired by</span>}
          <span role="columnheader">what differs</span>
          <span role="columnheader" class="time wide">A</span>
          <span role="columnheader" class="time wide">B</span>
          <span role="columnheader" class="time ratio" title="time in B by time in A"><span>B / A</span></span>
          <span role="columnheader" class="err">error</span>
        </div>
        <div style={{ height: `${rows.length * ROW}px`, position: "relative" }}>
          {shown.map((change, n) => (
            <Line
              key={`${change.a}/${change.b}`}
              change={change}
              a={nameA(change)}
              b={nameB(change)}
              top={(first + n) * ROW}
              largest={largest}
              hot={isReached(props, change)}
              chosen={first + n === at}
              renamed={hasNames}
              onPoint={() => point(here(change))}
              onChoose={() => choose(first + n)}
            />
          ))}
        </div>
        {!rows.length && <p class="empty">No layer matches.</p>}
      </div>
      {chosen && <Detail change={chosen} a={nameA(chosen)} b={nameB(chosen)} />}
    </>
  );
}

/** The widths of columns, which depend on the data. */
function columns(names: boolean, times: boolean, errors: boolean): string {
  return [
    "minmax(90px, 1.5fr)",
    ...(names ? ["minmax(70px, 1fr)", "84px"] : []),
    "minmax(80px, 1.2fr)",
    ...(times ? ["62px", "62px", "92px"] : []),
    ...(errors ? ["58px"] : []),
  ].join(" ");
}

function narrowColumns(times: boolean, errors: boolean): string {
  return ["minmax(70px, 1.2fr)", "minmax(54px, 1fr)", ...(times ? ["74px"] : []), ...(errors ? ["48px"] : [])].join(" ");
}

function isReached(props: Props, change: LayerChange): boolean {
  return reachIn(props.a.id).value.layers.has(change.a) || reachIn(props.b.id).value.layers.has(change.b);
}

interface LineProps {
  readonly change: LayerChange;
  readonly a: string;
  readonly b: string;
  readonly top: number;
  readonly largest: number;
  readonly hot: boolean;
  readonly chosen: boolean;
  readonly renamed: boolean;
  readonly onPoint: () => void;
  readonly onChoose: () => void;
}

function Line({ change, a, b, top, largest, hot, chosen, renamed, onPoint, onChoose }: LineProps) {
  const more = gain(change);
  const classes = ["change", change.kinds.length ? "" : "same", hot ? "hot" : "", chosen ? "chosen" : ""].join(" ");
  return (
    <div
      class={classes}
      role="row"
      aria-selected={chosen}
      data-layer={a || b}
      style={{ top: `${top}px`, "--layer": layerColor(change.a < 0 ? change.b : change.a) }}
      onMouseEnter={onPoint}
      onClick={onChoose}
    >
      <span class="name" role="gridcell" title={a || `only in B: ${b}`}>
        {a || <span class="only-b">{b}</span>}
      </span>
      {renamed && (
        <span class="name wide" role="gridcell" title={b}>
          {b === a ? <span class="dim" aria-label={b}>=</span> : b || "—"}
        </span>
      )}
      {renamed && <span class="how wide" role="gridcell">{change.how}</span>}
      <span class="kinds" role="gridcell" title={change.kinds.join(", ") || UNCHANGED}>
        {change.kinds.map((kind) => (
          <i key={kind} data-kind={kind}>{kind}</i>
        ))}
        {!change.kinds.length && <span class="dim">{UNCHANGED}</span>}
      </span>
      <span class="time wide" role="gridcell">{change.a_ns === null ? "" : timeText(change.a_ns)}</span>
      <span class="time wide" role="gridcell">{change.b_ns === null ? "" : timeText(change.b_ns)}</span>
      <span class="time ratio" role="gridcell" title={more === null ? "" : `${more > 0 ? "+" : "−"}${timeText(Math.abs(more))}`}>
        <span>{change.a_ns && change.b_ns ? `${digits(change.b_ns / change.a_ns)}×` : ""}</span>
        {more !== null && more !== 0 && (
          <i class={more > 0 ? "gain worse" : "gain better"} style={{ "--share": Math.abs(more) / largest }} />
        )}
      </span>
      <span class="err" role="gridcell">{change.error === null ? "" : errorText(change.error)}</span>
    </div>
  );
}

/** All details of one layer. */
function Detail({ change, a, b }: { readonly change: LayerChange; readonly a: string; readonly b: string }) {
  return (
    <section class="detail" aria-label="What differs">
      <h3>
        {a || b}
        {a && b && a !== b && <> → {b}</>}
        {!a && <span class="dim"> only in B</span>}
        {!b && <span class="dim"> only in A</span>}
      </h3>
      <ul>
        {change.sentences.map((sentence, n) => (
          <li key={n}>{sentence}</li>
        ))}
        {!change.sentences.length && <li class="dim">Nothing differs.</li>}
      </ul>
    </section>
  );
}

function asText(props: Props, rows: readonly LayerChange[]): string {
  const lines = rows.map((change) =>
    [
      props.layersA[change.a]?.name ?? "", props.layersB[change.b]?.name ?? "", change.how, change.kinds.join(" "),
      change.a_ns ?? "", change.b_ns ?? "", change.error ?? "",
    ].join("\t"),
  );
  return ["A\tB\tpaired by\tdiffers\tA ns\tB ns\terror", ...lines, ...props.diff.summary.map((s) => `# ${s}`)].join("\n");
}
