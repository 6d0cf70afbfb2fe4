// One level of the layered layout: boxes side by side in a cluster, or in the whole graph.
//
// Boxes get layers by longest path; values that span layers get a chain of dummy places, one
// chain per value however many boxes use it, which keeps skip connections together and the number of places
// low. Orders within layers come from barycenter sweeps. Coordinates: each box wants to stand below
// its predecessors, and isotonic regression finds the places nearest to these wishes that keep the order,
// so that straight chains stay straight. Everything is linear in boxes, places and edges, except
// sorting within layers.

/** Edges are by columns; `fromX` and `toX` are where they touch, from the box's left side. */
export interface Level {
  readonly count: number;
  readonly width: ArrayLike<number>;
  readonly height: ArrayLike<number>;
  readonly source: readonly number[];
  readonly target: readonly number[];
  readonly fromX: readonly number[];
  readonly toX: readonly number[];
  /** How much of a main path is where an edge touches a cluster: of two that lead to one, the higher
   * one is kept straight.
   */
  readonly rank: readonly number[];
  /** Where a main path enters and leaves each box, from its left side. */
  readonly mainIn: readonly number[];
  readonly mainOut: readonly number[];
  /** Boxes that stand on the upper or lower border of the cluster: 1 upper, 2 lower. */
  readonly border: ArrayLike<number>;
}

/** `points[n]`: the places that edge n goes through, as pairs of coordinates, between its ends. */
export interface LevelPlaced {
  readonly x: Float64Array;
  readonly y: Float64Array;
  readonly points: number[][];
  /** The length of the straight path that each box stands on. */
  readonly spine: Int32Array;
  readonly width: number;
  readonly height: number;
}

const GAP_X = 18;
const GAP_WIRE = 10;
const GAP_Y = 28;
const SWEEPS = 6;
/** If the total span of layers is longer than this, edges are drawn straight through, to stay linear. */
const MOST_PLACES = 8;

export function placeLevel(level: Level): LevelPlaced {
  const { count } = level;
  const layer = layers(level);
  const wires = new Wires(level, layer);
  const total = count + wires.layer.length;
  const rows = rowsOf(level, layer, wires);
  order(rows, wires, total);
  for (const row of rows) row.forEach((thing, at) => (thing < count ? 0 : (wires.position[thing - count] = at)));
  const straight = spines(level, rows, wires, total);
  const x = coordinates(level, rows, wires, straight, total);
  return finish(level, rows, wires, layer, x, straight.length);
}

/** Longest paths; sources without inputs stand close to their users. */
function layers(level: Level): Int32Array {
  const { count, source, target, border } = level;
  const out = adjacency(count, source, target);
  const into = adjacency(count, target, source);
  const layer = new Int32Array(count);
  const waiting = new Int32Array(count);
  for (const to of target) waiting[to] = (waiting[to] as number) + 1;
  const queue: number[] = [];
  for (let at = 0; at < count; at++) if (!waiting[at]) queue.push(at);
  const placed = new Uint8Array(count);
  // Values that enter a cluster have their own row.
  const top = Array.prototype.includes.call(border, 1) ? 1 : 0;
  let last = 0;
  for (let at = 0, started = 0; queue.length < count || at < queue.length; at++) {
    if (at >= queue.length) {
      // A cycle: continue with the first waiting box.
      while (started < count && (placed[started] || !waiting[started])) started++;
      if (started >= count) break;
      waiting[started] = 0;
      queue.push(started);
    }
    const box = queue[at] as number;
    placed[box] = 1;
    let mine = top;
    for (const from of into(box)) if (placed[from]) mine = Math.max(mine, (layer[from] as number) + 1);
    if (border[box] === 1) mine = 0;
    layer[box] = mine;
    last = Math.max(last, mine);
    for (const to of out(box)) {
      if (placed[to]) continue;
      waiting[to] = (waiting[to] as number) - 1;
      if (waiting[to] === 0) queue.push(to);
    }
  }
  for (let at = queue.length - 1; at >= 0; at--) {
    const box = queue[at] as number;
    if (border[box] === 2) layer[box] = last;
    if (border[box] || into(box).length) continue;
    let nearest = Infinity;
    for (const to of out(box)) nearest = Math.min(nearest, layer[to] as number);
    if (nearest < Infinity && nearest > top) layer[box] = nearest - 1;
  }
  // Lower borders stand below all else.
  let lowest = -1;
  for (let box = 0; box < count; box++) if (border[box] !== 2) lowest = Math.max(lowest, layer[box] as number);
  for (let box = 0; box < count; box++) if (border[box] === 2) layer[box] = lowest + 1;
  return layer;
}

/** Chains of places for values that span layers. Places are numbered after the boxes. */
class Wires {
  readonly layer: number[] = [];
  /** Neighboring layers' links between boxes and places: by columns, upper, lower, and offsets. */
  readonly upper: number[] = [];
  readonly lower: number[] = [];
  readonly upperX: number[] = [];
  readonly lowerX: number[] = [];
  readonly rank: number[] = [];
  /** The position in its row of each place, once rows are ordered. */
  readonly position: number[] = [];
  /** The places that each edge goes through. */
  readonly through: number[][];
  /** All places of each value, from the box on. */
  readonly chains: number[][] = [];

  constructor(level: Level, layer: Int32Array) {
    const { count, source, target, fromX, toX } = level;
    this.through = source.map(() => []);
    const limit = MOST_PLACES * (count + source.length) + 1000;
    // The longest chain of a value, by where it leaves its box: an output of a cluster is one of its own.
    const chains = new Map<string, number[]>();
    const shortFirst = source.map((_, n) => n).sort((a, b) => span(a) - span(b));
    function span(n: number): number {
      return Math.abs((layer[target[n] as number] as number) - (layer[source[n] as number] as number));
    }
    for (const n of shortFirst) {
      const from = source[n] as number;
      const to = target[n] as number;
      const first = layer[from] as number;
      const last = layer[to] as number;
      if (last === first) continue;
      const down = last > first;
      const steps = Math.abs(last - first) - 1;
      const key = `${from}:${fromX[n]}:${down}`;
      let chain = chains.get(key);
      if (!chain) this.chains.push((chain = []));
      if (steps > chain.length && this.layer.length + steps - chain.length > limit) continue;
      while (chain.length < steps) {
        const place = count + this.layer.length;
        this.layer.push(first + (down ? 1 : -1) * (chain.length + 1));
        const before = chain.at(-1);
        this.link(before ?? from, place, before === undefined ? (fromX[n] as number) : 0, 0, down, level.rank[n] as number);
        chain.push(place);
      }
      chains.set(key, chain);
      const passed = chain.slice(0, steps);
      this.through[n] = passed;
      const before = passed.at(-1);
      this.link(before ?? from, to, before === undefined ? (fromX[n] as number) : 0, toX[n] as number, down, level.rank[n] as number);
    }
  }

  private link(from: number, to: number, fromX: number, toX: number, down: boolean, rank: number): void {
    this.rank.push(rank);
    this.upper.push(down ? from : to);
    this.lower.push(down ? to : from);
    this.upperX.push(down ? fromX : toX);
    this.lowerX.push(down ? toX : fromX);
  }
}

function rowsOf(level: Level, layer: Int32Array, wires: Wires): number[][] {
  let last = 0;
  for (const at of layer) last = Math.max(last, at);
  const rows: number[][] = Array.from({ length: last + 1 }, () => []);
  // Depth first from the top, so that related boxes start side by side.
  const total = level.count + wires.layer.length;
  const below = adjacency(total, wires.upper, wires.lower);
  const seen = new Uint8Array(total);
  const at = (thing: number) => (thing < level.count ? layer[thing] : wires.layer[thing - level.count]) as number;
  const starts = Array.from({ length: total }, (_, n) => n).sort((a, b) => at(a) - at(b) || a - b);
  for (const start of starts) {
    if (seen[start]) continue;
    const stack = [start];
    seen[start] = 1;
    while (stack.length) {
      const thing = stack.pop() as number;
      rows[at(thing)]?.push(thing);
      const next = below(thing);
      for (let n = next.length - 1; n >= 0; n--) {
        const other = next[n] as number;
        if (seen[other]) continue;
        seen[other] = 1;
        stack.push(other);
      }
    }
  }
  return rows;
}

/** Sorts rows by the means of their neighbors' places, alternating down and up; keeps the best order. */
function order(rows: number[][], wires: Wires, total: number): void {
  const above = adjacency(total, wires.lower, wires.upper);
  const below = adjacency(total, wires.upper, wires.lower);
  const position = new Float64Array(total);
  const note = (row: readonly number[]) => row.forEach((thing, n) => (position[thing] = n));
  rows.forEach(note);
  let best = rows.map((row) => [...row]);
  let fewest = crossings(rows, below, position);
  const mean = new Float64Array(total);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
    const down = sweep % 2 === 0;
    const near = down ? above : below;
    for (let n = 0; n < rows.length; n++) {
      const row = rows[down ? n : rows.length - 1 - n] as number[];
      if (row.length < 2) continue;
      for (const thing of row) {
        const others = near(thing);
        let sum = 0;
        for (const other of others) sum += position[other] as number;
        mean[thing] = others.length ? sum / others.length : (position[thing] as number);
      }
      row.sort((a, b) => (mean[a] as number) - (mean[b] as number) || (position[a] as number) - (position[b] as number));
      note(row);
    }
    const now = crossings(rows, below, position);
    if (now < fewest) {
      fewest = now;
      best = rows.map((row) => [...row]);
    }
  }
  best.forEach((row, n) => (rows[n] = row));
}

/** Counts crossings between neighboring rows, with a tree of sums. */
function crossings(rows: readonly number[][], below: (at: number) => ArrayLike<number>, position: Float64Array): number {
  let found = 0;
  for (let n = 0; n + 1 < rows.length; n++) {
    const size = (rows[n + 1] as number[]).length;
    if (size < 2 || (rows[n] as number[]).length < 2) continue;
    const tree = new Int32Array(size + 1);
    let placed = 0;
    for (const thing of rows[n] as number[]) {
      const targets = Array.from(below(thing), (other) => position[other] as number);
      for (const at of targets) {
        let left = 0;
        for (let k = at + 1; k > 0; k -= k & -k) left += tree[k] as number;
        found += placed - left;
      }
      for (const at of targets) {
        placed++;
        for (let k = at + 1; k <= size; k += k & -k) tree[k] = (tree[k] as number) + 1;
      }
    }
  }
  return found;
}

/** Left sides of boxes and places. */
function coordinates(level: Level, rows: readonly number[][], wires: Wires, spine: Spines, total: number): Float64Array {
  const { count } = level;
  const width = (thing: number) => (thing < count ? (level.width[thing] as number) : 0);
  const x = new Float64Array(total);
  for (const row of rows) {
    let at = 0;
    row.forEach((thing, n) => {
      if (n) at += gap(row[n - 1] as number, thing, count);
      x[thing] = at;
      at += width(thing);
    });
    for (const thing of row) x[thing] = (x[thing] as number) - at / 2;
  }
  const up = linked(total, wires.lower, wires.upper, wires.lowerX, wires.upperX);
  const down = linked(total, wires.upper, wires.lower, wires.upperX, wires.lowerX);
  const passes = 8;
  for (let pass = 0; pass < passes; pass++) {
    const both = pass >= passes - 2;
    const downwards = pass % 2 === 0;
    for (let n = 0; n < rows.length; n++) {
      const row = rows[downwards ? n : rows.length - 1 - n] as number[];
      const wish: number[] = [];
      const weight: number[] = [];
      for (const thing of row) {
        const found: number[] = [];
        const above = spine.up[thing] as number;
        const below = spine.down[thing] as number;
        if (above >= 0 && (downwards || both)) found.push(wishOf(level, wires, above, false, x));
        if (below >= 0 && (!downwards || both)) found.push(wishOf(level, wires, below, true, x));
        const straight = found.length > 0;
        // Boxes on no straight way stand between all that they are linked to; lines stay straight as
        // long as they can, which they would not between two ends that wish them elsewhere.
        const between = both && thing < count;
        if (!straight && (downwards || between)) up(thing, x, found);
        if (!straight && (!downwards || between)) down(thing, x, found);
        wish.push(found.length ? median(found) : (x[thing] as number));
        weight.push(found.length ? (straight ? spine.weight(thing) : thing >= count ? 4 : 2) : 0.05);
      }
      settle(row, wish, weight, width, count, x);
    }
  }
  for (const chain of wires.chains) straighten(chain, rows, level, wires, x);
  let left = Infinity;
  for (const row of rows) for (const thing of row) left = Math.min(left, x[thing] as number);
  for (let thing = 0; thing < total; thing++) x[thing] = (x[thing] as number) - left;
  return x;
}

/** Where the one end of a link would stand, the upper one or the lower, for main paths to go straight
 * on. The link itself may bend a little where it touches a cluster beside its main path; were that
 * straight instead, a long graph would drift aside step by step.
 */
function wishOf(level: Level, wires: Wires, link: number, upper: boolean, x: Float64Array): number {
  const a = wires.upper[link] as number;
  const b = wires.lower[link] as number;
  const offset = (a < level.count ? (level.mainOut[a] as number) : 0) - (b < level.count ? (level.mainIn[b] as number) : 0);
  return upper ? (x[b] as number) - offset : (x[a] as number) + offset;
}

/** The links that should be straight: each thing has one upwards and one downwards at most, on the
 * way with the most boxes, so that a main path is a line and what skips it goes round. Values are
 * links' numbers, -1 for none.
 */
function spines(level: Level, rows: readonly number[][], wires: Wires, total: number): Spines {
  const links = wires.upper.map((_, n) => n);
  const into = adjacency(total, wires.lower, links);
  const out = adjacency(total, wires.upper, links);
  const below = new Int32Array(total);
  const length = new Int32Array(total);
  const chosen = new Int32Array(total).fill(-1);
  // Values that pass through a cluster precede those that start in it, such as work on weights.
  const box = (thing: number) => (thing >= level.count ? 0 : level.border[thing] ? THROUGH : 1);
  for (const row of [...rows].reverse()) {
    for (const thing of row) {
      let most = -1;
      for (const link of out(thing)) {
        const boxes = below[wires.lower[link] as number] as number;
        const better = boxes === most && (wires.rank[link] as number) > (wires.rank[chosen[thing] as number] as number);
        if (boxes > most || better) [most, chosen[thing]] = [boxes, link];
      }
      below[thing] = Math.max(0, most) + box(thing);
    }
  }
  const up = new Int32Array(total).fill(-1);
  const down = new Int32Array(total).fill(-1);
  for (const row of rows) {
    for (const thing of row) {
      // Of the straight lines into a thing, the longest one continues.
      let most = -1;
      for (const link of into(thing)) {
        const from = wires.upper[link] as number;
        if (chosen[from] !== link) continue;
        const long = length[from] as number;
        const better = long === most && (wires.rank[link] as number) > (wires.rank[up[thing] as number] as number);
        if (long > most || better) [most, up[thing]] = [long, link];
      }
      length[thing] = Math.max(0, most) + box(thing);
      const link = up[thing] as number;
      if (link >= 0) down[wires.upper[link] as number] = link;
    }
  }
  // Long lines move least: a row's other boxes do not push a main path aside.
  for (const row of [...rows].reverse()) {
    for (const thing of row) {
      const link = down[thing] as number;
      if (link >= 0) length[thing] = length[wires.lower[link] as number] as number;
    }
  }
  return { up, down, length, weight: (thing) => 8 * Math.max(1, length[thing] as number) ** 3 };
}

const THROUGH = 1000;

/** By thing, the links that should be straight (-1 for none), and their weights. */
interface Spines {
  readonly up: Int32Array;
  readonly down: Int32Array;
  readonly length: Int32Array;
  weight(thing: number): number;
}

/** Moves the places of a line between their neighbors such that it has as few bends as possible. */
function straighten(chain: readonly number[], rows: readonly number[][], level: Level, wires: Wires, x: Float64Array): void {
  const { count } = level;
  const width = (thing: number) => (thing < count ? (level.width[thing] as number) : 0);
  const room = chain.map((place) => {
    const row = rows[wires.layer[place - count] as number] as number[];
    const at = wires.position[place - count] as number;
    const before = row[at - 1];
    const after = row[at + 1];
    const low = before === undefined ? -Infinity : (x[before] as number) + width(before) + gap(before, place, count);
    const high = after === undefined ? Infinity : (x[after] as number) - gap(place, after, count);
    return [Math.min(low, x[place] as number), Math.max(high, x[place] as number)] as const;
  });
  for (let first = 0; first < chain.length; ) {
    let [low, high] = room[first] as readonly [number, number];
    let end = first + 1;
    while (end < chain.length) {
      const next = room[end] as readonly [number, number];
      if (Math.max(low, next[0]) > Math.min(high, next[1])) break;
      low = Math.max(low, next[0]);
      high = Math.min(high, next[1]);
      end++;
    }
    // At the lower end of the run, if there is room.
    const wish = x[chain[end - 1] as number] as number;
    for (let n = first; n < end; n++) x[chain[n] as number] = Math.min(high, Math.max(low, wish));
    first = end;
  }
}

function gap(a: number, b: number, count: number): number {
  return a < count && b < count ? GAP_X : a < count || b < count ? GAP_X - 4 : GAP_WIRE;
}

/** The nearest places to the wishes (weighted squares) that keep the order and the gaps. */
function settle(
  row: readonly number[], wish: readonly number[], weight: readonly number[],
  width: (thing: number) => number, count: number, x: Float64Array,
): void {
  const shift: number[] = [];
  let offset = 0;
  row.forEach((thing, n) => {
    if (n) offset += width(row[n - 1] as number) + gap(row[n - 1] as number, thing, count);
    shift.push(offset);
  });
  const value: number[] = [];
  const mass: number[] = [];
  const size: number[] = [];
  row.forEach((_, n) => {
    let v = (wish[n] as number) - (shift[n] as number);
    let m = weight[n] as number;
    let s = 1;
    while (value.length && (value.at(-1) as number) > v) {
      const lastMass = mass.pop() as number;
      v = ((value.pop() as number) * lastMass + v * m) / (lastMass + m);
      m += lastMass;
      s += size.pop() as number;
    }
    value.push(v);
    mass.push(m);
    size.push(s);
  });
  let n = 0;
  value.forEach((v, block) => {
    for (let k = 0; k < (size[block] as number); k++, n++) x[row[n] as number] = v + (shift[n] as number);
  });
}

function median(values: number[]): number {
  if (values.length === 1) return values[0] as number;
  values.sort((a, b) => a - b);
  const half = values.length >> 1;
  return values.length % 2 ? (values[half] as number) : ((values[half - 1] as number) + (values[half] as number)) / 2;
}

/** Heights of rows, and the points of edges. */
function finish(level: Level, rows: readonly number[][], wires: Wires, layer: Int32Array, x: Float64Array, spine: Int32Array): LevelPlaced {
  const { count } = level;
  const tops: number[] = [];
  const bottoms: number[] = [];
  const links = wires.upper.map((_, n) => n);
  // Rows stand further apart if lines between them go far sideways, so that lines are not flat.
  const reach = new Float64Array(rows.length);
  const rowOf = (thing: number) => (thing < count ? layer[thing] : wires.layer[thing - count]) as number;
  for (const n of links) {
    const a = wires.upper[n] as number;
    const b = wires.lower[n] as number;
    const across = Math.abs((x[a] as number) + (wires.upperX[n] as number) - (x[b] as number) - (wires.lowerX[n] as number));
    reach[rowOf(a)] = Math.max(reach[rowOf(a)] as number, across);
  }
  let at = 0;
  let right = 0;
  rows.forEach((row, n) => {
    let tall = 0;
    for (const thing of row) {
      if (thing < count) tall = Math.max(tall, level.height[thing] as number);
      right = Math.max(right, (x[thing] as number) + (thing < count ? (level.width[thing] as number) : 0));
    }
    tops.push(at);
    bottoms.push(at + tall);
    const border = row.length > 0 && row.every((thing) => thing >= count || level.border[thing]);
    at += tall + (border ? 14 : GAP_Y) + Math.min(60, (reach[n] as number) * 0.06);
  });
  const height = bottoms.at(-1) ?? 0;
  const y = new Float64Array(count);
  for (let box = 0; box < count; box++) {
    const top = tops[layer[box] as number] as number;
    const bottom = bottoms[layer[box] as number] as number;
    const free = bottom - top - (level.height[box] as number);
    y[box] = level.border[box] === 1 ? top : level.border[box] === 2 ? bottom - (level.height[box] as number) : top + free / 2;
  }
  const points = wires.through.map((through, n) => {
    const found: number[] = [];
    const source = level.source[n] as number;
    const target = level.target[n] as number;
    const down = (layer[target] as number) > (layer[source] as number);
    // Straight to the row's edge first: neighbors may be taller.
    if (down) found.push((x[source] as number) + (level.fromX[n] as number), bottoms[layer[source] as number] as number);
    for (const place of through) {
      const row = wires.layer[place - count] as number;
      const px = x[place] as number;
      if (down) found.push(px, tops[row] as number, px, bottoms[row] as number);
      else found.push(px, bottoms[row] as number, px, tops[row] as number);
    }
    if (down) found.push((x[target] as number) + (level.toX[n] as number), tops[layer[target] as number] as number);
    return found;
  });
  return { x: x.slice(0, count), y, points, spine, width: right, height };
}

/** Neighbors as slices of one array. */
function adjacency(count: number, from: readonly number[], to: readonly number[]): (at: number) => Int32Array {
  const start = new Int32Array(count + 1);
  for (const at of from) start[at + 1] = (start[at + 1] as number) + 1;
  for (let at = 0; at < count; at++) start[at + 1] = (start[at + 1] as number) + (start[at] as number);
  const fill = start.slice(0, count);
  const found = new Int32Array(from.length);
  from.forEach((at, n) => {
    found[fill[at] as number] = to[n] as number;
    fill[at] = (fill[at] as number) + 1;
  });
  return (at) => found.subarray(start[at], start[at + 1]);
}

/** Where a thing's left side would stand right below or above its neighbors, one wish each. */
function linked(
  count: number, from: readonly number[], to: readonly number[],
  fromX: readonly number[], toX: readonly number[],
): (thing: number, x: Float64Array, found: number[]) => void {
  const which = adjacency(count, from, from.map((_, n) => n));
  return (thing, x, found) => {
    for (const n of which(thing)) found.push((x[to[n] as number] as number) + (toX[n] as number) - (fromX[n] as number));
  };
}
