/** Paths of source files, which may be those of Windows: `C:\x\train.py`, `x\train.py`. */

/** The path with `/` between its components; positions stay the same. */
export function withSlashes(path: string): string {
  return /^[/<]/.test(path) ? path : path.replaceAll("\\", "/");
}

/** The last component. */
export function fileName(path: string): string {
  return path.slice(withSlashes(path).lastIndexOf("/") + 1);
}
