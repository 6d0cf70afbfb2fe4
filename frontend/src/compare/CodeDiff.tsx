// The difference of two texts of code: side by side, or one below the other. Lines keep the colors
// of their layers, and hovered things are highlighted, as in all panes.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { tokens } from "../schedule/tokens";
import { diffLines, diffWords, type Piece, type Row } from "./lineDiff";

/** One side. `color` and `lit` take line numbers from 1; `lit` returns a line's highlight. */
export interface Side {
  readonly lines: readonly string[];
  readonly color: (line: number) => string;
  readonly lit: (line: number) => "" | "hot" | "exact";
  readonly onPoint?: (line: number) => void;
  readonly onChoose?: (line: number) => void;
  readonly refOf?: (line: number) => string;
}

interface Props {
  readonly a: Side;
  readonly b: Side;
  readonly sideBySide: boolean;
  /** The number of equal lines around a difference; others are folded. Without it, nothing is folded. */
  readonly context?: number;
  readonly label: string;
}

/** From this many rows on, the browser lays out only visible rows. */
const MANY_ROWS = 600;
/** Lines that may be cut off show their full text when hovered. */
const LONG_LINE = 90;

type Shown = Row | { readonly kind: "fold"; readonly from: number; readonly rows: readonly Row[] };

export function CodeDiff({ a, b, sideBySide, context, label }: Props) {
  const rows = useMemo(() => diffLines(a.lines, b.lines), [a.lines, b.lines]);
  const [opened, setOpened] = useState<ReadonlySet<number>>(new Set());
  useEffect(() => setOpened(new Set()), [rows]);
  const shown = useMemo(() => (context === undefined ? rows : folded(rows, context, opened)), [rows, context, opened]);
  const box = useRef<HTMLDivElement>(null);
  // Scrolls to the first difference when the texts change.
  useEffect(() => {
    const first = box.current?.querySelector<HTMLElement>("[data-first]");
    const scroller = box.current?.closest<HTMLElement>("[data-scrolls]");
    if (!scroller) return;
    if (!first) return void (scroller.scrollTop = 0);
    const from = first.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    if (from < 0 || from + 60 > scroller.clientHeight) scroller.scrollTop += from - scroller.clientHeight / 3;
  }, [rows]);
  const firstChange = shown.find((row) => row.kind !== "same" && row.kind !== "indented" && row.kind !== "fold");
  return (
    <div ref={box} class={`code-diff ${sideBySide ? "beside" : "unified"}${shown.length > MANY_ROWS ? " long" : ""}`} role="table" aria-label={label}>
      {shown.map((row, n) =>
        row.kind === "fold" ? (
          <button key={`f${row.from}`} class="fold" onClick={() => setOpened(new Set(opened).add(row.from))}>
            ⋯ {row.rows.length} lines the same
          </button>
        ) : (
          <DiffRow key={`${row.a}/${row.b}`} row={row} a={a} b={b} sideBySide={sideBySide} first={shown[n] === firstChange} />
        ),
      )}
    </div>
  );
}

/** Hides equal lines that are far from a difference. */
function folded(rows: readonly Row[], context: number, opened: ReadonlySet<number>): Shown[] {
  const near = new Uint8Array(rows.length);
  rows.forEach((row, n) => {
    if (row.kind !== "same" && row.kind !== "indented") near.fill(1, Math.max(0, n - context), n + context + 1);
  });
  const shown: Shown[] = [];
  for (let n = 0; n < rows.length; ) {
    let end = n;
    while (end < rows.length && !near[end]) end++;
    if (end - n > 2 && !opened.has(n)) {
      shown.push({ kind: "fold", from: n, rows: rows.slice(n, end) });
      n = end;
    } else {
      const row = rows[n];
      end = Math.max(end, n + 1);
      if (row) shown.push(...rows.slice(n, end));
      n = end;
    }
  }
  return shown;
}

interface RowProps {
  readonly row: Row;
  readonly a: Side;
  readonly b: Side;
  readonly sideBySide: boolean;
  readonly first: boolean;
}

function DiffRow({ row, a, b, sideBySide, first }: RowProps) {
  const left = a.lines[row.a - 1] ?? "";
  const right = b.lines[row.b - 1] ?? "";
  const words = useMemo(() => (row.kind === "changed" ? diffWords(left.trim(), right.trim()) : null), [row, left, right]);
  const mark = first ? { "data-first": "" } : {};
  if (sideBySide) {
    return (
      <div class="row" role="row" {...mark}>
        <Line side={a} line={row.a} kind={row.kind === "added" ? "none" : row.kind === "changed" ? "removed" : row.kind} pieces={words?.a} />
        <Line side={b} line={row.b} kind={row.kind === "removed" ? "none" : row.kind === "changed" ? "added" : row.kind} pieces={words?.b} />
      </div>
    );
  }
  return (
    <div class="row" role="row" {...mark}>
      {(row.kind === "changed" || row.kind === "removed") && <Line side={a} line={row.a} kind="removed" pieces={words?.a} />}
      {row.kind !== "removed" && (
        <Line side={b} line={row.b} kind={row.kind === "changed" ? "added" : row.kind} pieces={words?.b} />
      )}
    </div>
  );
}

const MARKS = { same: "", indented: "→", removed: "−", added: "+", none: "" } as const;

interface LineProps {
  readonly side: Side;
  readonly line: number;
  readonly kind: keyof typeof MARKS;
  readonly pieces: readonly Piece[] | undefined;
}

function Line({ side, line, kind, pieces }: LineProps) {
  const text = side.lines[line - 1] ?? "";
  // Hovering changes highlights often, but not the contents of lines.
  const inside = useMemo(() => marked(text.trim(), pieces), [text, pieces]);
  if (!line) return <div class="line none" role="cell" />;
  const indent = text.length - text.trimStart().length;
  return (
    <div
      class={`line ${kind} ${side.lit(line)}`}
      role="cell"
      data-line={line}
      title={text.length > LONG_LINE ? text.trim() : undefined}
      data-ref={side.refOf?.(line)}
      style={{ "--layer": side.color(line), "--indent": indent }}
      onMouseEnter={() => side.onPoint?.(line)}
      onClick={() => side.onChoose?.(line)}
    >
      <span class="number">{line}</span>
      <span class="mark" aria-label={kind === "same" ? undefined : kind}>{MARKS[kind]}</span>
      <code>{inside}</code>
    </div>
  );
}

/** A line's words in their colors, with differing words marked. */
function marked(text: string, pieces: readonly Piece[] | undefined): ComponentChildren {
  const all = pieces ?? [{ text, differs: false }];
  return all.map((piece, n) => {
    const inside = tokens(piece.text).map((token, m) =>
      token.kind ? <span key={m} class={`token-${token.kind}`}>{token.text}</span> : token.text,
    );
    return piece.differs ? <mark key={n}>{inside}</mark> : <span key={n}>{inside}</span>;
  });
}
