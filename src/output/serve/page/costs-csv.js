// The rows of a report as CSV (RFC 4180), with the exact numbers of the answer.

import { HOUR, fixed, nano, shownName } from "./format.js";

/** In billionths of a gram. */
const KILOGRAM = 1000000000000n;

/** Spreadsheets read a text that begins like a formula as one. The lone dash of usage without a label is none. */
function safe(text) {
  const shown = shownName(text);
  return /^[=+\-@]/.test(shown) && shown !== "-" ? `'${shown}` : shown;
}

const quoted = (field) => (/[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field);

const HOURS = ["held", "within", "lent", "idle", "unmeasured", "unavailable", "used", "beyond", "outside", "unheld", "charged", "unpriced"];

function record(row, answer, properties) {
  const names = row.values?.length === properties.length ? row.values : [row.name, ...properties.slice(1).map(() => "")];
  const { period } = answer;
  return [
    period.from, period.to, period.time_zone,
    ...names.map(safe),
    ...(answer.groups.includes("workload") ? [safe(row.title ?? "")] : []),
    safe(row.cost_center ?? ""),
    ...HOURS.map((name) => fixed(row[`${name}_ns`], HOUR, 4)),
    row.energy_uj === null ? "" : fixed(row.energy_uj, HOUR, 4),
    row.money ?? "", row.spread ?? "", answer.currency ?? "",
    row.co2e_grams === null ? "" : fixed(nano(row.co2e_grams), KILOGRAM, 4),
    String(answer.source.simulated),
  ];
}

/** One line per row, and none of totals: it is for adding up. */
export function csv(answer) {
  const heads = ["from", "to", "time_zone", ...answer.groups, ...(answer.groups.includes("workload") ? ["title"] : []), "cost_center", ...HOURS.map((name) => `${name}_hours`), "energy_kwh", "amount", "spread", "currency", "co2e_kg", "simulated"];
  const rest = answer.rest ? [{ ...answer.rest, values: [] }] : [];
  const lines = [...answer.rows, ...rest].map((row) => record(row, answer, answer.groups));
  return [heads, ...lines].map((line) => `${line.map(quoted).join(",")}\r\n`).join("");
}

/** Saves a text as a file of the reader. */
export function save(text, name, kind) {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
