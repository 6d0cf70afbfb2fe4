// The part of a timeline that is shown: the wheel and buttons zoom it, dragging moves it.

import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { moved, zoomed, type View } from "./timeline";

const FASTER = 1.0015;
/** The pixels that a pressed pointer may move before it drags. */
const STILL = 3;

export interface Shown {
  readonly view: View;
  readonly setView: (view: View) => void;
  readonly whole: boolean;
  /** Zooms about the middle. */
  readonly zoom: (by: number) => void;
  readonly onPointerDown: (event: PointerEvent) => void;
  readonly onPointerMove: (event: PointerEvent) => void;
  /** Whether the pointer that was just released had dragged the timeline. */
  readonly dragged: () => boolean;
}

/** If `ctrl` is set, the wheel zooms only while Ctrl or Meta is held; else it scrolls the story. */
export function useView(space: RefObject<HTMLElement>, width: number, span: number, ctrl = false): Shown {
  const [view, setView] = useState<View>({ from: 0, to: span });
  const drag = useRef<{ x: number; view: View; moved: boolean } | null>(null);
  useEffect(() => setView({ from: 0, to: span }), [span]);
  useEffect(() => {
    const element = space.current;
    if (!element) return;
    // Not passive: the pane or the story must not scroll while the timeline zooms.
    const wheel = (event: WheelEvent): void => {
      if (ctrl && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = event.clientX - element.getBoundingClientRect().left;
      const sideways = event.shiftKey ? event.deltaY : event.deltaX;
      setView((was) => {
        const perPixel = (was.to - was.from) / Math.max(1, element.clientWidth);
        if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) return moved(was, sideways * perPixel, span);
        return zoomed(was, was.from + at * perPixel, FASTER ** -event.deltaY, span);
      });
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [span]);
  return {
    view,
    setView,
    whole: view.to - view.from >= span * 0.999,
    zoom: (by) => setView(zoomed(view, (view.from + view.to) / 2, by, span)),
    onPointerDown: (event) => {
      if (event.button === 0) drag.current = { x: event.clientX, view, moved: false };
    },
    onPointerMove: (event) => {
      const held = drag.current;
      if (!held || !event.buttons) return;
      const by = event.clientX - held.x;
      if (Math.abs(by) > STILL) held.moved = true;
      if (held.moved) setView(moved(held.view, (-by * (held.view.to - held.view.from)) / Math.max(1, width), span));
    },
    dragged: () => {
      const was = drag.current?.moved ?? false;
      drag.current = null;
      return was;
    },
  };
}
