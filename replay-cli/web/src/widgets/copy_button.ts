/** A button that copies a text. */

import { h, on } from "./dom.js";

const NOTICE_MS = 2000;

/** `onRefused` is called if the browser does not allow it, so that the text can be selected. */
export function copyButton(
  label: string,
  text: () => string,
  onRefused: () => void = () => {},
): HTMLButtonElement {
  const button = h("button", {}, label);
  on(button, "click", async () => {
    const isCopied = await copy(text());
    if (!isCopied) onRefused();
    button.textContent = isCopied ? "Copied" : "Not allowed; select the text";
    setTimeout(() => (button.textContent = label), NOTICE_MS);
  });
  return button;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages in frames, as in notebooks, may not use the clipboard's interface.
    return copyAsUser(text);
  }
}

/** Copies as the user does, from a text field. */
function copyAsUser(text: string): boolean {
  const focused = document.activeElement;
  const field = h("textarea", { class: "visually-hidden" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
