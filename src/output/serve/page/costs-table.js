// The rows of a report as a table, with a total to which every column adds up.

import { h, setAttribute, setText } from "./dom.js";
import { DASH, cents, grouped, printable, shownName, tenantName } from "./format.js";
import { createTable } from "./tables.js";
import { narrowed, pageLink, propertyName } from "./query.js";

/** Paper has room for so many columns. */
const ON_PAPER = 8;

export const amountOf = (row, currency) => `${grouped(row.shown.amount)} ${currency}`;

/** A value of a property for people; "-" is of usage that has none. */
export const valueName = (value, property) => (value === "-" && property !== "tenant" ? `without ${propertyName(property)}` : shownName(tenantName(value)));

/** What a row is called. */
export function rowName(row, groups) {
  const name = (value, place) => (groups[place] === "workload" && row.title ? shownName(row.title) : valueName(value, groups[place]));
  return row.values?.length ? row.values.map(name).join(" · ") : shownName(row.name);
}

const known = (value) => value !== null && value !== undefined;

/** How much more than before, in words; nothing where one of both is not known. */
export function change(now, before) {
  if (!known(now) || !known(before)) return "";
  if (!Number(before)) return Number(now) ? "new" : "";
  const share = (100 * (Number(now) - Number(before))) / Math.abs(Number(before));
  const digits = Math.abs(share).toFixed(Math.abs(share) < 10 ? 1 : 0);
  if (!Number(digits)) return "±0 %";
  return `${share > 0 ? "+" : "−"}${digits} %`;
}

/** What is compared of a row: its amount or its held time, now and before. A row that was not there before had none. */
function compared(row, isPriced) {
  const name = isPriced ? "amount" : "held";
  return [row.shown[name], row.before ? row.before[name] : row.remainder ? null : "0.00"];
}
const changeOf = (row, isPriced) => change(...compared(row, isPriced));
function changeValue(row, isPriced) {
  const [now, before] = compared(row, isPriced);
  return known(now) && Number(before) ? Number(now) / Number(before) : null;
}

export const percentText = (share) => (known(share) ? `${grouped((100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0))} %` : DASH);
export const budgetText = ({ budget }) => `${percentText(budget.used)} of ${cents(budget.amount)}`;

const numeric = (name, value, text, more = {}) => ({ name, value, text: (row) => (value(row) === null ? DASH : text(row)), isNumber: true, ...more });
const time = (name, heading, title, more = {}) => numeric(heading, (row) => Number(row[`${name}_ns`]), (row) => grouped(row.shown[name]), { title, ...more });
const isEmpty = (value) => (rows) => rows.every((row) => !known(value(row)));

const PARTS = [
  ["within", "held, and used by its holder"],
  ["lent", "held, not used by its holder, and used by others"],
  ["beyond", "used above the user's own share of the GPU"],
  ["outside", "used on a GPU that only others held"],
  ["unmeasured", "held while it could not be measured whether the GPU was used"],
  ["unavailable", "held while the GPU was lost or failed"],
];

/** The columns of an answer. Each has a name of its own for the address, `id`. */
function columnsOf(answer, query) {
  const isPriced = answer.currency !== null;
  const budget = (row) => row.budget?.used ?? null;
  const center = (row) => row.cost_center ?? null;
  const columns = [
    { id: "name", name: answer.groups.map(propertyName).join(", "), value: (row) => rowName(row, answer.groups), isHead: true, kind: "name", fill: (cell, row) => fillName(cell, row, answer.groups, query) },
    numeric(answer.currency, (row) => (row.money === null ? null : Number(row.money)), (row) => grouped(row.shown.amount), { id: "amount", kind: "amount", title: "time x rate, and energy x price where energy has one", isHidden: () => !isPriced }),
    numeric("spread", (row) => (row.spread === null ? null : Number(row.spread)), (row) => grouped(row.shown.spread), { id: "spread", title: "share of the time that nobody held", isHidden: isEmpty((row) => row.spread) }),
    numeric("idle", (row) => (row.shown.idle_share === null ? null : Number(row.shown.idle_share)), (row) => `${row.shown.idle_share} %`, { id: "idle", title: "part of the held time in which nobody used the GPU; use of others’ shares is in hours used, not here" }),
    numeric("budget", budget, budgetText, { id: "budget", title: "what is spent of the budget", isHidden: isEmpty(budget), fill: fillBudget }),
    numeric("change", (row) => changeValue(row, isPriced), (row) => changeOf(row, isPriced), { id: "change", kind: "screen", title: "against the period before", text: (row) => changeOf(row, isPriced) || DASH, isHidden: () => !answer.before || answer.groups.includes("day") }),
    { id: "center", name: "cost center", value: center, kind: "screen", text: (row) => center(row) ?? "", isHidden: (rows) => answer.groups.includes("attribute:cost_center") || isEmpty(center)(rows), fill: (cell, row) => fillCenter(cell, row, query) },
    time("held", "GPU-hours held", "GPU time that was granted", { id: "held" }),
    time("used", "hours used", "GPU time that processes kept busy, held or not", { id: "used" }),
    numeric("kWh", (row) => (row.energy_uj === null ? null : Number(row.energy_uj)), (row) => grouped(row.shown.kwh), { id: "kwh", title: "energy; a dash where it is not measured", isHidden: isEmpty((row) => row.energy_uj) }),
    numeric("kg CO₂e", (row) => (row.shown.co2e_kg === null ? null : Number(row.shown.co2e_kg)), (row) => grouped(row.shown.co2e_kg), { id: "co2e", title: "kWh x grams of CO₂e per kWh", isHidden: isEmpty((row) => row.shown.co2e_kg) }),
  ];
  const parts = PARTS.map(([name, title]) => time(name, name, title, { id: name, kind: "screen", isHidden: () => !query.more }));
  return [...columns, ...parts];
}

function fillName(cell, row, groups, query) {
  const name = rowName(row, groups);
  const link = h("a", { class: "row-name", title: printable(row.name) === name ? undefined : printable(row.name) }, name);
  const parts = [link];
  if (row.filter) {
    link.href = pageLink({ ...query, open: row.name, inside: "" });
    parts.push(h("a", { class: "button only screen", href: pageLink(narrowed(query, row.filter)), "aria-label": `Only ${name}` }, "only"));
  }
  if (row.cost_center) parts.push(h("small", { class: "paper" }, shownName(row.cost_center)));
  cell.replaceChildren(...parts);
}

function fillCenter(cell, row, query) {
  if (!row.cost_center) return cell.replaceChildren();
  const link = pageLink(narrowed(query, { "attribute:cost_center": row.cost_center }));
  cell.replaceChildren(h("a", { class: "chip", href: link, title: "Only this cost center" }, shownName(row.cost_center)));
}

function fillBudget(cell, row) {
  if (!row.budget) return setText(cell, "");
  const bar = h("i", { class: "bar-of", "aria-hidden": "true" });
  bar.style.width = `${Math.max(0, Math.min(100, 100 * row.budget.used))}%`;
  cell.replaceChildren(h("span", { class: row.budget.used > 1 ? "over" : undefined }, budgetText(row)), bar);
}

/** `-amount` in the address: by amount, greatest first. */
function orderOf(columns, sort, isPriced) {
  const wanted = sort || (isPriced ? "-amount" : "-held");
  const place = columns.findIndex((column) => column.id === wanted.replace(/^-/, ""));
  return place < 0 ? [0, 1] : [place, wanted.startsWith("-") ? -1 : 1];
}

/** Marks which of the shown columns are left out on paper: those on request, then the last ones. */
function fitPaper(table, columns) {
  const shown = columns.map((column, place) => ({ column, place })).filter(({ column }) => !column.hidden && column.kind !== "screen");
  for (const { place } of shown.slice(ON_PAPER)) {
    for (const row of table.rows) row.cells[place]?.classList.add("screen");
  }
}

/** Shows the rows of an answer; `sorted(sort)` is told how the reader sorts them. */
export function showRows(parent, answer, query, sorted) {
  const columns = columnsOf(answer, query);
  const isPriced = answer.currency !== null;
  const rest = answer.rest && { ...answer.rest, values: [] };
  const total = { ...answer.total, filter: null, before: answer.before?.total.shown };
  parent.replaceChildren();
  const show = createTable(parent, {
    columns,
    caption: `What each ${answer.groups.map(propertyName).join(" and ")} held, used and costs`,
    key: (row) => (row === rest ? "rest" : `row ${row.name}`),
    order: orderOf(columns, query.sort, isPriced),
    empty: "Nothing is recorded for this period and these filters.",
    pinned: (row) => (row === rest ? 2 : row.remainder ? 1 : 0),
    rowClass: (row) => (row.remainder || row === rest ? "remainder" : ""),
    first: Infinity,
    onSort([place, direction]) {
      query.sort = `${direction < 0 ? "-" : ""}${columns[place].id}`;
      sorted(query.sort);
    },
  });
  const rows = rest ? [...answer.rows, rest] : answer.rows;
  show(rows, rows.length ? total : undefined);
  const table = parent.querySelector("table");
  setAttribute(table, "class", "costs");
  fitPaper(table, columns);
}
