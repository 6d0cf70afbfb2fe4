// The layered layout of a graph with clusters: every cluster is laid out separately, from the inside
// out, and is a box in the one around it. Values that enter or leave a cluster have a place on its
// border, so that lines cross borders in one spot a value and go around what is inside.

import { placeLevel, type Level, type LevelPlaced } from "./levels";
import { HEAD, PAD, type Placed, type Progress, type ToPlace } from "./place";

/** The contents of a cluster during collection. Boxes are items, clusters and border places. */
class Inside {
  readonly item: number[] = [];
  readonly cluster: number[] = [];
  readonly border: number[] = [];
  readonly source: number[] = [];
  readonly target: number[] = [];
  /** The box inside a neighboring cluster that an edge starts from or leads to, -1 for items. */
  readonly sourceGate: number[] = [];
  readonly targetGate: number[] = [];
  readonly boxOf = new Map<string, number>();
  private readonly edgeOf = new Map<string, number>();
  placed: LevelPlaced | null = null;
  left = 0;
  top = 0;
  width = 0;
  height = 0;

  box(key: string, item: number, cluster: number, border: number): number {
    let box = this.boxOf.get(key);
    if (box === undefined) {
      this.boxOf.set(key, (box = this.item.length));
      this.item.push(item);
      this.cluster.push(cluster);
      this.border.push(border);
    }
    return box;
  }

  edge(source: number, sourceGate: number, target: number, targetGate: number): number {
    const key = `${source}:${sourceGate}:${target}:${targetGate}`;
    let edge = this.edgeOf.get(key);
    if (edge === undefined) {
      this.edgeOf.set(key, (edge = this.source.length));
      this.source.push(source);
      this.target.push(target);
      this.sourceGate.push(sourceGate);
      this.targetGate.push(targetGate);
    }
    return edge;
  }
}

export function layered(input: ToPlace, progress: Progress = () => undefined): Placed {
  const count = input.parents.length;
  // The last one is the graph as a whole.
  const insides = Array.from({ length: count + 1 }, () => new Inside());
  const inside = (cluster: number) => insides[cluster < 0 ? count : cluster] as Inside;
  const depth = new Int32Array(count);
  for (let at = 0; at < count; at++) {
    const parent = input.parents[at] as number;
    depth[at] = parent < 0 ? 1 : (depth[parent] as number) + 1;
  }
  for (let item = 0; item < input.inside.length; item++) inside(input.inside[item] as number).box(`i${item}`, item, -1, 0);
  for (let at = 0; at < count; at++) inside(input.parents[at] as number).box(`c${at}`, -1, at, 0);
  const paths: [number, number][][] = [];
  for (let at = 0; at < input.edges.length; at += 2) {
    paths.push(route(input, inside, depth, input.edges[at] as number, input.edges[at + 1] as number));
  }
  let done = 0;
  for (let at = count - 1; at >= -1; at--) {
    const mine = inside(at);
    const level = levelOf(mine, input, insides);
    mine.placed = placeLevel(level);
    size(mine, at < 0 ? 0 : (input.label[at] as number), at < 0);
    done += mine.item.length;
    progress(done / (input.inside.length + count + 1));
  }
  return compose(input, insides, paths);
}

/** Adds an edge to every cluster that it passes; returns these, with its number in each. */
function route(
  input: ToPlace, inside: (cluster: number) => Inside, depth: Int32Array, source: number, target: number,
): [number, number][] {
  const deep = (cluster: number) => (cluster < 0 ? 0 : (depth[cluster] as number));
  const up: [number, number][] = [];
  const down: [number, number][] = [];
  let a = input.inside[source] as number;
  let b = input.inside[target] as number;
  let from = inside(a).box(`i${source}`, source, -1, 0);
  let to = inside(b).box(`i${target}`, target, -1, 0);
  let fromGate = -1;
  let toGate = -1;
  while (a !== b) {
    if (deep(a) >= deep(b)) {
      const gate = inside(a).box(`o${source}`, -1, -1, 2);
      up.push([a, inside(a).edge(from, fromGate, gate, -1)]);
      const outer = input.parents[a] as number;
      from = inside(outer).box(`c${a}`, -1, a, 0);
      fromGate = gate;
      a = outer;
    } else {
      const gate = inside(b).box(`e${source}`, -1, -1, 1);
      down.push([b, inside(b).edge(gate, -1, to, toGate)]);
      const outer = input.parents[b] as number;
      to = inside(outer).box(`c${b}`, -1, b, 0);
      toGate = gate;
      b = outer;
    }
  }
  return [...up, [a, inside(a).edge(from, fromGate, to, toGate)], ...down.reverse()];
}

const GATE = 2;

function levelOf(mine: Inside, input: ToPlace, insides: readonly Inside[]): Level {
  const width = mine.item.map((item, box) =>
    item >= 0 ? (input.width[item] as number) : (mine.cluster[box] as number) >= 0 ? (insides[mine.cluster[box] as number] as Inside).width : GATE,
  );
  const height = mine.item.map((item, box) =>
    item >= 0 ? (input.height[item] as number) : (mine.cluster[box] as number) >= 0 ? (insides[mine.cluster[box] as number] as Inside).height : 0,
  );
  const touch = (box: number, gate: number) => {
    const cluster = mine.cluster[box] as number;
    if (cluster < 0 || gate < 0) return (width[box] as number) / 2;
    const inner = insides[cluster] as Inside;
    return inner.left + ((inner.placed as LevelPlaced).x[gate] as number) + GATE / 2;
  };
  const rank = (box: number, gate: number) => {
    const cluster = mine.cluster[box] as number;
    return cluster < 0 || gate < 0 ? 0 : ((insides[cluster] as Inside).placed as LevelPlaced).spine[gate] as number;
  };
  const main = (border: number) => (cluster: number, box: number) => {
    if (cluster < 0) return (width[box] as number) / 2;
    const inner = insides[cluster] as Inside;
    const placed = inner.placed as LevelPlaced;
    let best = -1;
    inner.border.forEach((side, gate) => {
      if (side === border && (best < 0 || (placed.spine[gate] as number) > (placed.spine[best] as number))) best = gate;
    });
    return best < 0 ? inner.width / 2 : inner.left + (placed.x[best] as number) + GATE / 2;
  };
  return {
    mainIn: mine.cluster.map(main(1)), mainOut: mine.cluster.map(main(2)),
    rank: mine.source.map((box, n) => rank(box, mine.sourceGate[n] as number) + rank(mine.target[n] as number, mine.targetGate[n] as number)),
    count: mine.item.length, width, height, border: mine.border, source: mine.source, target: mine.target,
    fromX: mine.source.map((box, n) => touch(box, mine.sourceGate[n] as number)),
    toX: mine.target.map((box, n) => touch(box, mine.targetGate[n] as number)),
  };
}

function size(mine: Inside, label: number, whole: boolean): void {
  const placed = mine.placed as LevelPlaced;
  const entered = mine.border.includes(1);
  const pad = whole ? 24 : PAD;
  mine.width = Math.max(placed.width, label) + 2 * pad;
  mine.left = (mine.width - placed.width) / 2;
  mine.top = whole ? pad : entered ? HEAD - 8 : HEAD;
  mine.height = mine.top + placed.height + (mine.border.includes(2) ? 0 : pad);
}

function compose(input: ToPlace, insides: readonly Inside[], paths: readonly [number, number][][]): Placed {
  const count = input.parents.length;
  const items = input.inside.length;
  const out = {
    x: new Float32Array(items), y: new Float32Array(items),
    clusterX: new Float32Array(count), clusterY: new Float32Array(count),
    clusterWidth: new Float32Array(count), clusterHeight: new Float32Array(count),
  };
  const leftOf = new Float64Array(count + 1);
  const topOf = new Float64Array(count + 1);
  for (let n = -1; n < count; n++) {
    const at = n < 0 ? count : n;
    const mine = insides[at] as Inside;
    const placed = mine.placed as LevelPlaced;
    if (n >= 0) {
      leftOf[at] = out.clusterX[n] as number;
      topOf[at] = out.clusterY[n] as number;
    }
    leftOf[at] = (leftOf[at] as number) + mine.left;
    topOf[at] = (topOf[at] as number) + mine.top;
    mine.item.forEach((item, box) => {
      const x = (leftOf[at] as number) + (placed.x[box] as number);
      const y = (topOf[at] as number) + (placed.y[box] as number);
      const cluster = mine.cluster[box] as number;
      if (item >= 0) {
        out.x[item] = x;
        out.y[item] = y;
      } else if (cluster >= 0) {
        out.clusterX[cluster] = x;
        out.clusterY[cluster] = y;
        out.clusterWidth[cluster] = (insides[cluster] as Inside).width;
        out.clusterHeight[cluster] = (insides[cluster] as Inside).height;
      }
    });
  }
  const points: number[] = [];
  const start = new Int32Array(paths.length + 1);
  paths.forEach((path, n) => {
    const source = input.edges[2 * n] as number;
    const target = input.edges[2 * n + 1] as number;
    const line = [
      (out.x[source] as number) + (input.width[source] as number) / 2,
      (out.y[source] as number) + (input.height[source] as number),
    ];
    for (const [cluster, edge] of path) {
      const at = cluster < 0 ? count : cluster;
      const found = ((insides[at] as Inside).placed as LevelPlaced).points[edge] as number[];
      for (let k = 0; k < found.length; k += 2) {
        line.push((found[k] as number) + (leftOf[at] as number), (found[k + 1] as number) + (topOf[at] as number));
      }
    }
    line.push((out.x[target] as number) + (input.width[target] as number) / 2, out.y[target] as number);
    for (const value of straightened(line)) points.push(value);
    start[n + 1] = points.length;
  });
  const whole = insides[count] as Inside;
  return { ...out, points: Float32Array.from(points), start, width: whole.width, height: whole.height, by: "layered" };
}

/** Removes points on straight vertical lines, and smooths steps of less than a pixel. */
export function straightened(line: readonly number[]): number[] {
  const kept: number[] = [line[0] as number, line[1] as number];
  for (let at = 2; at < line.length; at += 2) {
    let x = line[at] as number;
    const y = line[at + 1] as number;
    const end = at + 2 >= line.length;
    const px = kept.at(-2) as number;
    if (!end && Math.abs(x - px) < 1.5) x = px;
    const ppx = kept.at(-4);
    if (kept.length >= 4 && ppx === px && x === px) kept[kept.length - 1] = y;
    else if (Math.abs(x - px) < 0.01 && Math.abs(y - (kept.at(-1) as number)) < 0.01) continue;
    else kept.push(x, y);
  }
  return kept;
}
