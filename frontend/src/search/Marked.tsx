// A text with its matches marked. A long text is cut to the part around the match.

import type { Mark } from "./rank";

/** The number of characters shown before the first match of a long text. */
const BEFORE = 24;
const LONG = 48;

export function Marked({ text, marks }: { readonly text: string; readonly marks: readonly Mark[] }) {
  const first = marks[0]?.[0] ?? 0;
  const from = first > LONG ? first - BEFORE : 0;
  const pieces = [];
  let at = from;
  for (const [start, end] of marks) {
    pieces.push(text.slice(at, start), <mark key={start}>{text.slice(start, end)}</mark>);
    at = end;
  }
  return (
    <>
      {from > 0 && "… "}
      {pieces}
      {text.slice(at)}
    </>
  );
}
