/**
 * Trees of calls for the flame graph: callers at the root, or callees at the root.
 *
 * A tree depends on the recorded stacks and on which frames are shown, not on a moment. It is built
 * once for each such choice; totals of a moment are then one pass over the nodes.
 */

import type { Frame } from "../../data/page_data.js";

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
  /** Node `i` has those of `children` from index `firstChild[i]` to `firstChild[i + 1]`. */
  firstChild: Uint32Array;
  children: Uint32Array;
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

/** Nodes by parent and frame: a hash table, as a `Map` takes most of the time of a tree. */
class NodeTable {
  readonly #frame: number[] = [ROOT_FRAME];
  readonly #parent: number[] = [0];
  readonly #depth: number[] = [0];
  /** Nodes at their place or after it; 0 for none. At most half full. */
  #slots = new Uint32Array(1 << 12);

  child(parent: number, frame: number): number {
    const slots = this.#slots;
    let at = this.#firstSlot(parent, frame);
    for (; slots[at] !== 0; at = (at + 1) & (slots.length - 1)) {
      const node = slots[at];
      if (this.#parent[node] === parent && this.#frame[node] === frame) return node;
    }
    const node = this.#frame.push(frame) - 1;
    this.#parent.push(parent);
    this.#depth.push(this.#depth[parent] + 1);
    slots[at] = node;
    if (2 * node > slots.length) this.#grow();
    return node;
  }

  #firstSlot(parent: number, frame: number): number {
    const hash = Math.imul(Math.imul(parent, 0x9e3779b1) ^ frame, 0x85ebca6b);
    return (hash ^ (hash >>> 15)) & (this.#slots.length - 1);
  }

  #grow(): void {
    const slots = (this.#slots = new Uint32Array(4 * this.#slots.length));
    for (let node = 1; node < this.#frame.length; node++) {
      let at = this.#firstSlot(this.#parent[node], this.#frame[node]);
      while (slots[at] !== 0) at = (at + 1) & (slots.length - 1);
      slots[at] = node;
    }
  }

  finish(): Omit<CallTree, "stackEnd"> {
    const size = this.#frame.length;
    const parent = Uint32Array.from(this.#parent);
    const firstChild = new Uint32Array(size + 1);
    for (let node = 1; node < size; node++) firstChild[parent[node] + 1]++;
    for (let node = 0; node < size; node++) firstChild[node + 1] += firstChild[node];
    const next = firstChild.slice();
    const children = new Uint32Array(size - 1);
    for (let node = 1; node < size; node++) children[next[parent[node]]++] = node;
    return {
      frame: Uint32Array.from(this.#frame),
      parent,
      depth: Uint32Array.from(this.#depth),
      firstChild,
      children,
    };
  }
}

/** The shown frames of stacks. Native frames stay in stacks that have no Python frame. */
class ShownPaths {
  readonly #buffer: number[] = [];
  readonly #frames: Frame[];
  readonly #source: StackSource;
  readonly #shape: TreeShape;

  constructor(
    frames: Frame[],
    source: StackSource,
    shape: TreeShape,
  ) {
    this.#frames = frames;
    this.#source = source;
    this.#shape = shape;
  }

  /** The returned array is valid until the next call. */
  outermostFirst(innermost: number): number[] {
    const { nodeParent, nodeFrame, frameOf } = this.#source;
    const { ownOnly, native } = this.#shape;
    const path = this.#buffer;
    path.length = 0;
    let hasPython = false;
    for (let node = innermost; node !== 0; node = nodeParent[node]) {
      const own = nodeFrame[node];
      const frame = frameOf ? frameOf[own] : own;
      hasPython ||= this.#frames[frame]?.kind === "python";
      path.push(frame);
    }
    let kept = 0;
    for (const frame of path) {
      const facts = this.#frames[frame];
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
  const { parent } = tree;
  const sums = new Float64Array(size);
  const counts = new Float64Array(size);
  const ends = tree.stackEnd[source];
  for (let stack = 0; stack < ends.length; stack++) {
    sums[ends[stack]] += bytes[stack];
    counts[ends[stack]] += count[stack];
  }
  const selfBytes = sums.slice();
  for (let node = size - 1; node > 0; node--) {
    sums[parent[node]] += sums[node];
    counts[parent[node]] += counts[node];
  }
  return { bytes: sums, count: counts, selfBytes };
}

/** Children of a node with a weight above 0, largest first. */
export function heavyChildren(tree: CallTree, weight: Float64Array, node: number): Uint32Array {
  const { firstChild, children } = tree;
  return children
    .subarray(firstChild[node], firstChild[node + 1])
    .filter((child) => weight[child] > 0)
    .sort((a, b) => weight[b] - weight[a] || a - b);
}
