// How code looks. CodeMirror lives in a shadow root, where it adopts constructed style sheets: the
// page's policy allows no style elements. Variables of styles/theme.css reach in, its rules do not.

import { EditorView } from "@codemirror/view";
import { WIDTH } from "./ruler";

const TOKENS = ["comment", "string", "keyword", "number", "type", "operator", "name"] as const;

export const theme = EditorView.theme({
  "&": { height: "100%", width: `calc(100% - ${WIDTH}px)`, backgroundColor: "transparent", color: "var(--text)", fontSize: "12px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "18px", overflow: "auto", scrollbarWidth: "thin" },
  ".cm-content": { padding: "2px 0", caretColor: "transparent" },
  ".cm-line": { padding: "0 24px 0 4px", cursor: "default" },
  ".cm-line.weak": { backgroundColor: "var(--highlight-weak)" },
  ".cm-line.own": { backgroundColor: "var(--highlight)" },
  ".cm-line.exact": { backgroundColor: "var(--highlight)", boxShadow: "inset 0 0 0 1px var(--accent)" },
  ".cm-line.chosen": { backgroundColor: "var(--selected)", boxShadow: "inset 3px 0 0 var(--hot)" },
  ".cm-line.chosen.exact": { boxShadow: "inset 3px 0 0 var(--hot), inset 0 0 0 1px var(--accent)" },
  ".isolated": { unicodeBidi: "isolate" },
  ".cm-gutters": {
    backgroundColor: "var(--panel)",
    color: "var(--dim)",
    border: "none",
    borderRight: "1px solid var(--line)",
  },
  ".cm-info .cm-gutterElement": { display: "flex", padding: "0", alignItems: "stretch" },
  ".bars": { display: "flex", flexDirection: "column", width: "6px", marginRight: "2px" },
  ".bars.shared": { opacity: "0.45" },
  ".bars i": { flex: "1", width: "6px" },
  ".mark": { width: "11px", textAlign: "center", fontSize: "10px" },
  ".fresh": { color: "var(--good)", fontWeight: "bold" },
  ".number": { flex: "1", textAlign: "right", padding: "0 3px", fontSize: "11px", borderRadius: "2px" },
  ".cm-foldGutter .cm-gutterElement": { width: "12px", textAlign: "center", cursor: "pointer" },
  ".cm-foldPlaceholder": {
    backgroundColor: "var(--raised)",
    border: "1px solid var(--line)",
    color: "var(--dim)",
    padding: "0 5px",
    margin: "0 4px",
  },
  ".made": { color: "var(--dim)", fontSize: "10.5px", marginLeft: "14px", opacity: "0.85", userSelect: "none" },
  ".made::before": { content: '"⟵ "' },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", fontFamily: "var(--font)" },
  ".cm-panels-top": { borderBottom: "1px solid var(--line)" },
  ".cm-panel.cm-search": { padding: "4px 26px 4px 6px", fontSize: "11.5px" },
  // One row is what a narrow pane has room for.
  ".cm-panel.cm-search [name=select], .cm-panel.cm-search label:has([name=word])": { display: "none" },
  ".cm-panel.cm-search input[type=text], .cm-panel.cm-search .cm-textfield": { width: "40%", maxWidth: "180px" },
  ".cm-panel.cm-search label": { fontSize: "11.5px", whiteSpace: "nowrap" },
  ".cm-textfield, .cm-button": {
    backgroundColor: "var(--panel)",
    backgroundImage: "none",
    color: "var(--text)",
    border: "1px solid var(--line)",
    borderRadius: "4px",
    fontSize: "12px",
  },
  ".cm-panel.cm-search [name=close]": { color: "var(--text)", cursor: "pointer", padding: "2px 6px" },
  ".cm-searchMatch": { backgroundColor: "transparent", outline: "1px solid var(--hot)" },
  ".cm-searchMatch-selected": { backgroundColor: "var(--hot)", color: "var(--back)" },
  ".cm-searchMatch-selected span": { color: "inherit" },
  ...Object.fromEntries(TOKENS.map((name) => [`.token-${name}`, { color: `var(--token-${name})` }])),
  ".token-variable": { color: "var(--token-name)" },
  ".token-constant": { color: "var(--token-string)" },
  ".token-label": { color: "var(--token-operator)", fontWeight: "bold" },
});
