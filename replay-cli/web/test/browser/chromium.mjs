// Starts Chromium for the tests, the pictures and the measurements of the page.
//
// The executable is $CHROMIUM, or /usr/bin/chromium. It runs with an empty profile and software
// rendering, so that results do not depend on the machine's GPU.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import puppeteer from "puppeteer-core";

const EXECUTABLE = process.env.CHROMIUM || "/usr/bin/chromium";
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
  "--force-device-scale-factor=1",
  "--font-render-hinting=none",
  "--hide-scrollbars",
];

/** Calls `use` with a browser, and closes it whatever happens. */
export async function withChromium(use, moreFlags = []) {
  const profile = await mkdtemp(path.join(tmpdir(), "gpumemtrace-chromium-"));
  const browser = await puppeteer.launch({
    executablePath: EXECUTABLE,
    headless: true,
    userDataDir: profile,
    args: [...FLAGS, ...moreFlags],
  });
  try {
    return await use(browser);
  } finally {
    await browser.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/**
 * Opens a tab that collects what must not happen: messages on the console, uncaught errors,
 * violations of the security policy, dialogs, and requests other than for the page itself.
 */
export async function openTab(browser, { width = 1280, height = 800, theme = "light" } = {}) {
  const tab = await browser.newPage();
  const problems = [];
  await tab.setViewport({ width, height });
  await setTheme(tab, theme);
  await tab.setRequestInterception(true);
  let own = null;
  tab.on("request", (request) => {
    const url = request.url().split("#")[0];
    const isPage = request.isNavigationRequest() && request.frame() === tab.mainFrame();
    if (isPage && (own === null || own === url)) own = url;
    else if (!url.startsWith("blob:") && !url.startsWith("data:")) problems.push(`request: ${url}`);
    const isAllowed = /^(file|blob|data):/.test(url);
    if (isAllowed) request.continue();
    else request.abort();
  });
  tab.on("console", (message) => problems.push(`console.${message.type()}: ${message.text()}`));
  tab.on("pageerror", (error) => problems.push(`error: ${error.stack ?? error.message}`));
  tab.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await tab.exposeFunction("reportViolation", (text) => problems.push(`policy: ${text}`));
  await tab.evaluateOnNewDocument(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.reportViolation(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
    });
  });
  return { tab, problems };
}

export async function setTheme(tab, theme) {
  await tab.emulateMediaFeatures([
    { name: "prefers-color-scheme", value: theme },
    { name: "prefers-reduced-motion", value: "reduce" },
  ]);
}

/** Waits until the page has drawn what it knows: two frames, and idle in between. */
export async function settle(tab) {
  await tab.evaluate(() => new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 0)));
  }));
}

/** Waits until the page has started or says that it cannot. */
export async function waitForPage(tab) {
  await tab.waitForSelector("main [data-view]:not([hidden]), .failure", { timeout: 60_000 });
  await settle(tab);
}
