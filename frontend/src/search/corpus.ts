// All searched entries, as columns: lower-case texts are made once, so that a key press costs
// a pass over an array.

import { EXACT, FUZZY, NONE, PREFIX, rank, rankWords, span, SUBSTRING, WORD, type Rank } from "./rank";
import { KINDS, type Kind, type Query } from "./query";

/** An entry. `ref` is a text, parsed when the entry is opened. */
export interface Item {
  readonly kind: Kind;
  readonly text: string;
  readonly detail: string;
  readonly ref: string;
}

export interface Part {
  readonly items: readonly Item[];
  readonly lower: readonly string[];
  /** The text shown beside it, if that is searched, else "". */
  readonly beside: readonly string[];
  /** Places in `KINDS`. */
  readonly kinds: Uint8Array;
}

export interface Group {
  readonly kind: Kind;
  readonly items: readonly Item[];
  /** The total number; `items` are the best of them. */
  readonly total: number;
}

/** The most results of a kind. */
export const MOST = 500;
/** Fuzzy matches are searched only if there are fewer other matches than this. */
const ENOUGH = 30;
/** Above this many entries of equal rank, shorter texts are not sorted first: that would take too long. */
const SORTED = 1500;
/** A layer's type and a kernel's schedule rules are searched; places and counts are not. */
const BESIDE: ReadonlySet<Kind> = new Set<Kind>(["layer", "kernel", "region"]);
const LAYER = KINDS.indexOf("layer");
/** Lines are code: letters in order mean nothing there. */
const LINES: readonly boolean[] = KINDS.map((kind) => kind.endsWith("line") || kind === "instruction");

export function part(items: readonly Item[]): Part {
  return {
    items,
    lower: items.map((item) => item.text.toLowerCase()),
    beside: items.map((item) => (BESIDE.has(item.kind) ? item.detail.toLowerCase() : "")),
    kinds: Uint8Array.from(items, (item) => KINDS.indexOf(item.kind)),
  };
}

/** Returns the matches of a query, grouped by kind, the group with the best match first. */
export function search(corpus: readonly Part[], query: Query): Group[] {
  const found = new Found();
  for (const one of corpus) match(one, query, found);
  if (query.needle && found.count < ENOUGH) {
    for (const one of corpus) matchFuzzy(one, query, found);
  }
  return found.groups();
}

function match(one: Part, query: Query, found: Found): void {
  const { needle, words } = query;
  const wanted = wantedBy(query);
  const byType = query.filter?.prefix === "op:";
  for (let n = 0; n < one.kinds.length; n++) {
    const kind = one.kinds[n] ?? 0;
    if (!wanted[kind]) continue;
    const beside = one.beside[n] ?? "";
    // A layer is found by `op:` through its type, which stands beside its name.
    const ofType = byType && kind === LAYER;
    const text = ofType ? beside : (one.lower[n] ?? "");
    let rated: Rank = needle ? rank(text, needle) : SUBSTRING;
    if (beside && needle && kind === LAYER && !ofType) rated = least(rated, besideRank(beside, needle));
    if (rated === NONE && (beside || words.length > 1)) rated = rankWords(text, beside, words);
    if (rated !== NONE) found.add(kind, rated, one.items[n] as Item);
  }
}

/** For each kind, whether it is searched. */
function wantedBy({ filter }: Query): boolean[] {
  return KINDS.map((kind) => filter?.kinds.includes(kind) ?? true);
}

/** A layer's type counts a little less than its name. */
function besideRank(type: string, needle: string): Rank {
  const rated = rank(type, needle);
  return rated === EXACT ? PREFIX : rated === PREFIX ? WORD : NONE;
}

function least(a: Rank, b: Rank): Rank {
  return a < b ? a : b;
}

function matchFuzzy(one: Part, query: Query, found: Found): void {
  const typed = query.words.join("");
  const wanted = wantedBy(query);
  for (let n = 0; n < one.kinds.length; n++) {
    const kind = one.kinds[n] ?? 0;
    if (LINES[kind] || !wanted[kind]) continue;
    const text = one.lower[n] ?? "";
    const near = span(text, typed) > 0;
    if (near && rank(text, query.needle) === NONE && rankWords(text, one.beside[n] ?? "", query.words) === NONE) {
      found.add(kind, FUZZY, one.items[n] as Item);
    }
  }
}

/** Matches by kind and rank, in the order they were found: that of the model. */
class Found {
  count = 0;
  private readonly kinds: (Item[] | undefined)[][] = KINDS.map(() => []);

  add(kind: number, rated: Rank, item: Item): void {
    const ranks = this.kinds[kind];
    if (ranks) (ranks[rated] ??= []).push(item);
    this.count++;
  }

  groups(): Group[] {
    const rated = this.kinds.flatMap((ranks, order) => {
      const kind = KINDS[order];
      if (!kind || !ranks.length) return [];
      const first = ranks.findIndex((items) => items !== undefined);
      return [{ first, order, group: { kind, items: best(ranks), total: ranks.reduce((sum, items) => sum + (items?.length ?? 0), 0) } }];
    });
    return rated.sort((a, b) => a.first - b.first || a.order - b.order).map((r) => r.group);
  }
}

function best(ranks: readonly (Item[] | undefined)[]): Item[] {
  const items: Item[] = [];
  ranks.forEach((matches, rated) => {
    if (!matches || items.length >= MOST) return;
    // Entries that merely contain the query stay in the order of the model.
    if (rated !== SUBSTRING && matches.length <= SORTED) matches.sort((a, b) => a.text.length - b.text.length);
    items.push(...matches.slice(0, MOST - items.length));
  });
  return items;
}
