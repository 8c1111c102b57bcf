/** A table that is sorted by a click on a column's heading, and shows more rows on request. */

import { append, fill, h, on } from "./dom.js";

export interface TableColumn<Row> {
  key: string;
  title: string;
  /** Explains the column, in the heading's tooltip. */
  hint?: string;
  /** What rows are sorted by; null comes last. */
  value(row: Row): number | string | null;
  /** What the cell shows. */
  cell(row: Row): Node | string;
  isNumber?: boolean;
}

export interface TableOptions<Row> {
  caption: string;
  columns: TableColumn<Row>[];
  /** Rows that are shown before the button "show more". */
  limit: number;
  sortKey: string;
  onSort?(key: string): void;
  onRow?(row: Row): void;
  isSelected?(row: Row): boolean;
}

export interface SortedTable<Row> {
  element: HTMLElement;
  /** Replaces rows, and columns if they are given. */
  update(rows: Row[], columns?: TableColumn<Row>[]): void;
  /** All rows in the present order. */
  sorted(): Row[];
}

export function createTable<Row>(options: TableOptions<Row>): SortedTable<Row> {
  let columns = options.columns;
  let rows: Row[] = [];
  let key = options.sortKey;
  let isAscending: boolean | null = null;
  let limit = options.limit;
  const head = h("thead");
  const body = h("tbody");
  const more = h("button", "more");
  on(more, "click", () => {
    limit *= 10;
    draw();
  });
  const table = h("table", "sorted", caption(options.caption), head, body);
  const element = h("div", "table-frame", table, more);
  on(element, "keydown", moveFocus);

  function sortBy(name: string): void {
    isAscending = key === name ? !isAscending : null;
    key = name;
    options.onSort?.(name);
    sort();
    draw();
  }

  function sort(): void {
    const column = columns.find((each) => each.key === key) ?? columns[0];
    // Text begins with A, numbers with the largest.
    isAscending ??= !column.isNumber;
    const sign = isAscending ? 1 : -1;
    rows = rows
      .map((row) => ({ row, value: column.value(row) }))
      .sort((a, b) => compare(a.value, b.value, sign))
      .map(({ row }) => row);
  }

  function drawHead(): void {
    const cells = columns.map((column) => {
      const button = h("button", { title: column.hint ?? null }, column.title);
      on(button, "click", () => sortBy(column.key));
      const order = column.key === key ? (isAscending ? "ascending" : "descending") : null;
      return h(
        "th",
        { scope: "col", class: column.isNumber ? "number" : null, "aria-sort": order },
        button,
      );
    });
    fill(head, h("tr", {}, ...cells));
  }

  function draw(): void {
    const focused = head.contains(document.activeElement)
      ? [...head.querySelectorAll("button")].indexOf(document.activeElement as HTMLButtonElement)
      : -1;
    drawHead();
    if (focused >= 0) head.querySelectorAll("button")[focused]?.focus();
    const shown = rows.slice(0, limit);
    const focusedRow = [...body.children].findIndex((row) => row === document.activeElement);
    fill(body, ...shown.map(drawRow));
    if (focusedRow >= 0) (body.children[focusedRow] as HTMLElement | undefined)?.focus();
    more.hidden = rows.length <= limit;
    more.textContent = `Show more of ${rows.length - shown.length} other rows`;
  }

  function drawRow(row: Row): HTMLElement {
    const element = h("tr");
    for (const column of columns) {
      const cell = h("td", { class: column.isNumber ? "number" : null });
      append(cell, [column.cell(row)]);
      element.append(cell);
    }
    if (options.isSelected?.(row)) element.setAttribute("aria-current", "true");
    if (options.onRow) {
      element.tabIndex = 0;
      on(element, "click", () => options.onRow?.(row));
      on(element, "keydown", (event) => {
        if (event.key === "Enter" && event.target === element) options.onRow?.(row);
      });
    }
    return element;
  }

  /** Arrow keys go to the previous or next row. */
  function moveFocus(event: KeyboardEvent): void {
    const row = (event.target as HTMLElement).closest("tr");
    const next = event.key === "ArrowDown" ? row?.nextElementSibling
      : event.key === "ArrowUp" ? row?.previousElementSibling : null;
    if (next instanceof HTMLElement && next.tabIndex === 0) {
      event.preventDefault();
      next.focus();
    }
  }

  return {
    element,
    update(newRows, newColumns) {
      if (newColumns) columns = newColumns;
      if (!columns.some((column) => column.key === key)) key = columns[columns.length - 1].key;
      rows = newRows;
      sort();
      draw();
    },
    sorted: () => rows,
  };
}

function caption(text: string): HTMLElement {
  return h("caption", "visually-hidden", text);
}

function compare(a: number | string | null, b: number | string | null, sign: number): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * (String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
}
