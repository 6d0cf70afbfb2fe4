// The kernels of a build as a table, in order of execution or sorted by a column. Only the rows in
// view are in the page.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { value } from "../builds";
import { layerColor } from "../colors";
import { heatColor } from "../heat";
import { paneKeys } from "../panekeys";
import { ErrorBox } from "../parts/ErrorBox";
import { inkOn } from "../plots/scale";
import { go, hover, point, reachIn, reveal, selected } from "../state";
import { hoverStarts } from "../timing";
import { lines as screens, type Spot } from "./lines";
import type { PaneProps } from "./props";
import { asText, columnsOf, loopedIn, rowsOf, sorted, type Column, type Row } from "./table";

const ROW = 24;
const HEAD = 26;
const AROUND = 8;
/** Segments of color beside a row, at most. */
const MOST_COLORS = 8;

export function KernelTable({ pane, build }: PaneProps) {
  const asked = build.overview.value;
  const overview = value(asked);
  const isMeasured = overview?.measured.includes("profile") ?? false;
  const heat = isMeasured ? value(build.ask("heat/time").value) : null;
  const totals = value(build.ask("totals").value);
  const [order, setOrder] = useState<{ key: string; down: boolean }>({ key: "index", down: true });
  const [view, setView] = useState({ top: 0, height: 600 });
  const [cursor, setCursor] = useState(-1);
  const box = useRef<HTMLDivElement>(null);
  const reach = reachIn(build.id).value;
  const { columns, by, rows } = useMemo(() => {
    const columns = overview ? columnsOf(overview, heat !== null, totals !== null, loopedIn(heat)) : [];
    const by = columns.find((c) => c.key === order.key) ?? columns[0];
    const rows = overview && by ? sorted(rowsOf(overview, heat, totals?.instructions_of ?? null), by, order.down) : [];
    return { columns, by, rows };
  }, [overview, heat, totals, order]);
  const now = useRef({ rows, columns, cursor, reach });
  now.current = { rows, columns, cursor, reach };

  const scrollTo = (place: number) => {
    const at = box.current;
    if (!at || place < 0) return;
    const top = place * ROW;
    if (top < at.scrollTop || top + ROW + HEAD > at.scrollTop + at.clientHeight) at.scrollTop = Math.max(0, top - at.clientHeight / 2);
  };
  useLayoutEffect(() => {
    if (!box.current) return undefined;
    const at = box.current;
    const resized = new ResizeObserver(() => setView({ top: at.scrollTop, height: at.clientHeight }));
    resized.observe(at);
    return () => resized.disconnect();
  }, [overview !== null]);
  useEffect(() => {
    const choose = (place: number) => {
      const row = now.current.rows[place];
      if (row) go({ build: build.id, ref: { kind: "kernel", kernel: row.kernel.index } }, pane.key);
    };
    const ends = [
      paneKeys(pane.key, {
        move(step) {
          const place = Math.max(0, Math.min(now.current.rows.length - 1, now.current.cursor + step));
          const row = now.current.rows[place];
          setCursor(place);
          scrollTo(place);
          if (row) point({ build: build.id, ref: { kind: "kernel", kernel: row.kernel.index } });
        },
        choose: () => choose(now.current.cursor),
        text: () => asText(now.current.rows, now.current.columns),
      }),
      screens.register(pane.key, { spots: (most) => spots(box.current, now.current.rows, now.current.reach.kernels, most) }),
    ];
    return () => ends.forEach((end) => end());
  }, [build, pane.key]);
  // Scrolls to what was selected elsewhere.
  const wish = reveal.value;
  useEffect(() => {
    if (!wish || wish.from === pane.key) return;
    scrollTo(rows.findIndex((row) => reachIn(build.id).peek().kernels.has(row.kernel.index)));
  }, [wish, overview !== null]);
  useEffect(() => screens.moved());

  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  if (!overview || !by) return <p class="empty">Loading …</p>;
  if (!rows.length) return <p class="empty">This model has no kernels: nothing is computed in a run.</p>;
  const first = Math.max(0, Math.floor(view.top / ROW) - AROUND);
  const shown = rows.slice(first, first + Math.ceil(view.height / ROW) + 2 * AROUND);
  const width = columns.reduce((sum, column) => sum + column.width, 0) + 14;
  const most = rows.reduce((known, row) => Math.max(known, row.share ?? 0), 0);
  const chosen = selected.value;
  return (
    <div
      class="kernels"
      ref={box}
      role="grid"
      aria-rowcount={rows.length}
      aria-label="Kernels"
      tabIndex={0}
      onScroll={(event) => setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}
      onMouseLeave={(event) => {
        hoverStarts(event.timeStamp);
        point(null);
      }}
    >
      <div class="head" role="row" style={{ width: `${width}px` }}>
        {columns.map((column) => (
          <button
            key={column.key}
            role="columnheader"
            class={column.right ? "right" : ""}
            aria-sort={column.key === by.key ? (order.down === column.right ? "descending" : "ascending") : "none"}
            style={{ width: `${column.width}px` }}
            title={`${column.about}; click to sort`}
            onClick={() => setOrder({ key: column.key, down: column.key === by.key ? !order.down : column.right })}
          >
            {column.title}
            {column.key === by.key && <i aria-hidden>{order.down ? "▾" : "▴"}</i>}
          </button>
        ))}
      </div>
      <div class="rows" style={{ height: `${rows.length * ROW}px`, width: `${width}px` }}>
        {shown.map((row, n) => (
          <KernelRow
            key={row.kernel.index}
            row={row}
            place={first + n}
            columns={columns}
            isLit={reach.kernels.has(row.kernel.index)}
            isCursor={first + n === cursor}
            isChosen={chosen?.build === build.id && chosen.ref.kind === "kernel" && chosen.ref.kernel === row.kernel.index}
            bar={most && row.share !== null ? row.share / most : 0}
            heat={heatColor.value({ build: build.id, ref: { kind: "kernel", kernel: row.kernel.index } })}
            onPoint={(stamp) => {
              setCursor(first + n);
              hoverStarts(stamp);
              point({ build: build.id, ref: { kind: "kernel", kernel: row.kernel.index } });
            }}
            onChoose={() => go({ build: build.id, ref: { kind: "kernel", kernel: row.kernel.index } }, pane.key)}
          />
        ))}
      </div>
    </div>
  );
}

interface RowProps {
  readonly row: Row;
  readonly place: number;
  readonly columns: readonly Column[];
  readonly isLit: boolean;
  readonly isCursor: boolean;
  readonly isChosen: boolean;
  /** Its time as a share of the longest. */
  readonly bar: number;
  readonly heat: string | null;
  readonly onPoint: (timeStamp: number) => void;
  readonly onChoose: () => void;
}

function KernelRow({ row, place, columns, isLit, isCursor, isChosen, bar, heat, onPoint, onChoose }: RowProps) {
  const classes = ["row", isLit ? "own" : "", isCursor ? "cursor" : "", isChosen ? "chosen" : ""];
  return (
    <div
      class={classes.filter(Boolean).join(" ")}
      role="row"
      aria-rowindex={place + 1}
      aria-selected={isChosen}
      data-ref={`kernel:${row.kernel.index}`}
      style={{ top: `${place * ROW}px` }}
      onMouseMove={(event) => {
        const at = hover.peek()?.ref;
        if (at?.kind !== "kernel" || at.kernel !== row.kernel.index) onPoint(event.timeStamp);
      }}
      onClick={onChoose}
    >
      {columns.map((column) => (
        <span
          key={column.key}
          role="gridcell"
          class={column.right ? "right" : ""}
          title={column.right ? "" : column.text(row)}
          style={{ width: `${column.width}px`, ...(column.key === "index" && heat ? { backgroundColor: heat, color: inkOn(heat) } : {}) }}
        >
          {column.key === "layers" && (
            <span class="colors">
              {row.kernel.layers.slice(0, MOST_COLORS).map((layer) => (
                <i key={layer} style={{ backgroundColor: layerColor(layer) }} />
              ))}
            </span>
          )}
          {column.key === "share" && <i class="share" style={{ width: `${bar * 100}%` }} />}
          {column.text(row)}
        </span>
      ))}
    </div>
  );
}

/** Visible rows that belong to the focus, for links between panes. */
function spots(box: HTMLElement | null, rows: readonly Row[], lit: ReadonlyMap<number, unknown>, most: number) {
  const found: Spot[] = [];
  if (!box || !lit.size) return { spots: found, total: 0 };
  const screen = box.getBoundingClientRect();
  rows.forEach((row, place) => {
    const top = screen.top + HEAD + place * ROW - box.scrollTop;
    if (!lit.has(row.kernel.index) || found.length >= most || top < screen.top + HEAD - ROW / 2 || top + ROW / 2 > screen.bottom) return;
    found.push({ left: screen.left, right: screen.right, top, bottom: top + ROW, layers: row.kernel.layers, strength: 2 });
  });
  return { spots: found, total: lit.size };
}
