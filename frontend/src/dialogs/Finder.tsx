// A text field and a list of choices: the search and the palette. The list renders only visible
// rows, so it may be long. The focus stays in the field; the arrows move in the list.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../parts/Icon";

export type Row<T> = { readonly head: string; readonly count: string } | { readonly item: T };

interface FinderProps<T> {
  readonly label: string;
  readonly placeholder: string;
  readonly query: string;
  readonly onQuery: (query: string) => void;
  readonly rows: readonly Row<T>[];
  readonly draw: (item: T) => ComponentChildren;
  readonly onChoose: (item: T, beside: boolean) => void;
  /** Called with the highlighted entry. */
  readonly onPoint?: (item: T | null) => void;
  /** Shown between field and list, and if the list is empty. */
  readonly above?: ComponentChildren;
  readonly below: ComponentChildren;
  readonly empty: ComponentChildren;
}

/** The height of a row, equal to `--row` in theme.css. */
const ROW = 28;
const SPARE = 6;

export function Finder<T>(props: FinderProps<T>) {
  const { label, rows, onPoint } = props;
  const [active, setActive] = useState(-1);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const list = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const first = rows.findIndex((row) => "item" in row);
  const at = active >= 0 && active < rows.length ? active : first;

  useEffect(() => {
    setActive(-1);
    list.current?.scrollTo(0, 0);
  }, [props.query]);
  useLayoutEffect(() => {
    const element = list.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const item = (n: number): T | null => {
    const row = rows[n];
    return row && "item" in row ? row.item : null;
  };
  const move = (n: number, by: number): void => {
    let to = Math.min(rows.length - 1, Math.max(0, n));
    while (rows[to] && !("item" in (rows[to] as Row<T>))) to += by;
    if (!rows[to]) return;
    setActive(to);
    onPoint?.(item(to));
    const element = list.current;
    if (!element) return;
    // A heading is shown with the first entry of its group.
    const above = rows[to - 1] && !item(to - 1) ? 1 : 0;
    if ((to - above) * ROW < element.scrollTop) element.scrollTop = (to - above) * ROW;
    if ((to + 1) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (to + 1) * ROW - element.clientHeight;
  };
  const choose = (n: number, beside: boolean): void => {
    const chosen = item(n);
    if (chosen) props.onChoose(chosen, beside);
  };
  const page = Math.max(1, Math.floor(height / ROW) - 1);
  const onKeyDown = (event: KeyboardEvent): void => {
    const typing = event.target === input.current;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const letter = (key: string): boolean => event.key === key && (typing ? event.ctrlKey : plain);
    if (event.key === "ArrowDown" || letter("j")) move(at + 1, 1);
    else if (event.key === "ArrowUp" || letter("k")) move(at - 1, -1);
    else if (event.key === "PageDown") move(at + page, 1);
    else if (event.key === "PageUp") move(at - page, -1);
    else if (event.key === "Enter") choose(at, event.ctrlKey || event.metaKey);
    else if (!typing && event.key === "/") input.current?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const from = Math.max(0, Math.floor(top / ROW) - SPARE);
  const to = Math.min(rows.length, Math.ceil((top + height) / ROW) + SPARE);
  return (
    <div class="finder" onKeyDown={onKeyDown}>
      <div class="finder-line">
        <Icon name="search" />
        <input
          ref={input}
          type="text"
          autofocus
          role="combobox"
          aria-label={label}
          aria-expanded="true"
          aria-controls="chosen-from"
          aria-activedescendant={at >= 0 ? `choice-${at}` : undefined}
          autocomplete="off"
          spellcheck={false}
          placeholder={props.placeholder}
          value={props.query}
          onInput={(event) => props.onQuery(event.currentTarget.value)}
        />
      </div>
      {props.above}
      <div
        ref={list}
        id="chosen-from"
        class="finder-list"
        role="listbox"
        tabIndex={0}
        aria-label={label}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onPointerLeave={() => onPoint?.(null)}
      >
        <div style={{ height: `${rows.length * ROW}px` }}>
          {rows.slice(from, to).map((row, n) => {
            const place = from + n;
            const style = { top: `${place * ROW}px` };
            if (!("item" in row)) {
              return (
                <div key={place} class="choice-head" role="presentation" style={style}>
                  <span>{row.head}</span>
                  <span>{row.count}</span>
                </div>
              );
            }
            return (
              <div
                key={place}
                id={`choice-${place}`}
                class={place === at ? "choice active" : "choice"}
                role="option"
                aria-selected={place === at}
                style={style}
                onPointerMove={() => {
                  if (active === place) return;
                  setActive(place);
                  onPoint?.(row.item);
                }}
                onClick={(event) => props.onChoose(row.item, event.ctrlKey || event.metaKey)}
              >
                {props.draw(row.item)}
              </div>
            );
          })}
        </div>
        {first < 0 && <p class="empty">{props.empty}</p>}
      </div>
      <footer class="finder-foot">{props.below}</footer>
    </div>
  );
}
