// A bar per day, and the hours of the week as maps of colours. Each has a table with the same numbers.

import { h, setAttribute, setText, svg } from "./dom.js";
import { grouped, tenantName } from "./format.js";
import { rowName, valueName } from "./costs-table.js";
import { addDays, narrowed, pageLink } from "./query.js";

/** So many groups have a colour of their own. */
const MOST_SERIES = 6;
const NOBODY = "__unallocated__";
const HINT = "Point at a day to read it. The table has a link to each day.";
const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const LEVELS = 10;

/** A button that shows a table in place of a plot. */
export function tableToggle(button, plot, table) {
  const show = (isTable) => {
    table.hidden = !isTable;
    plot.hidden = isTable;
    setAttribute(button, "aria-pressed", String(isTable));
    setText(button, isTable ? "Show as a plot" : "Show as a table");
  };
  button.addEventListener("click", () => show(table.hidden));
}

/** The groups of the days, greatest first, those without a name or a colour of their own added up. */
function seriesOf({ days, groups, rows }, valueOf) {
  const sums = new Map();
  for (const { rows } of days) {
    for (const row of rows) {
      sums.set(row.name, (sums.get(row.name) ?? 0) + Math.abs(valueOf(row)));
    }
  }
  const names = [...sums.keys()].filter((name) => name !== null && name !== NOBODY && sums.get(name) > 0);
  names.sort((one, other) => sums.get(other) - sums.get(one));
  const ofRows = new Map(rows.map((row) => [row.name, row]));
  const nameOf = (name) => (ofRows.has(name) ? rowName(ofRows.get(name), groups) : valueName(name, groups[0]));
  const own = names.slice(0, MOST_SERIES);
  const series = own.map((name, place) => ({ text: nameOf(name), kind: `series-${place}`, has: (row) => row.name === name }));
  const others = new Set([...own, NOBODY]);
  if (names.length > own.length || sums.get(null) > 0) series.push({ text: "all others", kind: "series-rest", has: (row) => !others.has(row.name) });
  if (sums.get(NOBODY) > 0) series.push({ text: tenantName(NOBODY), kind: "series-nobody", has: (row) => row.name === NOBODY });
  const sum = (rows) => rows.reduce((sum, row) => sum + valueOf(row), 0);
  return series.map((one) => ({ ...one, values: days.map(({ rows }) => sum(rows.filter(one.has))) }));
}

/** A rectangle per value, stacked from 0 upwards, what is negative downwards. */
function stack(series, count) {
  const [up, down] = [new Array(count).fill(0), new Array(count).fill(0)];
  const paths = series.map(({ values }) =>
    values.map((value, place) => {
      const to = value < 0 ? down : up;
      const [y, height] = [value < 0 ? to[place] + value : to[place], Math.abs(value)];
      to[place] += value;
      return height ? { place, y, height } : null;
    }).filter(Boolean),
  );
  return { paths, top: Math.max(...up, 0), bottom: Math.min(...down, 0) };
}

const short = (value) => grouped(value >= 1000 || value <= -1000 ? value.toFixed(0) : value.toFixed(2));

/** The plot and the table of the days; `false` where there is nothing to show. */
export function showDays({ plot, table }, answer, query) {
  const isPriced = answer.currency !== null;
  const valueOf = (row) => Number((isPriced ? row.amount : row.held) ?? 0);
  const unit = isPriced ? answer.currency : "GPU-hours held";
  const { days } = answer;
  const series = seriesOf(answer, valueOf);
  plot.replaceChildren();
  table.replaceChildren();
  if (!series.length) return false;
  const { paths, top, bottom } = stack(series, days.length);
  const height = top - bottom || 1;
  const rectangle = ({ place, y, height: own }) => `M${place + 0.08} ${((top - y - own) / height) * 100}h.84v${(own / height) * 100}h-.84z`;
  const bars = series.map((one, number) => svg("path", { class: one.kind, d: paths[number].map(rectangle).join("") }));
  const zero = (top / height) * 100;
  const chart = svg("svg", { viewBox: `0 0 ${days.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${unit} of each day by ${answer.groups.join(", ")}; the same as a table behind the button` }, ...bars, svg("path", { class: "zero", d: `M0 ${zero}H${days.length}` }));
  const caption = h("p", { class: "note caption" }, HINT);
  const text = (place) => `${days[place].day}: ${series.filter((one) => one.values[place]).map((one) => `${one.text} ${short(one.values[place])}`).join(", ") || "nothing"}`;
  const at = (event) => Math.min(days.length - 1, Math.max(0, Math.floor(((event.clientX - chart.getBoundingClientRect().x) / chart.getBoundingClientRect().width) * days.length)));
  chart.addEventListener("pointermove", (event) => setText(caption, text(at(event))));
  chart.addEventListener("pointerleave", () => setText(caption, HINT));
  const legend = h("ul", { class: "legend", "aria-label": "Colours" }, ...series.map((one) => h("li", {}, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: one.kind, width: 10, height: 10 })), ` ${one.text}`)));
  const scale = h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, `${short(top)} ${unit}`), h("span", {}, bottom ? `${short(bottom)} ${unit}` : "0"));
  const marks = [0, Math.floor((days.length - 1) / 2), days.length - 1].filter((place, number, all) => all.indexOf(place) === number);
  const dates = h("div", { class: "dates", "aria-hidden": "true" }, ...marks.map((place) => h("span", {}, days[place].day)));
  plot.append(h("div", { class: "days" }, scale, chart, dates), caption, legend);
  fillDays(table, answer, query, series);
  return true;
}


function fillDays(table, answer, query, series) {
  const head = h("tr", {}, h("th", { scope: "col" }, "day"), ...series.map((one) => h("th", { scope: "col", class: "number" }, one.text)));
  const link = (day) => pageLink(narrowed(query, { period: `${day}..${addDays(day, 1)}` }));
  const line = ({ day }, place) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: link(day) }, day)), ...series.map((one) => h("td", { class: "number" }, grouped(one.values[place].toFixed(2)))));
  table.append(h("table", {}, h("caption", { class: "hidden" }, "Each day by group"), h("thead", {}, head), h("tbody", {}, ...answer.days.map(line))));
}

const MAPS = [["held", "Held"], ["used", "Used"], ["idle", "Idle while held"]];
const clock = (hour) => `${String(hour).padStart(2, "0")}:00`;

/** The maps and the table of the hours of the week; `false` where there is nothing to show. */
export function showHours({ plot, table }, answer) {
  const hours = answer.hours ?? [];
  const most = Math.max(0, ...hours.map((one) => one.held), ...hours.map((one) => one.used));
  plot.replaceChildren();
  table.replaceChildren();
  if (!most) return false;
  const caption = h("p", { class: "note caption" }, "Point at an hour to read it.");
  const maps = MAPS.map(([name, title]) => {
    const level = (one) => Math.min(LEVELS - 1, Math.floor((one[name] / most) * LEVELS));
    const cells = Array.from({ length: LEVELS }, () => "");
    for (const one of hours) {
      if (one[name] > 0) cells[level(one)] += `M${one.hour + 0.04} ${one.weekday - 1 + 0.06}h.92v.88h-.92z`;
    }
    const paths = cells.map((d, place) => svg("path", { class: `level-${place}`, d })).filter((path) => path.getAttribute("d"));
    const chart = svg("svg", { viewBox: "0 0 24 7", preserveAspectRatio: "none", role: "img", "aria-label": `${title} by hour of the week; the same as a table behind the button` }, ...paths);
    chart.addEventListener("pointermove", (event) => setText(caption, hourText(hours, chart, event)));
    chart.addEventListener("pointerleave", () => setText(caption, "Point at an hour to read it."));
    const days = h("div", { class: "weekdays", "aria-hidden": "true" }, ...WEEKDAYS.map((day) => h("span", {}, day)));
    const clocks = h("div", { class: "dates", "aria-hidden": "true" }, ...["00:00", "12:00", "24:00"].map((text) => h("span", {}, text)));
    return h("figure", { class: `map ${name}` }, h("figcaption", {}, title), days, chart, clocks);
  });
  plot.append(h("div", { class: "maps" }, ...maps), caption, h("p", { class: "note" }, `From none to ${grouped(most.toFixed(2))} GPUs: the stronger the colour, the more.`));
  fillHours(table, hours);
  return true;
}

function hourText(hours, chart, event) {
  const box = chart.getBoundingClientRect();
  const hour = Math.floor(((event.clientX - box.x) / box.width) * 24);
  const weekday = Math.floor(((event.clientY - box.y) / box.height) * 7) + 1;
  const one = hours.find((one) => one.hour === hour && one.weekday === weekday);
  return one ? `${WEEKDAYS[weekday - 1]} ${clock(hour)}: ${MAPS.map(([name]) => `${one[name].toFixed(2)} ${name}`).join(", ")}` : "Point at an hour to read it.";
}

function fillHours(table, hours) {
  const head = h("tr", {}, h("th", { scope: "col" }, "hour"), ...WEEKDAYS.map((day) => h("th", { scope: "col", class: "number" }, day)));
  const cell = (hour, weekday) => {
    const one = hours.find((one) => one.hour === hour && one.weekday === weekday);
    return h("td", { class: "number" }, one ? MAPS.map(([name]) => one[name].toFixed(2)).join(" / ") : "");
  };
  const line = (_, hour) => h("tr", {}, h("th", { scope: "row" }, clock(hour)), ...WEEKDAYS.map((_, place) => cell(hour, place + 1)));
  table.append(h("table", {}, h("caption", {}, "GPUs held / used / idle"), h("thead", {}, head), h("tbody", {}, ...Array.from({ length: 24 }, line))));
}
