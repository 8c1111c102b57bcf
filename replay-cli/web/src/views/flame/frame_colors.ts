/**
 * Colours of frames. Own code is saturated, one hue for each file; libraries are pale, one hue for
 * each package; native code is nearly grey. The lightness is equal within a theme, so that one text
 * colour has a contrast of at least 4.5:1 on all of them.
 */

import type { Frame } from "../../data/page_data.js";
import { isDark } from "../../shell/theme.js";
import { originOf } from "./names.js";

/** Neighbours of this angle are never alike. */
const GOLDEN_ANGLE = 137.508;

export class FrameColors {
  readonly #hues: Float64Array;
  readonly #styles = new Map<string, string>();
  readonly #frames: Frame[];

  constructor(frames: Frame[]) {
    this.#frames = frames;
    const own = new Map<string, number>();
    this.#hues = Float64Array.from(frames, (frame) => {
      const origin = originOf(frame);
      if (!frame.is_user) return hash(origin) % 360;
      let index = own.get(origin);
      if (index === undefined) own.set(origin, (index = own.size));
      return (45 + index * GOLDEN_ANGLE) % 360;
    });
  }

  fill(frame: number): string {
    const dark = isDark();
    const facts = this.#frames[frame];
    if (!facts) return dark ? "oklch(0.36 0 0)" : "oklch(0.89 0 0)";
    const hue = Math.round(this.#hues[frame]);
    const key = `${dark}${facts.is_user}${facts.kind}${hue}`;
    let style = this.#styles.get(key);
    if (!style) {
      const [light, chroma] = tone(facts, dark);
      this.#styles.set(key, (style = `oklch(${light} ${chroma} ${hue})`));
    }
    return style;
  }
}

/** Lightness and chroma. */
function tone(frame: Frame, dark: boolean): [number, number] {
  if (frame.is_user) return dark ? [0.46, 0.1] : [0.81, 0.105];
  if (frame.kind === "native") return dark ? [0.31, 0] : [0.945, 0];
  return dark ? [0.37, 0.022] : [0.915, 0.02];
}

/** Red for growth, blue for shrinkage; `ratio` from -1 to 1. */
export function differenceColor(ratio: number): string {
  const amount = Math.min(Math.abs(ratio), 1);
  const strength = amount === 0 ? 0 : Math.max(Math.sqrt(amount), 0.12);
  const hue = ratio > 0 ? 27 : 255;
  const light = isDark() ? 0.36 + 0.14 * strength : 0.92 - 0.2 * strength;
  return `oklch(${light.toFixed(3)} ${(0.14 * strength).toFixed(3)} ${hue})`;
}

export function frameTextColor(): string {
  return isDark() ? "#f5f7fa" : "#15181c";
}

function hash(text: string): number {
  let value = 7;
  for (let i = 0; i < text.length; i++) value = (value * 31 + text.charCodeAt(i)) >>> 0;
  return value;
}
