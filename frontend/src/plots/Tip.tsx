// A tooltip beside the mouse in a plot; it stays within the plot.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

const GAP = 12;

export function Tip({ x, y, children }: { readonly x: number; readonly y: number; readonly children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    const around = element?.offsetParent;
    if (!element || !around) return;
    const { offsetWidth: width, offsetHeight: height } = element;
    const left = x + GAP + width <= around.clientWidth ? x + GAP : Math.max(2, x - GAP - width);
    const top = y + GAP + height <= around.clientHeight ? y + GAP : Math.max(2, y - GAP - height);
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  });
  return (
    <div class="tip" role="tooltip" ref={box}>
      {children}
    </div>
  );
}
