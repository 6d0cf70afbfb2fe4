// Words of a loop nest by what they are, for their colors.

export interface Token {
  readonly text: string;
  readonly kind: "" | "keyword" | "number" | "comment" | "type";
}

const WORD =
  /(#.*$)|\b(kernel|for|in|parallel|vector|unroll|register|workspace|cache|if|else|select|prefetch|local|tile|let|while|size(?= %))\b(?![.\w])|\b(f32|f64|bf16|f16|i8|i32|i64|u8|bool)\b|(?<![\w.%])(\d[\w.]*)/g;

/** Returns a line's words in order; together they are the line. */
export function tokens(line: string): Token[] {
  const found: Token[] = [];
  let end = 0;
  for (const word of line.matchAll(WORD)) {
    if (word.index > end) found.push({ text: line.slice(end, word.index), kind: "" });
    const kind = word[1] ? "comment" : word[2] ? "keyword" : word[3] ? "type" : "number";
    found.push({ text: word[0], kind });
    end = word.index + word[0].length;
  }
  if (end < line.length) found.push({ text: line.slice(end), kind: "" });
  return found;
}
