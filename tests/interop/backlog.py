"""A backlog of an hour goes into real Prometheus servers: in order into one that takes nothing out of order, and live first into
one with a window of two hours.

Both are stopped while an hour passes on the demo's clock, which is moved tick by tick, so that no tick is late however busy the
machine is; each tick is pushed. Then both are started again. In the end each has every tick's sample of some series, with the
value that the page had and none between, and nothing was refused or dropped. The agent's resident memory is compared at its
highest: before, while the backlog waits, and while it is sent.
"""

import json
import re
import time
from pathlib import Path

import harness
import samples
from harness import Demo, Prometheus, free_port, get, wait_for

SECOND = 10**9
# Of ticks and pushes, in seconds. A backlog is sent at ten times its pace, so an hour takes six minutes.
INTERVAL = 5
TICKS = (2 if harness.SMOKE else 60) * 60 // INTERVAL
# Pushes after which everything has run that needs memory, and again as many in which it is read.
WARM = 10 if harness.SMOKE else 60
# Gauges, counters and a part of a histogram.
SERIES = ("gpu_power_watts", "gpu_temperature_celsius", "gpu_energy_joules_total", "gpu_tenant_held_seconds_total",
          "gpumeter_ledger_last_commit_timestamp_seconds", "gpumeter_driver_call_duration_seconds_count")
MOST_MORE = 4 << 20


class Server:
    """A Prometheus at one address that is started, stopped and started again."""

    def __init__(self, suite, name, window, live_first):
        self.suite, self.name, self.port, self.live_first = suite, name, free_port(), live_first
        self.config = {"storage": {"tsdb": {"out_of_order_time_window": window}}}

    def start(self):
        self.prometheus = Prometheus(self.suite, config=self.config, otlp=True, port=self.port, name=self.name)

    def stop(self):
        self.prometheus.program.stop()

    def destination(self):
        return {"endpoint": f"http://127.0.0.1:{self.port}/api/v1/otlp", "live_first": self.live_first}

    def has(self, tick):
        """All that the tick's page had has arrived."""
        at, page = tick
        found = self.prometheus.query(f'{{__name__=~"{"|".join(SERIES)}",job="gpumeter"}}[1s]', at=at / SECOND)
        return len(found) == len(page)

    def number(self, page, name):
        """The agent's number about this destination."""
        found = re.search(rf'^{name}{{destination="[^"]*:{self.port}\b[^"]*"}} (\S+)', page, re.M)
        return found and float(found[1])


def backlog(suite):
    servers = [Server(suite, "in-order", "0s", False), Server(suite, "live-first", "2h", True)]
    for one in servers:
        one.start()
    config = Demo.CONFIG.read_text().replace("level: full", f"level: full\n  interval: {INTERVAL}s")
    config += "otlp: " + json.dumps({"interval": f"{INTERVAL}s", "destinations": [one.destination() for one in servers]}) + "\n"
    # Prometheus takes no samples of a future that is more than ten minutes away.
    demo = Demo(suite, config=config, began=time.time() - 5400)
    demo.clock.run(8)
    pass_ticks(demo, WARM)
    forget_highest(demo)
    pass_ticks(demo, WARM)
    demo.hold_between_ticks(INTERVAL * SECOND)
    ticks = []
    wait_for("empty spools", 60, lambda: ticks.append(tick(demo)) or empty(servers, demo), demo.program, INTERVAL)

    # A Prometheus that is stopped while a push is on its way may accept and forget it.
    for one in servers:
        wait_for(f"the last push at {one.name}", 60, lambda: one.has(ticks[-1]), demo.program)
        one.stop()
    before = highest_memory(demo)
    forget_highest(demo)
    for _ in range(TICKS):
        written = last_write(demo)
        ticks.append(tick(demo))
        wait_for("the push in the spool", 60, lambda: last_write(demo) > written, demo.program, 0.002)
    waiting = highest_memory(demo)
    size = spool_bytes(demo)

    forget_highest(demo)
    for one in servers:
        one.start()
    began = time.monotonic()
    # Time goes on meanwhile, so that one of them gets what is live before what waits.
    wait_for("empty spools", TICKS * INTERVAL, lambda: ticks.append(tick(demo)) or empty(servers, demo), demo.program, INTERVAL)
    took = time.monotonic() - began
    sent = highest_memory(demo)
    for what, most in (("waits", waiting), ("is sent", sent)):
        suite.expect(most <= before + MOST_MORE, f"while the backlog {what} the agent has {mib(most)}, and before {mib(before)}")
    for one in servers:
        counts = {name: one.number(demo.page(), f"gpumeter_otlp_points_{name}_total") for name in ("sent", "rejected", "dropped")}
        suite.expect(counts["rejected"] == counts["dropped"] == 0, f"{one.name}: points were lost: {counts}")
        compare(suite, one, ticks)
    print(f"backlog: {TICKS} of {len(ticks)} ticks, {mib(size)}, waited and were sent in {took:.0f} s; resident memory "
          f"at most {mib(before)} before, {mib(waiting)} while they waited, {mib(sent)} while they were sent")


def pass_ticks(demo, count):
    reached = demo.clock.elapsed() + count * INTERVAL * SECOND
    wait_for("time to pass", count, lambda: demo.clock.elapsed() > reached, demo.program)


def tick(demo):
    """Moves the clock by one tick; returns the time of its snapshot and the samples of `SERIES` on its page."""
    at = lambda: get(f"{demo.url}/api/v1/health")[0].split('"at":"')[1].split('"')[0]
    before = at()
    demo.clock.advance(INTERVAL * SECOND)
    wait_for("the next tick", 60, lambda: at() != before, demo.program, 0.002)
    lines = [line for line in demo.page().splitlines() if line.startswith(SERIES)]
    return demo.clock.utc(), samples.of_text("\n".join(lines) + "\n")


def empty(servers, demo):
    page = demo.page()
    return all(one.number(page, "gpumeter_otlp_queue_bytes") == 0 for one in servers)


def compare(suite, server, ticks):
    """Each sample that was on a page is there, and no other."""
    begin, end = (ticks[place][0] / SECOND for place in (0, -1))
    # The last tick may still be on its way.
    wanted = {}
    for at, page in ticks[:-1]:
        for key, value in page.items():
            wanted.setdefault(key, []).append((at // 10**6, value))
    suite.expect({name for name, _ in wanted} == set(SERIES), f"not on the page: {set(SERIES) - {name for name, _ in wanted}}")
    found = {}
    for name in SERIES:
        for series in server.prometheus.query(f'{name}{{job="gpumeter"}}[{int(end - begin) + 1}s]', at=end - INTERVAL / 2):
            (key, _), = samples.of_prometheus([series | {"value": series["values"][0]}], "job", "instance").items()
            found[key] = [(round(1000 * float(at)), float(value)) for at, value in series["values"]]
    for key in sorted(wanted.keys() | found.keys()):
        lacks, more = (set(one.get(key, ())) - set(other.get(key, ())) for one, other in ((wanted, found), (found, wanted)))
        suite.expect(not lacks and not more, f"{server.name}: {samples.show(key)}: of {len(wanted.get(key, ()))} samples {len(lacks)} "
                     f"are missing, such as {sorted(lacks)[:2]}, and {len(more)} are too many, such as {sorted(more)[:2]}")


def spool_bytes(demo):
    return sum(path.stat().st_size for path in (demo.state / "otlp").iterdir())


def last_write(demo):
    """When the spool was written last: by a push, since nothing is sent."""
    return max(path.stat().st_mtime_ns for path in (demo.state / "otlp").iterdir())


def highest_memory(demo):
    """The most resident bytes since `forget_highest`."""
    return int(re.search(r"^VmHWM:\s+(\d+) kB", proc(demo, "status").read_text(), re.M)[1]) << 10


def forget_highest(demo):
    proc(demo, "clear_refs").write_text("5")


def proc(demo, name):
    return Path(f"/proc/{demo.program.process.pid}/{name}")


def mib(count):
    return f"{count / 2**20:.1f} MiB"


harness.run(backlog)
