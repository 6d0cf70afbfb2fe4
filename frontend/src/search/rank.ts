// Ranks texts by their match with a query. All functions take lower-case text.

/** From best to worst; `NONE` is no match. */
export const EXACT = 0;
export const PREFIX = 1;
export const WORD = 2;
export const SUBSTRING = 3;
/** All words of the query, but not in one piece; or in the text beside it. */
export const SCATTERED = 4;
/** All characters in order, near each other. */
export const FUZZY = 5;
export const NONE = 6;

export type Rank = 0 | 1 | 2 | 3 | 4 | 5 | 6;
/** Where a match stands in a text: start and end. */
export type Mark = readonly [number, number];

const FUZZY_LEAST = 3;

/** Ranks a text that holds the query in one piece. */
export function rank(text: string, needle: string): Rank {
  let at = text.indexOf(needle);
  if (at < 0) return NONE;
  if (at === 0) return text.length === needle.length ? EXACT : PREFIX;
  for (; at > 0; at = text.indexOf(needle, at + 1)) {
    if (!isWord(text.charCodeAt(at - 1))) return WORD;
  }
  return SUBSTRING;
}

/** Ranks a text and the text beside it by the words of a query. */
export function rankWords(text: string, beside: string, words: readonly string[]): Rank {
  return words.every((word) => text.includes(word) || beside.includes(word)) ? SCATTERED : NONE;
}

/** Length of the piece of a text that has all characters of the query in order; 0 for none. */
export function span(text: string, needle: string): number {
  if (needle.length < FUZZY_LEAST) return 0;
  let at = -1;
  for (let n = 0; n < needle.length; n++) {
    at = text.indexOf(needle[n] ?? "", at + 1);
    if (at < 0) return 0;
  }
  // The shortest piece that ends there: back from its end.
  const end = at + 1;
  for (let n = needle.length - 1, back = end; n >= 0; n--) {
    back = text.lastIndexOf(needle[n] ?? "", back - 1);
    at = back;
  }
  return end - at <= 2 * needle.length + 4 ? end - at : 0;
}

/** Where a query stands in a text (any case), for marking: in one piece, else its words, else its characters. */
export function marks(text: string, needle: string, words: readonly string[]): Mark[] {
  const lower = text.toLowerCase();
  if (!needle || lower.length !== text.length) return [];
  const at = wordStart(lower, needle);
  if (at >= 0) return [[at, at + needle.length]];
  const found = words.flatMap((word): Mark[] => {
    const start = lower.indexOf(word);
    return start < 0 ? [] : [[start, start + word.length]];
  });
  if (found.length) return merged(found);
  const length = span(lower, needle);
  return length ? characters(lower, needle) : [];
}

/** The first place where the query begins a word, else the first. */
function wordStart(text: string, needle: string): number {
  const first = text.indexOf(needle);
  for (let at = first; at > 0; at = text.indexOf(needle, at + 1)) {
    if (!isWord(text.charCodeAt(at - 1))) return at;
  }
  return first;
}

function characters(text: string, needle: string): Mark[] {
  let end = 0;
  for (const character of needle) end = text.indexOf(character, end) + 1;
  const found: Mark[] = [];
  for (let n = needle.length - 1, back = end; n >= 0; n--) {
    back = text.lastIndexOf(needle[n] ?? "", back - 1);
    found.unshift([back, back + 1]);
  }
  return merged(found);
}

function merged(found: readonly Mark[]): Mark[] {
  const result: Mark[] = [];
  for (const [start, end] of found.toSorted((a, b) => a[0] - b[0])) {
    const last = result[result.length - 1];
    if (last && start <= last[1]) result[result.length - 1] = [last[0], Math.max(last[1], end)];
    else result.push([start, end]);
  }
  return result;
}

function isWord(code: number): boolean {
  return (code >= 97 && code <= 122) || (code >= 48 && code <= 57);
}
