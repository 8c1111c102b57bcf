/** Nouns that differ between CUDA, Metal and gpumemtrace's own allocator, as in the text report. */

import type { Report } from "../data/model.js";

export interface Vocabulary {
  isMetal: boolean;
  reserver: string;
  segment: string;
  block: string;
  emptyCache: string;
  /** A sentence on memory that is not reserved for tensors. */
  outside: string;
}

export function vocabularyOf(report: Report, trace: number): Vocabulary {
  const info = report.traces?.[trace];
  if (info?.mode?.includes("metal")) {
    return {
      isMetal: true,
      reserver: "Metal heaps",
      segment: "heap",
      block: "buffer",
      emptyCache: "torch.mps.empty_cache()",
      outside: "This is memory of Metal in no heap: buffers and textures of their own.",
    };
  }
  const isOwn = info?.pluggable === "caching" || info?.pluggable === "uncached";
  return {
    isMetal: false,
    reserver: isOwn ? "gpumemtrace's allocator" : "PyTorch",
    segment: "segment",
    block: "block",
    emptyCache: "torch.cuda.empty_cache()",
    outside: "This is driver memory (cudaMalloc and its like).",
  };
}
