// Tables that are sorted by a click on a column and filtered by the page's filter.

import { h, keyed, setAttribute, setText } from "./dom.js";

/** Rows that are shown at first; the rest on request. */
const FIRST_ROWS = 10;

/**
 * A table of these columns: `{ name, value(row), text(row), link(row), isNumber, title, isHidden(rows), kind }`; `fill(cell, row)`
 * in place of a text makes what a cell has, and `kind` is a class of all its cells. `caption` is for screen readers.
 */
export function createTable(parent, { columns, caption, key, order, empty, rowClass, pinned, first = FIRST_ROWS, onSort }) {
  const state = { order, rows: [], limit: first };
  const classes = (column) => [column.isNumber ? "number" : "", column.kind ?? ""].filter(Boolean).join(" ") || undefined;
  const heads = columns.map((column, place) => {
    const button = h("button", { type: "button" }, column.name);
    const head = h("th", { scope: "col", class: classes(column), title: column.title }, button);
    button.addEventListener("click", () => {
      const [current, direction] = state.order;
      state.order = [place, current === place ? -direction : column.isNumber ? -1 : 1];
      onSort?.(state.order);
      show();
    });
    return head;
  });
  const body = h("tbody");
  const foot = h("tfoot");
  const table = h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...heads)), body, foot);
  const note = h("p", { class: "note" });
  const more = h("button", { type: "button", class: "more", hidden: true });
  more.addEventListener("click", () => {
    state.limit += 100;
    show();
  });
  parent.append(table, note, more);

  const createRow = (row) => {
    const cells = columns.map((column) => {
      const link = column.link ? h("a") : undefined;
      const cell = h(column.isHead ? "th" : "td", { scope: column.isHead ? "row" : undefined, class: classes(column) }, link);
      return { cell, target: link ?? cell };
    });
    const element = h("tr", { class: rowClass?.(row) }, ...cells.map(({ cell }) => cell));
    return {
      element,
      update(row) {
        columns.forEach((column, place) => {
          const { cell, target } = cells[place];
          cell.hidden = column.hidden;
          if (column.fill) return column.fill(cell, row);
          setText(target, column.text(row));
          if (column.link) setAttribute(target, "href", column.link(row));
        });
      },
    };
  };

  function show() {
    const [place, direction] = state.order;
    const value = columns[place].value;
    const compare = (one, other) => {
      const last = pinned ? pinned(one) - pinned(other) : 0;
      const [left, right] = [value(one), value(other)];
      // What is not known comes last, whatever the direction.
      if (last) return last;
      if (left === null || right === null) return (left === null) - (right === null);
      return direction * (typeof left === "string" ? left.localeCompare(right, undefined, { numeric: true }) : left - right);
    };
    const sorted = [...state.rows].sort(compare);
    columns.forEach((column, number) => {
      column.hidden = column.isHidden?.(state.rows) ?? false;
      heads[number].hidden = column.hidden;
      setAttribute(heads[number], "aria-sort", number === place ? (direction > 0 ? "ascending" : "descending") : undefined);
    });
    keyed(body, sorted.slice(0, state.limit), key, createRow);
    keyed(foot, state.total ? [state.total] : [], () => "total", createRow);
    const left = sorted.length - state.limit;
    more.hidden = left <= 0;
    setText(more, `Show ${Math.min(left, 100)} more of ${sorted.length}`);
    setText(note, sorted.length ? "" : empty);
    table.hidden = sorted.length === 0;
  }

  return (rows, total) => {
    state.rows = rows;
    state.total = total;
    show();
  };
}
