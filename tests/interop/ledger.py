"""The account, from outside: it adds up over minutes, and a kill neither loses nor counts twice.

Two parts. First law L1 on /api/v1/bill, exact in integer nanoseconds. Then a Prometheus scrapes every second
while the agent is killed twenty times (GPUMETER_KILLS), and what it has of each account counter is held against the ledger.
`increase()` extrapolates counters that step every 15 s, so it is held to 2 % only; raw samples are exact.
"""

import os
import random
import sqlite3
import time

import harness
import samples
from harness import Demo, Prometheus, wait_for

KILLS = int(os.environ.get("GPUMETER_KILLS", "20"))
SEED = 9855
WINDOW = 15
# _created samples say under which start a counter counts.
CREATED = {"web": {"created": True}}
# What stands behind each counter in the ledger's table of that name.
COUNTERS = {
    "gpu_tenant_held_seconds_total": "within_ns + lent_ns + waste_ns + unmeasured_ns + unavailable_ns",
    "gpu_tenant_used_seconds_total": "used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns",
    "gpu_tenant_idle_seconds_total": "lent_ns + waste_ns",
}


def ledger(suite):
    demo = Demo(suite, "--fresh", config=CREATED)
    server = Prometheus(suite, scrape=demo.instance)
    wait_for("account series", 180, lambda: account(demo), demo.program, 1)
    wait_for("the account in Prometheus", 10, lambda: server.query(next(iter(COUNTERS))), server.program)
    for _ in range(8):  # two minutes
        adds_up(suite, demo)
        time.sleep(WINDOW)

    first = reading(demo)
    kill_again_and_again(suite, demo)
    wait_for_windows(demo, 3)
    last = reading(demo)
    adds_up(suite, demo)
    time.sleep(3)  # one scrape more than needed
    compare(suite, server, first, last)


def adds_up(suite, demo):
    """L1: the parts of every slot's time are its time, and what tenants and remainders held is too."""
    bill = demo.api("bill")
    lines = {}
    for line in bill["lines"]:
        lines.setdefault(line["gpu"], []).append(line)
        place = f"bill line {line['tenant']} on GPU {line['gpu']}"
        whole = sum(line[part] for part in ("within_ns", "lent_ns", "waste_ns", "unmeasured_ns", "unavailable_ns"))
        suite.expect(whole == line["held_ns"], f"{place}: the parts make {whole} ns, held are {line['held_ns']} ns")
        suite.expect(line["idle_ns"] == line["lent_ns"] + line["waste_ns"], f"{place}: idle is not lent and waste")
        suite.expect(all(value >= 0 for key, value in line.items() if key.endswith("_ns")), f"{place}: a part is negative")
    suite.expect(bill["gpus"], "the bill knows no GPU")
    for gpu in bill["gpus"]:
        place = f"bill of GPU {gpu['gpu']}"
        held = sum(line["held_ns"] for line in lines.get(gpu["gpu"], []))
        used = sum(line["used_ns"] for line in lines.get(gpu["gpu"], []))
        suite.expect(used <= gpu["slot_ns"], f"{place}: used are {used} ns of {gpu['slot_ns']} ns")
        suite.expect(held == gpu["slot_ns"], f"{place}: held are {held} ns of {gpu['slot_ns']} ns")
    proof = bill["reconciliation"]
    suite.expect(proof["imbalance_ns"] == "0" and float(proof["imbalance_money"]) == 0, f"the bill does not reconcile: {proof}")
    on_the_page(suite, demo)


def on_the_page(suite, demo):
    """L1 on the page, for GPUs all of whose series are older than the birth delay: none is held back at 0."""
    page = samples.of_text(demo.page())
    held, young = {}, set()
    for (name, labels), value in page.items():
        if name == "gpu_tenant_held_seconds_total":
            uuid = dict(labels)["uuid"]
            held[uuid] = held.get(uuid, 0) + nanoseconds(value)
            young |= {uuid} if value == 0 else set()
    for (name, labels), value in page.items():
        uuid = dict(labels).get("uuid")
        if name == "gpu_slot_seconds_total" and uuid in held and uuid not in young:
            whole = nanoseconds(value)
            suite.expect(held[uuid] == whole, f"page: tenants of {uuid} hold {held[uuid]} ns of {whole} ns")


def kill_again_and_again(suite, demo):
    """At any moment of a window; the pauses are the same in every run."""
    pauses = random.Random(SEED)
    for number in range(KILLS):
        time.sleep(pauses.uniform(2, WINDOW))
        before = account(demo)
        demo.program.kill()
        demo.start()
        after = account(demo)
        for key, value in before.items():
            back = key in after and after[key] < value and start_of(key, before) == start_of(key, after)
            suite.expect(not back, f"kill {number}: {samples.show(key)} went from {value} back to {after.get(key)}")


def compare(suite, server, first, last):
    """Raw samples against the ledger's difference, for every counter whose start never changed."""
    proved = 0
    span = f"{int(last.time - first.time) + 5}s"
    for name, figure in COUNTERS.items():
        starts = {key_of(series): {value for _, value in series["values"]}
                  for series in server.query(f"{name.removesuffix('_total')}_created[{span}]", at=last.time + 2)}
        for series in server.query(f"{name}[{span}]", at=last.time + 2):
            labels = key_of(series)
            if len(starts.get(labels, ())) != 1:
                continue  # a new start is allowed where continuity cannot be proved; nothing may be said then
            key = (name, labels)
            values = [float(value) for at, value in series["values"] if float(at) >= first.time]
            if key not in first.account or key not in last.account:
                continue
            place = samples.show(key)
            suite.expect(values == sorted(values), f"{place}: goes back under one start")
            counted = nanoseconds(values[-1]) - nanoseconds(values[0])
            owed = last.ledger[labels, figure] - first.ledger[labels, figure]
            suite.expect(counted == owed, f"{place}: Prometheus has {counted} ns more than at first, the ledger {owed} ns")
            # The same span as the samples; Prometheus' window is open on its left.
            grown = increase(server, key, last.time + 2, last.time + 2 - first.time)
            suite.expect(abs(grown - owed / 1e9) <= 0.02 * owed / 1e9 + 1e-9, f"{place}: increase() says {grown} s, the ledger {owed / 1e9} s")
            suite.expect(resets(server, key, span, last.time + 2) == 0, f"{place}: resets() is not 0")
            proved += 1
    suite.expect(proved >= 3, f"only {proved} counters kept their start through {KILLS} kills, so little was compared")


class Reading:
    def __init__(self, account, ledger):
        self.time, self.account, self.ledger = time.time(), account, ledger


def reading(demo):
    """The page's counters and the ledger at one and the same window, just after it was published."""
    wait_for_windows(demo, 1)
    while True:
        before, figures, after = account(demo), counters(demo), account(demo)
        if before == after:
            return Reading(after, figures)


def counters(demo):
    """What the ledger's file says, by the labels of the page."""
    tenants = {line["holder"]: line["tenant"] for line in demo.api("bill")["lines"]}
    figures = {}
    with sqlite3.connect(f"file:{demo.state / 'ledger.db'}?mode=ro", uri=True) as file:
        for figure in COUNTERS.values():
            rows = file.execute(f"SELECT uuid, gpu_index, name, {figure} FROM counter "
                                "JOIN gpu ON gpu.id = counter.gpu JOIN holder ON holder.id = counter.holder")
            for uuid, gpu, holder, value in rows:
                labels = {"gpu": str(gpu), "uuid": uuid, "tenant": tenants.get(holder, holder)}
                key = tuple(sorted(labels.items())), figure
                figures[key] = figures.get(key, 0) + value
    return figures


def account(demo):
    """The account counters on the page, and their starts."""
    names = set(COUNTERS) | {name.removesuffix("_total") + "_created" for name in COUNTERS}
    return {key: value for key, value in samples.of_openmetrics(demo.page(harness.OPENMETRICS)).items() if key[0] in names}


def wait_for_windows(demo, count):
    for _ in range(count):
        before = account(demo)
        wait_for("a window to close", 3 * WINDOW, lambda: account(demo) != before, demo.program)


def start_of(key, page):
    return page.get((key[0].removesuffix("_total") + "_created", key[1]))


def key_of(series):
    return tuple(sorted((name, value) for name, value in series["metric"].items() if name not in ("__name__", "job", "instance")))


def nanoseconds(seconds):
    return round(seconds * 1e9)


def selector(key):
    return key[0] + "{" + ", ".join(f'{name}="{value}"' for name, value in key[1]) + "}"


def increase(server, key, at, seconds):
    found = server.query(f"increase({selector(key)}[{int(seconds)}s])", at=at)
    return float(found[0]["value"][1]) if found else 0.0


def resets(server, key, span, at):
    return float(server.query(f"resets({selector(key)}[{span}])", at=at)[0]["value"][1])


harness.run(ledger)
