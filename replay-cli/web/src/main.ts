/** Decodes the blobs of the page and starts the shell. */

import { createApi, type PageApi } from "./api.js";
import { Columns } from "./data/decode.js";
import { loadModel } from "./data/load_model.js";
import type { PageData } from "./data/page_data.js";
import { startShell } from "./shell/shell.js";
import { readBlob, startPage } from "./shell/start_page.js";

declare global {
  interface Window {
    gpumemtrace?: PageApi;
  }
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

startPage(start);
