// The bar on top: which build, search, heat, theme, help. Stand-in.

import type { Build } from "../builds";
import { value } from "../builds";
import { dialog, story } from "../state";

export function TopBar({ build }: { readonly build: Build | null }) {
  const overview = build && value(build.overview.value);
  return (
    <header class="bar">
      <h1>clew</h1>
      <span class="model">{overview?.model ?? ""}</span>
      <span class="grow" />
      <button onClick={() => (dialog.value = "search")}>Search /</button>
      <button onClick={() => (story.value = !story.value)} aria-pressed={story.value}>
        Story
      </button>
      <button onClick={() => (dialog.value = "help")}>?</button>
    </header>
  );
}
