// Marks beside the lines: layers, heat, outputs of layers, and the passes that made
// them. Made for the lines in view only.

import { Facet, RangeSetBuilder, StateEffect, StateField, type Extension } from "@codemirror/state";
import {
  Decoration, Direction, EditorView, GutterMarker, ViewPlugin, WidgetType, gutter,
  type DecorationSet, type ViewUpdate,
} from "@codemirror/view";
import { layerColor } from "../colors";
import { isRightToLeft, names, shown } from "../parts/names";
import { inkOn } from "../plots/scale";
import { format } from "../refs";
import { EXACT, type Content, type Touched } from "./content";

/** Names and colors that lines are shown with. */
export interface Look {
  readonly content: Content;
  layerName(layer: number): string;
  heat(line: number): { readonly color: string; readonly text: string } | null;
}

export interface Lit {
  readonly touched: Touched;
  /** The line of the selection, 0 for none. */
  readonly chosen: number;
  /** The focused layers. */
  readonly layers: ReadonlySet<number>;
}

export const setLit = StateEffect.define<Lit>();
/** Requests a redraw of the gutter, such as after a change of heat. */
export const redraw = StateEffect.define<null>();

const DARK: Lit = { touched: new Map(), chosen: 0, layers: new Set() };

export const lit = StateField.define<Lit>({
  create: () => DARK,
  update(was, transaction) {
    for (const effect of transaction.effects) if (effect.is(setLit)) return effect.value;
    return transaction.docChanged ? DARK : was;
  },
});

export const look = Facet.define<Look, Look | null>({ combine: (given) => given[0] ?? null });

/** Up to this many layers have a segment of a line's bar each. */
const MOST_SEGMENTS = 6;

class LineMarker extends GutterMarker {
  private readonly key: string;

  constructor(
    private readonly line: number,
    private readonly layers: readonly number[],
    private readonly shared: boolean,
    private readonly marks: readonly number[],
    private readonly made: ReturnType<Content["madeBy"]>,
    private readonly heat: { readonly color: string; readonly text: string } | null,
    private readonly name: (layer: number) => string,
    private readonly marked: boolean,
  ) {
    super();
    this.key = [line, layers.join(), shared, marks.join(), made?.name, made?.fresh, heat?.color, heat?.text].join("|");
  }

  override eq(other: GutterMarker): boolean {
    return other instanceof LineMarker && other.key === this.key;
  }

  override toDOM(): HTMLElement {
    const holder = document.createElement("div");
    holder.style.display = "flex";
    holder.style.width = "100%";
    const bars = element("span", this.shared ? "bars shared" : "bars");
    for (const layer of this.layers.slice(0, MOST_SEGMENTS)) {
      const segment = document.createElement("i");
      segment.style.backgroundColor = layerColor(layer);
      bars.append(segment);
    }
    const mark = element("span", this.marked ? "mark" : "");
    if (this.marks.length) {
      mark.textContent = "◆";
      mark.style.color = layerColor(this.marks[0] ?? 0);
    } else if (this.made?.fresh) {
      mark.textContent = "+";
      mark.classList.add("fresh");
    }
    const number = element("span", "number");
    number.textContent = String(this.line);
    if (this.heat) {
      number.style.backgroundColor = this.heat.color;
      number.style.color = inkOn(this.heat.color);
      number.classList.add("hot");
    }
    holder.append(bars, mark, number);
    holder.title = this.title();
    return holder;
  }

  private title(): string {
    const lines: string[] = [];
    for (const layer of this.marks) lines.push(`yields the output of layer ${this.name(layer)}`);
    if (this.made) lines.push(`made by ${this.made.name}`);
    if (this.heat?.text) lines.push(this.heat.text);
    const own = this.layers.slice(0, 12).map(this.name);
    if (own.length) {
      const more = this.layers.length - own.length;
      lines.push(`${this.shared ? "serves all of " : ""}${names(own)}${more > 0 ? ` and ${more} more` : ""}`);
    }
    return shown(lines.join("\n"));
  }
}

function element(tag: string, name: string): HTMLElement {
  const made = document.createElement(tag);
  made.className = name;
  return made;
}

class Spacer extends GutterMarker {
  constructor(
    private readonly lines: number,
    private readonly marked: boolean,
  ) {
    super();
  }

  override toDOM(): HTMLElement {
    const holder = document.createElement("div");
    holder.style.width = `${(this.marked ? 24 : 13) + 6.8 * Math.max(2, String(this.lines).length)}px`;
    return holder;
  }
}

const info = gutter({
  class: "cm-info",
  renderEmptyElements: false,
  lineMarker(view, block) {
    const given = view.state.facet(look);
    if (!given) return null;
    const { content } = given;
    const line = view.state.doc.lineAt(block.from).number;
    return new LineMarker(
      line,
      content.layersOf(line),
      content.isShared(line),
      content.marksOf(line),
      content.madeBy(line),
      given.heat(line),
      (layer) => given.layerName(layer),
      content.language === "graph",
    );
  },
  lineMarkerChange: (update) => update.transactions.some((t) => t.effects.some((e) => e.is(redraw))),
  initialSpacer: (view) => new Spacer(view.state.doc.lines, view.state.facet(look)?.content.language === "graph"),
  updateSpacer: (spacer) => spacer,
});

class Made extends WidgetType {
  constructor(readonly name: string) {
    super();
  }

  override eq(other: Made): boolean {
    return other.name === this.name;
  }

  override toDOM(): HTMLElement {
    const label = element("span", "made");
    label.textContent = this.name;
    label.title = `made by ${this.name}`;
    return label;
  }

  override ignoreEvent(): boolean {
    return false;
  }
}

/** Calls `each` for the lines in view that are not folded away. */
function inView(view: EditorView, each: (line: number, from: number, to: number) => void): void {
  let last = 0;
  for (const range of view.visibleRanges) {
    let line = view.state.doc.lineAt(range.from);
    for (;;) {
      if (line.number > last) each((last = line.number), line.from, line.to);
      if (line.to >= range.to || line.number >= view.state.doc.lines) break;
      line = view.state.doc.line(line.number + 1);
    }
  }
}

/** What lines are, for tests and for links drawn between panes; and who made them. */
const named = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = this.build(view);
    }

    update(update: ViewUpdate): void {
      if (update.docChanged || update.viewportChanged) this.decorations = this.build(update.view);
    }

    private build(view: EditorView): DecorationSet {
      const content = view.state.facet(look)?.content;
      const builder = new RangeSetBuilder<Decoration>();
      inView(view, (line, from, to) => {
        const ref = content?.refOf(line);
        const attributes: Record<string, string> = { "data-line": String(line) };
        if (ref) attributes["data-ref"] = format(ref);
        builder.add(from, from, Decoration.line({ attributes }));
        const made = content?.madeBy(line);
        if (made?.label) builder.add(to, to, Decoration.widget({ widget: new Made(made.name), side: 1 }));
      });
      return builder.finish();
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

const CLASS = ["", "weak", "own", "exact"] as const;
const LINES = CLASS.map((name) => [
  Decoration.line({ class: name }),
  Decoration.line({ class: `chosen ${name}`.trim() }),
]);

const lights = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = this.build(view);
    }

    update(update: ViewUpdate): void {
      const changed = update.startState.field(lit) !== update.state.field(lit);
      if (changed || update.docChanged || update.viewportChanged) this.decorations = this.build(update.view);
    }

    private build(view: EditorView): DecorationSet {
      const { touched, chosen } = view.state.field(lit);
      if (!touched.size && !chosen) return Decoration.none;
      const builder = new RangeSetBuilder<Decoration>();
      inView(view, (line, from) => {
        const strength = touched.get(line) ?? 0;
        const decoration = LINES[Math.min(strength, EXACT)]?.[line === chosen ? 1 : 0];
        if (decoration && (strength || line === chosen)) builder.add(from, from, decoration);
      });
      return builder.finish();
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

const ISOLATED = Decoration.mark({ class: "isolated", bidiIsolate: Direction.LTR });
/** A word as names are: up to what stands between operands. */
const WORD = /[^\s(),=:"]+/g;

/** Names that run from right to left stand by themselves in their lines. */
const isolated = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = this.build(view);
    }

    update(update: ViewUpdate): void {
      if (update.docChanged || update.viewportChanged) this.decorations = this.build(update.view);
    }

    private build(view: EditorView): DecorationSet {
      const builder = new RangeSetBuilder<Decoration>();
      inView(view, (_, from, to) => {
        const line = view.state.sliceDoc(from, to);
        if (!isRightToLeft(line)) return;
        for (const word of line.matchAll(WORD)) {
          if (isRightToLeft(word[0])) builder.add(from + word.index, from + word.index + word[0].length, ISOLATED);
        }
      });
      return builder.finish();
    }
  },
  { decorations: (plugin) => plugin.decorations, provide: (plugin) => EditorView.bidiIsolatedRanges.of((view) => view.plugin(plugin)?.decorations ?? Decoration.none) },
);

export const marks: Extension = [lit, info, named, lights, isolated];
