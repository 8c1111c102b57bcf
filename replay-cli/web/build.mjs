// Bundles the pages: of one run (report.js and report.css), and of many ranks or runs (runs.js and
// runs.css).
//
// The output is committed, and the command puts its exact bytes between <script> and
// </script>. CI rebuilds and compares byte for byte, so the build must be deterministic.
//
// usage: node build.mjs [FOLDER]    writes into FOLDER instead of dist/

import { createHash } from "node:crypto";
import { mkdir, readdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = path.dirname(fileURLToPath(import.meta.url));
const DIST = path.resolve(process.argv[2] ?? path.join(ROOT, "dist"));

/** Script, further styles, and the limit of both in bytes. */
const PAGES = {
  report: { script: "src/main.ts", styles: [], max_bytes: 130_000 },
  runs: { script: "src/runs/main.ts", styles: ["./src/runs/runs.css"], max_bytes: 50_000 },
};

const shared = {
  absWorkingDir: ROOT,
  bundle: true,
  minify: true,
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  write: false,
};

/** base.css defines the variables, so it comes first. */
async function styleImports(more) {
  const names = (await readdir(path.join(ROOT, "src/style"))).filter((n) => n.endsWith(".css"));
  names.sort((a, b) => Number(b === "base.css") - Number(a === "base.css") || (a < b ? -1 : 1));
  const files = [...names.map((name) => `./src/style/${name}`), ...more];
  return files.map((file) => `@import "${file}";`).join("\n");
}

/** Fails on text that ends the element early, or that an HTML parser changes. */
function checkEmbeddable(name, text) {
  for (const forbidden of [/<\/script/i, /<\/style/i, /<!--/, /<script/i, /\r/, /\0/]) {
    if (forbidden.test(text)) throw new Error(`${name} contains ${forbidden}`);
  }
}

await mkdir(DIST, { recursive: true });
for (const [page, { script, styles, max_bytes }] of Object.entries(PAGES)) {
  const js = await build({ ...shared, entryPoints: [script], format: "iife" });
  const css = await build({
    ...shared,
    stdin: { contents: await styleImports(styles), resolveDir: ROOT, loader: "css" },
  });
  let total = 0;
  for (const [name, result] of [[`${page}.js`, js], [`${page}.css`, css]]) {
    const text = result.outputFiles[0].text.trimEnd();
    checkEmbeddable(name, text);
    const bytes = Buffer.from(text, "utf8");
    total += bytes.length;
    await writeFile(path.join(DIST, name), bytes);
    const hash = createHash("sha256").update(bytes).digest("base64");
    await writeFile(path.join(DIST, `${name}.sha256`), hash);
    console.log(`${name}: ${bytes.length} bytes`);
  }
  if (total > max_bytes) throw new Error(`${page} has ${total} bytes, more than ${max_bytes}`);
}
