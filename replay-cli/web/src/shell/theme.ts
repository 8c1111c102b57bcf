/**
 * The theme, and its colours for canvases, read from the CSS variables in base.css.
 *
 * `data-theme` on <html> is the theme of the system until the user picks one. Printing is light.
 */

/** Canvases keep the width that they have before printing. Browsers shrink this one to a page. */
const PRINTED_WIDTH = "1100px";

let cache = new Map<string, string>();
const listeners = new Set<() => void>();
const system = matchMedia("(prefers-color-scheme: dark)");

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
  return document.documentElement.dataset.theme === "dark";
}

export function toggleTheme(): void {
  system.removeEventListener("change", followSystem);
  setTheme(!isDark());
}

/** Calls the listener after each change of the theme. Canvases must be drawn anew. */
export function onThemeChange(listener: () => void): void {
  listeners.add(listener);
}

/** Takes the theme of the system over, and follows it until the user picks one. */
export function startTheme(): void {
  followSystem();
  system.addEventListener("change", followSystem);
  let wasDark = false;
  addEventListener("beforeprint", () => {
    wasDark = isDark();
    document.body.style.width = PRINTED_WIDTH;
    setTheme(false);
  });
  addEventListener("afterprint", () => {
    document.body.style.width = "";
    setTheme(wasDark);
  });
}

function followSystem(): void {
  setTheme(system.matches);
}

function setTheme(dark: boolean): void {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  cache = new Map();
  for (const listener of listeners) listener();
}
