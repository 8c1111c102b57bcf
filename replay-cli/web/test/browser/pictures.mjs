// Makes pictures of pages for the documentation: scripts/generate/screenshots calls it.
//
// usage: node pictures.mjs DEMO.html OOM.html RANKS.html FOLDER
//            pictures of docs/: light ones, and the overview also dark
//        node pictures.mjs --all DEMO.html OOM.html RANKS.html FOLDER
//            each view of all pages in both themes

import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { openTab, setTheme, settle, waitForPage, withChromium } from "./chromium.mjs";
import { encodePalettePng } from "./palette_png.mjs";

/** Name of the picture, page, and fragment of its URL. */
const PICTURES = [
  { name: "overview", page: "demo", fragment: "overview", themes: ["light", "dark"] },
  { name: "timeline", page: "demo", fragment: "timeline" },
  { name: "flame", page: "demo", fragment: "flame" },
  { name: "leaks", page: "demo", fragment: "leaks" },
  { name: "fragmentation", page: "demo", fragment: "fragmentation" },
  { name: "oom", page: "oom", fragment: "oom" },
  { name: "sites", page: "demo", fragment: "sites" },
  { name: "ranks", page: "ranks", fragment: "ranks" },
  { name: "run", page: "demo", fragment: "run" },
];

const all = process.argv[2] === "--all";
const [demo, oom, ranks, folder] = process.argv.slice(all ? 3 : 2);
const pages = { demo, oom, ranks };

await mkdir(folder, { recursive: true });
await withChromium(async (browser) => {
  const shots = all ? await everyView(browser) : PICTURES;
  for (const { name, page, fragment, themes = ["light"] } of shots) {
    for (const theme of themes) {
      const isNamed = all || theme !== "light";
      const file = path.join(folder, `${name}${isNamed ? `-${theme}` : ""}.png`);
      const picture = await takePicture(browser, pages[page], fragment, theme);
      await writeFile(file, picture);
      console.log(`${file}: ${picture.length} bytes`);
    }
  }
});

async function everyView(browser) {
  const shots = [];
  for (const page of Object.keys(pages)) {
    const tab = await openPage(browser, pages[page], "", "light");
    const views = await tab.evaluate(() =>
      [...document.querySelectorAll("main [data-view]")].map((view) => view.dataset.view));
    await tab.close();
    for (const fragment of views) {
      shots.push({ name: `${page}-${fragment}`, page, fragment, themes: ["light", "dark"] });
    }
  }
  return shots;
}

async function openPage(browser, page, fragment, theme) {
  const { tab } = await openTab(browser, { theme });
  await tab.goto(`${pathToFileURL(path.resolve(page)).href}#${fragment}`);
  await waitForPage(tab);
  await tab.evaluate(() => document.fonts.ready.then(() => null));
  await setTheme(tab, theme);
  await settle(tab);
  return tab;
}

/** The same bytes for the same page: no animation, no cursor, no scroll bars. */
async function takePicture(browser, page, fragment, theme) {
  const tab = await openPage(browser, page, fragment, theme);
  const png = await tab.screenshot({ encoding: "base64" });
  await tab.close();
  const { width, height, pixels } = await decode(browser, png);
  return encodePalettePng(width, height, Buffer.from(pixels, "base64"));
}

/** Decodes a PNG in an empty tab, which has no security policy. */
async function decode(browser, png) {
  const tab = await browser.newPage();
  const image = await tab.evaluate(async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const drawing = canvas.getContext("2d");
    drawing.drawImage(bitmap, 0, 0);
    const { data } = drawing.getImageData(0, 0, bitmap.width, bitmap.height);
    let text = "";
    for (let at = 0; at < data.length; at += 0x8000) {
      text += String.fromCharCode(...data.subarray(at, at + 0x8000));
    }
    return { width: bitmap.width, height: bitmap.height, pixels: btoa(text) };
  }, png);
  await tab.close();
  return image;
}
