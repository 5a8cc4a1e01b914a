"""The table: what each scenario breaks, and the rows that it adds."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from . import SMOKE

SCENARIOS = []


class Row(NamedTuple):
    fault: str
    what: str
    target: str
    measured: str
    ok: bool
    speed: bool
    holds: bool

    @property
    def fails(self):
        return not self.holds or not self.ok and not (self.speed and SMOKE)

    @property
    def verdict(self):
        return "ok" if self.ok else "**missed**" if self.fails else "missed, told only"


class Scenario(NamedTuple):
    id: str
    fault: str
    target: str
    how: str
    play: object


def scenario(id, fault, target, how):
    """A function of a `Suite` and a `Table` that breaks one thing."""

    def listed(play):
        SCENARIOS.append(Scenario(id, fault, target, how, play))
        return play

    return listed


class Table:
    """The rows in the order in which they were measured; `fault` is the current scenario."""

    def __init__(self):
        self.rows = []
        self.loads = {}
        self.fault = ""

    def begin(self, fault):
        self.fault = fault
        self.loads[fault] = os.getloadavg()[0]

    def row(self, what, target, measured, ok, speed=False, holds=True):
        """Adds a finding. In a smoke run a missed target of speed is only printed, since the machine may be busy; what must
        hold at any speed, for instance that something ended at all, is `holds`."""
        row = Row(self.fault, what, target, measured, bool(ok and holds), speed, bool(holds))
        self.rows.append(row)
        print(" | ".join((row.fault, what, target, measured, row.verdict)), flush=True)


PAGE = """# What breaks around the agent, and what does not

Written by `.ci/faults --write docs/faults.md`. The command breaks one thing after the other over the simulated driver. It measures from outside:
on the page, in the account, in `/proc`. The machine is virtual, with {cores} processors ({model}) and {memory:.0f} GiB of memory. Each part is
of one run, and says how many processes of other work wanted to run at its start.

A row that misses its target fails the command. A period is 0.5 s.

"""


def head():
    """The beginning of the page; it names the machine, which is the same for all parts."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return PAGE.format(cores=os.cpu_count(), model=model[1] if model else "of unknown make", memory=memory).rstrip("\n")


def page(table, former=""):
    """The page with the parts that ran now, and the others from the former page."""
    stood = {part.split(":", 1)[0]: "## " + part for part in former.split("\n## ")[1:]}
    parts = [head()]
    parts += [written(scenario, table) if scenario.id in table.loads else stood.get(scenario.id, "") for scenario in SCENARIOS]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def written(scenario, table):
    load = table.loads[scenario.id]
    lines = [f"## {scenario.id}: {scenario.fault}", "", f"Target: {scenario.target}.", "",
             f"How: {scenario.how}. Other work when it began: {load:.1f}.", "", "| measured | target | result | |", "|---|---|---|---|"]
    own = (row for row in table.rows if row.fault == scenario.id)
    lines += [f"| {cell(row.what)} | {cell(row.target)} | {cell(row.measured)} | {row.verdict} |" for row in own]
    return "\n".join(lines)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
