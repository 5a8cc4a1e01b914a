"""F20: a driver that lies."""

import re
import time

import samples

from . import FAST, SMOKE
from .measure import Counters, balanced, metrics, of
from .node import Node, crowd, written
from .table import scenario


@scenario(
    "F20", "garbage from the driver: counts of 2^32-1, utilization of 250 %, energy that goes back",
    "rejected by range and counted; never an allocation by a driver's count; nothing impossible on the page or the account",
    "every answer of every function is nonsense, with another seed in each of several agents")
def garbage(suite, table):
    seeds = [9855] if SMOKE else [9855, 1, 2, 3, 5, 8, 13, 21]
    liars = []
    for seed in seeds:
        scenario = written(suite, f"F20-{seed}.json", {"seed": seed, **crowd(40)})
        liars.append(Liar(Node(suite, f"F20-{seed}", scenario=scenario, config=FAST)))
    until = time.monotonic() + (5 if SMOKE else 40)
    while time.monotonic() < until:
        for liar in liars:
            liar.look()
        time.sleep(0.2 / len(liars))
    told(table, liars)
    for liar in liars:
        liar.node.faults()
    for liar in liars:
        liar.node.wait_up()
    time.sleep(2)
    for liar in liars:
        liar.counters.see(liar.node.metrics())
        liar.counters.row(table)
        balanced(table, liar.node)


class Liar:
    """An agent whose driver tells nonsense of one seed, and what was odd on its pages."""

    def __init__(self, node):
        self.node, self.counters = node, Counters()
        self.odd, self.negative, self.last = set(), set(), {}
        node.wait_up()
        node.forget_peak()
        self.before = node.memory("VmRSS")
        node.faults({"function": "*", "garbage": True})

    def look(self):
        page = self.node.page()
        self.last = metrics(page)
        self.counters.see(self.last)
        for (name, _), value in samples.of_text(page).items():
            if value != value or value in (float("inf"), -float("inf")) or name.endswith("_ratio") and not 0 <= value <= 1:
                self.odd.add(name)
            # A margin is negative where a limit acts; an offset has a sign.
            if value < 0 and not re.search("celsius|offset|step", name):
                self.negative.add(name)

    def rejected(self):
        return sum(value for _, value in of(self.last, "gpumeter_samples_rejected_total"))


def told(table, liars):
    every = lambda names: ", ".join(sorted(set().union(*names))) or "none"
    rejected = [liar.rejected() for liar in liars]
    table.row(f"every answer is garbage, of {len(liars)} seeds: answers that were rejected, fewest", "> 0",
              f"{min(rejected):.0f}", min(rejected) > 0)
    odd, negative = [liar.odd for liar in liars], [liar.negative for liar in liars]
    table.row("ratios outside 0 to 1, NaN and infinity on the page", "none", every(odd), not any(odd))
    table.row("negative values on the page", "none", every(negative), not any(negative))
    grown = max(liar.node.memory("VmHWM") - liar.before for liar in liars)
    table.row("most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
