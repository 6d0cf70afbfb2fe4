// The behavior of one pane of text: highlights, scrolling, keys. The
// editor draws, state.ts has the focus.

import { effect, signal, untracked, type ReadonlySignal } from "@preact/signals";
import { buildOf, value, type Asked, type Build } from "../builds";
import { heatColor, heatText } from "../heat";
import { paneKeys } from "../panekeys";
import { lines as screens, type Spot } from "../panes/lines";
import type { Here } from "../refs";
import { focus, go, hover, point, reachIn, reveal, selected, type Reveal } from "../state";
import { hoverStarts } from "../timing";
import { placesOf, type Content } from "./content";
import { Editor } from "./editor";

/** Places that belong to the focus, and the current one of the pane. */
export interface Places {
  readonly lines: readonly number[];
  readonly at: number;
}

export class TextSession {
  readonly places = signal<Places>({ lines: [], at: -1 });
  private readonly shadow: ShadowRoot;
  private readonly ends: (() => void)[] = [];
  private editor: Editor | null = null;
  private content: Content | null = null;
  private cursor = 0;
  private shown: { wish: Reveal; content: Content } | null = null;

  constructor(
    host: HTMLElement,
    private readonly key: number,
    private readonly build: Build,
    asked: ReadonlySignal<Asked<Content>>,
    private readonly label: string,
  ) {
    this.shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
    this.ends.push(
      effect(() => this.take(value(asked.value))),
      effect(() => this.light(value(asked.value))),
      effect(() => this.reveal(value(asked.value))),
      effect(() => {
        void heatColor.value;
        this.editor?.redraw();
      }),
      paneKeys(key, {
        move: (by) => this.move(by),
        choose: () => this.choose(this.cursor),
        find: () => this.editor?.find(),
        fold: () => this.editor?.fold(this.cursor),
        step: (by) => this.step(by),
        text: () => this.content?.text ?? "",
      }),
      screens.register(key, { spots: (most) => this.spots(most) }),
    );
  }

  end(): void {
    for (const end of this.ends) end();
    this.editor?.destroy();
  }

  focus(): void {
    this.editor?.view.contentDOM.focus();
  }

  foldLevel(level: number): void {
    this.editor?.foldLevel(level);
  }

  /** Shows another text; an equal text keeps its position. */
  private take(content: Content | null): void {
    if (!content || content === this.content) return;
    const same = this.content?.text === content.text;
    const top = same ? (this.editor?.view.scrollDOM.scrollTop ?? 0) : 0;
    const focused = this.shadow.activeElement !== null;
    this.editor?.destroy();
    this.content = content;
    this.cursor = 0;
    untracked(() => {
      const overview = value(this.build.overview.peek());
      this.editor = new Editor(
        this.shadow,
        {
          content,
          layerName: (layer) => overview?.layers[layer]?.name ?? "",
          heat: (line) => {
            const at = this.here(line);
            const color = at && heatColor.peek()(at);
            return at && color ? { color, text: heatText.peek()(at) } : null;
          },
        },
        this.label,
        {
          onPoint: (line, timeStamp) => {
            if (line) this.cursor = line;
            hoverStarts(timeStamp);
            point(this.here(line));
          },
          onClick: (line) => this.choose(line),
          onMove: () => screens.moved(),
        },
      );
    });
    if (top && this.editor) this.editor.view.scrollDOM.scrollTop = top;
    if (focused) this.focus();
  }

  /** Highlights lines that belong to the focus, here or in another pane. */
  private light(content: Content | null): void {
    const reach = reachIn(this.build.id).value;
    const at = focus.value;
    const chosen = selected.value;
    if (!content || !this.editor) return;
    const own = (here: Here | null) => (here?.build === this.build.id ? here.ref : null);
    const mine = own(chosen);
    const touched = content.touched(reach, own(at));
    this.editor.light({ touched, chosen: mine ? content.lineOf(mine) : 0, layers: reach.layers });
    const lines = placesOf(touched);
    const was = this.places.peek().lines;
    if (lines.length !== was.length || lines.some((line, n) => line !== was[n])) {
      this.places.value = { lines, at: -1 };
    }
    screens.moved();
  }

  /** Scrolls to a requested thing, once for each request and text. */
  private reveal(content: Content | null): void {
    const wish = reveal.value;
    const thread = this.build.thread.value;
    if (!wish || !content || !thread || !this.editor) return;
    if (this.shown?.wish === wish && this.shown.content === content) return;
    const clicked = wish.from === this.key && this.shown?.wish !== wish;
    if (clicked) {
      this.shown = { wish, content };
      return;
    }
    const { build, ref } = wish.here;
    const reach = build === this.build.id ? thread.reach(ref, this.build) : reachIn(this.build.id).value;
    const touched = content.touched(reach, build === this.build.id ? ref : null);
    const lines = placesOf(touched);
    const exact = build === this.build.id ? content.lineOf(ref) : 0;
    const line = exact || lines[0];
    if (!line) return;
    this.shown = { wish, content };
    this.editor.scrollTo(line, "unseen");
    this.cursor = line;
    const at = lines.indexOf(line);
    untracked(() => (this.places.value = { lines, at }));
  }

  private choose(line: number): void {
    const at = this.here(line);
    this.cursor = line;
    if (at) go(at, this.key);
  }

  /** Moves the cursor, which focuses lines as hovering does. */
  private move(by: number): void {
    const { editor, content } = this;
    if (!editor || !content) return;
    const last = editor.view.state.doc.lines;
    const chosen = selected.peek();
    const from = this.cursor || (chosen?.build === this.build.id && content.lineOf(chosen.ref)) || editor.top - by;
    this.cursor = Math.max(1, Math.min(last, from + by));
    editor.scrollTo(this.cursor, "nearest");
    point(this.here(this.cursor));
  }

  private step(by: number): void {
    const { lines, at } = this.places.peek();
    if (!lines.length) return;
    const next = at < 0 ? (by > 0 ? 0 : lines.length - 1) : (at + by + lines.length) % lines.length;
    this.places.value = { lines, at: next };
    this.editor?.scrollTo(lines[next] ?? 0);
  }

  private here(line: number): Here | null {
    const ref = this.content?.refOf(line);
    return ref ? { build: this.build.id, ref } : null;
  }

  private spots(most: number): { spots: Spot[]; total: number } {
    const { editor, content } = this;
    if (!editor || !content || !(hover.peek() ?? selected.peek()) || !buildOf(this.build.id)) {
      return { spots: [], total: 0 };
    }
    const { touched, layers } = editor.lit;
    const lines = placesOf(touched);
    const spots: Spot[] = [];
    for (const line of lines) {
      if (spots.length >= most) break;
      const box = editor.lineBox(line);
      if (box) spots.push({ ...box, layers: wanted(content.layersOf(line), layers), strength: touched.get(line) ?? 0 });
    }
    return { spots, total: lines.length };
  }
}

/** The focused ones of a line's layers, if any: links take their colors. */
function wanted(layers: readonly number[], pointed: ReadonlySet<number>): readonly number[] {
  const found = layers.filter((layer) => pointed.has(layer));
  return found.length ? found : layers;
}
