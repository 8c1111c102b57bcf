// Writes the blobs of the page, as page_data.ts describes them. For tests and fixtures only; the
// product's writer is in replay-cli/src/page/.

import { readFile } from "node:fs/promises";
import { deflateRawSync } from "node:zlib";

/** Collects columns and encodes them: a LEB128 count, then zigzag LEB128 differences. */
export class ColumnWriter {
  columns = [];

  /** Returns the number of the column. Values must be integers below 2^53. */
  add(values) {
    return this.columns.push(Array.from(values)) - 1;
  }

  encode() {
    const bytes = [];
    for (const values of this.columns) {
      writeLeb128(bytes, BigInt(values.length));
      let previous = 0n;
      for (const value of values) {
        const difference = BigInt(value) - previous;
        writeLeb128(bytes, difference < 0n ? -2n * difference - 1n : 2n * difference);
        previous = BigInt(value);
      }
    }
    return Uint8Array.from(bytes);
  }
}

function writeLeb128(bytes, value) {
  while (value >= 128n) {
    bytes.push(Number(value & 127n) | 128);
    value >>= 7n;
  }
  bytes.push(Number(value));
}

export function toBlob(bytes) {
  return deflateRawSync(bytes).toString("base64");
}

/** The whole page, with the bundle in `dist`. `report` is the text of the JSON report. */
export async function writePage({ dist, title, report, columns, data, summary }) {
  const read = (name) => readFile(`${dist}/${name}`, "utf8");
  const policy = `default-src 'none'; script-src 'sha256-${await read("report.js.sha256")}'; `
    + `style-src 'sha256-${await read("report.css.sha256")}'; img-src data: blob:; `
    + `base-uri 'none'; form-action 'none'`;
  const blob = (id, bytes) =>
    `<script type="application/octet-stream" id="${id}">${toBlob(bytes)}</script>`;
  const escape = (text) =>
    text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  return `<!doctype html><html lang="en"><head><meta charset="utf-8">`
    + `<meta http-equiv="Content-Security-Policy" content="${policy}">`
    + `<meta name="viewport" content="width=device-width, initial-scale=1">`
    + `<title>${escape(title)} - gpumemtrace</title>`
    + `<style>${await read("report.css")}</style></head>`
    + `<body><div id="app"></div><noscript><pre>${escape(summary)}</pre></noscript>`
    + `<pre id="summary" hidden>${escape(summary)}</pre>`
    + blob("report", Buffer.from(report))
    + blob("columns", columns)
    + blob("data", Buffer.from(JSON.stringify(data)))
    + `<script>${await read("report.js")}</script></body></html>`;
}
