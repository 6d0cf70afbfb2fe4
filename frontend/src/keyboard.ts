// Keys of the page, as listed in commands.ts. Keys are left to others that need them: text fields,
// focused buttons and lists, dialogs, and the browser's own shortcuts.

import { commandOf } from "./commands";
import { focusedPane } from "./panekeys";
import { dialog } from "./state";

/** A key press as the table writes it: `ctrl+k`, `?`, `Enter`. Ctrl stands for Cmd, too. */
export function keyName(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  const key = event.key.length === 1 && (event.ctrlKey || event.metaKey) ? event.key.toLowerCase() : event.key;
  return `${event.ctrlKey || event.metaKey ? "ctrl+" : ""}${event.altKey ? "alt+" : ""}${key}`;
}

/** Shown to people: `Ctrl K`. */
export function keyLabel(key: string): string {
  const names: Record<string, string> = {
    ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", ctrl: "Ctrl", alt: "Alt",
  };
  if (key.length === 1) return key;
  return key.split("+").map((part) => names[part] ?? (part.length === 1 ? part.toUpperCase() : part)).join(" ");
}

export function listen(): () => void {
  document.addEventListener("keydown", pressed);
  document.addEventListener("focusin", entered);
  document.addEventListener("pointerdown", entered, true);
  return () => {
    document.removeEventListener("keydown", pressed);
    document.removeEventListener("focusin", entered);
    document.removeEventListener("pointerdown", entered, true);
  };
}

function pressed(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || dialog.peek()) return;
  const key = keyName(event);
  const target = event.target instanceof Element ? event.target : null;
  if (target && keeps(target, key)) return;
  const command = commandOf(key);
  if (!command) return;
  event.preventDefault();
  command.run();
}

/** Whether an element needs a key for itself. */
function keeps(element: Element, key: string): boolean {
  if (element.closest("dialog")) return true;
  const plain = !key.startsWith("ctrl+");
  if (isTyping(element)) return plain;
  if (!plain) return false;
  const own = element.closest("button, a[href], summary, select, input, [role=slider], [role=separator], [data-own-keys]");
  if (!own) return false;
  if (own.matches("select, [data-own-keys]")) return key !== "Escape";
  if (own.matches("input, [role=slider], [role=separator]")) return key.startsWith("Arrow") || key === "Enter" || key === " ";
  return key === "Enter" || key === " ";
}

const NOT_TYPED = new Set(["button", "checkbox", "radio", "range", "color", "file", "submit", "reset"]);

function isTyping(element: Element): boolean {
  if (element instanceof HTMLInputElement) return !NOT_TYPED.has(element.type) && !element.readOnly;
  if (element instanceof HTMLTextAreaElement) return !element.readOnly;
  const editable = element.closest("[contenteditable]");
  if (!editable || editable.getAttribute("contenteditable") === "false") return false;
  return editable.getAttribute("aria-readonly") !== "true";
}

/** Records the pane with the keyboard focus. */
function entered(event: Event): void {
  const pane = event.target instanceof Element ? event.target.closest<HTMLElement>(".pane[data-key]") : null;
  if (pane) focusedPane.value = Number(pane.dataset["key"]);
}
