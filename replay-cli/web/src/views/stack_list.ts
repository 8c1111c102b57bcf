/** A call stack as a list, innermost frame first, own code marked. */

import type { Card } from "../widgets/card.js";
import { formatNumberOf } from "../widgets/format.js";
import type { TraceModel } from "../data/model.js";
import { frameName, framePlace } from "./flame/names.js";

/**
 * The stack that ends in a node of the tree of calls, behind a title; null for the root. Native
 * frames of a stack with Python frames are hidden behind a button.
 */
export function stackOfNode(
  trace: TraceModel,
  innermost: number,
  title = "Allocated at",
): Card | null {
  const { frames, nodeFrame, nodeParent } = trace;
  const stack: number[] = [];
  for (let node = innermost; node !== 0; node = nodeParent[node]) stack.push(nodeFrame[node]);
  if (stack.length === 0) return null;
  const isNative = (frame: number): boolean => frames[frame].kind === "native";
  const hidden = stack.every(isNative) ? 0 : stack.filter(isNative).length;
  const items = stack.map((frame): Card => {
    const place = framePlace(frames, frame);
    const name = frameName(frames, frame);
    const text = place ? `${place} in ${name}` : name;
    const isOwn = frames[frame].is_user;
    return [
      "li",
      { ...isOwn && { class: "own" }, ...hidden > 0 && isNative(frame) && { hidden: "" } },
      isOwn ? [["span", { class: "visually-hidden" }, ["own code: "]], text] : [text],
    ];
  });
  const show = `Show ${formatNumberOf(hidden, "native frame")}`;
  const content: Card[] = [
    ["summary", {}, [`${title}: ${formatNumberOf(stack.length, "frame")}`]],
    ["ol", { class: "stack" }, items],
  ];
  if (hidden > 0) content.push(["button", { class: "link", reveal: "li" }, [show]]);
  return ["details", {}, content];
}
