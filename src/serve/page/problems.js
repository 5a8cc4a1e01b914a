// What needs attention: faults first, then heat, then what is held and idle.

import { gpus, money, percent, since, secondsSince, span, tenantName } from "./format.js";

/** A GPU that is held counts as wasted from this time of idleness on. */
const IDLE_SECONDS = 300;

const SEVERITY = { failed: 4, unknown: 3, degraded: 2 };

/** How bad a GPU is; 0 for one that is well. */
export function severity(gpu) {
  if (gpu.status !== "up") return 4;
  if (SEVERITY[gpu.health.state]) return SEVERITY[gpu.health.state];
  return isHot(gpu) ? 1 : 0;
}

const HEAT = ["hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"];
export const isHot = (gpu) => gpu.throttled_by.some((reason) => HEAT.includes(reason));

export function isWasted(gpu, summary) {
  return gpu.holders.length > 0 && gpu.idle_since !== null && secondsSince(gpu.idle_since, summary.at) >= IDLE_SECONDS;
}

/** A state word and its class, for a badge. */
export function badge(gpu) {
  if (gpu.status === "silent") return ["no answer", "failed"];
  if (gpu.status !== "up") return [gpu.status, "failed"];
  return [gpu.health.state, gpu.health.state];
}

/** The sentence about a GPU that is not well; empty for one that is. */
export function fault(gpu, summary) {
  const reason = gpu.health.reasons.find((one) => one.state === gpu.health.state) ?? gpu.health.reasons[0];
  const call = gpu.call ? ` (${gpu.call[0]} has not returned for ${span(gpu.call[1])})` : "";
  if (gpu.status !== "up" && !reason) return `it is ${gpu.status}${call}`;
  if (!reason || gpu.health.state === "ok") return "";
  const evidence = reason.evidence ? `: ${reason.evidence}` : "";
  return `${reason.what}${evidence}${call}, ${since(reason.since, summary)}`;
}

/** All problems of a node, the worst first: `{ key, level, kind, text, todo, command, link }`. */
export function problems(summary) {
  const list = summary.node.account === "ok" ? [] : [accountProblem(summary.node)];
  const byNeed = [...summary.gpus].sort((one, other) => severity(other) - severity(one));
  for (const gpu of byNeed.filter((gpu) => severity(gpu) > 0)) {
    const text = fault(gpu, summary);
    list.push({
      key: `fault-${gpu.uuid}`,
      level: severity(gpu) > 2 ? "failed" : "degraded",
      kind: `GPU ${gpu.gpu} ${text ? badge(gpu)[0] : "is slowed down"}`,
      text: text || `${gpu.limit}, while it is busy ${percent(gpu.activity)} of the time`,
      todo: text ? gpu.advice : "check air flow, fans and the power supply of the server",
      command: text ? gpu.command : null,
      link: `#gpu=${gpu.uuid}`,
    });
  }
  const wasted = summary.gpus.filter((gpu) => isWasted(gpu, summary));
  wasted.sort((one, other) => new Date(one.idle_since) - new Date(other.idle_since));
  return [...list, ...wasted.map((gpu) => wasteProblem(gpu, summary)), ...strangers(summary)];
}

function accountProblem(node) {
  const kind = node.account === "none" ? "No account is kept" : "The account is wrong";
  return { key: "account", level: "failed", kind, text: node.account_reason ?? "", todo: "see gpumeter doctor", command: "gpumeter doctor" };
}

function wasteProblem(gpu, summary) {
  const names = [...new Set(gpu.holders.map((holder) => tenantName(holder.tenant)))].join(", ");
  const cost = gpu.per_hour === null ? "" : `: ${money(gpu.per_hour, summary.node.currency)} per hour for nothing`;
  return {
    key: `idle-${gpu.uuid}`,
    level: "waste",
    kind: `GPU ${gpu.gpu} idle`,
    text: `held by ${names}, idle ${since(gpu.idle_since, summary)}${cost}`,
    todo: `ask ${names} whether it is needed`,
    command: null,
    link: `#gpu=${gpu.uuid}`,
  };
}

function strangers(summary) {
  const used = summary.gpus.filter((gpu) => gpu.users.some((user) => !user.workload && user.processes > 0));
  return used.map((gpu) => ({
    key: `stranger-${gpu.uuid}`,
    level: "waste",
    kind: `GPU ${gpu.gpu} has processes of unknown owners`,
    text: `${gpus(gpu.activity)} GPU of use that nobody pays for`,
    todo: "find out whose they are",
    command: "gpumeter doctor",
    link: `#gpu=${gpu.uuid}`,
  }));
}
