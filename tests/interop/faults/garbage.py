"""F20: a driver that returns garbage."""

import json
import re
import subprocess
import time

import samples
from harness import GPUMETER

from . import FAST, SMOKE
from .measure import Counters, balanced, metrics, of
from .node import Node, crowd, written
from .table import scenario


@scenario(
    "F20", "garbage from the driver: counts of 2^32-1, utilization of 250 %, energy that goes back",
    "rejected by range and counted; never an allocation by a driver's count; nothing impossible on the page or the account",
    "every answer of every function is nonsense, with another seed in each of several agents; in one more every other answer, from its start on")
def garbage(suite, table):
    seeds = [9855] if SMOKE else [9855, 1, 2, 3, 5, 8, 13, 21]
    liars = [Liar(suite, seed) for seed in seeds]
    born = Liar(suite, 34, chance=0.5)
    until = time.monotonic() + (10 if SMOKE else 40)
    while time.monotonic() < until:
        for liar in [*liars, born]:
            liar.look()
        time.sleep(0.2 / len(liars))
    told(table, f"every answer is garbage, of {len(liars)} seeds", liars)
    grown = max(liar.node.memory("VmHWM") - liar.before for liar in liars)
    table.row("most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
    told(table, "every other answer is garbage from the start on", [born])
    seen = len(list(of(born.last, "gpu_info")))
    table.row("GPUs that are found and read among such answers", "> 0", f"{seen}", seen > 0)
    for liar in [*liars, born]:
        liar.node.faults()
    for liar in [*liars, born]:
        liar.node.wait_up()
    time.sleep(2)
    for liar in [*liars, born]:
        liar.counters.see(liar.node.metrics())
        liar.counters.row(table, f" (seed {liar.seed})")
        balanced(table, liar.node, f"the account afterwards (seed {liar.seed})")


def ranges():
    """Minimum and maximum of every gauge that is read from a GPU."""
    catalogue = json.loads(subprocess.check_output([GPUMETER, "metrics", "--format", "json"]))
    return {family["name"]: family["range"] for family in catalogue if family["range"]}


# What a label may say beside nothing; any other is printable and shorter than the driver's room for texts.
NUMBERS = {
    "minor_number": r"\d{1,7}", "compute_capability": r"\d{1,2}\.\d{1,2}", "cuda_version": r"\d{1,2}\.\d",
    "pci_bus_id": r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", "driver_version": r"[\d.]+",
    "slot": r"\d{1,3}", "tray": r"\d{1,3}", "host_id": r"\d{1,3}", "module_id": r"\d{1,3}", "clique": r"\d{1,9}",
}
SAID = {"gpu_info", "gpu_platform_info", "gpu_fabric_info"}


class Liar:
    """An agent whose driver returns garbage of one seed, and what was wrong on its pages."""

    def __init__(self, suite, seed, chance=1):
        fault = {"function": "*", "garbage": True, "chance": chance}
        scenario = written(suite, f"F20-{seed}.json", {"seed": seed, **crowd(40)})
        state = suite.folder / f"F20-{seed}"
        if chance < 1:
            (state / "driver").mkdir(parents=True)
            (state / ".gpumeter-demo").touch()
            (state / "driver" / "faults").write_text(json.dumps([fault]))
        self.seed, self.ranges = seed, ranges()
        self.node = Node(suite, state.name, scenario=scenario, config=FAST, awaited="gpumeter_")
        self.counters = Counters()
        self.odd, self.negative, self.said, self.last = set(), set(), set(), {}
        if chance == 1:
            self.node.wait_up()
            self.node.forget_peak()
            self.before = self.node.memory("VmRSS")
            self.node.faults(fault)

    def look(self):
        page = self.node.page()
        self.last = metrics(page)
        self.counters.see(self.last)
        for (name, labels), value in samples.of_text(page).items():
            least, most = self.ranges.get(name, (-float("inf"), float("inf")))
            if not least <= value <= most or value in (float("inf"), -float("inf")):
                self.odd.add(f"{name} {value:g}")
            # A margin is negative where a limit acts; an offset has a sign.
            if value < 0 and not re.search("celsius|offset|step", name):
                self.negative.add(name)
            if name in SAID:
                self.said.update(f"{label} {text!r}" for label, text in labels if text and not is_sane(label, text))

    def rejected(self):
        return sum(value for _, value in of(self.last, "gpumeter_samples_rejected_total"))


def is_sane(label, text):
    return bool(re.fullmatch(NUMBERS.get(label, r"[ -~]{1,95}"), text))


def told(table, what, liars):
    every = lambda names: ", ".join(sorted(set().union(*names))[:5]) or "none"
    rejected = [liar.rejected() for liar in liars]
    table.row(f"{what}: answers that were rejected, fewest", "> 0", f"{min(rejected):.0f}", min(rejected) > 0)
    odd, negative, said = ([getattr(liar, name) for liar in liars] for name in ("odd", "negative", "said"))
    table.row(f"{what}: readings beyond what the catalogue says they can be, NaN and infinity on the page", "none",
              every(odd), not any(odd))
    table.row(f"{what}: negative values on the page", "none", every(negative), not any(negative))
    table.row(f"{what}: texts that no GPU says of itself", "none", every(said), not any(said))
