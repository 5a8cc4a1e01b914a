// A tile per GPU: its readings with ten minutes of line, what limits it, its instances, who holds and who uses it.

import { copyButton, h, keyed, setAttribute, setText, svg } from "./dom.js";
import { bytes, memory, ofLimit, percent, processCount, shortModel, since, tenantName } from "./format.js";
import { badge, fault, sentence } from "./problems.js";

const WIDTH = 120;
const HEIGHT = 28;

/** Each reading: its series, name, text, and the value at the top of its plot. */
const METERS = [
  ["activity", "Activity", (gpu) => percent(gpu.activity), () => 1],
  ["memory", "Memory", (gpu) => memory(gpu.memory_used, gpu.memory_total), (gpu) => gpu.memory_total],
  ["power", "Power", (gpu) => ofLimit(gpu.power, gpu.power_limit, "W"), (gpu) => gpu.power_limit],
  ["temperature", "Heat", (gpu) => ofLimit(gpu.temperature, gpu.temperature_limit, "°C"), (gpu) => gpu.temperature_limit ?? 100],
];

export const workloadLink = (one) => `#workload=${encodeURIComponent(one.workload)}`;
export const tenantLink = (tenant) => `#tenant=${encodeURIComponent(tenant)}`;

/** A tile, with functions that show another summary and another history. */
export function createTile(gpu) {
  const title = h("a", { href: `#gpu=${gpu.uuid}` });
  const model = h("span", { class: "model" });
  const state = h("span", { class: "badge" });
  const meters = METERS.map(([series, name]) => createMeter(series, name));
  const limit = h("p", { class: "limit" });
  const mig = h("div", { class: "mig", hidden: true });
  const who = h("ul", { class: "who" });
  const problem = createProblem(h("div", { class: "problem", hidden: true }));
  const element = h(
    "article",
    { class: "tile", "aria-label": `GPU ${gpu.gpu}` },
    h("header", {}, h("h3", {}, title), model, state),
    h("div", { class: "meters" }, ...meters.map((meter) => meter.element)),
    limit,
    mig,
    who,
    problem.element,
  );
  return {
    element,
    update({ gpu, summary, history }) {
      setText(title, `GPU ${gpu.gpu}`);
      setText(model, shortModel(gpu.model));
      setAttribute(model, "title", gpu.model);
      const [word, kind] = badge(gpu);
      setText(state, word);
      setAttribute(state, "class", `badge ${kind}`);
      const wrong = fault(gpu, summary);
      setAttribute(element, "class", `tile ${wrong?.level ?? kind}`);
      METERS.forEach(([series, , text, most], place) => meters[place].update(text(gpu), history?.[series], most(gpu)));
      updateLimit(limit, gpu);
      updateMig(mig, gpu);
      keyed(who, lines(gpu, summary), (line) => line.key, createLine);
      problem.update(wrong, summary);
    },
  };
}

function createMeter(series, name) {
  const value = h("span", { class: "value" });
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
  const element = h("div", { class: `meter ${series}` }, h("span", { class: "name" }, name), value, plot);
  return {
    element,
    update(text, points, most) {
      setText(value, text);
      const top = points && most ? highest(points, most) : 0;
      setAttribute(line, "d", top ? path(points.mean, top) : "");
      setAttribute(area, "d", top ? path(points.max, top) : "");
    },
  };
}

/** The upper edge of a plot: the limit, or the largest value where that is above it, as heat and power may be. */
export const highest = (points, limit) => points.max.reduce((most, value) => Math.max(most, value ?? 0), limit ?? 0);

/** The line of a series up to `most`, with gaps where there is no value. */
function path(values, most) {
  let text = "";
  let isDown = false;
  values.forEach((value, place) => {
    if (value === null) {
      isDown = false;
      return;
    }
    const x = ((place / (values.length - 1)) * WIDTH).toFixed(1);
    const y = (HEIGHT - 1 - Math.min(1, Math.max(0, value / most)) * (HEIGHT - 2)).toFixed(1);
    text += `${isDown ? "L" : "M"}${x} ${y}`;
    isDown = true;
  });
  return text;
}

function updateLimit(element, gpu) {
  setAttribute(element, "class", `limit ${gpu.limit_kind}`);
  setText(element, `Limited by ${gpu.limit}`);
}

/** The layout of a MIG GPU, drawn to scale by memory slices. */
function updateMig(element, gpu) {
  element.hidden = !gpu.mig;
  if (!gpu.mig) return;
  const parts = gpu.mig.instances.map((one) => ({
    key: one.gpu_instance,
    size: one.slices,
    kind: "instance",
    text: one.profile || `instance ${one.gpu_instance}`,
    more: percent(one.activity),
    share: one.activity ?? 0,
  }));
  if (gpu.mig.free) parts.push({ key: "free", size: gpu.mig.free, kind: "free", text: "free", more: "", share: 0 });
  if (gpu.mig.stranded) parts.push({ key: "stranded", size: gpu.mig.stranded, kind: "stranded", text: "unusable", more: "", share: 0 });
  keyed(element, parts, (part) => part.key, createPart);
}

function createPart() {
  const element = h("div", {});
  return {
    element,
    update(part) {
      setAttribute(element, "class", part.kind);
      element.style.flexGrow = part.size;
      element.style.setProperty("--share", `${Math.round(part.share * 100)}%`);
      setText(element, part.more ? `${part.text} ${part.more}` : part.text);
      setAttribute(element, "title", element.textContent);
    },
  };
}

/** The most holders and users of a tile; the details have all. */
const MOST_LINES = 4;

function lines(gpu, summary) {
  const profile = (one) => {
    const instance = gpu.mig?.instances.find((instance) => instance.gpu_instance === one.gpu_instance);
    return instance ? ` on ${instance.profile || `instance ${one.gpu_instance}`}` : "";
  };
  const holders = gpu.holders.map((one) => ({
    key: `h${one.gpu_instance}/${one.workload}`,
    head: "Held by",
    one,
    rest: `${one.share < 1 ? ` (${percent(one.share)})` : ""}${profile(one)} ${since(one.since, summary)}`,
  }));
  const users = gpu.users.map((one) => ({
    key: `u${one.gpu_instance}/${one.workload}`,
    head: "Used by",
    one,
    rest: `${profile(one)}: ${processCount(one.processes)}, ${bytes(one.memory)}`,
  }));
  // Who holds and uses alone need not be named twice.
  const held = new Set(gpu.holders.map((one) => `${one.gpu_instance}/${one.workload}`));
  const others = users.filter(({ one }) => !held.has(`${one.gpu_instance}/${one.workload}`));
  const list = [...cut(holders), ...cut(others)];
  if (gpu.withheld) list.push({ key: "withheld", head: "Others hold or use it, so its values are not shown." });
  else if (!gpu.holders.length) list.unshift({ key: "free", head: gpu.mig ? "No instance is held." : "Held by nobody." });
  if (gpu.idle_since) list.push({ key: "idle", head: `Idle ${since(gpu.idle_since, summary)}` });
  return list;
}

function cut(list) {
  if (list.length <= MOST_LINES) return list;
  const head = `and ${list.length - MOST_LINES + 1} more`;
  return [...list.slice(0, MOST_LINES - 1), { key: `more-${list[0].head}`, head }];
}

function createLine(line) {
  if (!line.one) {
    const element = h("li", {});
    return { element, update: (line) => setText(element, line.head) };
  }
  const tenant = h("a", { class: "tenant" });
  const title = h("a", { class: "title" });
  const rest = h("span", { class: "rest" });
  const element = h("li", {}, `${line.head} `, tenant, title, rest);
  return {
    element,
    update({ one, rest: text }) {
      setText(tenant, tenantName(one.tenant));
      setAttribute(tenant, "href", one.tenant ? tenantLink(one.tenant) : undefined);
      // A user's or unit's own name is that of its tenant.
      const isSame = one.title === one.tenant || one.title === `user ${one.tenant}`;
      title.hidden = isSame || !one.title;
      setText(title, one.title);
      setAttribute(title, "href", one.workload ? workloadLink(one) : undefined);
      setText(rest, text);
    },
  };
}

/** What is wrong, what to do, and the command for it; `update(problem, summary)` hides it without a problem. */
export function createProblem(element, ...head) {
  const [text, todo, code] = [h("p"), h("p", { class: "todo" }), h("code")];
  const command = h("p", { class: "command" }, code, copyButton(() => code.textContent));
  element.append(...head, text, todo, command);
  return {
    element,
    update(problem, summary) {
      element.hidden = !problem;
      if (!problem) return;
      setText(text, sentence(problem, summary));
      setText(todo, problem.advice ? `To do: ${problem.advice}` : "");
      command.hidden = !problem.command;
      setText(code, problem.command ?? "");
    },
  };
}
