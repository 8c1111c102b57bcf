/** A call stack as a list, innermost frame first, own code marked. */

import { h } from "../widgets/dom.js";
import { formatNumberOf } from "../widgets/format.js";
import type { TraceModel } from "../data/model.js";
import type { ReportFrame } from "../data/report_types.js";
import { frameText } from "../wording/sites.js";

/** Native frames of a stack with Python frames are hidden behind a button. */
export function stackList(title: string, stack: ReportFrame[]): HTMLElement | null {
  if (stack.length === 0) return null;
  const hasPython = stack.some((frame) => frame.kind === "python");
  const list = h("ol", { class: "stack" });
  let hidden = 0;
  for (const frame of stack) {
    const isHidden = hasPython && frame.kind === "native";
    if (isHidden) hidden++;
    list.append(h("li", { class: frame.is_own ? "own" : null, hidden: isHidden },
      frame.is_own ? h("span", { class: "visually-hidden" }, "own code: ") : null,
      frameText(frame)));
  }
  const button = h("button", { class: "link" },
    `Show ${formatNumberOf(hidden, "native frame")}`);
  button.addEventListener("click", () => {
    for (const item of list.querySelectorAll<HTMLElement>("li[hidden]")) item.hidden = false;
    button.remove();
  });
  return h("details", {},
    h("summary", {}, `${title}: ${formatNumberOf(stack.length, "frame")}`),
    list,
    hidden > 0 ? button : null);
}

/** The stack that ends in a node of the page's tree of calls. */
export function stackOfNode(trace: TraceModel, innermost: number): HTMLElement | null {
  const stack: ReportFrame[] = [];
  for (let node = innermost; node !== 0; node = trace.nodeParent[node]) {
    const { kind, file, line, function: name, is_user } = trace.frames[trace.nodeFrame[node]];
    const isNative = kind === "native";
    stack.push({
      kind: isNative ? "native" : "python",
      file: isNative ? null : file,
      module: isNative ? file : null,
      line, function: name, offset: null, is_own: is_user,
    });
  }
  return stackList("Allocated at", stack);
}
