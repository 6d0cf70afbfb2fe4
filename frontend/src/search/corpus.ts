// All that is searched through, as columns: lower-case texts are made once, so that a key press costs
// a pass over an array.

import { EXACT, FUZZY, NONE, PREFIX, rank, rankWords, span, SUBSTRING, WORD, type Rank } from "./rank";
import { KINDS, type Kind, type Query } from "./query";

/** Something that can be found. `ref` is a text, parsed when it is gone to. */
export interface Item {
  readonly kind: Kind;
  readonly text: string;
  readonly detail: string;
  readonly ref: string;
}

export interface Part {
  readonly items: readonly Item[];
  readonly lower: readonly string[];
  readonly details: readonly string[];
}

export interface Group {
  readonly kind: Kind;
  readonly items: readonly Item[];
  /** How many there are; `items` are the best of them. */
  readonly total: number;
}

/** So many results of a kind are shown; whoever wants more types more. */
export const MOST = 500;
/** Fuzzy matches are looked for only where there are fewer than so many others. */
const ENOUGH = 30;
/** Above so many of equal rank, shorter texts no longer come first: it would take too long. */
const SORTED = 1500;

export function part(items: readonly Item[]): Part {
  return {
    items,
    lower: items.map((item) => item.text.toLowerCase()),
    details: items.map((item) => item.detail.toLowerCase()),
  };
}

/** Returns what matches a query, in groups of a kind, the group with the best match first. */
export function search(corpus: readonly Part[], query: Query): Group[] {
  const found = new Found();
  for (const one of corpus) match(one, query, found);
  if (query.needle && found.count < ENOUGH) {
    for (const one of corpus) matchFuzzy(one, query, found);
  }
  return found.groups();
}

function match(one: Part, query: Query, found: Found): void {
  const { filter, needle, words } = query;
  const byType = filter?.prefix === "op:";
  for (let n = 0; n < one.items.length; n++) {
    const item = one.items[n];
    if (!item || (filter && !filter.kinds.includes(item.kind))) continue;
    // A layer is found by `op:` through its type, which stands beside its name.
    const text = (byType && item.kind === "layer" ? one.details[n] : one.lower[n]) ?? "";
    let rated: Rank = needle ? rank(text, needle) : SUBSTRING;
    if (item.kind === "layer" && !byType && needle) rated = least(rated, besideRank(one.details[n] ?? "", needle));
    if (rated === NONE && words.length) rated = rankWords(text, one.details[n] ?? "", words);
    if (rated !== NONE) found.add(item, rated);
  }
}

/** A layer's type counts a little less than its name. */
function besideRank(type: string, needle: string): Rank {
  const rated = rank(type, needle);
  return rated === EXACT ? PREFIX : rated === PREFIX ? WORD : NONE;
}

function least(a: Rank, b: Rank): Rank {
  return a < b ? a : b;
}

function matchFuzzy(one: Part, { filter, needle, words }: Query, found: Found): void {
  const typed = words.join("");
  for (let n = 0; n < one.items.length; n++) {
    const item = one.items[n];
    const text = one.lower[n] ?? "";
    if (!item || item.kind.includes("line") || item.kind === "instruction") continue;
    if (filter && !filter.kinds.includes(item.kind)) continue;
    const length = span(text, typed);
    if (length && rank(text, needle) === NONE && rankWords(text, one.details[n] ?? "", words) === NONE) {
      found.add(item, FUZZY, length);
    }
  }
}

/** Matches by kind and rank, in the order they were found: that of the model. */
class Found {
  count = 0;
  private readonly kinds = new Map<Kind, { item: Item; length: number }[][]>();

  add(item: Item, rated: Rank, length = item.text.length): void {
    let ranks = this.kinds.get(item.kind);
    if (!ranks) this.kinds.set(item.kind, (ranks = []));
    (ranks[rated] ??= []).push({ item, length });
    this.count++;
  }

  groups(): Group[] {
    const rated = [...this.kinds].map(([kind, ranks]) => ({
      best: ranks.findIndex((matches) => matches !== undefined),
      order: KINDS.indexOf(kind),
      group: { kind, items: best(ranks), total: ranks.reduce((sum, matches) => sum + (matches?.length ?? 0), 0) },
    }));
    return rated.sort((a, b) => a.best - b.best || a.order - b.order).map((r) => r.group);
  }
}

function best(ranks: readonly ({ item: Item; length: number }[] | undefined)[]): Item[] {
  const items: Item[] = [];
  ranks.forEach((matches, rated) => {
    if (!matches || items.length >= MOST) return;
    const ordered = rated !== SUBSTRING && matches.length <= SORTED ? matches.sort((a, b) => a.length - b.length) : matches;
    for (const { item } of ordered.slice(0, MOST - items.length)) items.push(item);
  });
  return items;
}
