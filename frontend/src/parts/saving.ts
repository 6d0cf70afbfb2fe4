// Exports from the page: to the clipboard, and as files.

import { tell } from "../notices";

export async function copy(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages opened from disk, and some browsers, have no clipboard API: use the old way.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) return tell(`The browser does not let the page copy: ${text}`);
  }
  tell(`${what} copied`);
}

export function save(name: string, text: string, type = "text/plain"): void {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_").slice(-120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
