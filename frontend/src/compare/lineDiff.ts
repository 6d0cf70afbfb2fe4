// The difference of two texts, line by line and word by word, by Myers' greedy algorithm ("An O(ND)
// Difference Algorithm and Its Variations", 1986).

/** A row of a difference. Lines count from 1; 0 if a side has none. */
export interface Row {
  /** `indented` lines differ only in leading blanks. */
  readonly kind: "same" | "indented" | "changed" | "removed" | "added";
  readonly a: number;
  readonly b: number;
}

/** A piece of a line, and whether the other side lacks it. */
export interface Piece {
  readonly text: string;
  readonly differs: boolean;
}

/** Beyond this many edits texts have little in common, and a difference is useless. */
const MOST_EDITS = 3000;
/** Lines that share a smaller fraction of their words are not paired. */
const ALIKE = 0.5;
const MOST_PAIRS = 40_000;

/** Returns the rows of two texts. Lines are compared without leading blanks, which an additional outer loop changes. */
export function diffLines(a: readonly string[], b: readonly string[]): Row[] {
  const rows: Row[] = [];
  const keysA = a.map((line) => line.trim());
  const keysB = b.map((line) => line.trim());
  let gone: number[] = [];
  let come: number[] = [];
  const flush = (): void => {
    rows.push(...paired(gone, come, keysA, keysB));
    gone = [];
    come = [];
  };
  for (const [x, y] of edits(keysA, keysB)) {
    if (x && y) {
      flush();
      rows.push({ kind: a[x - 1] === b[y - 1] ? "same" : "indented", a: x, b: y });
    } else if (x) gone.push(x);
    else come.push(y);
  }
  flush();
  return rows;
}

/** Returns both lines in pieces, with differing pieces marked. */
export function diffWords(a: string, b: string): { a: Piece[]; b: Piece[] } {
  const wordsA = words(a);
  const wordsB = words(b);
  const pieces: { a: Piece[]; b: Piece[] } = { a: [], b: [] };
  for (const [x, y] of edits(wordsA, wordsB)) {
    const differs = !(x && y);
    if (x) append(pieces.a, wordsA[x - 1] ?? "", differs);
    if (y) append(pieces.b, wordsB[y - 1] ?? "", differs);
  }
  return pieces;
}

function append(pieces: Piece[], text: string, differs: boolean): void {
  const last = pieces.at(-1);
  if (last && last.differs === differs) pieces[pieces.length - 1] = { text: last.text + text, differs };
  else pieces.push({ text, differs });
}

function words(line: string): string[] {
  return line.match(/[\w%.+]+|\s+|[^\w\s]/g) ?? [];
}

/** Lines of one changed place: similar lines share a row, in order. */
function paired(gone: readonly number[], come: readonly number[], a: readonly string[], b: readonly string[]): Row[] {
  const pairs = gone.length * come.length > MOST_PAIRS ? [] : alike(gone, come, a, b);
  const rows: Row[] = [];
  let x = 0;
  let y = 0;
  const until = (toX: number, toY: number): void => {
    while (x < toX) rows.push({ kind: "removed", a: gone[x++] ?? 0, b: 0 });
    while (y < toY) rows.push({ kind: "added", a: 0, b: come[y++] ?? 0 });
  };
  for (const [px, py] of pairs) {
    until(px, py);
    rows.push({ kind: "changed", a: gone[x++] ?? 0, b: come[y++] ?? 0 });
  }
  until(gone.length, come.length);
  return rows;
}

/** The ordered pairs of similar lines that share the most words in total. */
function alike(gone: readonly number[], come: readonly number[], a: readonly string[], b: readonly string[]): [number, number][] {
  const bagsA = gone.map((n) => bag(a[n - 1] ?? ""));
  const bagsB = come.map((n) => bag(b[n - 1] ?? ""));
  const wide = come.length + 1;
  const best = new Float64Array((gone.length + 1) * wide);
  const score = (x: number, y: number): number => shared(bagsA[x], bagsB[y]);
  for (let x = gone.length - 1; x >= 0; x--) {
    for (let y = come.length - 1; y >= 0; y--) {
      const pair = score(x, y);
      best[x * wide + y] = Math.max(
        best[(x + 1) * wide + y] ?? 0,
        best[x * wide + y + 1] ?? 0,
        pair > 0 ? pair + (best[(x + 1) * wide + y + 1] ?? 0) : 0,
      );
    }
  }
  const found: [number, number][] = [];
  for (let x = 0, y = 0; x < gone.length && y < come.length; ) {
    const here = best[x * wide + y] ?? 0;
    if (here === best[(x + 1) * wide + y]) x++;
    else if (here === best[x * wide + y + 1]) y++;
    else found.push([x++, y++]);
  }
  return found;
}

function bag(line: string): Map<string, number> {
  const counts = new Map<string, number>();
  for (const word of words(line)) if (word.trim()) counts.set(word, (counts.get(word) ?? 0) + 1);
  return counts;
}

/** The fraction of words that two lines share, 0 if it is too small. */
function shared(a: Map<string, number> | undefined, b: Map<string, number> | undefined): number {
  if (!a || !b) return 0;
  let common = 0;
  let all = 0;
  for (const [word, count] of a) {
    common += Math.min(count, b.get(word) ?? 0);
    all += count;
  }
  for (const count of b.values()) all += count;
  const share = all ? (2 * common) / all : 0;
  return share >= ALIKE ? share : 0;
}

/** The edit path from `a` to `b`: pairs of places from 1, with 0 on the side that lacks one. */
function* edits(a: readonly string[], b: readonly string[]): Generator<readonly [number, number]> {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let endA = a.length;
  let endB = b.length;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA--;
    endB--;
  }
  for (let n = 1; n <= start; n++) yield [n, n];
  for (const [x, y] of middle(a.slice(start, endA), b.slice(start, endB))) yield [x && x + start, y && y + start];
  for (let n = 1; n <= a.length - endA; n++) yield [endA + n, endB + n];
}

function middle(a: readonly string[], b: readonly string[]): [number, number][] {
  const trace: Int32Array[] = [];
  const most = Math.min(a.length + b.length, MOST_EDITS);
  let ends = new Int32Array([0, 0, 0]); // by diagonal from -d - 1 on: how far down `a` it reaches
  for (let d = 0; d <= most; d++) {
    trace.push(ends);
    const next = new Int32Array(2 * d + 5);
    for (let k = -d; k <= d; k += 2) {
      const left = ends[k - 1 + d + 1] ?? 0;
      const right = ends[k + 1 + d + 1] ?? 0;
      let x = d > 0 && k !== -d && (k === d || left >= right) ? left + 1 : right;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x++;
        y++;
      }
      next[k + d + 2] = x;
      if (x >= a.length && y >= b.length) return back(trace, a.length, b.length, d);
    }
    ends = next;
  }
  return [...a.map((_, n): [number, number] => [n + 1, 0]), ...b.map((_, n): [number, number] => [0, n + 1])];
}

/** Walks the recorded ends back to the start. */
function back(trace: readonly Int32Array[], lengthA: number, lengthB: number, edits: number): [number, number][] {
  const path: [number, number][] = [];
  let x = lengthA;
  let y = lengthB;
  for (let d = edits; d > 0; d--) {
    const ends = trace[d];
    const k = x - y;
    const left = ends?.[k + d] ?? 0;
    const right = ends?.[k + d + 2] ?? 0;
    const fromLeft = k !== -d && (k === d || left >= right);
    const beforeX = fromLeft ? left : right;
    const beforeY = beforeX - (fromLeft ? k - 1 : k + 1);
    while (x > beforeX + (fromLeft ? 1 : 0) && y > beforeY + (fromLeft ? 0 : 1)) path.push([x--, y--]);
    if (fromLeft) path.push([x--, 0]);
    else path.push([0, y--]);
  }
  while (x > 0 && y > 0) path.push([x--, y--]);
  return path.reverse();
}
