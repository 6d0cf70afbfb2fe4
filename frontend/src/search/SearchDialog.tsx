// Search over all contents of a build: corpus.ts has the algorithm, sources.ts the contents.

import { useEffect, useMemo } from "preact/hooks";
import { buildOf, type Build } from "../builds";
import { layerColor } from "../colors";
import { Finder, type Row } from "../dialogs/Finder";
import { closeDialog, Modal } from "../dialogs/Modal";
import { isIcon, Icon, type IconName } from "../parts/Icon";
import { parse, type Here } from "../refs";
import { current, point, searched, show } from "../state";
import { search, type Group, type Item } from "./corpus";
import { Marked } from "./Marked";
import { FILTERS, HEADS, parseQuery, type Kind } from "./query";
import { marks } from "./rank";
import { corpusOf } from "./sources";

const ICONS: Partial<Record<Kind, IconName>> = {
  operator: "dot", stage: "pass", parameter: "memory", attribute: "dot", dtype: "dot", shape: "layout",
  "model line": "source", "graph line": "pass", "loop line": "loops", "LLVM line": "code", instruction: "code",
};

/** The number of entries of a kind shown at first. */
const FEW = 6;

/** A row that shows more of a kind. */
interface More {
  readonly kind: Kind;
  readonly more: number;
}

type Choice = Item | More;

export function SearchDialog() {
  const build = buildOf(current.value);
  return (
    <Modal label="Search" head={false} wide>
      {build ? <Search build={build} /> : <p class="empty">There is nothing to search yet.</p>}
    </Modal>
  );
}

function Search({ build }: { readonly build: Build }) {
  const typed = searched.value;
  const query = useMemo(() => parseQuery(typed), [typed]);
  const corpus = corpusOf(build);
  const size = corpus.reduce((sum, one) => sum + one.items.length, 0);
  const groups = useMemo(() => search(corpus, query), [build, size, query]);
  const rows = useMemo(() => rowsOf(groups, query.filter !== null), [groups]);
  useEffect(() => () => point(null), []);
  const total = groups.reduce((sum, group) => sum + group.total, 0);

  const here = (item: Item): Here | null => {
    const ref = parse(item.ref);
    return ref && { build: build.id, ref };
  };
  const layerOf = (item: Item): number | undefined =>
    item.kind === "layer" ? build.thread.value?.layer(item.text) : undefined;
  const choose = (item: Choice, beside: boolean): void => {
    if ("more" in item) {
      searched.value = `${FILTERS.find((f) => f.kinds.includes(item.kind))?.prefix ?? ""}${query.needle}`;
      return;
    }
    const to = here(item);
    if (!to) return;
    closeDialog();
    show(to, beside);
  };
  return (
    <Finder
      label="Search"
      placeholder="Search layers, operators, shapes, remarks, code …"
      query={typed}
      onQuery={(text) => (searched.value = text)}
      rows={rows}
      draw={(item) =>
        "more" in item ? (
          <span class="choice-more">{item.more.toLocaleString("en")} more …</span>
        ) : (
          <Result item={item} layer={layerOf(item)} needle={query.needle} words={query.words} />
        )
      }
      onChoose={choose}
      onPoint={(item) => point(item && !("more" in item) ? here(item) : null)}
      above={<Filters active={query.filter?.prefix ?? ""} />}
      empty={`Nothing matches. ${size.toLocaleString("en")} things were searched.`}
      below={
        <>
          <span role="status">{total.toLocaleString("en")} found</span>
          <span class="grow" />
          <span><kbd>↑</kbd> <kbd>↓</kbd> move</span>
          <span><kbd>Enter</kbd> go</span>
          <span><kbd>Ctrl Enter</kbd> open beside</span>
          <span><kbd>Esc</kbd> close</span>
        </>
      }
    />
  );
}

/** Rows of all groups. If there are several, each shows its first few and a row that shows more. */
function rowsOf(groups: readonly Group[], narrowed: boolean): Row<Choice>[] {
  return groups.flatMap(({ kind, items, total }): Row<Choice>[] => {
    const few = groups.length > 1 && !narrowed ? distinct(items).slice(0, total > FEW + 1 ? FEW : total) : items;
    const head = few.length < total ? `${few.length} of ${total.toLocaleString("en")}` : String(total);
    const rows: Row<Choice>[] = [{ head: HEADS[kind], count: head }, ...few.map((item) => ({ item }))];
    if (few.length < items.length) rows.push({ item: { kind, more: total - few.length } });
    return rows;
  });
}

/** Without entries that read like an earlier one, such as a shape that many nodes have. */
function distinct(items: readonly Item[]): Item[] {
  const seen = new Set<string>();
  return items.filter(({ text, kind, detail }) => {
    const key = kind === "layer" ? text + detail : text;
    return !seen.has(key) && seen.add(key);
  });
}

interface ResultProps {
  readonly item: Item;
  /** The place of a layer, for its color. */
  readonly layer: number | undefined;
  readonly needle: string;
  readonly words: readonly string[];
}

function Result({ item, layer, needle, words }: ResultProps) {
  const icon = ICONS[item.kind] ?? (isIcon(item.kind) ? item.kind : "dot");
  return (
    <>
      {layer === undefined ? <Icon name={icon} /> : <i class="dot big" style={{ background: layerColor(layer) }} />}
      <span class="choice-text" data-kind={item.kind} data-ref={item.ref} title={item.text}>
        <Marked text={item.text} marks={marks(item.text, needle, words)} />
      </span>
      <span class="choice-detail">
        {item.kind === "layer" ? <Marked text={item.detail} marks={marks(item.detail, needle, words)} /> : item.detail}
      </span>
    </>
  );
}

/** The filters of a search, as buttons that type them. */
function Filters({ active }: { readonly active: string }) {
  return (
    <div class="filters" role="group" aria-label="Narrow the search">
      {FILTERS.map(({ prefix, about }) => (
        <button
          key={prefix}
          class="chip"
          title={about}
          aria-pressed={active === prefix}
          onClick={(event) => {
            const rest = searched.peek().trimStart().replace(/^[a-z]+:/, active ? "" : "$&");
            searched.value = active === prefix ? rest : prefix + rest;
            event.currentTarget.closest(".finder")?.querySelector("input")?.focus();
          }}
        >
          {prefix}
        </button>
      ))}
    </div>
  );
}
