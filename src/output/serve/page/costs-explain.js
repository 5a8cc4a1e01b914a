// Why lines of a bill are what they are, in sentences.

import { h } from "./dom.js";
import { HOUR, fixed, grouped, nano, printable, shownName, tenantName } from "./format.js";
import { getJson } from "./fetch.js";

/** So many lines are explained; `gpumeter explain` has all. */
const MOST_LINES = 20;
const SECOND = 1000000000n;
const UNITS = { gpu_hour: "GPU-hour", instance_hour: "instance-hour", kwh: "kWh" };

/** By these, lines are explained one by one; by other properties only as a whole. */
const OF_LINES = ["tenant", "workload", "gpu"];

/** An element with what the lines that a query selects are made of, and each of them if they are few, or with what hinders it. */
export async function explain({ period, filters }, answer, patience) {
  const { from, to, time_zone: zone } = answer.period;
  // A day within the period of the answer.
  const [first, end] = period.includes("..") ? period.split("..") : [from, to];
  const parameters = [["from", first], ["to", end], ["time_zone", zone], ...filters];
  const query = parameters.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("&");
  try {
    const whole = await getJson(`api/v1/explain/whole?${query}`, patience);
    if (!whole.total.lines) return h("p", { class: "note" }, "No line of the bill is of this.");
    const names = filters.map(([name]) => name);
    const isOfLines = names.every((name, place) => OF_LINES.includes(name) && names.indexOf(name) === place);
    const lines = isOfLines && whole.total.lines <= MOST_LINES ? [show(await getJson(`api/v1/explain?${query}`, patience))] : [];
    const note = lines.length ? [] : [h("p", { class: "note" }, "Open a workload or a GPU to read who held it, from when to when, and by which rule it is a tenant's.")];
    return h("div", {}, h("div", { class: "explanation" }, ...wholeArticles(whole)), ...lines, ...note);
  } catch (error) {
    return h("div", {}, h("p", { role: "alert" }, error.message));
  }
}

/** How the time was held, and time x rate for everything that was priced alike. */
function wholeArticles(whole) {
  const { bill, total, priced, inside, remainders } = whole;
  const meanings = Object.entries(remainders).map(([name, meaning]) => `${shownName(tenantName(name))}: ${printable(meaning)}.`);
  const currency = bill.currency;
  const named = inside.map(({ property, rows, others }) => {
    const names = rows.map((row) => `${shownName(property === "tenant" ? tenantName(row.name) : row.name)} ${row.money === null ? hours(heldOf(row)) : `${trimmed(row.money)} ${currency}`}`);
    return `By ${property}: ${names.join(", ")}${others ? `, and ${others} others` : ""}.`;
  });
  const amount = total.money === null ? [] : [`Together ${trimmed(total.money)} ${currency}, as in the bill.`];
  const parts = priced.slice(0, MOST_LINES).map((part) => article(`${countOf(part)}, ${hours(heldOf(part))}`, [...rateSentences(part, whole), amountSentence(part, bill)].filter(Boolean)));
  return [article(countOf(total), [timesOf(total), ...meanings, ...named, ...amount]), ...parts];
}

const countOf = ({ lines }) => (lines === 1 ? "One line of the bill" : `${grouped(String(lines))} lines of the bill`);
const PARTS = ["within", "lent", "idle", "unmeasured", "unavailable"];
const heldOf = (sums) => PARTS.reduce((sum, name) => sum + BigInt(sums[`${name}_ns`]), 0n);

function timesOf(sums) {
  const parts = PARTS.map((name) => [name, sums[`${name}_ns`]]).filter(([, time]) => Number(time));
  const of = parts.length ? `: ${parts.map(([name, time]) => `${fixed(time, HOUR, 2)} ${name}`).join(", ")}` : "";
  const used = Number(sums.used_ns) ? `; used ${hours(sums.used_ns)}` : "";
  return `Held ${hours(heldOf(sums))}${of}${used}.`;
}

function show(explanation) {
  const { lines, gpus } = explanation;
  if (!lines.length) return h("p", { class: "note" }, "No line of the bill is of this.");
  const sorted = [...lines].sort((one, other) => Number(other.money ?? 0) - Number(one.money ?? 0) || Number(other.held_ns) - Number(one.held_ns));
  const articles = sorted.slice(0, MOST_LINES).map((line) => article(lineTitle(line), lineSentences(line, explanation)));
  const more = lines.length - articles.length;
  const note = more > 0 ? [h("p", { class: "note" }, `and ${more} more with smaller amounts: gpumeter explain prints all.`)] : [];
  const records = (gpus ?? []).map((gpu) => [gpu, gpuSentences(gpu, explanation)]).filter(([, sentences]) => sentences.length);
  return h("div", { class: "explanation" }, ...articles, ...note, ...records.map(([gpu, sentences]) => article(`GPU ${gpu.gpu} (${gpu.uuid}), ${gpu.model}`, sentences)));
}

const article = (title, sentences) => h("article", {}, h("h4", {}, title), h("ul", {}, ...sentences.map((text) => h("li", {}, text))));

function lineTitle(line) {
  const node = line.node?.name ? ` of ${printable(line.node.name)}` : "";
  const instance = line.gpu_instance === null || line.gpu_instance === undefined ? "" : `, MIG instance ${line.gpu_instance}`;
  return `${shownName(line.holder)} on GPU ${line.gpu}${node}${instance}`;
}

/** A time in the zone of the bill, to the minute. */
function local(at, { bill }) {
  const zone = bill.time_zone;
  try {
    return new Date(at).toLocaleString("sv", { timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit" });
  } catch {
    // A zone that this browser does not know.
    return at;
  }
}

const hours = (nanoseconds) => `${grouped(fixed(nanoseconds, HOUR, 2))} hours`;
const exact = (billionths) => fixed(billionths, 1000000000n, 9);
const seconds = (nanoseconds) => `${grouped(fixed(nanoseconds, SECOND, 9).replace(/\.?0+$/, ""))} s`;
/** Decimal text of money, with as many decimals as it needs, and two at least. */
const trimmed = (amount) => grouped(amount.replace(/(\.\d\d\d*?)0+$/, "$1"));

function lineSentences(line, explanation) {
  const { bill } = explanation;
  return [
    heldSentence(line, explanation),
    ...(line.tenancies ?? []).map((tenancy) => tenantSentence(line, tenancy, explanation)),
    ...rateSentences(line, explanation),
    amountSentence(line, bill),
    usedSentence(line),
  ].filter(Boolean);
}

function heldSentence(line, explanation) {
  const spans = line.spans ?? [];
  const parts = [["idle", line.idle_ns], ["lent", line.lent_ns], ["unmeasured", line.unmeasured_ns], ["unavailable", line.unavailable_ns]].filter(([, time]) => Number(time));
  const of = parts.length ? `, of these ${parts.map(([name, time]) => `${fixed(time, HOUR, 2)} ${name}`).join(", ")}` : "";
  const verb = line.holder.startsWith("__") ? "There were" : "It held the GPU for";
  if (!spans.length) return `${verb} ${hours(line.held_ns)}${of}.`;
  const times = `between ${local(spans[0].from, explanation)} and ${local(spans.at(-1).to, explanation)}`;
  return `${verb} ${hours(line.held_ns)} ${times}, in ${spans.length === 1 ? "one stretch" : `${spans.length} stretches with the same share each`}${of}.`;
}

function tenantSentence(line, { from, to, basis, version }, explanation) {
  const times = `From ${local(from, explanation)} to ${local(to, explanation)} its tenant is ${shownName(tenantName(line.tenant))}`;
  const rules = version ? `, in version ${version.id} of the rules, recorded ${local(version.recorded, explanation)}` : "";
  if (basis.rule) {
    const patterns = Object.entries(basis.rule.match).map(([name, pattern]) => `${printable(name)} is ${shownName(pattern)}`).join(" and ");
    return `${times}: by rule ${basis.rule.number} (${patterns})${rules}.`;
  }
  if (basis.label) return `${times}: no rule matches, so its label ${printable(basis.label)} decides${rules}.`;
  if (basis === "workload") return `${times}: no rule matches, and only the name of the workload is known${rules}.`;
  return `${times}, a reserved name that no rule changes.`;
}

function rateSentences(line, explanation) {
  const { bill } = explanation;
  const rateOf = (id) => bill.rates.find((rate) => id !== null && id !== undefined && String(rate.id) === String(id));
  const sentence = (rate) => {
    const selector = Object.entries(rate.selector ?? {}).map(([name, pattern]) => `${printable(name)} ${shownName(String(pattern))}`).join(", ");
    const since = rate.since ? `, in force since ${local(rate.since, explanation)}` : "";
    const recorded = rate.recorded ? `, recorded ${local(rate.recorded, explanation)}` : "";
    const derivation = rate.derivation ? ` (${printable(rate.derivation)})` : "";
    return `The rate is ${trimmed(rate.price)} ${bill.currency} per ${UNITS[rate.unit] ?? rate.unit}${derivation}, class ${printable(rate.class)}, ${selector ? `for ${selector}` : "for every GPU"}${since}${recorded}.`;
  };
  const rates = [rateOf(line.rate), rateOf(line.energy_rate)].filter((rate) => rate).map(sentence);
  const terms = (bill.terms ?? []).find((one) => line.terms !== null && line.terms !== undefined && String(one.id) === String(line.terms));
  if (terms) rates.push(`Its tenant has terms: ${printable(terms.terms)}${terms.since ? `, since ${local(terms.since, explanation)}` : ""}.`);
  if (Number(line.unpriced_ns ?? 0)) rates.push(`No rate was in force for ${hours(line.unpriced_ns)}, which cost nothing.`);
  return rates;
}

/** Time x rate = amount. */
function amountSentence(line, bill) {
  if (line.money === null || line.money === undefined) return "";
  const rate = bill.rates.find((one) => String(one.id) === String(line.rate));
  const ofEnergy = nano(line.energy_money ?? null);
  const ofTime = exact(nano(line.money) - ofEnergy);
  const currency = bill.currency;
  const terms = line.terms === null || line.terms === undefined ? "" : ", under the terms";
  const slices = rate?.unit === "instance_hour" && line.mig_slices ? ` × ${line.mig_slices[1]} / ${line.mig_slices[0]} slices` : "";
  const time = rate && Number(line.charged_ns) ? `${seconds(line.charged_ns)} × ${trimmed(rate.price)} ${currency} per ${UNITS[rate.unit] ?? rate.unit}${slices}${terms} = ${trimmed(ofTime)} ${currency}` : `It costs ${trimmed(ofTime)} ${currency}`;
  const energy = ofEnergy ? `, and ${trimmed(exact(ofEnergy))} ${currency} for its energy; together ${trimmed(line.money)} ${currency}` : "";
  return `${time}${energy}.`;
}

function usedSentence(line) {
  const used = BigInt(line.used_ns ?? 0);
  if (!used) return "";
  const share = Number((BigInt(line.measured_ns ?? 0) * 1000n) / used) / 10;
  const grade = !line.grade || line.grade === "measured" ? "" : `; the worst grade of any minute is ${line.grade.replaceAll("_", " ")}`;
  return `It used ${hours(used)}, of which ${share} % was measured per process${grade}.`;
}

const EVENTS = { unavailable: "the GPU was lost or failed", unobserved: "no agent watched", unmeasured: "it was held, and its activity could not be known", bridged: "the agent was away, and the holder was the same before and after" };

function gpuSentences(gpu, explanation) {
  const times = (one) => `From ${local(one.from, explanation)} to ${local(one.to, explanation)}`;
  return [
    ...gpu.events.map((event) => `${times(event)}: ${EVENTS[event.kind] ?? event.kind}, ${hours(event.time_ns)}.`),
    ...gpu.remarks.map((remark) => `${times(remark)}: ${printable(remark.text)}.`),
    ...gpu.xids.map((xid) => `XID ${xid.xid} last came ${local(xid.last, explanation)}.`),
  ];
}
