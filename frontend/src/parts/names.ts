// Texts of a model on the page. Layer names may contain anything: bidirectional controls and
// invisible characters are escaped, and names in right-to-left scripts are isolated,
// so that they do not reorder the text around them.

import { Fragment, h, options, type ComponentChild, type VNode } from "preact";

/** Invisible characters: control and format characters except line breaks and tabs; line separators. */
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const ANY_UNSEEN = new RegExp(UNSEEN.source, "u");
/** Letters of Hebrew, Arabic and their like. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

const [ISOLATE, POP] = ["\u2066", "\u2069"];
/** The isolate that `names` makes; nothing inside can end it early. */
const ISOLATED = new RegExp(`${ISOLATE}([^${ISOLATE}${POP}]*)${POP}`);

/** A text with invisible characters escaped, such as `\u202e`, as in clew's messages. */
export function visible(text: string): string {
  return ANY_UNSEEN.test(text) ? text.replace(UNSEEN, escaped) : text;
}

function escaped(c: string): string {
  const code = c.codePointAt(0) ?? 0;
  const [head, digits] = code < 0x100 ? ["\\x", 2] : code < 0x10000 ? ["\\u", 4] : ["\\U", 8];
  return head + code.toString(16).padStart(digits, "0");
}

export function isRightToLeft(text: string): boolean {
  return RIGHT_TO_LEFT.test(text);
}

/** Names joined into one text, each isolated. */
export function names(all: readonly string[], between = ", "): string {
  return all.map((name) => (isRightToLeft(name) ? ISOLATE + visible(name) + POP : visible(name))).join(between);
}

/** The same for a text that may hold `names`. */
export function shown(text: string): string {
  if (!ANY_UNSEEN.test(text)) return text;
  const parts = text.split(ISOLATED);
  return parts.map((part, n) => (n % 2 ? ISOLATE + visible(part) + POP : visible(part))).join("");
}

const ATTRIBUTES = ["title", "aria-label", "aria-valuetext", "placeholder", "alt", "label"] as const;
/** Elements that hold text alone. */
const PLAIN: ReadonlySet<unknown> = new Set(["option", "textarea", "title", "script", "style"]);

/** Applies this to all text that the page renders from now on. */
export function guardTexts(): void {
  const before = options.vnode;
  options.vnode = (vnode) => {
    if (typeof vnode.type === "string" || vnode.type === Fragment) guard(vnode as VNode<Record<string, unknown>>);
    before?.(vnode);
  };
}

function guard({ type, props }: VNode<Record<string, unknown>>): void {
  const { children } = props;
  if (Array.isArray(children)) {
    if (children.some((child) => typeof child === "string")) props.children = children.map((child) => guarded(child, type));
  } else if (typeof children === "string") props.children = guarded(children, type) as never;
  if (type === Fragment) return;
  for (const name of ATTRIBUTES) {
    const text = props[name];
    if (typeof text === "string") props[name] = shown(text);
  }
}

function guarded(child: ComponentChild, type: unknown): ComponentChild {
  if (typeof child !== "string") return child;
  const text = shown(child);
  if (!isRightToLeft(text) || type === "bdi" || PLAIN.has(type)) return text;
  return type === "text" || type === "tspan" ? h("tspan", ISOLATED_CLASS, text) : h("bdi", LEFT_TO_RIGHT, text);
}

// Names are paths and identifiers: their parts stand in this order whatever they begin with.
const LEFT_TO_RIGHT = { dir: "ltr" };
const ISOLATED_CLASS = { class: "isolated" };
