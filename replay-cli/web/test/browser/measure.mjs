// Measures how fast a page opens and answers in Chromium, for scripts/benchmarks/html. Prints JSON.
//
// usage: node measure.mjs PAGE.html [ROUNDS]
//
// A frame's time is the main thread's: from the start of the frame, which handles input, to the
// first task after it is painted.

import path from "node:path";
import { pathToFileURL } from "node:url";
import { openTab, settle, waitForPage, withChromium } from "./chromium.mjs";

const [page, rounds = "5"] = process.argv.slice(2);
const url = pathToFileURL(path.resolve(page)).href;
const WINDOWS = 30;
const FRAMES = 180;

const results = await withChromium(async (browser) => {
  const opened = [];
  for (let round = 0; round < Number(rounds); round++) opened.push(await timeToFirstView(browser));
  const { tab, problems } = await openTab(browser);
  await tab.goto(url);
  await waitForPage(tab);
  const frames = await timeFrames(tab);
  const windows = await timeFlameGraphs(tab);
  const heap_bytes = await heapAfterAllViews(tab);
  return { first_view_ms: median(opened), ...frames, ...windows, heap_bytes, problems };
}, ["--js-flags=--expose-gc"]);
console.log(JSON.stringify(results));

/** Milliseconds from the start of navigation to the first frame with a view. */
async function timeToFirstView(browser) {
  const { tab } = await openTab(browser);
  await tab.evaluateOnNewDocument(() => {
    const check = () => {
      const view = document.querySelector("main [data-view]:not([hidden])");
      if (!view?.firstChild) return requestAnimationFrame(check);
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => { window.firstView = performance.now(); };
      requestAnimationFrame(() => port2.postMessage(null));
    };
    requestAnimationFrame(check);
  });
  await tab.goto(url);
  await tab.waitForFunction("window.firstView !== undefined", { timeout: 60_000 });
  const time = await tab.evaluate("window.firstView");
  await tab.close();
  return time;
}

/** Zooms and pans the timeline with the mouse while frames are recorded. */
async function timeFrames(tab) {
  await tab.evaluate(() => { location.hash = "#timeline"; });
  await settle(tab);
  const box = await tab.evaluate(() => {
    const canvases = [...document.querySelectorAll("[data-view=timeline] canvas")];
    const largest = canvases.sort((a, b) => b.height * b.width - a.height * a.width)[0];
    largest.scrollIntoView();
    const { x, y, width, height } = largest.getBoundingClientRect();
    return { x, y, width, height };
  });
  await tab.evaluate(() => {
    window.frames = { busy: [], between: [] };
    let last = null;
    const { port1, port2 } = new MessageChannel();
    let begun = 0;
    port1.onmessage = () => window.frames.busy.push(performance.now() - begun);
    const frame = (time) => {
      if (last !== null) window.frames.between.push(time - last);
      last = begun = time;
      port2.postMessage(null);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  const middle = [box.x + box.width / 2, box.y + box.height / 2];
  await tab.mouse.move(...middle);
  for (let frame = 0; frame < FRAMES; frame++) {
    // In and out, so that all levels of detail are drawn.
    await tab.mouse.wheel({ deltaY: frame % 60 < 30 ? -60 : 60 });
  }
  await tab.mouse.wheel({ deltaY: -2000 });
  await tab.keyboard.down("Shift");
  await tab.mouse.down();
  for (let frame = 0; frame < FRAMES; frame++) {
    const x = middle[0] + (box.width / 3) * Math.sin(frame / 10);
    await tab.mouse.move(x, middle[1]);
  }
  await tab.mouse.up();
  await tab.keyboard.up("Shift");
  const { busy, between } = await tab.evaluate("window.frames");
  return {
    frames: busy.length,
    frame_p95_ms: percentile(busy, 0.95),
    frame_max_ms: Math.max(...busy),
    between_frames_p95_ms: percentile(between, 0.95),
  };
}

/** Milliseconds from the choice of a window to its painted flame graph. */
async function timeFlameGraphs(tab) {
  const times = await tab.evaluate(async (count) => {
    const edges = window.gpumemtrace.edges();
    let seed = 1;
    const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
    const edge = () => edges[Math.floor(random() * edges.length)];
    const painted = () => new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = resolve;
      requestAnimationFrame(() => port2.postMessage(null));
    });
    const times = [];
    for (let window_ = 0; window_ < count; window_++) {
      const [from, to] = [edge(), edge()].sort((a, b) => a - b);
      const mode = ["live", "kept", "churn"][window_ % 3];
      await painted();
      const begin = performance.now();
      const changed = new Promise((resolve) => addEventListener("hashchange", resolve, { once: true }));
      location.hash = `#flame?from=${from}&to=${to + 1}&o.flame.mode=${mode}`;
      await changed;
      await painted();
      times.push(performance.now() - begin);
    }
    return times;
  }, WINDOWS);
  // The first graph also decodes the stacks and builds the view.
  const [first, ...later] = times;
  return {
    flame_first_ms: first,
    flame_median_ms: median(later),
    flame_max_ms: Math.max(...later),
  };
}

/** Bytes of JavaScript objects and array buffers after a visit of all views and a collection. */
async function heapAfterAllViews(tab) {
  const views = await tab.evaluate(() =>
    [...document.querySelectorAll("main [data-view]")].map((view) => view.dataset.view));
  for (const view of views) {
    await tab.evaluate((hash) => { location.hash = hash; }, `#${view}`);
    await settle(tab);
  }
  await tab.evaluate("gc()");
  const client = await tab.createCDPSession();
  const usage = await client.send("Runtime.getHeapUsage");
  return usage.usedSize + (usage.backingStorageSize ?? 0);
}

function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

function median(values) {
  return percentile(values, 0.5);
}
