// Drives pages in Chromium for tests/suite/page: reads one JSON command per line from stdin, and
// answers each with one line, `{"result": ...}` or `{"error": ...}`.
//
//   {"do": "open", "page": PATH, "fragment": "", "theme": "light", "width": 1280, "height": 800}
//   {"do": "evaluate", "expression": JAVASCRIPT}     its value; promises are awaited
//   {"do": "press", "keys": ["Tab", "Shift+Tab"]}
//   {"do": "click", "selector": CSS}
//   {"do": "settle"}                                 waits until the page has drawn
//   {"do": "theme", "theme": "dark"}
//   {"do": "axe"}                                    violations of axe-core in the shown view
//   {"do": "pdf"}                                    the printed page, as base64
//   {"do": "screenshot", "path": PATH}
//   {"do": "problems"}                               what happened and must not, since "open"

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { openTab, setTheme, settle, waitForPage, withChromium } from "./chromium.mjs";

const axeSource = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let tab = null;
let problems = [];

const commands = {
  async open(browser, { page, fragment = "", theme, width, height }) {
    await tab?.close();
    ({ tab, problems } = await openTab(browser, { theme, width, height }));
    const url = pathToFileURL(path.resolve(page)).href;
    await tab.goto(fragment ? `${url}#${fragment}` : url);
    await waitForPage(tab);
    return problems;
  },
  async evaluate(_, { expression }) {
    const result = await tab.evaluate(expression);
    return result === undefined ? null : result;
  },
  async press(_, { keys }) {
    for (const key of keys) {
      const parts = key.split("+");
      for (const modifier of parts.slice(0, -1)) await tab.keyboard.down(modifier);
      await tab.keyboard.press(parts.at(-1));
      for (const modifier of parts.slice(0, -1).reverse()) await tab.keyboard.up(modifier);
    }
    await settle(tab);
    return null;
  },
  async click(_, { selector }) {
    await tab.click(selector);
    await settle(tab);
    return null;
  },
  async settle() {
    await settle(tab);
    return null;
  },
  async theme(_, { theme }) {
    await setTheme(tab, theme);
    await settle(tab);
    return null;
  },
  async axe() {
    await tab.evaluate(`window.axe || ${axeSource}; null`);
    return await tab.evaluate(async () => {
      const found = await window.axe.run(document, { resultTypes: ["violations"] });
      return found.violations.map(({ id, help, nodes }) => ({
        id,
        help,
        nodes: nodes.map((node) => `${node.html.slice(0, 200)} (${node.any[0]?.message ?? ""})`),
      }));
    });
  },
  async pdf() {
    return Buffer.from(await tab.pdf({ printBackground: true })).toString("base64");
  },
  async screenshot(_, { path: file, fullPage = false }) {
    await tab.screenshot({ path: file, fullPage });
    return null;
  },
  problems: () => problems,
};

await withChromium(async (browser) => {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let answer;
    try {
      answer = { result: await commands[command.do](browser, command) };
    } catch (error) {
      answer = { error: error.stack ?? String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
});
