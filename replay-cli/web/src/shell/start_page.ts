/** Starts a page: its theme, its content, or why it cannot be shown. */

import { decodeBase64, inflate } from "../data/decode.js";
import { fill, h } from "../widgets/dom.js";
import { startTheme } from "./theme.js";

/** The bytes of a blob in the page. */
export async function readBlob(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const text = document.getElementById(id)?.textContent;
  if (!text) throw new Error(`the page has no ${id}; it was not written completely`);
  return inflate(decodeBase64(text));
}

/** Builds the page with `start`. If it fails, the page shows why. */
export function startPage(start: (app: HTMLElement) => Promise<void>): void {
  startTheme();
  const app = document.getElementById("app");
  if (!app) return;
  start(app).catch((error: unknown) => {
    const message = error instanceof Error ? error.message : String(error);
    fill(app, h("p", { class: "failure", role: "alert" }, `Cannot show this page: ${message}`));
    console.error(error);
  });
}
