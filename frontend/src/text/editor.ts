// A read-only CodeMirror for one text: recreated for another text, with highlights of the focus.

import { codeFolding, foldGutter, foldedRanges, foldEffect, unfoldEffect, foldable, unfoldAll } from "@codemirror/language";
import { closeSearchPanel, openSearchPanel, search, searchKeymap } from "@codemirror/search";
import { EditorState, type StateEffect } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { folds } from "./folds";
import { highlighting } from "./languages";
import { lit, look, marks, redraw, setLit, type Lit, type Look } from "./marks";
import { Ruler } from "./ruler";
import { theme } from "./theme";

/** The least distance between press and release of a drag, in pixels. */
const DRAG = 4;

/** Has whatever scrolls a line into sight, such as the browser, leave it beside the gutters that cover the left edge. */
const BESIDE_GUTTERS = {
  key: "beside gutters",
  read: (view: EditorView): number => view.dom.querySelector<HTMLElement>(".cm-gutters")?.offsetWidth ?? 0,
  write: (width: number, view: EditorView): void => {
    view.scrollDOM.style.scrollPaddingLeft = `${width}px`;
  },
};

export interface Events {
  /** The mouse is on a line, or on none (0). */
  onPoint(line: number, timeStamp: number): void;
  onClick(line: number): void;
  /** Lines moved on the screen. */
  onMove(): void;
}

export class Editor {
  readonly view: EditorView;
  private readonly ruler: Ruler;

  constructor(
    parent: ShadowRoot,
    shown: Look,
    label: string,
    private readonly events: Events,
  ) {
    const { content } = shown;
    this.view = new EditorView({
      parent,
      root: parent,
      state: EditorState.create({
        doc: content.text,
        extensions: [
          look.of(shown),
          EditorState.readOnly.of(true),
          EditorView.editable.of(false),
          EditorView.contentAttributes.of({ tabindex: "0", "aria-label": label, role: "document" }),
          marks,
          codeFolding({ placeholderText: "⋯" }),
          foldGutter({ openText: "▾", closedText: "▸" }),
          folds(content.language),
          highlighting(content.language),
          search({ top: true }),
          keymap.of([{ key: "Mod-a", run: selectAll }, ...searchKeymap]),
          theme,
          EditorView.updateListener.of((update) => {
            if (update.geometryChanged) update.view.requestMeasure(BESIDE_GUTTERS);
            if (update.geometryChanged || update.viewportChanged) this.moved();
          }),
        ],
      }),
    });
    this.ruler = new Ruler(this.view);
    parent.append(this.ruler.dom);
    this.listen();
  }

  destroy(): void {
    this.ruler.destroy();
    this.ruler.dom.remove();
    this.view.destroy();
  }

  light(now: Lit): void {
    this.view.dispatch({ effects: setLit.of(now) });
    this.ruler.draw();
  }

  get lit(): Lit {
    return this.view.state.field(lit);
  }

  /** Redraws heat and colors. */
  redraw(): void {
    this.view.dispatch({ effects: redraw.of(null) });
    this.ruler.draw();
  }

  /** Scrolls a line to the middle, unfolding it if necessary; `how` may limit the movement. */
  scrollTo(line: number, how: "center" | "nearest" | "unseen" = "center"): void {
    const { doc } = this.view.state;
    if (line < 1 || line > doc.lines) return;
    if (how === "unseen" && this.isInView(line)) return;
    const at = doc.line(line).from;
    const effects: StateEffect<unknown>[] = [];
    const iterator = foldedRanges(this.view.state).iter();
    for (; iterator.value; iterator.next()) {
      if (iterator.from < at && at <= iterator.to) effects.push(unfoldEffect.of({ from: iterator.from, to: iterator.to }));
    }
    effects.push(EditorView.scrollIntoView(at, { y: how === "nearest" ? how : "center", yMargin: 40, x: "start" }));
    this.view.dispatch({ effects });
  }

  /** The first line in view. */
  get top(): number {
    const { view } = this;
    return view.state.doc.lineAt(view.lineBlockAtHeight(view.scrollDOM.getBoundingClientRect().top - view.documentTop).from).number;
  }

  find(): void {
    openSearchPanel(this.view);
  }

  closeFind(): boolean {
    return closeSearchPanel(this.view);
  }

  /** Folds or unfolds the range that begins on a line. */
  fold(line: number): void {
    const { state } = this.view;
    const at = state.doc.line(Math.max(1, Math.min(line, state.doc.lines)));
    const iterator = foldedRanges(state).iter(at.from);
    if (iterator.value && iterator.from <= at.to) {
      this.view.dispatch({ effects: unfoldEffect.of({ from: iterator.from, to: iterator.to }) });
      return;
    }
    const range = foldable(state, at.from, at.to);
    if (range) this.view.dispatch({ effects: foldEffect.of(range) });
  }

  /** Folds everything at this depth of nesting (from 1) or deeper; 0 unfolds all. */
  foldLevel(level: number): void {
    unfoldAll(this.view);
    if (!level) return;
    const { state } = this.view;
    const found: StateEffect<unknown>[] = [];
    const ends: number[] = [];
    for (let at = 1; at <= state.doc.lines; at++) {
      const line = state.doc.line(at);
      while ((ends.at(-1) ?? Infinity) < line.from) ends.pop();
      const range = foldable(state, line.from, line.to);
      if (!range) continue;
      ends.push(range.to);
      if (ends.length === level) found.push(foldEffect.of(range));
    }
    this.view.dispatch({ effects: found });
  }

  /** The screen position of a line, null if it is out of view. */
  lineBox(line: number): { readonly left: number; readonly right: number; readonly top: number; readonly bottom: number } | null {
    const { view } = this;
    if (line < 1 || line > view.state.doc.lines) return null;
    const block = view.lineBlockAt(view.state.doc.line(line).from);
    const box = view.scrollDOM.getBoundingClientRect();
    const top = block.top + view.documentTop;
    if (top + block.height <= box.top || top >= box.bottom) return null;
    return { left: box.left, right: box.right, top: Math.max(top, box.top), bottom: Math.min(top + block.height, box.bottom) };
  }

  private isInView(line: number): boolean {
    const block = this.view.lineBlockAt(this.view.state.doc.line(line).from);
    const box = this.view.scrollDOM.getBoundingClientRect();
    const top = block.top + this.view.documentTop;
    return top >= box.top && top + block.height <= box.bottom;
  }

  private moved(): void {
    this.ruler?.draw();
    this.events.onMove();
  }

  private listen(): void {
    const { view } = this;
    const { scrollDOM } = view;
    let last = -1;
    const lineAt = (y: number): number => {
      const height = y - view.documentTop;
      if (height < 0 || height > view.contentHeight) return 0;
      return view.state.doc.lineAt(view.lineBlockAtHeight(height).from).number;
    };
    scrollDOM.addEventListener("mousemove", (event) => {
      // A drag selects text; nothing is hovered meanwhile.
      if (event.buttons) return;
      const line = lineAt(event.clientY);
      if (line === last) return;
      this.events.onPoint((last = line), event.timeStamp);
    });
    scrollDOM.addEventListener("mouseleave", (event) => this.events.onPoint((last = 0), event.timeStamp));
    scrollDOM.addEventListener("scroll", () => this.moved(), { passive: true });
    let down = { x: 0, y: 0 };
    scrollDOM.addEventListener("pointerdown", (event) => (down = { x: event.clientX, y: event.clientY }), true);
    scrollDOM.addEventListener("click", (event) => {
      const target = event.target instanceof Element ? event.target : null;
      if (target?.closest(".cm-foldGutter, .cm-foldPlaceholder, .cm-panels")) return;
      // A drag selects text, a second click a word: neither means the line.
      if (event.detail > 1 || Math.hypot(event.clientX - down.x, event.clientY - down.y) > DRAG) return;
      const line = lineAt(event.clientY);
      if (line) this.events.onClick(line);
    });
    view.dom.addEventListener("keydown", (event) => {
      const target = event.target instanceof Element ? event.target : null;
      // Typing into the search panel triggers no keys of the page.
      if (target?.closest(".cm-panels") && event.key !== "Escape") event.stopPropagation();
    });
  }
}

function selectAll(view: EditorView): boolean {
  view.dispatch({ selection: { anchor: 0, head: view.state.doc.length } });
  return true;
}
