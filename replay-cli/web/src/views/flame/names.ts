/** Names of frames: `validate()`, `train.py:31`, and the package or file that gives the colour. */

import type { Frame } from "../../data/page_data.js";
import { fileName, withSlashes } from "../../data/source_path.js";
import { NO_FRAME, ROOT_FRAME } from "./call_tree.js";

const LIBRARY_FOLDERS = ["/site-packages/", "/dist-packages/"];

export function frameName(frames: Frame[], frame: number): string {
  if (frame === ROOT_FRAME) return "all";
  if (frame === NO_FRAME) return "(no such frame)";
  const { kind, function: name, file } = frames[frame];
  if (kind === "marker") return name ?? "(marker)";
  if (kind === "native") return name ?? fileName(file ?? "unknown library");
  if (name === null) return "unknown function";
  return name.endsWith(">") ? name : `${name}()`;
}

/** `train.py:31`, `torch/nn/modules/conv.py:560`; empty if unknown. */
export function framePlace(frames: Frame[], frame: number): string {
  const facts = frames[frame];
  if (!facts || facts.file === null) return "";
  const file = facts.kind === "native" ? fileName(facts.file) : shortPath(facts.file);
  return facts.line === null ? file : `${file}:${facts.line}`;
}

/** `path/train.py:31` in full. */
export function frameFullPlace(frames: Frame[], frame: number): string {
  const facts = frames[frame];
  if (!facts || facts.file === null) return "";
  return facts.line === null ? facts.file : `${facts.file}:${facts.line}`;
}

/** The path inside the installed package; else the file name. */
export function shortPath(file: string): string {
  for (const folder of LIBRARY_FOLDERS) {
    const at = withSlashes(file).lastIndexOf(folder);
    if (at >= 0) return file.slice(at + folder.length);
  }
  return fileName(file);
}

/** What frames of one colour share: the file of own code, else the installed package or library. */
export function originOf(frame: Frame): string {
  if (frame.file === null) return "";
  if (frame.is_user || frame.kind === "native") return frame.file;
  const short = shortPath(frame.file);
  const end = withSlashes(short).indexOf("/");
  return end < 0 ? short : short.slice(0, end);
}

/** Text of all that a search looks at, in lower case. */
export function searchText(frames: Frame[], frame: number): string {
  return `${frameName(frames, frame)} ${frameFullPlace(frames, frame)}`.toLowerCase();
}
