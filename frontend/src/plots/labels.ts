// Finds places for labels beside points, without overlaps with labels, points or the edge.

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface Wanted {
  readonly x: number;
  readonly y: number;
  /** Of the point. */
  readonly radius: number;
  readonly width: number;
  readonly height: number;
}

const GAP = 3;

/** Returns the box of each requested label, the most important first; null if there is no room. */
export function place(wanted: readonly Wanted[], taken: readonly Box[], inside: Box): (Box | null)[] {
  const full: Box[] = [...taken];
  return wanted.map((want) => {
    const found = around(want).find((box) => within(box, inside) && !full.some((other) => overlap(box, other)));
    if (found) full.push(found);
    return found ?? null;
  });
}

function around({ x, y, radius, width, height }: Wanted): Box[] {
  const [right, left] = [x + radius + GAP, x - radius - GAP - width];
  const [below, above] = [y + radius + GAP, y - radius - GAP - height];
  const corner = radius * 0.7 + GAP;
  return [
    { x: right, y: y - height / 2 },
    { x: left, y: y - height / 2 },
    { x: x - width / 2, y: above },
    { x: x - width / 2, y: below },
    { x: x + corner, y: y - corner - height },
    { x: x + corner, y: y + corner },
    { x: x - corner - width, y: y - corner - height },
    { x: x - corner - width, y: y + corner },
  ].map((at) => ({ ...at, width, height }));
}

export function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

function within(box: Box, outer: Box): boolean {
  return box.x >= outer.x && box.y >= outer.y && box.x + box.width <= outer.x + outer.width && box.y + box.height <= outer.y + outer.height;
}
