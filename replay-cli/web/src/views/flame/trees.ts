/** The call trees of the page, each built once, and the frames of two traces as one list. */

import type { TraceModel } from "../../data/model.js";
import type { Frame } from "../../data/page_data.js";
import { buildCallTree, type CallTree, type TreeShape } from "./call_tree.js";
import { shortPath } from "./names.js";

export interface TreeOfTraces {
  frames: Frame[];
  tree: CallTree;
}

export class TreeCache {
  readonly #trees = new Map<string, TreeOfTraces>();
  readonly #merged = new Map<string, { frames: Frame[]; frameOf: Uint32Array[] }>();

  /** One trace, or two of which frames with equal functions and files are one. */
  get(traces: TraceModel[], shape: TreeShape): TreeOfTraces {
    const pair = traces.map((trace) => trace.index).join();
    const key = `${pair} ${shape.ownOnly} ${shape.native} ${shape.inverted}`;
    let found = this.#trees.get(key);
    if (!found) {
      const { frames, frameOf } = this.#framesOf(traces, pair);
      const sources = traces.map((trace, i) => ({
        nodeParent: trace.nodeParent,
        nodeFrame: trace.nodeFrame,
        stackNode: trace.stackNode,
        frameOf: frameOf[i] ?? null,
      }));
      found = { frames, tree: buildCallTree(frames, sources, shape) };
      this.#trees.set(key, found);
    }
    return found;
  }

  #framesOf(
    traces: TraceModel[],
    pair: string,
  ): { frames: Frame[]; frameOf: Uint32Array[] } {
    if (traces.length === 1) return { frames: traces[0].frames, frameOf: [] };
    let merged = this.#merged.get(pair);
    if (!merged) this.#merged.set(pair, (merged = mergeFrames(traces)));
    return merged;
  }
}

/** Lines are left out where a frame has several: an edit above moves them. */
function mergeFrames(traces: TraceModel[]): { frames: Frame[]; frameOf: Uint32Array[] } {
  const frames: Frame[] = [];
  const byKey = new Map<string, number>();
  const frameOf = traces.map((trace) =>
    Uint32Array.from(trace.frames, (frame) => {
      const file = frame.file === null ? "" : shortPath(frame.file);
      const key = JSON.stringify([frame.kind, frame.function, file]);
      let index = byKey.get(key);
      if (index === undefined) {
        byKey.set(key, (index = frames.length));
        frames.push({ ...frame });
      } else if (frames[index].line !== frame.line) {
        frames[index].line = null;
      }
      return index;
    }),
  );
  return { frames, frameOf };
}
