// Selects one of many: a button, and a list that is filtered by typing. The list renders only
// visible rows, so that thousands cost no more than ten.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Choice {
  readonly at: number;
  /** The text matched by typing. */
  readonly text: string;
  readonly detail: string;
  readonly dim: boolean;
  readonly colors: readonly string[];
}

const ROW = 24;
const SHOWN = 14;

interface Props {
  readonly label: string;
  readonly at: number;
  /** The current choice, and a function for the choices, called when the list opens. */
  readonly current: Choice | undefined;
  readonly choices: () => readonly Choice[];
  readonly onChoose: (at: number, beside: boolean) => void;
}

export function Chooser({ label, at, current, choices, onChoose }: Props) {
  const [opened, setOpened] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  return (
    <>
      <button
        ref={button}
        class="which"
        aria-haspopup="listbox"
        aria-expanded={opened}
        aria-label={`${label}: ${current?.text ?? at}`}
        data-chooser={label}
        title={current ? `${current.text}  ${current.detail}` : ""}
        onClick={() => setOpened(!opened)}
      >
        <span>{current?.text ?? at}</span>
        <i aria-hidden>▾</i>
      </button>
      {opened && (
        <List
          label={label}
          at={at}
          choices={choices()}
          anchor={button.current}
          onChoose={(chosen, beside) => {
            setOpened(false);
            button.current?.focus();
            onChoose(chosen, beside);
          }}
          onClose={() => {
            setOpened(false);
            button.current?.focus();
          }}
        />
      )}
    </>
  );
}

interface ListProps extends Pick<Props, "label" | "at" | "onChoose"> {
  readonly choices: readonly Choice[];
  readonly anchor: HTMLElement | null;
  readonly onClose: () => void;
}

function List({ label, at, choices, anchor, onChoose, onClose }: ListProps) {
  const [typed, setTyped] = useState("");
  const [cursor, setCursor] = useState(-1);
  const [top, setTop] = useState(0);
  const popup = useRef<HTMLDivElement>(null);
  const rows = useRef<HTMLDivElement>(null);
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const found = choices.filter((c) => {
    const text = `${c.text} ${c.detail}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const place = cursor >= 0 ? Math.min(cursor, found.length - 1) : Math.max(0, found.findIndex((c) => c.at === at));

  useLayoutEffect(() => {
    popup.current?.querySelector("input")?.focus();
    if (rows.current) rows.current.scrollTop = Math.max(0, (place - SHOWN / 2) * ROW);
  }, []);
  useLayoutEffect(() => {
    const box = rows.current;
    if (!box) return;
    if (place * ROW < box.scrollTop) box.scrollTop = place * ROW;
    else if ((place + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (place + 1) * ROW - box.clientHeight;
  }, [place]);
  useEffect(() => {
    const outside = (event: Event) => {
      const path = event.composedPath();
      if (popup.current && !path.includes(popup.current) && !(anchor && path.includes(anchor))) onClose();
    };
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, []);

  const keys = (event: KeyboardEvent) => {
    event.stopPropagation();
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: SHOWN, PageUp: -SHOWN }[event.key] ?? 0;
    if (by) setCursor(Math.max(0, Math.min(found.length - 1, place + by)));
    else if (event.key === "Enter" && found[place]) onChoose(found[place].at, event.shiftKey);
    else if (event.key === "Escape" || event.key === "Tab") onClose();
    else return;
    event.preventDefault();
  };
  const box = anchor?.getBoundingClientRect();
  const left = Math.max(4, Math.min(box?.left ?? 0, innerWidth - 344));
  const first = Math.max(0, Math.floor(top / ROW) - 2);
  const shown = found.slice(first, first + SHOWN + 5);
  return (
    <div class="which-list" ref={popup} style={{ left: `${left}px`, top: `${(box?.bottom ?? 0) + 3}px` }} onKeyDown={keys}>
      <input
        type="text"
        placeholder={`${choices.length} ${label}s: type to filter`}
        aria-label={`Filter ${label}s`}
        value={typed}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          setCursor(0);
        }}
      />
      <div
        class="rows"
        role="listbox"
        aria-label={label}
        ref={rows}
        style={{ height: `${Math.min(SHOWN, Math.max(1, found.length)) * ROW}px` }}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      >
        <div style={{ height: `${found.length * ROW}px` }}>
          {shown.map((c, n) => (
            <div
              key={c.at}
              role="option"
              aria-selected={c.at === at}
              class={`row${first + n === place ? " cursor" : ""}${c.dim ? " same" : ""}`}
              style={{ top: `${(first + n) * ROW}px` }}
              onClick={(event) => onChoose(c.at, event.shiftKey)}
            >
              <span class="colors">
                {c.colors.map((color, m) => (
                  <i key={m} style={{ backgroundColor: color }} />
                ))}
              </span>
              <span class="text">{c.text}</span>
              <span class="detail">{c.detail}</span>
            </div>
          ))}
        </div>
        {found.length === 0 && <p class="none">nothing matches</p>}
      </div>
      <p class="hint">Enter shows it, Shift-Enter beside</p>
    </div>
  );
}
