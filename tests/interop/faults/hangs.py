"""F1, F1b: calls that do not return."""

import re
import time

from harness import PATIENCE, get, wait_for

from . import FAST, PERIOD, SECOND, SMOKE
from .measure import ages_of_others, last_sample, metrics, milliseconds, of, percentile, within
from .node import Node
from .table import scenario

# How long a call hangs, and how many agents hang at a time, each in another call.
LASTS = 4 if SMOKE else 60
AT_ONCE = 3 if SMOKE else 8


class Hung:
    """An agent of 8 GPUs of which one hangs in a call, and the observations meanwhile."""

    def __init__(self, node):
        self.node, self.threads = node, len(node.all_threads())
        self.ages, self.withdrawn, self.stuck = [], 0.0, 0
        self.blind, self.hit, self.up = [], [], []

    def hang(self, call):
        self.call, self.gone, self.named = call, False, False
        self.node.faults({"function": call, "gpu": 3, "hang": True})
        self.last = last_sample(self.node.metrics(), "3")

    def look(self):
        """One scrape and its duration."""
        # The time before the request, so that a delayed client does not make readings look older.
        asked = self.node.clock.utc() / SECOND
        status, body, seconds = self.node.scrape()
        found = metrics(body.decode())
        ages = ages_of_others(found, asked)
        self.ages.append(max(ages) if status == 200 and len(ages) == 7 else float("inf"))
        self.last = last_sample(found, "3") or self.last
        shown = any(of(found, "gpu_power_watts", gpu="3")) or any(of(found, "gpu_temperature_celsius", gpu="3"))
        if shown:
            self.withdrawn = max(self.withdrawn, asked - self.last)
        else:
            self.gone = True
            self.named |= any(of(found, "gpumeter_driver_call_in_flight_seconds", gpu="3", call=self.call))
        self.found = found
        return seconds

    def end(self):
        """Whether the agent is complete after the time, and again without the fault."""
        self.stuck = max(self.stuck, len(self.node.all_threads()) - self.threads, len(self.node.threads("sampler")) - 8)
        if self.gone:
            self.hit.append(self.call)
            self.blind += [] if self.named else [self.call]
            self.up += [value for _, value in of(self.found, "gpu_up", gpu="3")]
        self.node.faults()


@scenario(
    "F1", "a driver call hangs for ever, on one of 8 GPUs",
    "the other seven fresh (at most 2 periods old); scrape p99 at most 1.2 times that without a fault; the hung GPU's "
    "`gpu_up` 0 and its gauges withdrawn within 3 periods; never more than one stuck thread",
    "each function that the agent calls hangs in its turn for 60 s, in several agents at once, each in another function; "
    "they are scraped in turn with a twin without a fault. What is called once only hangs at the start of the agent")
def hang_each_call(suite, table):
    twin = Node(suite, "F1-twin", config=FAST)
    twin.wait_up()
    hung = []
    for number in range(AT_ONCE):
        node = Node(suite, f"F1-{number}", config=FAST)
        node.wait_up()
        hung.append(Hung(node))
    time.sleep(3)
    # By now every tier has been read.
    calls = twin.calls()
    shown = [name for name in calls if re.search("FieldValues|ProcessUtilization|PowerUsage", name)][:3] if SMOKE else calls
    quiet, slow, usual = [], [], []
    for first in range(0, len(shown), AT_ONCE):
        batch = list(zip(hung, shown[first:first + AT_ONCE]))
        for one, call in batch:
            one.hang(call)
        began = time.monotonic()
        # On a busy machine a hang may show late; then it lasts longer.
        shows = lambda: not SMOKE or any(one.gone for one, _ in batch) and all(one.named for one, _ in batch if one.gone)
        while (passed := time.monotonic() - began) < LASTS or (not shows() and passed < PATIENCE):
            for one, _ in batch:
                slow.append(one.look())
            asked = twin.clock.utc() / SECOND
            _, body, seconds = twin.scrape()
            quiet.append(seconds)
            usual.append(max(ages_of_others(metrics(body.decode()), asked)))
            time.sleep(0.02)
        for one, _ in batch:
            one.end()
        for one, _ in batch:
            one.node.wait_up()
    ages = [age for one in hung for age in one.ages]
    what = f"each of {len(shown)} calls hangs for {LASTS} s on one of 8 GPUs; {sum(len(one.hit) for one in hung)} are made"
    age = percentile(ages, 0.999)
    table.row(f"{what} while it runs: age of the other seven, at 99.9 % of {len(ages)} looks", f"<= {2 * PERIOD} s",
              f"{age:.2f} s", age <= 2 * PERIOD, speed=True, holds=age < float("inf"))
    table.row("the same at the worst look; that of the twin", f"<= {2 * PERIOD} s", f"{max(ages):.2f} s; {max(usual):.2f} s",
              max(ages) <= 2 * PERIOD, speed=True)
    told(table, hung, (quiet, slow))
    hit = {call for one in hung for call in one.hit}
    hang_at_start(hung, table, ["nvmlDeviceGetUUID"] if SMOKE else [call for call in calls if call not in hit])


def told(table, hung, times):
    hit, withdrawn = sum(len(one.hit) for one in hung), max(one.withdrawn for one in hung)
    table.row("the oldest readings of the hung GPU that are shown", f"<= {3 * PERIOD} s", f"{withdrawn:.2f} s",
              withdrawn <= 3 * PERIOD, speed=True, holds=hit)
    up = [value for one in hung for value in one.up]
    table.row("its gpu_up", "0", ", ".join(sorted({f"{value:.0f}" for value in up})) or "none", len(up) == hit and not any(up))
    blind = [call for one in hung for call in one.blind]
    table.row("the call is named meanwhile", "each", f"not {blind}" if blind else "each", not blind)
    stuck = max(one.stuck for one in hung)
    table.row("threads more than before, however many calls have hung", "0", str(stuck), stuck <= 0)
    quiet, slow = (percentile(seconds, 0.99) for seconds in times)
    measured = f"{slow / quiet:.2f}x ({milliseconds(slow)} of {len(times[1])}, {milliseconds(quiet)} of {len(times[0])})"
    table.row("scrape p99 against the twin's", "<= 1.2x", measured, slow <= 1.2 * quiet, speed=True)


def hang_at_start(hung, table, calls):
    """The calls that are made once, for a GPU that hangs when the agent starts."""
    fewest, hit = 8, 0
    for first in range(0, len(calls), len(hung)):
        batch = [(one.node, call) for one, call in zip(hung, calls[first:first + len(hung)])]
        for node, call in batch:
            node.program.kill()
            node.faults({"function": call, "gpu": 3, "hang": True})
            node.start()
        began = time.monotonic()
        # The hung one never comes; without it there is nothing to wait for but the others.
        while min(sum(node.up().values()) for node, _ in batch) < 7 and time.monotonic() - began < PATIENCE:
            time.sleep(0.1)
        time.sleep(1)
        for node, call in batch:
            # All looks but one, an interval apart: a tick that is late takes the readings of all for old.
            looks = []
            for _ in range(5):
                looks.append(sum(node.up().values()))
                time.sleep(1.2 * PERIOD)
            up = sorted(looks)[1]
            hit += up < 8
            fewest = min(fewest, up)
            node.faults()
        for node, _ in batch:
            node.wait_up()
    table.row(f"each of {len(calls)} other calls hangs at the start, {hit} of them for one GPU: fewest GPUs up",
              "7, then 8", f"{fewest:.0f}, then 8", fewest >= 7 and hit > 0)


@scenario(
    "F1b", "a driver call hangs and holds the lock of the whole driver",
    "every GPU's call is named and its readings withdrawn; holdings and health go on; all back within 5 s",
    "a call of one GPU hangs while it holds the simulated driver's lock, for which all other calls wait")
def hang_every_call(suite, table):
    node = Node(suite, "F1b", config=FAST + "attribution: {presence: true}\n")
    node.wait_up()
    wait_for("a holding", 20, lambda: any(of(node.metrics(), "gpu_holding_ratio")), node.program)
    node.faults({"function": "nvmlDeviceGetFieldValues", "gpu": 3, "hang": True, "lock": True})
    wait_for("all GPUs stale", 20, lambda: not any(node.up().values()), node.program)
    calls = lambda found: {labels["gpu"]: labels["call"] for labels, _ in of(found, "gpumeter_driver_call_in_flight_seconds")}
    within(20, lambda: len(calls(node.metrics())) == 8, node.program)
    found = node.metrics()
    named = calls(found)
    table.row("a call of one GPU hangs and holds the driver's lock: GPUs whose call is named", "8", str(len(named)),
              len(named) == 8)
    frozen = [name for name in ("gpu_power_watts", "gpu_utilization_ratio") if any(of(found, name))]
    table.row("readings that are still shown", "none", ", ".join(frozen) or "none", not frozen)
    held = sum(1 for _ in of(found, "gpu_holding_ratio"))
    health = get(f"{node.url}/-/healthy")[0].strip()
    table.row("holdings go on, and the agent is healthy", "both", f"{held} holdings, {health}",
              held > 0 and health == "healthy")
    began = time.monotonic()
    node.faults()
    node.wait_up()
    seconds = time.monotonic() - began
    table.row("all GPUs answer again", "<= 5 s", f"{seconds:.1f} s", seconds <= 5, speed=True)
    node.end()
