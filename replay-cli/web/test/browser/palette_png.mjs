// Writes PNG files with at most 256 colours, so that pictures of pages stay small.

import { deflateSync } from "node:zlib";

const COLORS = 256;

/** Encodes opaque pixels (RGBA, row by row). Rare colours become the nearest frequent one. */
export function encodePalettePng(width, height, rgba) {
  const counts = new Map();
  const colorAt = (pixel) => rgba.readUIntBE(pixel * 4, 3);
  for (let pixel = 0; pixel < width * height; pixel++) {
    const color = colorAt(pixel);
    counts.set(color, (counts.get(color) ?? 0) + 1);
  }
  const palette = choosePalette(counts);
  const indexOf = new Map(palette.map((color, index) => [color, index]));
  const rows = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const color = colorAt(y * width + x);
      let index = indexOf.get(color);
      if (index === undefined) indexOf.set(color, (index = nearest(palette, color)));
      rows[y * (width + 1) + 1 + x] = index;
    }
  }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  // Bits per pixel, and the type for palettes.
  header.set([8, 3], 8);
  const colors = Buffer.from(palette.flatMap((color) => [color >> 16, (color >> 8) & 255, color & 255]));
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", header),
    chunk("PLTE", colors),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/**
 * The most frequent colour of each part of the colour cube first, so that small areas keep theirs;
 * then the most frequent of the others.
 */
function choosePalette(counts) {
  const byCount = [...counts].sort(([a, m], [b, n]) => n - m || a - b).map(([color]) => color);
  if (byCount.length <= COLORS) return byCount;
  const parts = new Map();
  for (const color of byCount) {
    const part = color & 0xe0e0e0;
    if (!parts.has(part)) parts.set(part, color);
  }
  const chosen = new Set([...parts.values()].slice(0, COLORS / 2));
  for (const color of byCount) {
    if (chosen.size === COLORS) break;
    chosen.add(color);
  }
  return [...chosen];
}

function nearest(palette, color) {
  let best = 0;
  let least = Infinity;
  palette.forEach((other, index) => {
    const distance = [16, 8, 0].reduce((sum, shift) => {
      const difference = ((color >> shift) & 255) - ((other >> shift) & 255);
      return sum + difference * difference;
    }, 0);
    if (distance < least) [best, least] = [index, distance];
  });
  return best;
}

function chunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), data]);
  const result = Buffer.alloc(body.length + 8);
  result.writeUInt32BE(data.length, 0);
  body.copy(result, 4);
  result.writeUInt32BE(crc32(body), body.length + 4);
  return result;
}

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
