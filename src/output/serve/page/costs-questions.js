// Whether workloads would have fitted together, and demand by hour of the week: for readers of everything. The commands gpumeter fit and
// gpumeter demand say more.

import { h, setText } from "./dom.js";
import { DASH, HOUR, bytes, cents, fixed, grouped, percent, printable, shownName } from "./format.js";
import { getJson } from "./fetch.js";

const PATIENCE_MS = 180000;
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const byId = (id) => document.getElementById(id);
const [form, button, note, place] = ["fit", "demand", "answer-note", "answer-table"].map(byId);

async function ask(path, show) {
  const buttons = form.querySelectorAll("button");
  buttons.forEach((one) => (one.disabled = true));
  setText(note, "Looking…");
  try {
    show(await getJson(path, PATIENCE_MS));
  } catch (error) {
    place.hidden = true;
    setText(note, error.message);
  }
  buttons.forEach((one) => (one.disabled = false));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams(byId("fit-workloads").value.split(/\s+/).filter(Boolean).map((name) => ["workload", name]));
  const on = byId("fit-on").value.trim();
  if (on) query.set("on", on);
  ask(`api/v1/fit?${query}`, showFit);
});
button.addEventListener("click", () => ask("api/v1/demand", showDemand));

function table(heads, rows) {
  const head = h("thead", {}, h("tr", {}, ...heads.map((name) => h("th", { scope: "col" }, name))));
  const cells = ([first, ...others]) => h("tr", {}, h("th", { scope: "row" }, first), ...others.map((text) => h("td", { class: "number" }, text)));
  place.replaceChildren(h("table", {}, head, h("tbody", {}, ...rows.map(cells))));
  place.hidden = false;
}

const hours = (time) => `${grouped(fixed(time, HOUR, 1))} h`;

function showFit(fit) {
  const { together, on, currency } = fit;
  const shared = Number(together.shared_ns);
  const said = [`On one ${printable(on.name)}${on.memory_bytes === null ? "" : ` with ${bytes(on.memory_bytes)}`}.`];
  if (shared === 0) said.push("They were never there at one time.");
  else if (Number(together.too_much_ns) === 0) said.push(`In ${hours(together.shared_ns)} together it would never have been too much.`);
  else said.push(`Of ${hours(together.shared_ns)} together it would have been too much for ${hours(together.too_much_ns)} (${percent(Number(together.too_much_ns) / shared)}): too much work for ${hours(together.too_busy_ns)}, too much memory for ${hours(together.too_full_ns)}.`);
  if (fit.apart !== null && fit.joined !== null) said.push(`What they held cost ${cents(fit.apart)} ${printable(currency)} before terms; on one it would have cost ${cents(fit.joined)} ${printable(currency)}.`);
  setText(note, [...said, ...fit.notes.map((text) => `${printable(text)}.`)].join(" "));
  table(
    ["workload", "there", "held", "used", "GPUs busy", "memory peak"],
    fit.workloads.map((one) => [shownName(one.name), hours(one.present_ns), hours(one.held_ns), hours(one.used_ns), one.busy.toFixed(2), one.memory_peak_bytes === null ? DASH : bytes(one.memory_peak_bytes)]),
  );
}

function showDemand(demand) {
  const said = ["GPUs held on average, of which used; in brackets what next week will be like if it is as the last four."];
  if (demand.tested > 0) said.push(`Of ${demand.tested} hours of past weeks ${percent(demand.hits / demand.tested)} were within the range of the four weeks before.`);
  setText(note, [...said, ...demand.notes.map((text) => `${printable(text)}.`)].join(" "));
  const cell = (one) => {
    if (!one.quarters) return DASH;
    const next = one.expected ? ` (${one.expected.mean.toFixed(1)})` : "";
    return `${one.held.mean.toFixed(1)}, ${one.used.mean.toFixed(1)}${next}`;
  };
  const rows = Array.from({ length: 24 }, (_, hour) => [String(hour).padStart(2, "0"), ...DAYS.map((_, day) => cell(demand.hours[day * 24 + hour]))]);
  table(["hour", ...DAYS], rows);
}
