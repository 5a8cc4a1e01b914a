// The dialog of a row: what it is made of, and why it costs that. Each has a link of its own.

import { h, setText } from "./dom.js";
import { DASH, grouped, printable, shownName } from "./format.js";
import { getJson } from "./fetch.js";
import { explain } from "./costs-explain.js";
import { amountOf, budgetText, rowName } from "./costs-table.js";
import { narrowed, pageLink, propertyName, serverQuery } from "./query.js";

const dialog = document.getElementById("details");
const body = document.getElementById("details-body");
const title = document.getElementById("details-title");
const only = document.getElementById("only");

/** What a row may be opened by, and how many of them are listed. */
const INSIDE = ["workload", "gpu", "node", "model", "day"];
const MOST_INSIDE = 20;
const PATIENCE_MS = 60000;

let shown = "";
let leave = () => {};

/** Opens, changes or closes the dialog by the address; `goTo(query)` changes the address. */
export function showDetails(answer, query, goTo) {
  leave = () => goTo({ ...query, open: "", inside: "" });
  const row = query.open && answer?.rows.find((one) => one.name === query.open);
  if (!query.open || !answer) {
    shown = "";
    if (dialog.open) dialog.close();
    return;
  }
  const key = pageLink(query);
  if (shown !== key) {
    shown = key;
    if (row) fill(row, answer, query);
    else {
      setText(title, "This report has no such row");
      only.hidden = true;
      body.replaceChildren(h("p", {}, shownName(query.open)));
    }
  }
  if (!dialog.open) {
    dialog.showModal();
    title.focus();
  }
}

dialog.addEventListener("cancel", (event) => {
  event.preventDefault();
  leave();
});
// A browser may close it without asking.
dialog.addEventListener("close", () => shown && leave());
document.getElementById("close-details").addEventListener("click", () => leave());

function fill(row, answer, query) {
  setText(title, `${answer.groups.map(propertyName).join(", ")}: ${rowName(row, answer.groups)}`);
  only.hidden = !row.filter;
  if (row.filter) only.href = pageLink(narrowed(query, row.filter));
  const facts = factsOf(row, answer).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)));
  const parts = [h("dl", { class: "facts" }, ...facts)];
  if (row.filter) parts.push(inside(row, answer, query), why(narrowed(query, row.filter), answer, "Why does it cost that?"));
  else parts.push(h("p", { class: "note" }, "This row is a sum of several, which no filter selects."));
  body.replaceChildren(...parts);
}

/** What a charged hour cost, without energy; nothing where no time was charged. */
function meanPrice({ money, energy_money, charged_ns }, currency) {
  const hours = Number(charged_ns ?? 0) / 3.6e12;
  return money === null || !hours ? "" : `${((Number(money) - Number(energy_money ?? 0)) / hours).toFixed(4)} ${currency} per GPU-hour`;
}

function factsOf(row, answer) {
  const { currency } = answer;
  const facts = [
    ["Amount", currency === null ? "" : amountOf(row, currency)],
    ["Mean price", currency === null ? "" : meanPrice(row, currency)],
    ["Budget", row.budget ? `${budgetText(row)} ${currency}` : ""],
    ["GPU-hours held", grouped(row.shown.held)],
    ["Idle of it", row.shown.idle_share === null ? "" : `${row.shown.idle_share} %`],
    ["Hours used", grouped(row.shown.used)],
    ["Energy", row.energy_uj === null ? "not measured" : `${grouped(row.shown.kwh)} kWh`],
    ["Emissions", row.shown.co2e_kg === null ? "" : `${grouped(row.shown.co2e_kg)} kg CO₂e`],
    ["Not priced", row.unpriced_ns !== null && Number(row.unpriced_ns) ? `${grouped(row.shown.unpriced)} hours: no price was in force` : ""],
    ["Before", row.before ? [currency === null || row.before.amount === null ? "" : `${grouped(row.before.amount)} ${currency}`, `${grouped(row.before.held)} GPU-hours`].filter(Boolean).join(", ") : ""],
    ...Object.entries(row.attributes ?? {}).map(([name, value]) => [printable(name).replaceAll("_", " "), shownName(String(value))]),
  ];
  return facts.filter(([, text]) => text);
}

/** The row by another property, in a table of its own. */
function inside(row, answer, query) {
  const offered = INSIDE.filter((name) => !answer.groups.includes(name) && (name !== "node" || answer.source.kind === "fleet"));
  const chosen = offered.includes(query.inside) ? query.inside : offered[0];
  const tabs = offered.map((name) => h("a", { class: "button", href: pageLink({ ...query, inside: name }), "aria-current": name === chosen ? "true" : undefined }, `${propertyName(name)}s`));
  const place = h("div", {}, h("p", { class: "note", role: "status" }, "asking…"));
  const asked = { ...narrowed(query, row.filter), group: chosen, top: String(MOST_INSIDE) };
  const key = shown;
  getJson(`api/v1/costs?${serverQuery(asked)}`, PATIENCE_MS).then(
    (found) => key === shown && place.replaceChildren(insideTable(found, asked, query)),
    (error) => key === shown && place.replaceChildren(h("p", { role: "alert" }, error.message)),
  );
  return h("section", { class: "inside" }, h("nav", { class: "bar", "aria-label": "What it is made of" }, h("h3", {}, "What it is made of"), ...tabs), place);
}

function insideTable(found, asked, query) {
  const isPriced = found.currency !== null;
  const heads = [...found.groups.map(propertyName), isPriced ? found.currency : undefined, "GPU-hours held", "idle", "hours used", ""].filter((name) => name !== undefined);
  const whys = h("div");
  const line = (row) => {
    const button = row.filter && h("button", { type: "button", "aria-label": `Why does ${rowName(row, found.groups)} cost that?` }, "why?");
    button?.addEventListener("click", () => {
      const section = why(narrowed(asked, row.filter), found, rowName(row, found.groups));
      whys.replaceChildren(section);
      section.querySelector("button").click();
      section.querySelector("h3").focus();
    });
    const name = row.filter ? h("a", { href: pageLink({ ...narrowed(asked, row.filter), top: query.top }) }, rowName(row, found.groups)) : h("span", {}, rowName(row, found.groups));
    const cells = [isPriced ? grouped(row.shown.amount) : undefined, grouped(row.shown.held), row.shown.idle_share === null ? DASH : `${row.shown.idle_share} %`, grouped(row.shown.used)].filter((text) => text !== undefined);
    return h("tr", { class: row.remainder ? "remainder" : undefined }, h("th", { scope: "row", class: "name" }, name), ...cells.map((text) => h("td", { class: "number" }, text)), h("td", {}, button ?? ""));
  };
  const rest = found.rest ? [{ ...found.rest, filter: null, values: [] }] : [];
  const rows = [...found.rows, ...rest];
  if (!rows.length) return h("p", { class: "note" }, "Nothing.");
  const head = h("tr", {}, ...heads.map((name, place) => h("th", { scope: "col", class: place && name ? "number" : undefined }, name || h("span", { class: "hidden" }, "explanation"))));
  const table = h("table", {}, h("caption", { class: "hidden" }, `By ${found.groups.map(propertyName).join(", ")}`), h("thead", {}, head), h("tbody", {}, ...rows.map(line)));
  return h("div", {}, h("div", { class: "table", role: "region", tabindex: "0", "aria-label": "What it is made of, as a table" }, table), whys);
}

/** A button that asks for the facts behind lines, and shows them in sentences. */
function why(query, answer, heading) {
  const button = h("button", { type: "button" }, "Explain");
  const place = h("div");
  button.addEventListener("click", async () => {
    place.replaceChildren(h("p", { class: "note", role: "status" }, "asking…"));
    place.replaceChildren(await explain(query, answer, PATIENCE_MS));
  });
  return h("section", { class: "why" }, h("div", { class: "bar" }, h("h3", { tabindex: "-1" }, heading), button), place);
}
