// One button that cycles through the dark, light and system themes.

import { Icon } from "../parts/Icon";
import { theme, type Theme } from "../state";

const NEXT: Readonly<Record<Theme, Theme>> = { auto: "dark", dark: "light", light: "auto" };
const NAMES: Readonly<Record<Theme, string>> = { auto: "as the system", dark: "dark", light: "light" };

export function ThemeToggle() {
  const now = theme.value;
  const label = `Theme: ${NAMES[now]}`;
  return (
    <button class="icon-only" data-theme-now={now} aria-label={label} title={`${label}; next: ${NAMES[NEXT[now]]}`} onClick={() => (theme.value = NEXT[now])}>
      <Icon name={now} />
    </button>
  );
}
