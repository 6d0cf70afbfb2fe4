// The size of an element, for drawings that fill it.

import { useLayoutEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";

export interface Size {
  readonly width: number;
  readonly height: number;
}

export function useSize(of: RefObject<HTMLElement>): Size {
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const element = of.current;
    if (!element) return;
    const read = (): void => {
      const { clientWidth: width, clientHeight: height } = element;
      setSize((was) => (was.width === width && was.height === height ? was : { width, height }));
    };
    read();
    const observer = new ResizeObserver(read);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return size;
}
