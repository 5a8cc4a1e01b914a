// What to change in order to spend less. It is asked for by a button, since a node reads four weeks of its ledger for it.

import { h, setText } from "./dom.js";
import { DASH, HOUR, cents, clock, fixed, grouped, printable, shownName } from "./format.js";
import { getJson } from "./fetch.js";

const PATIENCE_MS = 180000;
const byId = (id) => document.getElementById(id);
const [button, table, note] = ["look-for-advice", "advice-table", "advice-note"].map(byId);

button.addEventListener("click", async () => {
  button.disabled = true;
  setText(note, "Looking…");
  try {
    show(await getJson("api/v1/advice", PATIENCE_MS));
  } catch (error) {
    table.hidden = true;
    setText(note, error.message);
  }
  button.disabled = false;
});

const HEADS = ["tenant", "workload", "found", "GPU-hours", "amount", "to do"];

function show(advice) {
  const { findings, currency } = advice;
  const amountOf = (finding) => {
    const amount = finding.tenant ? finding.amount : finding.organisation?.amount;
    if (amount === null || amount === undefined) return DASH;
    return `${cents(amount)} ${printable(currency)}${finding.is_credit ? " credit" : ""}`;
  };
  const hours = (finding) => (Number(finding.time_ns) ? grouped(fixed(finding.time_ns, HOUR, 1)) : DASH);
  const row = (finding) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, finding.tenant ? shownName(finding.tenant) : "the organisation"),
      ...[shownName(finding.workload), printable(finding.what)].map((text) => h("td", {}, text)),
      ...[hours(finding), amountOf(finding)].map((text) => h("td", { class: "number" }, text)),
      h("td", {}, printable(finding.how)),
    );
  const head = h("thead", {}, h("tr", {}, ...HEADS.map((name) => h("th", { scope: "col" }, name))));
  table.replaceChildren(h("table", {}, head, h("tbody", {}, ...findings.map(row))));
  table.hidden = findings.length === 0;
  const none = "Nothing was found that is sure enough to say.";
  const command = "gpumeter advise shows the rule, the risk and the times of each";
  const dismissed = advice.dismissed ? `${advice.dismissed} left out by advice.dismiss.` : "";
  const part = advice.partial ? "Only of what you may see." : "";
  const period = `Looked at ${clock(advice.from)} to ${clock(advice.to)}.`;
  const said = [period, findings.length ? `${command}.` : none, dismissed, part, ...advice.notes.map(printable)];
  setText(note, said.filter((one) => one).join(" "));
}
