// Search over everything that a build has: see corpus.ts for how, sources.ts for what.

import { useMemo } from "preact/hooks";
import { buildOf, type Build } from "../builds";
import { Chooser, type Row } from "../dialogs/Chooser";
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
  const rows = useMemo(() => rowsOf(groups), [groups]);
  const total = groups.reduce((sum, group) => sum + group.total, 0);

  const here = (item: Item): Here | null => {
    const ref = parse(item.ref);
    return ref && { build: build.id, ref };
  };
  const choose = (item: Item, beside: boolean): void => {
    const to = here(item);
    if (!to) return;
    closeDialog();
    show(to, beside);
  };
  return (
    <Chooser
      label="Search"
      placeholder="Search layers, operators, shapes, remarks, code …"
      query={typed}
      onQuery={(text) => (searched.value = text)}
      rows={rows}
      draw={(item) => <Result item={item} marked={marks(item.text, query.needle, query.words)} />}
      onChoose={choose}
      onPoint={(item) => point(item && here(item))}
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

function rowsOf(groups: readonly Group[]): Row<Item>[] {
  return groups.flatMap(({ kind, items, total }): Row<Item>[] => [
    { head: HEADS[kind], count: items.length < total ? `best ${items.length} of ${total.toLocaleString("en")}` : String(total) },
    ...items.map((item) => ({ item })),
  ]);
}

function Result({ item, marked }: { readonly item: Item; readonly marked: ReturnType<typeof marks> }) {
  const icon = ICONS[item.kind] ?? (isIcon(item.kind) ? item.kind : "dot");
  return (
    <>
      <Icon name={icon} />
      <span class="choice-text" data-kind={item.kind} data-ref={item.ref} title={item.text}>
        <Marked text={item.text} marks={marked} />
      </span>
      <span class="choice-detail">{item.detail}</span>
    </>
  );
}

/** What a search can be narrowed to, as buttons that type it. */
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
            event.currentTarget.closest(".chooser")?.querySelector("input")?.focus();
          }}
        >
          {prefix}
        </button>
      ))}
    </div>
  );
}
