// The dialog with all that is known of a GPU, a tenant or a workload; each has a link of its own.

import { h, keyed, setText } from "./dom.js";
import { DASH, bytes, clock, gpuCount, kilowatts, memory, money, ofLimit, percent, processCount, since, tenantName } from "./format.js";
import { badge, fault } from "./problems.js";
import { createProblem, tenantLink, workloadLink } from "./tiles.js";
import { getJson } from "./fetch.js";

const dialog = document.getElementById("details");
const body = document.getElementById("details-body");
const title = document.getElementById("details-title");

/** What the address names: `["gpu", uuid]`, or nothing. */
function target() {
  const [kind, ...rest] = location.hash.slice(1).split("=");
  try {
    return ["gpu", "tenant", "workload"].includes(kind) ? [kind, decodeURIComponent(rest.join("="))] : null;
  } catch {
    return null;
  }
}

let shown = null;

/** Opens, updates or closes the dialog by the address. */
export function showDetails(state) {
  const wanted = target();
  if (!wanted) close();
  if (!wanted || !state.summary) return;
  const key = wanted.join("=");
  // The browser has closed it, and its event is still to come.
  if (shown?.key === key && !dialog.open) return close();
  if (shown?.key !== key) {
    body.replaceChildren();
    shown = { key, ...{ gpu: gpuDetails, tenant: tenantDetails, workload: workloadDetails }[wanted[0]](wanted[1]) };
    body.append(...shown.elements);
  }
  if (!dialog.open) {
    dialog.showModal();
    title.focus();
  }
  shown.update(state);
}

/** Closes the details. The address comes first: what it names is opened by the next answer. */
function close() {
  if (target()) history.pushState(null, "", location.pathname + location.search);
  if (dialog.open) dialog.close();
  shown?.end?.();
  shown = null;
}

dialog.addEventListener("cancel", (event) => {
  event.preventDefault();
  close();
});
// A browser may close it without asking; this event comes some time after.
dialog.addEventListener("close", () => !dialog.open && shown && close());
document.getElementById("close-details").addEventListener("click", close);

/** A list of facts: `[name, text or element]`; those without a text are left out. */
function factList() {
  const list = h("dl", { class: "facts" });
  const update = (facts) => {
    const known = facts.filter(([, text]) => text !== "" && text !== DASH && text !== null && text !== undefined);
    keyed(list, known, ([name]) => name, ([name]) => {
      const value = h("dd");
      return { element: h("div", {}, h("dt", {}, name), value), update: ([, text]) => setText(value, text) };
    });
  };
  return [list, update];
}

function linkList(name) {
  const list = h("ul", { class: "links" });
  const section = h("section", {}, h("h3", {}, name), list);
  const update = (items) => {
    section.hidden = items.length === 0;
    keyed(list, items, (item) => item.key, () => {
      const link = h("a");
      const rest = h("span");
      return {
        element: h("li", {}, link, rest),
        update(item) {
          setText(link, item.text);
          if (item.link) link.href = item.link;
          else link.removeAttribute("href");
          setText(rest, ` ${item.rest}`);
        },
      };
    });
  };
  return [section, update];
}

const CHARTS = [
  ["activity", "Activity in %", (value) => value * 100, () => 100],
  ["memory", "Memory in GiB", (value) => value / 2 ** 30, (gpu) => gpu.memory_total / 2 ** 30],
  ["power", "Power in W", (value) => value, (gpu) => gpu.power_limit],
  ["temperature", "Temperature in °C", (value) => value, (gpu) => gpu.temperature_limit],
];

let library;
/** Loads uPlot once it is needed. */
function plots() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(h("link", { rel: "stylesheet", href: "page/uplot.css" }));
    const script = h("script", { src: "page/uplot.js" });
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", () => reject(new Error("page/uplot.js does not load")));
    document.head.append(script);
  });
  return library;
}

function gpuDetails(uuid) {
  const [facts, updateFacts] = factList();
  const problem = createProblem(h("div", { class: "problem", hidden: true }));
  const [holders, updateHolders] = linkList("Held by");
  const [users, updateUsers] = linkList("Used by");
  const [instances, updateInstances] = linkList("MIG instances");
  const charts = h("div", { class: "charts" });
  const table = h("div", { class: "table", role: "region", tabindex: "0", "aria-label": "History as a table", hidden: true });
  const toggle = h("button", { type: "button", "aria-pressed": "false" }, "Show as a table");
  toggle.addEventListener("click", () => {
    table.hidden = !table.hidden;
    fillTable(table);
    charts.hidden = !table.hidden;
    toggle.setAttribute("aria-pressed", String(!table.hidden));
    toggle.textContent = table.hidden ? "Show as a table" : "Show as plots";
  });
  const history = h("section", {}, h("div", { class: "bar" }, h("h3", {}, "Last ten minutes"), toggle), charts, table);
  const list = h("ul", { class: "links" });
  const processes = h("section", {}, h("h3", {}, "Processes"), list);
  let drawn = null;
  return {
    elements: [problem.element, facts, instances, holders, users, history, processes],
    end: () => drawn?.forEach((plot) => plot.destroy()),
    update(state) {
      const gpu = state.summary.gpus.find((one) => one.uuid === uuid);
      setText(title, gpu ? `GPU ${gpu.gpu}` : "This GPU is not here any more");
      if (!gpu) return;
      problem.update(fault(gpu, state.summary), state.summary);
      updateFacts(gpuFacts(gpu, state.summary));
      const profile = (one) => (one.gpu_instance ? `on instance ${one.gpu_instance} ` : "");
      const holder = (one) => `${percent(one.share)} ${profile(one)}of ${tenantName(one.tenant)}, by ${one.source}, ${since(one.since, state.summary)}`;
      updateHolders(gpu.holders.map((one) => ({ key: `${one.gpu_instance}/${one.workload}`, text: one.title, link: workloadLink(one), rest: holder(one) })));
      const user = (one) => `${profile(one)}of ${tenantName(one.tenant)}: ${processCount(one.processes)}, ${bytes(one.memory)}${one.sm === null ? "" : `, kernels ran ${percent(one.sm)} of the time`}`;
      updateUsers(gpu.users.map((one) => ({ key: `${one.gpu_instance}/${one.workload}`, text: one.title || "unknown owner", link: one.workload && workloadLink(one), rest: user(one) })));
      const instance = (one) => `${one.slices} of ${gpu.mig.slices} slices, activity ${percent(one.activity)}, memory ${memory(one.memory_used, one.memory_total)}`;
      updateInstances((gpu.mig?.instances ?? []).map((one) => ({ key: one.gpu_instance, text: `${one.profile} (instance ${one.gpu_instance})`, rest: instance(one) })));
      drawn = drawHistory({ charts, table, drawn, gpu, state });
      showProcesses(list, uuid);
    },
  };
}

function gpuFacts(gpu, summary) {
  const clockOf = (hertz) => (hertz === null ? "" : `${Math.round(hertz / 1e6)} MHz`);
  return [
    ["State", badge(gpu)[0]],
    ["Limited by", gpu.limit],
    ["Activity", percent(gpu.activity)],
    ["Multiprocessors active", percent(gpu.sm_active)],
    ["Tensor cores active", percent(gpu.tensor_active)],
    ["Memory bandwidth busy", percent(gpu.dram_active)],
    ["Memory", memory(gpu.memory_used, gpu.memory_total)],
    ["Power", ofLimit(gpu.power, gpu.power_limit, "W")],
    ["Temperature", ofLimit(gpu.temperature, gpu.temperature_limit, "°C")],
    ["Temperature of the memory", ofLimit(gpu.memory_temperature, null, "°C")],
    ["Clock", clockOf(gpu.sm_clock)],
    ["Idle", since(gpu.idle_since, summary)],
    ["ECC errors", gpu.ecc_uncorrected === null ? "" : `${gpu.ecc_corrected} corrected, ${gpu.ecc_uncorrected} uncorrected`],
    ["XIDs", gpu.xids.map(([code, count, last]) => `${code} (${count === null ? "" : `${count} times, `}last ${clock(last, summary.at)})`).join(", ")],
    ["SXIDs of the node's NVSwitches", summary.node.sxids.map((one) => `${one.sxid} of ${one.pci_bus_id} (${one.count} times, last ${clock(one.last, summary.at)})`).join(", ")],
    ["Price per hour", money(gpu.per_hour, gpu.per_hour && summary.node.currency)],
    ["Model", gpu.model],
    ["UUID", gpu.uuid],
    ["PCI", gpu.pci_bus_id],
    ["Driver", gpu.driver_version],
    ["Last read", clock(gpu.read_at, summary.at)],
  ];
}

function drawHistory({ charts, table, drawn, gpu, state }) {
  const points = state.history?.gpus.find((one) => one.uuid === gpu.uuid);
  if (!points || shown?.history === state.history) return drawn;
  if (shown) shown.history = state.history;
  const step = state.history.step_seconds;
  const count = points.activity.mean.length;
  const end = new Date(state.history.at) / 1000;
  const times = Array.from({ length: count }, (_, place) => end - (count - 1 - place) * step);
  const series = CHARTS.map(([name, , scale]) => [points[name].mean, points[name].max].map((values) => values.map((value) => (value === null ? null : scale(value)))));
  table.points = { times, series };
  fillTable(table);
  if (drawn) {
    drawn.forEach((plot, place) => plot.setData([times, ...series[place]]));
    return drawn;
  }
  if (charts.dataset.wanted) return drawn;
  charts.dataset.wanted = "yes";
  const result = [];
  plots().then(
    (uPlot) => CHARTS.forEach(([, name, , most], place) => result.push(plot(uPlot, charts, name, most(gpu), [times, ...series[place]]))),
    (error) => charts.replaceChildren(h("p", { class: "note" }, String(error.message))),
  );
  return result;
}

function plot(uPlot, parent, name, most, data) {
  const style = getComputedStyle(document.documentElement);
  const color = (variable) => style.getPropertyValue(variable).trim();
  const hour = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  // While nothing is pointed at, the legend has the last values.
  const chosen = (plot, value, series) => value ?? plot.data[series].findLast((one) => one !== null && one !== undefined) ?? null;
  const value = (plot, number, series) => ((number = chosen(plot, number, series)), number === null ? DASH : number.toFixed(1));
  const axis = { stroke: color("--text"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const place = h("div", { class: "chart", role: "img", "aria-label": `${name}, last ten minutes; the same as a table below` });
  parent.append(place);
  const options = {
    title: name,
    width: Math.max(280, Math.min(parent.clientWidth || 560, 560)),
    height: 180,
    scales: { y: { range: (_, __, top) => [0, Math.max(most || 0, top || 0) || 1] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map(hour) }, { ...axis, size: 56 }],
    series: [
      { label: "time", value: (plot, seconds, series) => hour(chosen(plot, seconds, series)) },
      { label: "mean", stroke: color("--accent"), width: 2, value },
      { label: "maximum", stroke: color("--muted"), width: 1, value },
    ],
  };
  return new uPlot(options, data, place);
}

/** A row per 30 s, while the table is shown. */
function fillTable(table) {
  if (table.hidden || !table.points) return table.replaceChildren();
  const { times, series } = table.points;
  const rows = [];
  for (let place = times.length - 1; place >= 0; place -= 6) rows.push(place);
  const number = (value) => (value === null || value === undefined ? DASH : value.toFixed(1));
  const head = h("tr", {}, h("th", { scope: "col" }, "time"), ...CHARTS.map(([, name]) => h("th", { scope: "col", class: "number" }, `${name} (mean, maximum)`)));
  const cell = (values, place) => h("td", { class: "number" }, `${number(values[0][place])}, ${number(values[1][place])}`);
  const line = (place) => h("tr", {}, h("th", { scope: "row" }, new Date(times[place] * 1000).toLocaleTimeString([], { hour12: false })), ...series.map((values) => cell(values, place)));
  table.replaceChildren(h("table", {}, h("caption", { class: "hidden" }, "Values of the last ten minutes"), h("thead", {}, head), h("tbody", {}, ...rows.map(line))));
}

const MOST_PROCESSES = 20;
let asked = 0;
async function showProcesses(list, uuid) {
  if (performance.now() - asked < 3000) return;
  asked = performance.now();
  const answer = await getJson(`api/v1/processes?gpu=${encodeURIComponent(uuid)}`).catch(() => null);
  if (!answer || !list.isConnected) return;
  const engines = (one) => [["kernels", one.sm], ["encoder", one.encoder], ["decoder", one.decoder]].filter(([, share]) => share).map(([name, share]) => `${name} ${percent(share)}`);
  const rest = (one) => [`process ${one.pid}`, one.title || "unknown owner", bytes(one.memory), ...engines(one)].join(", ");
  const items = answer.processes.slice(0, MOST_PROCESSES).map((one) => ({ key: `${one.gpu_instance}/${one.pid}`, text: one.name || "?", rest: rest(one) }));
  if (answer.total > items.length) items.push({ key: "more", text: "", rest: `and ${answer.total - items.length} more with less memory` });
  if (!answer.processes_listed) items.push({ key: "-", text: "", rest: "they are being listed" });
  else if (!items.length) items.push({ key: "-", text: "", rest: "none" });
  keyed(list, items, (item) => item.key, () => {
    const name = h("b");
    const text = h("span");
    return { element: h("li", {}, name, text), update: (item) => (setText(name, item.text), setText(text, ` ${item.rest}`)) };
  });
}

function tenantDetails(name) {
  const [facts, updateFacts] = factList();
  const [workloads, updateWorkloads] = linkList("Workloads");
  const [where, updateWhere] = linkList("GPUs");
  return {
    elements: [facts, workloads, where],
    update(state) {
      const { summary, money: sums } = state;
      const tenant = summary.tenants.find((one) => one.tenant === name);
      setText(title, `Tenant ${tenantName(name)}`);
      const [today, month] = [sums?.today?.get(name), sums?.month?.get(name)];
      const currency = summary.node.currency;
      updateFacts([
        ["Holds now", tenant ? gpuCount(tenant.held) : "nothing"],
        ["Used lately", tenant?.used === null || !tenant ? "" : gpuCount(tenant.used)],
        ["Idle lately", tenant?.idle === null || !tenant ? "" : gpuCount(tenant.idle)],
        ["Cost per hour", money(tenant?.per_hour, tenant?.per_hour && currency)],
        ["Today", today ? money(today.money, today.money && currency) : ""],
        ["This month", month ? money(month.money, month.money && currency) : ""],
        ["Budget", money(tenant?.budget, tenant?.budget && currency)],
        ["Held today", today ? `${today.held.toFixed(2)} GPU-hours, of these ${today.idle.toFixed(2)} idle` : ""],
        ["Held this month", month ? `${month.held.toFixed(2)} GPU-hours, of these ${month.idle.toFixed(2)} idle` : ""],
      ]);
      const own = summary.workloads.filter((one) => one.tenant === name);
      updateWorkloads(own.map((one) => ({ key: one.workload, text: one.title, link: workloadLink(one), rest: `${gpuCount(one.held)} held ${since(one.since, summary)}` })));
      updateWhere(gpuItems(summary, tenant?.gpus ?? []));
    },
  };
}

const gpuItems = (summary, indices) =>
  summary.gpus
    .filter((gpu) => indices.includes(gpu.gpu))
    .map((gpu) => ({ key: gpu.uuid, text: `GPU ${gpu.gpu}`, link: `#gpu=${gpu.uuid}`, rest: `${badge(gpu)[0]}, activity ${percent(gpu.activity)}, ${kilowatts(gpu.power)}` }));

function workloadDetails(id) {
  const [facts, updateFacts] = factList();
  const [tenant, updateTenant] = linkList("Tenant");
  const [where, updateWhere] = linkList("GPUs");
  return {
    elements: [facts, tenant, where],
    update({ summary }) {
      const one = summary.workloads.find((one) => one.workload === id);
      setText(title, one ? one.title : "This workload is not here any more");
      if (!one) return;
      updateFacts([
        ["Holds", `${gpuCount(one.held)} ${since(one.since, summary)}`],
        ["Processes", String(one.processes)],
        ["Memory", bytes(one.memory)],
        ["Kernels ran", percent(one.sm)],
        ["Cost per hour", money(one.per_hour, one.per_hour && summary.node.currency)],
        ["Class", one.class],
        ["Id", one.workload],
        ...Object.entries(one.labels),
      ]);
      updateTenant([{ key: one.tenant, text: tenantName(one.tenant), link: tenantLink(one.tenant), rest: "" }]);
      updateWhere(gpuItems(summary, one.gpus));
    },
  };
}
