/**
 * Colours of the present theme for canvases, read from the CSS variables in base.css.
 *
 * The theme is that of the system until the user picks one, which sets `data-theme` on <html>.
 */

let cache = new Map<string, string>();
const listeners = new Set<() => void>();

/** Value of `--name`, such as "surface", "text", "muted", "grid", "accent". */
export function themeColor(name: string): string {
  let value = cache.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    cache.set(name, value);
  }
  return value;
}

export function isDark(): boolean {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme(): void {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themeChanged();
}

/** Calls the listener after each change of the theme. Canvases must be drawn anew. */
export function onThemeChange(listener: () => void): void {
  listeners.add(listener);
}

function themeChanged(): void {
  cache = new Map();
  for (const listener of listeners) listener();
}

export function watchSystemTheme(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
}
