// The costs of a period: asks for the report that the address names, and shows it.

import { copyButton, h, keyed, setAttribute, setText } from "./dom.js";
import { DASH, cents, grouped, printable, shownName } from "./format.js";
import { getJson } from "./fetch.js";
import "./costs-advice.js";
import "./costs-questions.js";
import { csv, save } from "./costs-csv.js";
import { showDetails } from "./costs-details.js";
import { showDays, showHours, tableToggle } from "./costs-plots.js";
import { amountOf, change, percentText, showRows, valueName } from "./costs-table.js";
import { addDays, pageLink, parseQuery, propertyName, serverQuery } from "./query.js";
import { followTheme } from "./theme.js";

/** A report over many nodes and a year takes some seconds. */
const PATIENCE_MS = 60000;
const UNALLOCATED = "__unallocated__";
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const PERIODS = [["this-month", "this month"], ["last-month", "last month"], ["this-quarter", "this quarter"], ["last-quarter", "last quarter"], ["this-year", "this year"], ["last-year", "last year"], ["month", "a month…"], ["days", "from … to …"]];
const OTHER = "…";

const byId = (id) => document.getElementById(id);
/** What is shown: the answer to `query`, or `problem`. */
// `menu` and `isOther`: what the reader has begun to choose.
const state = { query: parseQuery(location.search), asked: null, answer: null, problem: "", isAsking: false, isNew: false, isFollowed: false, isOther: false, menu: "", turn: 0 };

// Asking

/** Shows the report of the address; asks for it if it is another one, or `again`. */
async function load(again) {
  state.query = parseQuery(location.search);
  const asked = serverQuery(state.query);
  if (asked === state.asked && !again) return show();
  const turn = ++state.turn;
  Object.assign(state, { asked, isAsking: true });
  showControls();
  try {
    const answer = await getJson(`api/v1/costs?${asked}`, PATIENCE_MS);
    if (turn === state.turn) Object.assign(state, { answer, problem: "", isNew: true });
  } catch (error) {
    if (turn === state.turn) Object.assign(state, { answer: null, problem: error.message });
  }
  if (turn !== state.turn) return;
  state.isAsking = false;
  show();
}

/** Goes to the report of a query, which the browser can leave by its button. */
function goTo(query) {
  history.pushState(null, "", pageLink(query));
  load();
}
const ask = (changes) => goTo({ ...state.query, open: "", inside: "", ...changes });

addEventListener("popstate", () => load());
// A link to a report is followed without loading the page again.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  state.isFollowed = true;
  load();
});

// Controls

function fillSelect(select, options, value) {
  const key = JSON.stringify(options);
  if (select.known !== key) {
    select.known = key;
    select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
  }
  select.value = value;
}

/** What kind of period a query has, as the menu names it. */
function periodKind(period) {
  if (period === "") return "this-month";
  if (/^\d{4}-\d{2}$/.test(period)) return "month";
  return period.includes("..") ? "days" : period;
}

const isDay = (text) => /^\d{4}-\d{2}-\d{2}$/.test(text);

/** The properties to group by: those of the answer, and what the address asks for. */
const properties = () => [...new Set([...(state.answer?.properties ?? []), state.query.group || "tenant"])];

function showControls() {
  const { query, answer } = state;
  const kind = periodKind(query.period);
  const periods = PERIODS.some(([name]) => name === kind) ? PERIODS : [[kind, kind], ...PERIODS];
  const chosen = state.menu || kind;
  fillSelect(byId("period"), periods, chosen);
  byId("month-label").hidden = chosen !== "month";
  for (const id of ["from-label", "to-label", "show-days"]) byId(id).hidden = chosen !== "days";
  // What the reader is typing stays.
  if (!state.menu) {
    const [first, end] = kind === "days" ? query.period.split("..") : [answer?.period.from.slice(0, 10) ?? "", answer ? lastDayOf(answer.period, 1) : ""];
    byId("month").value = kind === "month" ? query.period : (answer?.period.from.slice(0, 7) ?? "");
    byId("from").value = isDay(first) ? first : "";
    byId("to").value = isDay(end) ? addDays(end, -1) : "";
  }
  fillSelect(byId("group"), [...properties().map((name) => [name, propertyName(name)]), [OTHER, "another property…"]], state.isOther ? OTHER : query.group || "tenant");
  byId("property-label").hidden = !state.isOther;
  byId("spread").checked = query.spread.length > 0;
  // Without prices there is no money to spread, and a reader of some tenants sees no remainder.
  byId("questions").hidden = !answer || answer.partial;
  byId("spread-label").hidden = Boolean(answer) && (answer.currency === null || answer.partial);
  byId("more").checked = Boolean(query.more);
  setText(byId("busy"), state.isAsking ? "asking…" : "");
  setAttribute(byId("report"), "aria-busy", state.isAsking ? "true" : undefined);
  const filters = query.filters.map(([name, value], place) => ({ name, value, place }));
  keyed(byId("filters"), filters, (one) => `${one.place} ${one.name}=${one.value}`, (one) => {
    const text = `${propertyName(one.name)}: ${valueName(one.value, one.name)}`;
    const rest = () => state.query.filters.filter(([name, value]) => name !== one.name || value !== one.value);
    const button = h("button", { type: "button", class: "screen", "aria-label": `Remove the filter ${text}` }, "×");
    button.addEventListener("click", () => {
      ask({ filters: rest() });
      byId("period").focus();
    });
    return { element: h("li", { class: "chip" }, text, button) };
  });
}

byId("period").addEventListener("change", ({ target: { value } }) => {
  state.menu = ["month", "days"].includes(value) ? value : "";
  if (state.menu) showControls();
  else ask({ period: value === "this-month" ? "" : value });
});
byId("month").addEventListener("change", ({ target: { value } }) => {
  if (!/^\d{4}-\d{2}$/.test(value)) return;
  state.menu = "";
  ask({ period: value });
});
byId("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  const [from, to] = [byId("from").value, byId("to").value];
  if ((state.menu || periodKind(state.query.period)) !== "days" || !isDay(from) || !isDay(to)) return;
  state.menu = "";
  ask({ period: `${from}..${addDays(to, 1)}` });
});
byId("group").addEventListener("change", ({ target: { value } }) => {
  state.isOther = value === OTHER;
  if (state.isOther) {
    showControls();
    byId("property").focus();
  } else ask({ group: value === "tenant" ? "" : value, sort: "" });
});
byId("property").addEventListener("change", ({ target: { value } }) => {
  if (!value.trim()) return;
  state.isOther = false;
  ask({ group: value.trim(), sort: "" });
});
byId("spread").addEventListener("change", ({ target: { checked } }) => ask({ spread: checked ? [UNALLOCATED] : [] }));
byId("more").addEventListener("change", ({ target: { checked } }) => ask({ more: checked ? "1" : "" }));
byId("retry").addEventListener("click", () => load(true));

// Showing

/** The last day of a period, which is the day before an end at midnight; `later` days after it. */
function lastDayOf({ to }, later = 0) {
  const day = to.slice(0, 10);
  return addDays(day, (to.slice(11, 16) === "00:00" ? -1 : 0) + later);
}

function periodTitle({ name, from, to }) {
  const month = /^(\d{4})-(\d{2})$/.exec(name);
  const quarter = /^(\d{4})-(Q\d)$/.exec(name);
  if (quarter) return `${quarter[2]} ${quarter[1]}`;
  if (/^\d{4}$/.test(name)) return name;
  if (month) return `${MONTHS[Number(month[2]) - 1]} ${month[1]}`;
  const days = [from.slice(0, 10), lastDayOf({ to })];
  return days[0] === days[1] ? days[0] : `${days[0]} to ${days[1]}`;
}

const timeOf = (text) => `${text.slice(0, 10)} ${text.slice(11, 16)}`;

/** What says that a period is not all there, or not sure. */
const INCOMPLETE = ["missing_node", "open_days", "unreadable_file", "conflict", "changed_day"];

function completeness({ source, period, partial, notices }) {
  if (period.open || partial || notices.some((one) => INCOMPLETE.includes(one.kind))) return "";
  return source.kind === "fleet" ? `; complete: the exports of the ${source.nodes} nodes here begin before it, have no gap and reach its end` : "; complete: the account of each GPU covers it";
}

function showHead(answer) {
  const { source, period } = answer;
  const clusters = (source.clusters ?? []).map(printable).join(", ");
  const nodes = source.kind === "fleet" ? `${source.nodes} ${source.nodes === 1 ? "node" : "nodes"}` : shownName(source.node ?? "");
  setText(byId("node"), [nodes, clusters].filter(Boolean).join(" · "));
  byId("live").hidden = source.kind === "fleet";
  document.querySelector(".of-agent").hidden = source.kind === "fleet";
  const by = answer.groups.map(propertyName).join(" and ");
  setText(byId("title"), `${periodTitle(period)} by ${by}`);
  document.title = `${periodTitle(period)} by ${by} – gpumeter costs`;
  const end = period.asked_to ? `; the period ends ${timeOf(period.asked_to)}` : "";
  setText(byId("when"), `${timeOf(period.from)} to ${timeOf(period.to)}, ${period.time_zone}, ${grouped(String(Math.round(period.hours)))} hours${period.open ? `; still open${end}` : completeness(answer)}`);
  setText(byId("made"), answer.version ? `gpumeter ${answer.version}` : "gpumeter");
  setText(byId("rows-title"), `By ${by}`);
  const marks = [];
  if (source.simulated) marks.push({ text: "SIMULATED: every number is made up", kind: "info" });
  if (answer.partial) marks.push({ text: "PARTIAL: only what you may see", kind: "info" });
  if (period.open) marks.push({ text: "OPEN: amounts still grow", kind: "degraded" });
  showMarks(marks);
  keyed(byId("notices"), answer.notices, (one) => `${one.kind} ${one.text}`, (one) => ({ element: h("li", { class: one.kind === "partial" || one.kind === "example_prices" ? "info" : "" }, printable(one.text)) }));
}

function showMarks(marks) {
  keyed(byId("marks"), marks, (mark) => mark.text, (mark) => ({ element: h("li", { class: `badge ${mark.kind}` }, mark.text) }));
}

const card = (name, text, notes, kind = "") => ({ name, text, notes: notes.filter(Boolean), kind });

function comparison(answer) {
  if (!answer.before) return "";
  const { period, total } = answer.before;
  const isPriced = answer.currency !== null && total.shown.amount !== null;
  const [now, before] = isPriced ? [answer.total.shown.amount, total.shown.amount] : [answer.total.shown.held, total.shown.held];
  const difference = change(now, before);
  const was = isPriced ? amountOf(total, answer.currency) : `${grouped(total.shown.held)} GPU-hours`;
  const hours = answer.period.open ? `the same ${grouped(String(Math.round(period.hours)))} hours of ` : "";
  return `${difference || DASH} against ${hours}${periodTitle(period)}: ${was}`;
}

function cards(answer) {
  const { total, rows, shares, currency, budget, projection } = answer;
  const nobody = rows.find((row) => row.name === UNALLOCATED);
  const hours = `${grouped(total.shown.held)} GPU-hours${nobody ? `, ${grouped(nobody.shown.held)} of them held by nobody` : ""}`;
  const all = [currency === null ? card("Total", hours, [comparison(answer), "There are no prices."]) : card("Total", amountOf(total, currency), [comparison(answer), hours])];
  const share = (name, value, sentence, kind) => {
    if (value !== null && value !== undefined) all.push(card(name, percentText(value), [sentence], kind));
  };
  share("Idle", shares.idle, "of the time that tenants held, nobody used the GPU.", shares.idle >= 0.3 ? "cost" : "");
  const ofNobody = nobody && currency !== null ? ` It is ${amountOf(nobody, currency)} of the total.` : "";
  share("Unallocated", shares.unallocated, `of all GPU time, nobody held the GPU.${ofNobody}`);
  share("Unavailable", shares.unavailable, "of all GPU time, the GPU was lost or failed.");
  if (budget && currency !== null) all.push(card("Budget used", percentText(budget.used), [`of ${cents(budget.amount)} ${currency}, by the tenants that have a budget`], budget.used > 1 ? "failed" : ""));
  if (projection && currency !== null) all.push(card("At the end", `${cents(projection.amount)} ${currency}`, [`between ${cents(projection.lowest)} and ${cents(projection.highest)}, if the rest is like the last four weeks`]));
  return all;
}

function showTotals(answer) {
  keyed(byId("totals"), cards(answer), (one) => one.name, (one) => {
    const [text, notes] = [h("b"), h("dd")];
    const element = h("div", {}, h("dt", {}, one.name), notes);
    return {
      element,
      update(one) {
        setText(text, one.text);
        notes.replaceChildren(text, ...one.notes.map((note) => h("small", {}, note)));
        setAttribute(element, "class", one.kind);
      },
    };
  });
  const { statement, currency } = answer;
  byId("statement").hidden = !statement;
  if (statement) setText(byId("statement"), `Statement ${statement.number}: ${cents(statement.amount)} ${currency}; the files now make ${cents(statement.now)} ${currency}, difference ${cents(statement.difference)} ${currency}.`);
}

function showReport(answer) {
  const { query } = state;
  showHead(answer);
  showTotals(answer);
  const remarks = [
    query.more ? "Within, lent, idle, unmeasured and unavailable are parts of what is held; beyond and outside are parts of what is used." : "",
    answer.rest ? "The last row is all others together." : "",
  ];
  setText(byId("remarks"), remarks.filter(Boolean).map((text) => ` ${text}`).join(""));
  showRows(byId("rows"), answer, query, (sort) => {
    state.query.sort = sort;
    history.replaceState(null, "", pageLink(state.query));
  });
  setText(byId("days-title"), answer.currency === null ? "GPU-hours held each day" : `${answer.currency} each day`);
  byId("days").hidden = !showDays({ plot: byId("days-plot"), table: byId("days-table") }, answer, query);
  byId("hours").hidden = !showHours({ plot: byId("hours-plot"), table: byId("hours-table") }, answer);
  byId("json").href = `api/v1/costs?${serverQuery(query)}`;
  byId("json").download = `${fileName(answer)}.json`;
  for (const [id, text] of [["command", answer.command], ["focus-command", answer.focus_command]]) {
    byId(id).hidden = !text;
    setText(byId(id).querySelector("code"), text ?? "");
  }
}

const fileName = ({ period, groups }) => `costs-${period.from.slice(0, 10)}-${lastDayOf(period)}-${groups.join("-").replace(/[^\w-]/g, "_").slice(0, 60)}`;

function show() {
  const { answer, problem } = state;
  showControls();
  byId("problem").hidden = !problem;
  setText(byId("problem-text"), problem);
  byId("report").hidden = !answer;
  if (answer && (state.isNew || state.shownMore !== state.query.more)) {
    Object.assign(state, { isNew: false, shownMore: state.query.more });
    showReport(answer);
    // The link that was followed may be gone.
    if (state.isFollowed && document.activeElement === document.body) byId("report").focus({ preventScroll: true });
    state.isFollowed = false;
  }
  if (!answer) showMarks([]);
  showDetails(answer, state.query, goTo);
}

tableToggle(byId("days-as-table"), byId("days-plot"), byId("days-table"));
tableToggle(byId("hours-as-table"), byId("hours-plot"), byId("hours-table"));
byId("csv").addEventListener("click", () => save(csv(state.answer), `${fileName(state.answer)}.csv`, "text/csv"));
byId("print").addEventListener("click", () => print());
const canonical = document.querySelector("link[rel=canonical]")?.href;
const link = copyButton(() => (canonical ? canonical + location.search : location.href), "Copy link");
link.id = "copy-link";
byId("copy-link").replaceWith(link);
for (const id of ["command", "focus-command"]) byId(id).append(copyButton(() => byId(id).querySelector("code").textContent));
followTheme(byId("theme"));
load();
