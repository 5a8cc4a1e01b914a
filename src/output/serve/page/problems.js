// What needs attention, as the agent says, and the state of a GPU in a word.

import { since } from "./format.js";

const LEVELS = { failed: 3, degraded: 2, cost: 1 };

/** How much attention a GPU needs; 0 for one that is well. */
export function need(gpu, summary) {
  const own = summary.problems.filter((problem) => problem.gpu === gpu.uuid);
  return Math.max(0, ...own.map((problem) => LEVELS[problem.level] ?? 0));
}

/** A state word and its class, for a badge. */
export function badge(gpu) {
  if (gpu.status === "silent") return ["no answer", "failed"];
  if (gpu.status !== "up") return [gpu.status, "failed"];
  return [gpu.health.state, gpu.health.state];
}

/** The fault of a GPU; none for one that only costs. */
export const fault = (gpu, summary) => summary.problems.find((problem) => problem.gpu === gpu.uuid && problem.level !== "cost");

/** What was observed, and since when. */
export function sentence(problem, summary) {
  return [problem.text, since(problem.since, summary)].filter(Boolean).join(", ");
}
