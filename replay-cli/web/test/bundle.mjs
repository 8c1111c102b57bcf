// Bundles one TypeScript module for node and imports it.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";

const WEB = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

export async function bundle(entry) {
  const folder = await mkdtemp(path.join(tmpdir(), "gpumemtrace-page-"));
  const outfile = path.join(folder, "module.mjs");
  try {
    await build({
      absWorkingDir: WEB,
      entryPoints: [entry],
      bundle: true,
      format: "esm",
      platform: "neutral",
      outfile,
      logLevel: "error",
    });
    return await import(pathToFileURL(outfile).href);
  } finally {
    await rm(folder, { recursive: true });
  }
}
