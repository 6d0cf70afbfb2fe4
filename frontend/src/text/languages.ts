// Tokens of the texts that panes show, found line by line: every language of the page keeps a token
// on its line, so that only the visible lines of a text need coloring.

import { StreamLanguage, syntaxHighlighting, type StreamParser, type StringStream } from "@codemirror/language";
import type { Extension } from "@codemirror/state";
import { tagHighlighter, tags } from "@lezer/highlight";
import type { Language } from "./content";

/** A pattern at the start of what is left of a line, and the token's name (see `NAMES`). */
type Rule = readonly [RegExp, string | null];

const NUMBER = /^-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)/;
const STRING = /^"(?:[^"\\]|\\.)*"?/;
const DTYPE = /^(?:bool|bf16|f8e\d+m\d+(?:fn)?u?z?|f8e8m0fnu|f6e\dm\dfn|f4e2m1fn|tf32|[fiu]\d{1,2})\b/;
const REST = /^[\w.$-]+|^\s+|^./u;

const RULES: Readonly<Record<Language, readonly Rule[]>> = {
  graph: [
    [/^(?:\/\/|#).*/, "comment"],
    [STRING, "string"],
    [/^%(?:[\w.$#]+|"(?:[^"\\]|\\.)*")/, "variable"],
    [/^@[\w.$]+/, "constant"],
    [/^(?:def|fn|return|const|splat|let|in|if|then|else|while|do|scans|trips|with|var|clew|frontend)\b/, "keyword"],
    [/^(?:true|false|none)\b/, "number"],
    [DTYPE, "type"],
    [/^:[A-Z][A-Za-z0-9]*\b/, "type"],
    [/^[a-zA-Z_][\w.]*(?=\()/, "operator"],
    [/^[a-zA-Z_]\w*(?==)/, "name"],
    [NUMBER, "number"],
  ],
  loops: [
    [/^#.*/, "comment"],
    [/^(?:kernel|for|in|parallel|unroll|vector|scratch|register|tiles|prefetch|if|else|while|pack|shared|zero)\b/, "keyword"],
    // Named sizes; a stage may be called "size", too.
    [/^size(?= %)/, "keyword"],
    [DTYPE, "type"],
    [/^%\w+/, "variable"],
    [/^[a-zA-Z_]\w*(?=\()/, "operator"],
    [/^[a-zA-Z_][\w.+]*/, "name"],
    [NUMBER, "number"],
  ],
  llvm: [
    [/^(?:;.*|!dbg\s+!\d+|![\w.]+)/, "comment"],
    [/^c?"(?:[^"\\]|\\.)*"?/, "string"],
    [/^[\w.$-]+:(?=\s*(?:;|$))/, "label"],
    [/^%[\w.$-]+/, "variable"],
    [/^@[\w.$-]+/, "operator"],
    [/^(?:i\d+|half|float|double|bfloat|ptr|void|label|metadata|x86_amx)\b/, "type"],
    [/^(?:<)?\d+(?= x )/, "type"],
    [/^(?:true|false|null|undef|poison|zeroinitializer|splat)\b/, "number"],
    [/^[a-z][a-z_]+\b/, "keyword"],
    [NUMBER, "number"],
  ],
  asm: [
    [/^[;#].*/, "comment"],
    [/^\b[xyzk]mm\d+|^[xyz]mm\d+|^k[0-7]\b|^tmm\d+/, "type"],
    [/^(?:[re]?(?:ax|bx|cx|dx|si|di|sp|bp|ip)|r\d+[dwb]?|[abcd][lh]|[sd]il|[sb]pl)\b/, "variable"],
    [/^(?:[xwvqdshb]\d{1,2}(?:\.\d*[bhsd])?|[wx]zr|sp|lr)\b/, "variable"],
    [/^(?:[xyz]mmword|[dq]?word|byte|ptr|rip)\b/, "comment"],
    [NUMBER, "number"],
  ],
  model: [
    [/^#.*/, "comment"],
    [STRING, "string"],
    [/^'[^']*'/, "string"],
    [DTYPE, "type"],
    [/^[A-Z]\w*(?:\.\w+)*(?=\()/, "operator"],
    [/^(?:→|return|inputs|outputs|layers)(?![\w.])/, "keyword"],
    [/^[a-zA-Z_][\w]*(?==)/, "name"],
    [/^[\w./:-]*[a-zA-Z_][\w./:-]*/, null],
    [NUMBER, "number"],
  ],
};

const NAMES = {
  comment: tags.comment,
  string: tags.string,
  variable: tags.variableName,
  constant: tags.constant(tags.variableName),
  keyword: tags.keyword,
  number: tags.number,
  type: tags.typeName,
  operator: tags.operator,
  name: tags.propertyName,
  label: tags.labelName,
} as const;

/** Classes, not styles: theme.ts colors them from the page's variables. */
const CLASSES = tagHighlighter(
  Object.entries(NAMES).map(([name, tag]) => ({ tag, class: `token-${name}` })),
);

interface State {
  /** Whether the line's mnemonic has been read. */
  begun: boolean;
}

function parser(language: Language): StreamParser<State> {
  const rules = RULES[language];
  return {
    name: language,
    startState: () => ({ begun: false }),
    copyState: (state) => ({ ...state }),
    tokenTable: NAMES,
    token(stream: StringStream, state: State): string | null {
      if (stream.sol()) state.begun = false;
      if (stream.eatSpace()) return null;
      if (language === "asm" && !state.begun) {
        state.begun = true;
        if (stream.match(/^(?:(?:rep|repne|lock|notrack)\s+)*[a-z][\w.]*/)) return "keyword";
      }
      for (const [pattern, name] of rules) if (stream.match(pattern)) return name;
      stream.match(REST);
      return null;
    },
  };
}

const made = new Map<Language, Extension>();

export function highlighting(language: Language): Extension {
  let found = made.get(language);
  if (!found) made.set(language, (found = [StreamLanguage.define(parser(language)), syntaxHighlighting(CLASSES)]));
  return found;
}
