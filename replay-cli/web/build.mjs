// Bundles the page: src/main.ts and src/style/*.css to dist/report.js and dist/report.css.
//
// The output is committed, and `gpumemtrace html` puts its exact bytes between <script> and
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
const MAX_BUNDLE_BYTES = 120_000;

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
async function styleImports() {
  const names = (await readdir(path.join(ROOT, "src/style"))).filter((n) => n.endsWith(".css"));
  names.sort((a, b) => Number(b === "base.css") - Number(a === "base.css") || (a < b ? -1 : 1));
  return names.map((name) => `@import "./src/style/${name}";`).join("\n");
}

/** Fails on text that ends the element early, or that an HTML parser changes. */
function checkEmbeddable(name, text) {
  for (const forbidden of [/<\/script/i, /<\/style/i, /<!--/, /<script/i, /\r/, /\0/]) {
    if (forbidden.test(text)) throw new Error(`${name} contains ${forbidden}`);
  }
}

const js = await build({ ...shared, entryPoints: ["src/main.ts"], format: "iife" });
const css = await build({
  ...shared,
  stdin: { contents: await styleImports(), resolveDir: ROOT, loader: "css" },
});

await mkdir(DIST, { recursive: true });
let total = 0;
for (const [name, result] of [["report.js", js], ["report.css", css]]) {
  const text = result.outputFiles[0].text.trimEnd();
  checkEmbeddable(name, text);
  const bytes = Buffer.from(text, "utf8");
  total += bytes.length;
  await writeFile(path.join(DIST, name), bytes);
  const hash = createHash("sha256").update(bytes).digest("base64");
  await writeFile(path.join(DIST, `${name}.sha256`), hash);
  console.log(`${name}: ${bytes.length} bytes`);
}
if (total > MAX_BUNDLE_BYTES) {
  throw new Error(`the bundle has ${total} bytes, more than ${MAX_BUNDLE_BYTES}`);
}
