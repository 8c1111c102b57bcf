/**
 * Trees of calls for the flame graph: callers at the root, or callees at the root.
 *
 * A tree depends on the recorded stacks and on which frames are shown, not on a moment. It is built
 * once for each such choice; totals of a moment are then one pass over the nodes.
 */

import type { Frame } from "../../page_data.js";

/** The stacks of one trace. `frameOf` maps its frames to those of the tree. */
export interface StackSource {
  nodeParent: Uint32Array;
  nodeFrame: Uint32Array;
  stackNode: Uint32Array;
  frameOf: Uint32Array | null;
}

/** Which frames a tree shows, and in which order. */
export interface TreeShape {
  /** Only frames of the user's own code. */
  ownOnly: boolean;
  /** Native frames between Python frames, too. */
  native: boolean;
  /** Innermost frames at the root. */
  inverted: boolean;
}

/** Frame of the root, which stands for everything. */
export const ROOT_FRAME = 0xffffffff;
/** Frame of stacks without any shown frame. */
export const NO_FRAME = 0xfffffffe;

/** Node 0 is the root. Parents have smaller numbers than their children. */
export interface CallTree {
  frame: Uint32Array;
  parent: Uint32Array;
  depth: Uint32Array;
  /** Last node of each stack, by source. */
  stackEnd: Uint32Array[];
}

export function buildCallTree(
  frames: Frame[],
  sources: StackSource[],
  shape: TreeShape,
): CallTree {
  const nodes = new NodeTable();
  const stackEnd = sources.map((source) => {
    const paths = new ShownPaths(frames, source, shape);
    return Uint32Array.from(source.stackNode, (node) => {
      const path = paths.outermostFirst(node);
      if (path.length === 0) return nodes.child(0, NO_FRAME);
      let at = 0;
      if (shape.inverted) {
        for (let i = path.length - 1; i >= 0; i--) at = nodes.child(at, path[i]);
      } else {
        for (const frame of path) at = nodes.child(at, frame);
      }
      return at;
    });
  });
  return { ...nodes.finish(), stackEnd };
}

/** Nodes by parent and frame. */
class NodeTable {
  private readonly frame: number[] = [ROOT_FRAME];
  private readonly parent: number[] = [0];
  private readonly depth: number[] = [0];
  private readonly byKey = new Map<number, number>();

  child(parent: number, frame: number): number {
    const key = parent * 0x100000000 + frame;
    const known = this.byKey.get(key);
    if (known !== undefined) return known;
    const node = this.frame.length;
    this.frame.push(frame);
    this.parent.push(parent);
    this.depth.push(this.depth[parent] + 1);
    this.byKey.set(key, node);
    return node;
  }

  finish(): Pick<CallTree, "frame" | "parent" | "depth"> {
    return {
      frame: Uint32Array.from(this.frame),
      parent: Uint32Array.from(this.parent),
      depth: Uint32Array.from(this.depth),
    };
  }
}

/** The shown frames of stacks. Native frames stay in stacks that have no Python frame. */
class ShownPaths {
  private readonly buffer: number[] = [];

  constructor(
    private readonly frames: Frame[],
    private readonly source: StackSource,
    private readonly shape: TreeShape,
  ) {}

  /** The returned array is valid until the next call. */
  outermostFirst(innermost: number): number[] {
    const { nodeParent, nodeFrame, frameOf } = this.source;
    const { ownOnly, native } = this.shape;
    const path = this.buffer;
    path.length = 0;
    let hasPython = false;
    for (let node = innermost; node !== 0; node = nodeParent[node]) {
      const own = nodeFrame[node];
      const frame = frameOf ? frameOf[own] : own;
      hasPython ||= this.frames[frame]?.kind === "python";
      path.push(frame);
    }
    let kept = 0;
    for (const frame of path) {
      const facts = this.frames[frame];
      if (!facts) continue;
      if (facts.kind === "native" && hasPython && !native) continue;
      if (ownOnly && !facts.is_user && (facts.kind !== "marker" || !hasPython)) continue;
      path[kept++] = frame;
    }
    path.length = kept;
    return path.reverse();
  }
}

/** Sums of a tree at one moment: of the stacks below a node, and of those that end in it. */
export interface Totals {
  bytes: Float64Array;
  count: Float64Array;
  selfBytes: Float64Array;
}

export function sumTree(
  tree: CallTree,
  source: number,
  bytes: Float64Array,
  count: Float64Array,
): Totals {
  const size = tree.frame.length;
  const totals = {
    bytes: new Float64Array(size),
    count: new Float64Array(size),
    selfBytes: new Float64Array(size),
  };
  tree.stackEnd[source].forEach((node, stack) => {
    totals.bytes[node] += bytes[stack] ?? 0;
    totals.count[node] += count[stack] ?? 0;
  });
  totals.selfBytes.set(totals.bytes);
  for (let node = size - 1; node > 0; node--) {
    const parent = tree.parent[node];
    totals.bytes[parent] += totals.bytes[node];
    totals.count[parent] += totals.count[node];
  }
  return totals;
}

/** Children of each node as ranges of `order`, largest weight first; those of weight 0 are left out. */
export interface Children {
  first: Uint32Array;
  order: Uint32Array;
}

export function sortChildren(tree: CallTree, weight: Float64Array): Children {
  const size = tree.frame.length;
  const first = new Uint32Array(size + 1);
  for (let node = 1; node < size; node++) {
    if (weight[node] > 0) first[tree.parent[node] + 1]++;
  }
  for (let node = 0; node < size; node++) first[node + 1] += first[node];
  const next = first.slice();
  const order = new Uint32Array(first[size]);
  for (let node = 1; node < size; node++) {
    if (weight[node] > 0) order[next[tree.parent[node]]++] = node;
  }
  for (let node = 0; node < size; node++) {
    const from = first[node];
    const to = first[node + 1];
    if (to - from > 1) {
      order.subarray(from, to).sort((a, b) => weight[b] - weight[a] || a - b);
    }
  }
  return { first, order };
}
