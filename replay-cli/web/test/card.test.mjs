// Cards become elements and text nodes; unknown tags and attributes are refused.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./bundle.mjs";

class FakeElement {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], style: {} });
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  appendChild(child) {
    this.children.push(child);
  }

  addEventListener(name, listener) {
    this[name] = () => listener({ preventDefault() {} });
  }
}

globalThis.HTMLButtonElement = class {};
globalThis.HTMLAnchorElement = class {};
globalThis.document = {
  createElement: (tag) => new FakeElement(tag),
  createTextNode: (text) => ({ text }),
};

const { makeNode } = await bundle("src/widgets/card.ts");
const opened = [];
const context = {
  color: (site) => `color of ${site}`,
  open: (view, change) => opened.push([view, change]),
  visit: (change) => opened.push([null, change]),
  selection: () => ({ options: { stack: "site" } }),
};

test("text stays text", () => {
  const { tag, attributes, children } = makeNode(["p", { class: "muted" }, ["<b>", ["code", {}, ["x"]]]], context);
  assert.deepEqual([tag, attributes], ["p", { class: "muted" }]);
  assert.deepEqual(children[0], { text: "<b>" });
  assert.deepEqual([children[1].tag, children[1].children], ["code", [{ text: "x" }]]);
});

test("unknown tags and attributes are refused", () => {
  const cards = [
    ["script", {}, ["x"]], ["iframe", {}, []], ["p", { style: "x" }, []], ["p", { onclick: "x" }, []],
    ["a", { href: "javascript:x" }, []], ["p", { srcdoc: "x" }, []], ["div", {}, [["img", { src: "x" }, []]]],
  ];
  for (const card of cards) assert.throws(() => makeNode(card, context), /unknown element/);
});

test("properties give colours, sizes, links and places", () => {
  const places = [];
  const bar = makeNode(["span", { site: 3, width: 0.25, chart: { device: 1 } }, []], context, places);
  assert.deepEqual(bar.style, { background: "color of 3", width: "25%" });
  assert.deepEqual(places, [{ element: bar, chart: { device: 1 } }]);
  makeNode(["button", { go: ["flame", { site: "a", options: { mode: "kept" } }] }, []], context).click();
  makeNode(["button", { go: ["flame", { options: { stack: "", mode: "peak" } }] }, []], context).click();
  makeNode(["button", { go: [null, { trace: 1 }] }, []], context).click();
  assert.deepEqual(opened, [
    ["flame", { site: "a", options: { stack: "site", mode: "kept" } }],
    // An empty option removes it.
    ["flame", { options: { mode: "peak" } }],
    [null, { trace: 1 }],
  ]);
});
