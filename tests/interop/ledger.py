"""The account, from outside: it adds up over minutes, as printed too, and a kill neither loses nor counts twice.

Law L1 is held exactly, per GPU and in integer nanoseconds, on /api/v1/bill and, where every series of a GPU is
old enough to show its first increments, on the page. Meanwhile a Prometheus scrapes every second, the agent is
killed again and again, and a rule gives a user another tenant; what Prometheus has of each account counter is held against the ledger. `increase()`
extrapolates counters that step every 15 s, so it is held to 2 % only; raw samples are exact.
"""

import json
import random
import time
from datetime import datetime

import yaml

import bill as printed_bill
import harness
import samples
from harness import Demo, Prometheus, wait_for

KILLS = 5 if harness.SMOKE else 20
SEED = 9855
WINDOW = 15
BIRTH_DELAY = 60  # limits.birth_delay in the demo's configuration
SLOT = "gpu_slot_seconds_total"
HELD = "gpu_tenant_held_seconds_total"
# The bill's figure behind each counter.
COUNTERS = {HELD: "held_ns", "gpu_tenant_used_seconds_total": "used_ns", "gpu_tenant_idle_seconds_total": "idle_ns"}
# A series that has not moved for ten minutes leaves the page. A move is seen later than it was, so it is held to half of that; in
# nanoseconds.
LINGER = 300 * 10**9
# The user whose tenant changes; and how fast time runs until it does, at the next quarter hour.
RULE = {"match": {"user_name": "carol"}, "tenant": "lab"}
SPEED = 10
PARTS = ("within_ns", "lent_ns", "idle_ns", "unmeasured_ns", "unavailable_ns")
# increase() may be off by a scrape interval at each end, so a shorter time would say nothing about 2 %.
LEAST = 115


def ledger(suite):
    demo = Demo(suite, config=Demo.CONFIG.read_text() + "web: { created: true }\n", began=harness.MID_MONTH.timestamp())
    server = Prometheus(suite, scrape=demo.instance)
    births = Births()
    wait_for("account series", 180, lambda: births.see(demo), demo.program, 1)
    wait_for("the account in Prometheus", 10, lambda: server.query(HELD), server.program)
    watch(suite, demo, births, BIRTH_DELAY + 2 * WINDOW)

    first = reading(demo, births)
    first.adds_up(suite)
    proved = page_adds_up(suite, demo, births)
    suite.expect(proved >= 6, f"on the page, only {proved} of 8 GPUs have all series old enough to add up")
    kill_again_and_again(suite, demo, births)
    change_a_rule(suite, demo, births)
    watch(suite, demo, births, first.time + LEAST - time.time())
    last = reading(demo, births)
    last.adds_up(suite)
    printed_bill.printed_adds_up(suite, demo, "USD")
    wait_for("a scrape more than needed", 30, lambda: last_scrape(server) > last.time + 1, server.program)
    compare(suite, server, first, last)


class Births:
    """When each account series first appeared, its latest value, and a time at which it had not yet moved there."""

    def __init__(self):
        self.seen, self.latest, self.before_move, self.looked = {}, {}, {}, 0

    def see(self, demo):
        """Records the account on the page."""
        looked, page = demo.clock.boot(), account(demo)
        for key, value in page.items():
            self.seen.setdefault(key, demo.clock.boot())
            if self.latest.get(key) != value:
                self.latest[key], self.before_move[key] = value, self.looked
        self.looked = looked
        return page

    def left(self, page):
        """The series that left the page, with their last values."""
        return {key: value for key, value in self.latest.items() if key not in page}

    def old(self, key, now):
        """Whether a first increment is shown: a window is committed and published well after its end."""
        return now - self.seen[key] > (BIRTH_DELAY + 5) * 10**9


def watch(suite, demo, births, seconds):
    """Checks law L1 for some time."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        bill_adds_up(suite, demo.api("bill"))
        page_adds_up(suite, demo, births)
        time.sleep(max(0, min(5, deadline - time.time())))


def bill_adds_up(suite, bill):
    """L1: the parts of every slot's time sum to its time, and so does the time of tenants and remainders."""
    held = {gpu["uuid"]: 0 for gpu in bill["gpus"]}
    for line in bill["lines"]:
        held[line["uuid"]] += line["held_ns"]
        place = f"bill line {line['tenant']} on GPU {line['gpu']}"
        whole = sum(line[part] for part in PARTS)
        suite.expect(whole == line["held_ns"], f"{place}: the parts make {whole} ns, held are {line['held_ns']} ns")
        used = line["within_ns"] + line["beyond_share_ns"] + line["outside_holding_ns"] + line["unheld_ns"]
        suite.expect(used == line["used_ns"], f"{place}: used within and without make {used} ns, used are {line['used_ns']} ns")
        suite.expect(all(value >= 0 for key, value in line.items() if key.endswith("_ns")), f"{place}: a part is negative")
    for gpu in bill["gpus"]:
        mine = held[gpu["uuid"]]
        suite.expect(mine == gpu["slot_ns"], f"bill of GPU {gpu['gpu']}: held are {mine} ns of {gpu['slot_ns']} ns")
    proof = bill["reconciliation"]
    slots = sum(gpu["slot_ns"] for gpu in bill["gpus"])
    suite.expect(slots == proof["slot_ns"] == proof["held_ns"] and proof["imbalance_ns"] == 0,
                 f"the bill's GPUs make {slots} ns, its proof is {proof}")
    suite.expect(proof["gpu_money"] == proof["line_money"], f"the bill's money does not add up: {proof}")


def page_adds_up(suite, demo, births):
    """Checks L1 on the page for each GPU whose series are all old enough; returns how many those are."""
    page, now = births.see(demo), demo.clock.boot()
    left = births.left(page)
    for key in left:
        still = now - births.before_move[key]
        suite.expect(still >= LINGER, f"{samples.show(key)} left the page, though it moved less than {still} ns ago")
    proved = 0
    for (name, labels), slot in page.items():
        uuid = ("uuid", dict(labels)["uuid"])
        held = {key: value for key, value in {**page, **left}.items() if key[0] == HELD and uuid in key[1]}
        if name != SLOT or not held or not all(births.old(key, now) for key in held):
            continue
        total = sum(nanoseconds(value) for value in held.values())
        suite.expect(total == nanoseconds(slot), f"on the page, {samples.show((name, labels))}: held are {total} ns of {nanoseconds(slot)} ns")
        proved += 1
    return proved


def kill_again_and_again(suite, demo, births):
    """Pauses at random times of a window; they are the same in every run."""
    pauses = random.Random(SEED)
    for number in range(KILLS):
        watch(suite, demo, births, pauses.uniform(2, WINDOW))
        before = births.see(demo)
        demo.program.kill()
        demo.start()
        after = births.see(demo)
        for key, value in before.items():
            back = key in after and after[key] < value and start_of(key, before) == start_of(key, after)
            suite.expect(not back, f"kill {number}: {samples.show(key)} went from {value} back to {after.get(key)}")


def change_a_rule(suite, demo, births):
    """Waits until the new tenant has counters. No counter falls; those that have not moved for long are left off the page."""
    config = yaml.safe_load(demo.config.read_text())
    config.setdefault("tenants", {}).setdefault("rules", []).insert(0, RULE)
    aside = demo.config.with_suffix(".new")
    aside.write_text(json.dumps(config))
    aside.rename(demo.config)
    last = births.see(demo)

    def has_new_tenant():
        nonlocal last
        page = births.see(demo)
        for key, value in last.items():
            suite.expect(page.get(key, value) >= value, f"after a changed rule, {samples.show(key)} went from {value} to {page.get(key)}")
        last = page
        return any(name == HELD and ("tenant", RULE["tenant"]) in labels for name, labels in page)

    demo.clock.run(SPEED)
    wait_for("the tenant of the changed rule", 20 * 60 / SPEED + 60, has_new_tenant, demo.program, 1)
    demo.clock.run(1)


def compare(suite, server, first, last):
    """Raw samples against the ledger's difference, for every counter whose start never changed."""
    proved = dict.fromkeys(COUNTERS, 0)
    restarted = []
    at = last.time
    span = f"{int(last.time - first.time) + 5}s"
    for name, figure in COUNTERS.items():
        starts = {key_of(series): {value for _, value in series["values"]}
                  for series in server.query(f"{name.removesuffix('_total')}_created[{span}]", at=at)}
        for series in server.query(f"{name}[{span}]", at=at):
            labels = key_of(series)
            key = (name, labels)
            place = samples.show(key)
            if not suite.expect(labels in starts, f"{place}: no _created says since when it counts"):
                continue
            if len(starts[labels]) != 1:
                restarted.append(place)
                continue  # a new start is allowed where continuity cannot be proved; nothing may be said then
            suite.expect(resets(server, key, span, at) == 0, f"{place}: resets() is not 0 under one start")
            values = [float(value) for time, value in series["values"] if float(time) >= first.time]
            if not (key in first.old and key in last.old):
                continue  # its first increments came in between
            suite.expect(values == sorted(values), f"{place}: goes back under one start")
            counted = nanoseconds(values[-1]) - nanoseconds(values[0])
            owed = last.bill[labels, figure] - first.bill[labels, figure]
            suite.expect(counted == owed, f"{place}: Prometheus has {counted} ns more than at first, the ledger {owed} ns")
            # The same span as the samples; Prometheus' window is open on its left.
            grown = increase(server, key, at, at - first.time)
            suite.expect(abs(grown - owed / 1e9) <= 0.02 * owed / 1e9 + 1e-9, f"{place}: increase() says {grown} s, the ledger {owed / 1e9} s")
            proved[name] += owed > 0
    print(f"ledger: {KILLS} kills in {last.time - first.time:.0f} s; counters held against the ledger: {proved}; new starts: {len(restarted)}")
    suite.expect(all(count >= 3 for count in proved.values()),
                 f"too few counters kept their start through {KILLS} kills and moved: {proved}; restarted: {restarted[:3]}")


class Reading:
    """The page's counters and the bill at one and the same window."""

    def __init__(self, demo, births, account, bill):
        self.time, self.account, self.raw = time.time(), account, bill
        now = demo.clock.boot()
        self.old = {key for key in account if births.old(key, now)}
        self.bill = {}
        for line in bill["lines"]:
            labels = tuple(sorted({"gpu": str(line["gpu"]), "uuid": line["uuid"], "tenant": line["tenant"]}.items()))
            for figure in COUNTERS.values():
                self.bill[labels, figure] = self.bill.get((labels, figure), 0) + line[figure]

    def adds_up(self, suite):
        """The bill adds up, and the page agrees with it."""
        bill_adds_up(suite, self.raw)
        shown = [key for key in self.old if key[0] in COUNTERS]
        suite.expect(len({dict(labels)["gpu"] for name, labels in shown if name == HELD}) >= 7, "few GPUs have an account that is old enough")
        for name, labels in shown:
            counted, owed = nanoseconds(self.account[name, labels]), self.bill.get((labels, COUNTERS[name]))
            suite.expect(counted == owed, f"{samples.show((name, labels))}: {counted} ns on the page, {owed} ns on the bill")


def reading(demo, births):
    """Bills end with a minute, the page with a window: they agree in the first window after a minute. On a busy machine that
    window may pass before all is read; then another minute is awaited."""
    for _ in range(5):
        closed = demo.api("bill")["closed_until"]
        wait_for("a minute to close", 200, lambda: demo.api("bill")["closed_until"] != closed, demo.program, 0.5)
        time.sleep(5)  # what is committed is acknowledged at the next tick
        before, bill, after = births.see(demo), demo.api("bill"), births.see(demo)
        # The window that begins with the minute's end is closed ten seconds after its own.
        late = demo.clock.utc() / 1e9 - datetime.fromisoformat(bill["closed_until"]).timestamp() >= WINDOW + 10
        if before == after and not late:
            return Reading(demo, births, after, bill)
    raise harness.Failed("page and bill are read too late to be of one window, minute after minute")


def last_scrape(server):
    """When Prometheus last scraped, in seconds since 1970."""
    return float(server.query("max(timestamp(up))")[0]["value"][1])


def account(demo):
    """The account counters on the page, and their starts."""
    names = {SLOT, *COUNTERS}
    names |= {name.removesuffix("_total") + "_created" for name in names}
    return {key: value for key, value in samples.of_openmetrics(demo.page(harness.OPENMETRICS)).items() if key[0] in names}


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
