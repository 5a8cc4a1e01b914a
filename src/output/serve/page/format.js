// Numbers, times and money as people read them. What is not known is a dash.

export const DASH = "–";

const known = (value) => value !== null && value !== undefined;

export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : DASH);

/** GPUs as a sum of shares. */
export const gpus = (sum) => (known(sum) ? sum.toFixed(2).replace(/\.?0+$/, "") || "0" : DASH);

/** The same with the word. */
export const gpuCount = (sum) => `${gpus(sum)} ${sum > 1 ? "GPUs" : "GPU"}`;

export const processCount = (count) => `${count} ${count === 1 ? "process" : "processes"}`;

const GIB = 2 ** 30;

export function bytes(count) {
  if (!known(count)) return DASH;
  return count >= 10 * GIB ? `${Math.round(count / GIB)} GiB` : count >= GIB ? `${(count / GIB).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`;
}

/** A value with its limit: `512 of 700 W`. */
export function ofLimit(value, limit, unit) {
  if (!known(value)) return DASH;
  return known(limit) ? `${Math.round(value)} of ${Math.round(limit)} ${unit}` : `${Math.round(value)} ${unit}`;
}

/** Used of total memory. */
export function memory(used, total) {
  if (!known(used) || !known(total)) return bytes(used);
  const digits = (count) => (count >= 10 * GIB ? Math.round(count / GIB) : (count / GIB).toFixed(1));
  return `${digits(used)} of ${digits(total)} GiB`;
}

export function kilowatts(watts) {
  return !known(watts) ? DASH : watts >= 1000 ? `${(watts / 1000).toFixed(2)} kW` : `${Math.round(watts)} W`;
}

/** Decimal text of money with two digits. */
export function money(amount, currency) {
  if (!known(amount)) return DASH;
  const digits = Number(amount).toFixed(2);
  return currency ? `${digits} ${currency}` : digits;
}

/** Decimal text with a comma between thousands. */
export const grouped = (text) => (known(text) ? text.replace(/^(-?)(\d+)/, (_, sign, whole) => sign + whole.replace(/\B(?=(\d{3})+$)/g, ",")) : DASH);

/** The same of exact money, rounded to two decimals. */
export const cents = (text) => (known(text) ? grouped(fixed(nano(text), 1000000000n, 2)) : DASH);

/** An integer in larger units, as decimal text that is rounded half up as in a bill. */
export function fixed(integer, unit, digits) {
  const scaled = BigInt(integer) * 10n ** BigInt(digits) + unit / 2n;
  const units = scaled / unit - (scaled < 0n && scaled % unit ? 1n : 0n);
  const text = String(units < 0n ? -units : units).padStart(digits + 1, "0");
  return `${units < 0n ? "-" : ""}${text.slice(0, -digits)}.${text.slice(-digits)}`;
}

/** Nanoseconds of an hour; microjoules of a kWh are as many. */
export const HOUR = 3600000000000n;

/** Decimal text as an integer of billionths, since sums of money are exact. */
export function nano(text) {
  if (!known(text)) return 0n;
  const [whole, fraction = ""] = text.replace("-", "").split(".");
  const value = BigInt(whole) * 1000000000n + BigInt(fraction.padEnd(9, "0").slice(0, 9) || "0");
  return text.startsWith("-") ? -value : value;
}

export const ofNano = (value) => (Number(value) / 1e9).toString();

/** The time of day; with the date if it is another day than that of `now`. */
export function clock(time, now) {
  if (!known(time)) return DASH;
  const date = new Date(time);
  const hour = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const isToday = now && new Date(now).toDateString() === date.toDateString();
  return isToday ? hour : `${date.toLocaleDateString("sv")} ${hour}`;
}

/** A duration in its two largest units. */
export function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => seconds >= length);
  if (first < 0) return "0 s";
  const [name, length] = units[first];
  const count = Math.floor(seconds / length);
  if (first >= 2) return `${count} ${name}`;
  const [small, smaller] = units[first + 1];
  const rest = Math.floor((seconds % length) / smaller);
  return rest ? `${count} ${name} ${rest} ${small}` : `${count} ${name}`;
}

export const secondsSince = (time, now) => Math.max(0, (new Date(now) - new Date(time)) / 1000);

/** Since when, and for how long; what was so when the agent started has been so for longer. */
export function since(time, summary) {
  if (!known(time)) return "";
  const isOlder = new Date(time) <= new Date(summary.watched_since);
  const how = span(secondsSince(time, summary.at));
  return isOlder ? `since before ${clock(time, summary.at)}` : `since ${clock(time, summary.at)} (${how})`;
}

const REMAINDERS = {
  __unallocated__: "held by nobody",
  __unattributed__: "used by unknown owners",
  __unavailable__: "lost or broken",
  __unobserved__: "not observed",
  __stranded__: "stranded by MIG",
  __system__: "system processes",
  __other__: "other tenants",
  __terms__: "discounts by terms",
  __rate_variance__: "MIG prices that differ from the GPU's",
};

/** A product name without what every name has. */
export const shortModel = (model) => model.replace(/^NVIDIA /, "").replace(/ \(simulated\)$/, "");

/** The name of a tenant for people. */
export const tenantName = (name) => (Object.hasOwn(REMAINDERS, name) ? REMAINDERS[name] : name || "unknown owner");

const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** A name as one line without characters that hide or reorder what stands around it. */
export const printable = (name) => name.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu, (one) => SHORT_ESCAPES[one] ?? `\\u{${one.codePointAt(0).toString(16)}}`);

const LONGEST_NAME = 120;

/** The same, cut as in a bill. */
export function shownName(name) {
  const all = [...printable(name)];
  return all.length <= LONGEST_NAME ? all.join("") : `${all.slice(0, LONGEST_NAME - 1).join("")}…`;
}
