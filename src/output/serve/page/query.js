// What the address of the costs page asks for: a link is a report.

/** What the page alone knows, and the server is not asked with. */
const OF_PAGE = ["open", "inside", "more", "sort"];
const ONCE = ["period", "group", "top", ...OF_PAGE];

function pairs(text) {
  const decoded = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      // The server says what is wrong with it.
      return part;
    }
  };
  return text.replace(/^\?/, "").split("&").filter(Boolean).map((pair) => {
    const [name, ...value] = pair.split("=");
    return [decoded(name), decoded(value.join("="))];
  });
}

const written = (list) => list.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("&");

/** `{ period, group, top, open, inside, more, sort, spread: [...], filters: [[property, value]...] }`; what is not given is empty. */
export function parseQuery(text) {
  const query = { spread: [], filters: [] };
  for (const name of ONCE) query[name] = "";
  for (const [name, value] of pairs(text)) {
    if (ONCE.includes(name)) query[name] = value;
    else if (name === "spread") query.spread.push(value);
    else query.filters.push([name, value]);
  }
  return query;
}

const given = (query, names) => names.filter((name) => query[name] !== "").map((name) => [name, query[name]]);

/** The parameters of `/api/v1/costs`. */
export const serverQuery = (query) => written([...given(query, ["period", "group"]), ...query.filters, ...query.spread.map((value) => ["spread", value]), ...given(query, ["top"])]);

/** The address of a report, relative to the page. */
export function pageLink(query) {
  const own = written(given(query, OF_PAGE));
  return `?${[serverQuery(query), own].filter(Boolean).join("&")}`;
}

/** The query with the filter of a row, which stands in place of others of the same properties; that of a day is a period. */
export function narrowed(query, { period = query.period, ...filter }) {
  const own = Object.entries(filter);
  const others = query.filters.filter(([name]) => !own.some(([other]) => other === name));
  return { ...query, period, filters: [...others, ...own], open: "", inside: "" };
}

/** A day in ISO form, so many days later. */
export function addDays(day, count) {
  const date = new Date(`${day}T00:00:00Z`);
  date.setUTCDate(date.getUTCDate() + count);
  return date.toISOString().slice(0, 10);
}

const WORDS = { tenant: "tenant", workload: "workload", gpu: "GPU", uuid: "GPU (UUID)", model: "model", class: "price class", day: "day", node: "node", cluster: "cluster", pool: "pool", namespace: "Kubernetes namespace", account: "Slurm account", slurm_account: "Slurm account", user: "user", unit: "unit" };

/** A property in words. */
export function propertyName(name) {
  if (Object.hasOwn(WORDS, name)) return WORDS[name];
  if (name.startsWith("attribute:")) return name.slice("attribute:".length).replaceAll("_", " ");
  return name;
}
