/** Decodes the blobs of the page and starts the shell. */

import { createApi, type PageApi } from "./api.js";
import { Columns, decodeBase64, inflate } from "./data/decode.js";
import { fill, h } from "./widgets/dom.js";
import { loadModel } from "./data/load_model.js";
import type { PageData } from "./data/page_data.js";
import { startShell } from "./shell/shell.js";
import { startTheme } from "./shell/theme.js";

declare global {
  interface Window {
    gpumemtrace?: PageApi;
  }
}

async function readBlob(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const text = document.getElementById(id)?.textContent;
  if (!text) throw new Error(`the page has no ${id}; it was not written completely`);
  return inflate(decodeBase64(text));
}

async function start(app: HTMLElement): Promise<void> {
  const [report, columns, data] = await Promise.all(["report", "columns", "data"].map(readBlob));
  const text = new TextDecoder();
  const model = loadModel(
    JSON.parse(text.decode(data)) as PageData,
    new Columns(columns),
    JSON.parse(text.decode(report)),
  );
  window.gpumemtrace = createApi(model);
  startShell(app, model, report);
}

startTheme();
const app = document.getElementById("app");
if (app) {
  start(app).catch((error: unknown) => {
    const message = error instanceof Error ? error.message : String(error);
    fill(app, h("p", { class: "failure", role: "alert" }, `Cannot show this page: ${message}`));
    console.error(error);
  });
}
