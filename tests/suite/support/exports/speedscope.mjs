// Opens a file in speedscope's offline page, as its command line does, and prints what the page
// shows as JSON: {"title": TEXT, "rows": [[CELL, ...], ...]}, the rows of the sandwich view.
//
// usage: node speedscope.mjs NODE_MODULES FILE FOLDER [SCREENSHOT]

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [modules, file, folder, screenshot] = process.argv.slice(2);
const puppeteer = (await import(pathToFileURL(createRequire(path.join(modules, "x")).resolve("puppeteer-core")))).default;
const script = path.resolve(folder, "profile.js");
const contents = readFileSync(file).toString("base64");
writeFileSync(script, `speedscope.loadFileFromBase64(${JSON.stringify(path.basename(file))}, "${contents}")`);
const page = pathToFileURL(path.join(modules, "speedscope", "dist", "release", "index.html")).href;
const view = screenshot ? "left-heavy" : "sandwich";

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  headless: true,
  args: ["--no-sandbox", "--allow-file-access-from-files", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
});
try {
  const tab = await browser.newPage();
  // The table holds only the rows that are in view.
  await tab.setViewport(screenshot ? { width: 1100, height: 420 } : { width: 1280, height: 6000 });
  await tab.setRequestInterception(true);
  tab.on("request", (request) => (/^(file|blob|data):/.test(request.url()) ? request.continue() : request.abort()));
  const problems = [];
  tab.on("pageerror", (error) => problems.push(String(error.stack ?? error)));
  await tab.goto(`${page}#localProfilePath=${script}&view=${view}`);
  // The name of the file is in the title once it is loaded.
  const loaded = tab.waitForFunction(() => document.title !== "speedscope", { timeout: 60_000 });
  await loaded.catch(async () => problems.push(await tab.evaluate(() => document.body.innerText)));
  if (!screenshot) await tab.waitForSelector("tbody tr, table tr td", { timeout: 60_000 });
  await new Promise((resolve) => setTimeout(resolve, 500));
  if (screenshot) await tab.screenshot({ path: screenshot });
  const shown = await tab.evaluate(() => ({
    title: document.title,
    rows: [...document.querySelectorAll("tr")].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)),
  }));
  if (problems.length > 0) throw new Error(problems.join("\n"));
  console.log(JSON.stringify(shown));
} finally {
  await browser.close();
}
