/**
 * Decodes the blobs of the page: base64, raw deflate, then LEB128 columns.
 *
 * Numbers reach 2^53, and a zigzag code 2^54. The decoder therefore takes the sign from the first
 * byte and never forms the zigzag code itself; all sums are exact in a double.
 */

/** Bytes of a base64 text. White space at the ends is allowed. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  const trimmed = text.trim();
  const native = (Uint8Array as unknown as {
    fromBase64?: (text: string) => Uint8Array<ArrayBuffer>;
  }).fromBase64;
  if (native) return native.call(Uint8Array, trimmed);
  const binary = atob(trimmed);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Inflates raw deflate. Rejects on damaged input. */
export async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The columns of the `columns` blob. Decoding a column costs time linear in its length. */
export class Columns {
  /** Offset of the count of each column found so far; the last one is of the next column. */
  readonly #offsets: number[] = [0];
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** Values of a column. Each call decodes anew. Throws if the blob has no such column. */
  decode(column: number): Float64Array {
    const cursor = { offset: this.#offsetOf(column) };
    const count = this.#readCount(cursor);
    const values = new Float64Array(count);
    const end = decodeDifferences(this.#bytes, cursor.offset, values);
    this.#offsets[column + 1] = end;
    return values;
  }

  #offsetOf(column: number): number {
    if (!Number.isInteger(column) || column < 0) throw new Error(`no column ${column}`);
    while (this.#offsets.length <= column) {
      const cursor = { offset: this.#offsets[this.#offsets.length - 1] };
      const count = this.#readCount(cursor);
      this.#offsets.push(this.#skipNumbers(cursor.offset, count));
    }
    return this.#offsets[column];
  }

  #readCount(cursor: { offset: number }): number {
    let value = 0;
    let scale = 1;
    for (;;) {
      if (cursor.offset >= this.#bytes.length) throw new Error("the columns end early");
      const byte = this.#bytes[cursor.offset++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 128;
    }
  }

  /** Offset behind `count` numbers, which end at bytes below 0x80. */
  #skipNumbers(start: number, count: number): number {
    const bytes = this.#bytes;
    let offset = start;
    for (let left = count; left > 0; offset++) {
      if (offset >= bytes.length) throw new Error("the columns end early");
      if (bytes[offset] < 0x80) left--;
    }
    return offset;
  }
}

/** Adds up zigzag LEB128 differences from `start` on, until `values` is full; returns the end. */
function decodeDifferences(bytes: Uint8Array, start: number, values: Float64Array): number {
  let offset = start;
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    let byte = bytes[offset++];
    const isNegative = (byte & 1) === 1;
    let magnitude = (byte & 0x7f) >> 1;
    let scale = 64;
    while (byte >= 0x80) {
      byte = bytes[offset++];
      magnitude += (byte & 0x7f) * scale;
      scale *= 128;
    }
    sum += isNegative ? -magnitude - 1 : magnitude;
    values[i] = sum;
  }
  if (offset > bytes.length) throw new Error("the columns end early");
  return offset;
}
