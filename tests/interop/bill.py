"""The bill as it is printed, in text, CSV and JSON: the lines of every column add up to its total, to the last printed digit;
so do hours and money by price. The columns of a line add up but for their rounding, and exactly in JSON. A first price that
begins later leaves time without one.
"""

import csv
import io
import re
import subprocess
from datetime import timedelta
from decimal import Decimal

import harness
from harness import MID_MONTH, PATIENCE, Demo, bill_of, wait_for

PARTS = ("within", "lent", "idle", "unmeasured", "unavailable")
BESIDE = ("beyond", "outside", "unheld")
HOURS = ("held", *PARTS, "used", *BESIDE, "charged", "unpriced")
ALWAYS = ("held", "charged")
DIGIT = Decimal("0.0001")
HOUR, KWH = Decimal(3_600_000_000_000), Decimal(3_600_000_000_000)  # nanoseconds, microjoules
QUARTER = 900


def bill(suite):
    first, second = (MID_MONTH + timedelta(seconds=after) for after in (QUARTER, 2 * QUARTER))
    rates = f"""  currency: EUR
  rates:
    - {{ from: "{stamp(first)}", gpu_hour: 1.1 }}
    - {{ from: "{stamp(second)}", gpu_hour: 2.345, class: spot }}
"""
    config = re.sub(r"(?m)^prices:\n(?:  .*\n)+", "prices:\n" + rates, Demo.CONFIG.read_text())
    demo = Demo(suite, config=config, began=MID_MONTH.timestamp())
    demo.clock.run(60)
    later = stamp(second + timedelta(minutes=2))
    wait_for("time under the second price", 120, lambda: demo.api("bill")["closed_until"] >= later, demo.program, 1)
    demo.clock.run(1)
    printed_adds_up(suite, demo, "EUR")


def stamp(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def printed_adds_up(suite, demo, currency):
    """The same bill of a running demo in its three forms."""
    until = demo.api("bill")["closed_until"]
    text, table, exact = (command(suite, demo, until, *form) for form in ((), ("--csv",), ("--json",)))
    exact = bill_of(exact)
    lines, total = text_table(suite, text)
    if not lines:
        return
    columns_add_up(suite, lines, total)
    lines_add_up(suite, lines, total)
    by_price(suite, text, total, currency)
    words(suite, text, [*total, *lines])
    same_in_csv(suite, table, lines, currency)
    exact_adds_up(suite, exact)
    rounded(suite, exact, lines, total, currency)
    amounts = [Decimal(line.get(currency, 0)) for line in lines.values()]
    print(f"bill: {len(lines)} tenants, total {total['held']} h, {total.get('unpriced')} h without a price, {sum(amounts)} {currency}")


def command(suite, demo, until, *form):
    ran = subprocess.run([harness.GPUMETER, "bill", "--url", demo.url, "--to", until, *form],
                         capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 0, f"gpumeter bill {' '.join(form)} ends with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def text_table(suite, text):
    """The lines of the table by tenant, and the line of totals, by head of column. A column that is zero in every line is
    left out."""
    rows = iter(text.splitlines())
    heads = next((re.findall(r"\S+(?: h\b)?", row) for row in rows if row.startswith("tenant")), [])
    heads = [head.removesuffix(" h") for head in heads[1:]]
    lines = {}
    for row in rows:
        if not row:
            break
        tenant, *cells = row.split()
        if suite.expect(len(cells) == len(heads), f"{tenant} has {len(cells)} values under {len(heads)} heads"):
            lines[tenant] = dict.fromkeys(HOURS, "0.0000") | dict(zip(heads, cells))
    for name in heads:
        is_zero = all(number(line.get(name, "")) == 0 for line in lines.values())
        suite.expect(not is_zero or name not in HOURS or name in ALWAYS, f"the column {name} is zero in every line")
    for name in ALWAYS:
        suite.expect(name in heads, f"the table has no column {name}")
    total = lines.pop("total", None)
    suite.expect(lines and total, f"the bill has no table with a total:\n{text}")
    return lines, total


def number(cell):
    return Decimal(0) if cell in ("-", "") else Decimal(cell)


def columns_add_up(suite, lines, total):
    """But for the rounding of each column by itself."""
    unavailable = number(total["unavailable"])
    for tenant, line in [*lines.items(), ("total", total)]:
        held, sum_of_parts = number(line["held"]), sum(number(line[part]) for part in PARTS)
        suite.expect(abs(held - sum_of_parts) <= DIGIT * 6, f"{tenant}: the parts make {sum_of_parts} h, held are {held} h")
        used = sum(number(line[name]) for name in ("within", *BESIDE))
        suite.expect(abs(number(line["used"]) - used) <= DIGIT * 5, f"{tenant}: used are {line['used']} h, within and beside make {used} h")
        # The price of unavailable time goes to the remainder of that name.
        due = held - number(line["unavailable"]) + (unavailable if tenant in ("__unavailable__", "total") else 0)
        paid = number(line["charged"]) + number(line["unpriced"])
        suite.expect(abs(due - paid) <= DIGIT * 5, f"{tenant}: {paid} h are charged or without a price, {due} h are due")


def lines_add_up(suite, lines, total):
    for name, printed in total.items():
        found = sum(number(line[name]) for line in lines.values())
        suite.expect(found == number(printed), f"column {name}: the lines make {found}, the total says {printed}")


def by_price(suite, text, total, currency):
    """The lines by price make the totals, and the time without a price has one of its own."""
    found = re.findall(r"^price: (\S+) (\w+) per GPU-hour, class (\w+)(?:, since \S+)?: (\S+) h, (\S+) \w+$", text, re.M)
    hours, money = sum(number(line[3]) for line in found), sum(number(line[4]) for line in found)
    suite.expect(found and all(line[1] == currency for line in found), f"no price is printed in {currency}")
    suite.expect(hours == number(total.get("charged", "")), f"the prices are for {hours} h, charged are {total.get('charged')} h")
    suite.expect(money == number(total[currency]), f"the prices make {money}, the total says {total[currency]}")
    unpriced = re.findall(r"^no price in force: (\S+) h$", text, re.M)
    without = total.get("unpriced")
    suite.expect(unpriced == ([] if without == "0.0000" else [without]), f"the line of time without a price says {unpriced}, its column {without}")


def words(suite, text, names):
    """The bill has its node and time, is marked as simulated, and explains its columns."""
    suite.expect(text.startswith("Bill of demo-node\n"), "the bill does not begin with its node")
    suite.expect(re.search(r"^\d{4}-\d\d-\d\d 00:00 \S+ to .+, time zone \S+$", text, re.M), "the bill does not say its period in a time zone")
    suite.expect(re.search("^SIMULATED: ", text, re.M), "the bill does not say that it is simulated")
    for name in names:
        if name in text.split("\n\n")[1].split() and (name in (*HOURS, "kWh") or name.startswith("__")):
            suite.expect(re.search(rf"^{name} +\w", text.split("\n\n")[-1], re.M), f"the legend does not explain {name}")


def same_in_csv(suite, table, lines, currency):
    """CSV has a line for each tenant and rate, whose last digits are rounded for themselves."""
    found = {}
    for row in csv.DictReader(io.StringIO(table)):
        found.setdefault(row["tenant"], []).append(row)
    suite.expect(found.keys() == lines.keys(), f"CSV has the tenants {sorted(found)}, the text {sorted(lines)}")
    heads = {name: f"{name}_hours" for name in HOURS} | {"kWh": "energy_kwh", currency: "amount"}
    for tenant, rows in found.items():
        for name, head in heads.items():
            whole = sum(number(row[head]) for row in rows)
            printed = number(lines[tenant].get(name, "").replace("-", ""))
            most = 0 if len(rows) == 1 and len(found) == 1 else DIGIT * 2 * len(rows)
            suite.expect(abs(whole - printed) <= most, f"{tenant}: {head} is {whole} in CSV, {printed} in the text")
        for row in rows:
            told = (row["node"], row["currency"], row["simulated"], row["price_unit"])
            known = row["rate"] and row["price_class"]
            suite.expect(told == ("demo-node", currency, "true", "gpu_hour") and known or not row["rate"], f"{tenant}: CSV says {row}")


def exact_adds_up(suite, exact):
    """In nanoseconds and nano-units."""
    sums = dict.fromkeys(("held", "charged", "unpriced", "unavailable", "money"), 0)
    for line in exact["lines"]:
        place = f"JSON line {line['tenant']} on GPU {line['gpu']}"
        whole = sum(line[f"{part}_ns"] for part in ("within", "lent", "idle", "unmeasured", "unavailable"))
        suite.expect(whole == line["held_ns"], f"{place}: the parts make {whole} ns, held are {line['held_ns']} ns")
        for name in ("held", "charged", "unpriced", "unavailable"):
            sums[name] += line.get(f"{name}_ns", 0)
        sums["money"] += Decimal(line["money"] or 0)
    slots = sum(gpu["slot_ns"] for gpu in exact["gpus"])
    suite.expect(slots == sums["held"] == sums["charged"] + sums["unpriced"], f"the GPUs' time is {slots} ns, the lines make {sums}")
    suite.expect(sums["unpriced"] == exact.get("unpriced_ns"), f"the lines are without a price for {sums['unpriced']} ns, the bill says {exact.get('unpriced_ns')}")
    prices = exact.get("rates", [])
    suite.expect(sum(price["slot_ns"] for price in prices) == sums["charged"], "the time by price is not what is charged")
    for whole in (sum(Decimal(price["money"]) for price in prices), sum(Decimal(gpu["money"]) for gpu in exact["gpus"]),
                  Decimal(exact["reconciliation"]["line_money"])):
        suite.expect(whole == sums["money"], f"the lines' money makes {sums['money']}, not {whole}")


def rounded(suite, exact, lines, total, currency):
    """Printed figures are the exact ones rounded: totals to the nearest, a line by less than two digits."""
    def energy(line):
        return (line["energy_static_uj"] or 0) + (line["energy_dynamic_uj"] or 0)

    figures = {"held": lambda line: line["held_ns"] / HOUR, "kWh": lambda line: energy(line) / KWH,
               currency: lambda line: Decimal(line["money"] or 0)}
    for name, figure in figures.items():
        for tenant, line in [*lines.items(), ("total", total)]:
            whole = sum(figure(each) for each in exact["lines"] if tenant in ("total", each["tenant"]))
            most = DIGIT / 2 if tenant == "total" else DIGIT * 2
            suite.expect(abs(whole - number(line.get(name, ""))) <= most, f"{tenant}: {name} is {whole} exactly, {line.get(name)} is printed")


if __name__ == "__main__":
    harness.run(bill)
