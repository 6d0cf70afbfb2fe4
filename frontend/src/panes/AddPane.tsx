import { useEffect, useRef, useState } from "preact/hooks";
import type { Build } from "../builds";
import { open, type PaneKind } from "../state";
import { countedOf } from "./counted";
import { REGISTRY } from "./registry";

/** The kinds of panes, to open one more. */
export function AddPane({ build }: { readonly build: Build }) {
  const [opened, setOpened] = useState(false);
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!opened) return undefined;
    menu.current?.querySelector("button")?.focus();
    const outside = (event: Event) => {
      const path = event.composedPath();
      if (!(menu.current && path.includes(menu.current)) && !(button.current && path.includes(button.current))) setOpened(false);
    };
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, [opened]);
  const box = button.current?.getBoundingClientRect();
  const add = (kind: PaneKind) => {
    setOpened(false);
    open(build.id, kind, countedOf(build, kind), undefined, true);
  };
  const keys = (event: KeyboardEvent) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const all = [...(menu.current?.querySelectorAll<HTMLElement>("button") ?? [])];
    if (by) all[(all.indexOf(document.activeElement as HTMLElement) + by + all.length) % all.length]?.focus();
    else if (event.key === "Escape") {
      setOpened(false);
      button.current?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <>
      <button
        ref={button}
        class="pane-icon"
        title="Add a pane"
        aria-label="Add a pane"
        aria-haspopup="menu"
        aria-expanded={opened}
        onClick={() => setOpened(!opened)}
      >
        +
      </button>
      {opened && (
        <div
          class="pane-menu"
          role="menu"
          ref={menu}
          style={{ right: `${innerWidth - (box?.right ?? 0)}px`, top: `${(box?.bottom ?? 0) + 3}px` }}
          onKeyDown={keys}
        >
          {(Object.keys(REGISTRY) as PaneKind[]).map((kind) => (
            <button key={kind} role="menuitem" onClick={() => add(kind)}>
              {REGISTRY[kind].title}
            </button>
          ))}
        </div>
      )}
    </>
  );
}
