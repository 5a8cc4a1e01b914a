// The live page: asks for the summary every two seconds and shows it.

import { copyButton, h, keyed, setAttribute, setText } from "./dom.js";
import { bytes, gpus, kilowatts, money, nano, ofNano, percent, since, tenantName, clock, DASH } from "./format.js";
import { badge, need } from "./problems.js";
import { createProblem, createTile, tenantLink, workloadLink } from "./tiles.js";
import { createTable } from "./tables.js";
import { showDetails } from "./details.js";
import { getJson } from "./fetch.js";
import { followTheme } from "./theme.js";

const SUMMARY_MS = 2000;
const HISTORY_MS = 5000;
const BILL_MS = 300000;
/** Without another snapshot for so long, what is shown is called stale. */
const STALE_MS = 10000;
const FIRST_PROBLEMS = 6;

const byId = (id) => document.getElementById(id);
const state = { summary: null, history: null, money: null, moneyProblem: "", processes: null, changed: performance.now(), problem: "", allProblems: false };
const filter = { text: "", show: "all", sort: "gpu" };

// Asking

async function askSummary() {
  const summary = await getJson("api/v1/summary");
  if (summary.sequence !== state.summary?.sequence || summary.watched_since !== state.summary?.watched_since) state.changed = performance.now();
  state.summary = summary;
}

async function askHistory() {
  state.history = await getJson("api/v1/history");
}

async function askProcesses() {
  if (!byId("processes").hidden) state.processes = await getJson("api/v1/processes");
}

/** Money, and hours held, measured, and not used by their holder, by what the lines have in common. */
function addUp(bill, keysOf) {
  const found = new Map();
  for (const line of bill.lines) {
    for (const key of keysOf(line)) {
      const sums = found.get(key) ?? { nano: 0n, hasMoney: false, held: 0, idle: 0, measured: 0, unused: 0 };
      sums.nano += nano(line.money);
      sums.hasMoney ||= line.money !== null;
      sums.held += line.held_ns / 3.6e12;
      sums.idle += line.idle_ns / 3.6e12;
      sums.measured += (line.held_ns - line.unmeasured_ns - line.unavailable_ns) / 3.6e12;
      sums.unused += (Number(line.lent_ns) + Number(line.idle_ns)) / 3.6e12;
      found.set(key, sums);
    }
  }
  for (const sums of found.values()) sums.money = sums.hasMoney ? ofNano(sums.nano) : null;
  return found;
}

const byTenant = (bill) => addUp(bill, (line) => [line.tenant]);

/** A step of Slurm is part of its job. */
const byWorkload = (bill) =>
  addUp(bill, (line) => {
    const job = /^(slurm:.*\/\d+)\.[^/.]+$/.exec(line.holder);
    return job ? [line.holder, job[1]] : [line.holder];
  });

async function askBills() {
  if (state.summary.node.account === "none") {
    state.money = null;
    state.moneyProblem = "no account is kept";
    return;
  }
  try {
    // An array of bills where prices changed their currency.
    const month = [await getJson("api/v1/bill")].flat();
    // The day in the zone of the bill, by the agent's clock.
    const today = [await getJson(`api/v1/bill?from=${month.at(-1).to_local.slice(0, 10)}`)].flat();
    const sums = (bills, of = byTenant) => (bills.length === 1 ? of(bills[0]) : new Map());
    const gap = month.length === 1 ? "" : ", and empty where prices changed their currency: gpumeter bill has a table for each";
    state.money = { month: sums(month), today: sums(today), workloads: sums(month, byWorkload), zone: month[0].time_zone, gap };
    state.moneyProblem = "";
  } catch (error) {
    state.money = null;
    state.moneyProblem = error.message;
  }
}

/** Asks again and again, except while the page is paused or not visible; `onResult` gets the error, or nothing. */
function repeat(ask, pause, onResult = () => {}) {
  let timer;
  const run = async () => {
    clearTimeout(timer);
    if (byId("pause").getAttribute("aria-pressed") === "false" && !document.hidden) {
      try {
        await ask();
        onResult("");
      } catch (error) {
        onResult(error.message);
      }
      show();
    }
    timer = setTimeout(run, pause);
  };
  document.addEventListener("visibilitychange", () => document.hidden || run());
  run();
  return run;
}

// Showing

const isMatch = (...texts) => filter.text === "" || texts.some((text) => text && String(text).toLowerCase().includes(filter.text));

function isGpuShown(gpu, summary) {
  const people = [...gpu.holders, ...gpu.users].flatMap((one) => [one.title, one.tenant]);
  const profiles = gpu.mig?.instances.map((one) => one.profile) ?? [];
  if (!isMatch(`gpu ${gpu.gpu}`, gpu.uuid, gpu.model, badge(gpu)[0], gpu.limit, ...people, ...profiles)) return false;
  switch (filter.show) {
    case "attention": return need(gpu, summary) > 0;
    case "idle": return gpu.holders.length > 0 && gpu.idle_since !== null;
    case "free": return gpu.holders.length === 0 && gpu.status === "up" && !gpu.withheld;
    default: return true;
  }
}

const ORDERS = {
  gpu: () => 0,
  attention: (gpu) => -need(gpu, state.summary),
  activity: (gpu) => -(gpu.activity ?? -1),
  memory: (gpu) => -(gpu.memory_used ?? -1),
  power: (gpu) => -(gpu.power ?? -1),
  temperature: (gpu) => -(gpu.temperature ?? -1),
};

function showTiles(summary) {
  const histories = new Map((state.history?.gpus ?? []).map((one) => [one.uuid, one]));
  const order = ORDERS[filter.sort];
  const shown = summary.gpus.filter((gpu) => isGpuShown(gpu, summary)).sort((one, other) => order(one) - order(other) || one.gpu - other.gpu);
  const items = shown.map((gpu) => ({ gpu, summary, history: histories.get(gpu.uuid) }));
  keyed(byId("tiles"), items, (item) => item.gpu.uuid, (item) => createTile(item.gpu));
  setText(byId("shown"), shown.length === summary.gpus.length ? "" : `${shown.length} of ${summary.gpus.length} shown`);
}

function total(name, text, note = "", kind = "", title = "") {
  return { name, text, note, kind, title };
}

function showTotals(summary) {
  const { node } = summary;
  const idle = summary.tenants.filter((one) => !one.remainder && one.idle > 0.005).sort((one, other) => other.idle - one.idle);
  const idleGpus = idle.reduce((sum, one) => sum + one.idle, 0);
  const all = summary.gpus.length;
  const account = { ok: "ok", none: "none", wrong: "wrong" }[node.account] ?? node.account;
  const totals = [
    total("GPUs ok", `${node.ok} of ${all}`, "", node.ok < all ? "degraded" : "ok"),
    total("Held", `${gpus(node.held)} of ${all}`, all ? percent(node.held / all) : "", "", `${node.how_held}; ${node.how_held_advice}`),
    total("Used", gpus(node.used), "GPUs\u2019 worth of work"),
    total("Idle while held", idle.length ? gpus(idleGpus) : summary.recent_seconds ? "0" : DASH, idle.length ? `most by ${tenantName(idle[0].tenant)}: ${gpus(idle[0].idle)}` : "", idleGpus >= 0.5 ? "cost" : ""),
    total("Power", kilowatts(node.power), node.power_limit ? `of ${kilowatts(node.power_limit)} allowed` : ""),
  ];
  if (node.currency) totals.push(total("Cost per hour", money(node.held_per_hour, node.currency), `held, of ${money(node.per_hour)} for all GPUs`));
  totals.push(total("Account", account, node.account_reason ?? "", node.account === "ok" ? "ok" : "failed"));
  keyed(byId("totals"), totals, (one) => one.name, (one) => {
    const [text, note] = [h("b"), h("small")];
    const element = h("div", {}, h("dt", {}, one.name), h("dd", {}, text, note));
    return {
      element,
      update(one) {
        setText(text, one.text);
        setText(note, one.note);
        setAttribute(element, "class", one.kind);
        setAttribute(element, "title", one.title);
      },
    };
  });
}

function showMarks(summary) {
  const { node } = summary;
  const marks = [];
  const age = performance.now() - state.changed;
  if (node.simulated) marks.push({ key: "simulated", text: "SIMULATED: every number is made up", kind: "info" });
  if (node.quiesced) marks.push({ key: "quiesced", text: `QUIESCED ${node.quiesced}`, kind: "degraded" });
  if (node.account === "none") marks.push({ key: "account", text: "NO ACCOUNT", kind: "failed" });
  if (summary.partial) marks.push({ key: "partial", text: "PARTIAL: only what you may see", kind: "info" });
  if (state.problem) marks.push({ key: "problem", text: `STALE: ${state.problem}`, kind: "failed" });
  else if (age > STALE_MS && byId("pause").getAttribute("aria-pressed") === "false") marks.push({ key: "stale", text: "STALE: the agent publishes nothing new", kind: "failed" });
  keyed(byId("marks"), marks, (mark) => mark.key, (mark) => {
    const element = h("li", { class: `badge ${mark.kind}` });
    return { element, update: (mark) => setText(element, mark.text) };
  });
}

function showProblems(summary) {
  const all = summary.problems;
  byId("attention").hidden = all.length === 0;
  const shown = state.allProblems ? all : all.slice(0, FIRST_PROBLEMS);
  keyed(byId("problems"), shown, (one) => `${one.gpu} ${one.level} ${one.title}`, (one) => {
    const link = one.gpu ? `#gpu=${one.gpu}` : one.tenant ? tenantLink(one.tenant) : undefined;
    const title = h("a", { href: link }, one.title);
    const { element, update } = createProblem(h("li", { class: one.level }), h("h3", {}, title));
    return { element, update: (one) => update(one, state.summary) };
  });
  byId("more-problems").hidden = all.length <= FIRST_PROBLEMS;
  setText(byId("more-problems"), state.allProblems ? "Show fewer" : `Show ${all.length - FIRST_PROBLEMS} more`);
}

const sumOf = (period, tenant) => state.money?.[period].get(tenant.tenant)?.money ?? null;
/** What is spent of a budget; none without one. */
const spentShare = (row) => (row.spent === null || !Number(row.budget) ? null : Number(row.spent) / Number(row.budget));
const indices = (one) => one.gpus.join(", ");
const numeric = (name, value, text, title) => ({ name, value, text: (row) => (value(row) === null ? DASH : text(value(row), row)), isNumber: true, title });

const showTenants = createTable(byId("tenants"), {
  caption: "Tenants with what they hold, use and pay",
  key: (row) => row.tenant,
  order: [3, -1],
  empty: "No tenant holds or uses a GPU.",
  pinned: (row) => (row.remainder ? 1 : 0),
  rowClass: (row) => (row.remainder ? "remainder" : ""),
  columns: [
    { name: "Tenant", value: (row) => tenantName(row.tenant), text: (row) => tenantName(row.tenant), link: (row) => tenantLink(row.tenant), isHead: true },
    numeric("Held", (row) => (row.remainder ? row.held_recently : row.held), gpus, "GPUs held now, as a sum of shares; of a remainder in the last minutes"),
    numeric("Used", (row) => row.used, gpus, "GPUs kept busy in the last minutes, by the account"),
    numeric("Idle", (row) => row.idle, gpus, "GPUs held and used by nobody in the last minutes, by the account"),
    numeric("Cost/h", (row) => (row.per_hour === null ? null : Number(row.per_hour)), (_, row) => money(row.per_hour), "price of what is held now"),
    { ...numeric("Today", (row) => (sumOf("today", row) === null ? null : Number(sumOf("today", row))), (_, row) => money(sumOf("today", row)), "by the bill"), isHidden: () => !state.money },
    { ...numeric("Month", (row) => (sumOf("month", row) === null ? null : Number(sumOf("month", row))), (_, row) => money(sumOf("month", row)), "by the bill, since the first of the month"), isHidden: () => !state.money },
    { ...numeric("Budget", (row) => spentShare(row), (share, row) => `${percent(share)} of ${money(row.budget)}`, "what is spent of the budget of this month"), isHidden: (rows) => rows.every((row) => row.budget === null) },
    { name: "GPUs", value: (row) => row.gpus[0] ?? null, text: indices },
  ],
});

const billed = (row) => state.money?.workloads.get(row.workload);
const costOf = (row) => billed(row)?.money ?? null;
const efficiencyOf = (row) => {
  const sums = billed(row);
  return sums && sums.measured > 0 ? Math.max(0, (sums.measured - sums.unused) / sums.measured) : null;
};

const showWorkloads = createTable(byId("workloads"), {
  caption: "Workloads that hold or use a GPU",
  key: (row) => row.workload,
  order: [4, -1],
  empty: "No workload holds or uses a GPU.",
  columns: [
    { name: "Workload", value: (row) => row.title, text: (row) => row.title, link: workloadLink, isHead: true },
    { name: "Kind", value: (row) => row.kind, text: (row) => row.kind },
    { name: "Class", value: (row) => row.class, text: (row) => row.class, title: "what it is for, by advice.classes or its kind" },
    { name: "Tenant", value: (row) => tenantName(row.tenant), text: (row) => tenantName(row.tenant), link: (row) => tenantLink(row.tenant) },
    numeric("Held", (row) => row.held, gpus, "GPUs held now, as a sum of shares"),
    numeric("Processes", (row) => row.processes, String),
    numeric("Memory", (row) => row.memory, bytes),
    numeric("Kernels", (row) => row.sm, percent, "share of time in which its kernels ran, summed over its GPUs"),
    { name: "Held since", value: (row) => row.since, text: (row) => since(row.since, state.summary).replace(/^since /, "") },
    numeric("Cost/h", (row) => (row.per_hour === null ? null : Number(row.per_hour)), (_, row) => money(row.per_hour), "price of what is held now"),
    { ...numeric("Efficiency", (row) => efficiencyOf(row), percent, "of what it held and was measured, used by itself: since it began, at most since the first of the month"), isHidden: () => !state.money },
    { ...numeric("So far", (row) => (costOf(row) === null ? null : Number(costOf(row))), (_, row) => money(costOf(row)), "its cost by the bill: since it began, at most since the first of the month"), isHidden: () => !state.money },
    { name: "GPUs", value: (row) => row.gpus[0] ?? null, text: indices },
  ],
});

const showProcesses = createTable(byId("processes"), {
  caption: "The processes with the most GPU memory",
  key: (row) => `${row.gpu}/${row.gpu_instance}/${row.pid}`,
  order: [5, -1],
  empty: "There are no processes.",
  columns: [
    { name: "Process", value: (row) => row.pid, text: (row) => row.pid, isHead: true },
    { name: "Name", value: (row) => row.name, text: (row) => row.name || DASH },
    { name: "GPU", value: (row) => row.gpu, text: (row) => (row.gpu_instance ? `${row.gpu} instance ${row.gpu_instance}` : String(row.gpu)) },
    { name: "Workload", value: (row) => row.title, text: (row) => row.title || "unknown owner", link: (row) => (row.workload ? workloadLink(row) : undefined) },
    { name: "Tenant", value: (row) => tenantName(row.tenant), text: (row) => tenantName(row.tenant), link: (row) => (row.tenant ? tenantLink(row.tenant) : undefined) },
    numeric("Memory", (row) => row.memory, bytes),
    numeric("Kernels", (row) => row.sm, percent, "share of time in which its kernels ran"),
    numeric("Encoder", (row) => row.encoder, percent),
    numeric("Decoder", (row) => row.decoder, percent),
  ],
});

function showTables(summary) {
  const minutes = Math.round(summary.recent_seconds / 60);
  const recent = minutes >= 1 ? `used and idle are means of the last ${minutes} min` : "used and idle follow after the first minutes";
  const bills = state.money ? `today and month by the bill, in ${state.money.zone}${state.money.gap}` : state.moneyProblem && `no bill: ${state.moneyProblem}`;
  const currency = summary.node.currency ? `money in ${summary.node.currency}` : "without prices there is no money";
  setText(byId("tenants-note"), ["In GPUs", recent, currency, bills].filter(Boolean).join("; ") + ".");
  showTenants(summary.tenants.filter((one) => isMatch(one.tenant, tenantName(one.tenant))));
  showWorkloads(summary.workloads.filter((one) => isMatch(one.title, one.tenant, one.workload, one.kind, ...Object.values(one.labels))));
  if (state.processes && !byId("processes").hidden) {
    const { total: count, processes, processes_listed: listed } = state.processes;
    const note = !listed ? "They are being listed." : count > processes.length ? `The ${processes.length} of ${count} with the most memory.` : "";
    byId("processes-note").hidden = !note;
    setText(byId("processes-note"), note);
    showProcesses(processes.filter((one) => isMatch(one.pid, one.name, one.title, one.tenant)));
  }
}

function show() {
  const { summary } = state;
  if (!summary) {
    const mark = state.problem ? [{ key: "problem", text: state.problem }] : [];
    keyed(byId("marks"), mark, (one) => one.key, () => {
      const element = h("li", { class: "badge failed" });
      return { element, update: (one) => setText(element, one.text) };
    });
    return;
  }
  const name = [summary.node.name, summary.node.cluster].filter(Boolean).join(" · ");
  setText(byId("node"), name);
  document.title = `${name || "node"} – gpumeter`;
  setText(byId("clock"), new Date(summary.at).toLocaleTimeString([], { hour12: false }));
  setText(byId("version"), `gpumeter ${summary.version}, watching since ${clock(summary.watched_since, summary.at)}`);
  showMarks(summary);
  showTotals(summary);
  showProblems(summary);
  showTiles(summary);
  showTables(summary);
  showDetails(state);
}

// Controls

function onInput(id, event, set) {
  byId(id).addEventListener(event, () => {
    set(byId(id).value);
    show();
  });
}

onInput("filter", "input", (value) => (filter.text = value.trim().toLowerCase()));
onInput("show", "change", (value) => (filter.show = value));
onInput("sort", "change", (value) => (filter.sort = value));
byId("more-problems").addEventListener("click", () => {
  state.allProblems = !state.allProblems;
  show();
});
addEventListener("hashchange", () => show());
addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("filter").focus();
  }
});

followTheme(byId("theme"));

let asksBills;
async function askFirst() {
  await askSummary();
  asksBills ??= repeat(askBills, BILL_MS);
}
const askAgain = repeat(askFirst, SUMMARY_MS, (problem) => (state.problem = problem));
repeat(askHistory, HISTORY_MS);
const askForProcesses = repeat(askProcesses, SUMMARY_MS);

byId("pause").addEventListener("click", () => {
  const isPaused = byId("pause").getAttribute("aria-pressed") === "false";
  setAttribute(byId("pause"), "aria-pressed", String(isPaused));
  setText(byId("pause"), isPaused ? "Resume" : "Pause");
  if (!isPaused) askAgain();
});
byId("open-processes").addEventListener("click", () => {
  const isOpen = byId("open-processes").getAttribute("aria-expanded") === "false";
  setAttribute(byId("open-processes"), "aria-expanded", String(isOpen));
  byId("processes").hidden = !isOpen;
  byId("processes-note").hidden = true;
  if (isOpen) askForProcesses();
});
const canonical = document.querySelector("link[rel=canonical]")?.href;
const link = copyButton(() => (canonical ? canonical.replace(/#.*/, "") + location.hash : location.href), "Copy link");
link.id = "copy-link";
byId("copy-link").replaceWith(link);
