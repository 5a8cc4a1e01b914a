"""The golden nodes at every level, read by promtool, and how many series each GPU has there."""

import json
import re
import shutil
import subprocess
from collections import Counter

import harness
from harness import ROOT, Demo

NODES = sorted((ROOT / "tests/golden/nodes").glob("*.json"))
# The most series per GPU, the agent's own, slot time and price among them; what comes with tenants,
# holdings, processes, MIG instances, XIDs and calls that take long comes on top.
MOST = {"lean": 40, "standard": 100}
ON_TOP = re.compile(
    r"gpu_(tenant|workload|holding|process|mig|xid_(errors|last|info))|gpu_slot_seconds_total\{[^}]*gpu_instance="
    "|gpumeter_driver_call_in_flight_seconds")


def nodes(suite):
    for scenario in NODES:
        for level in ("lean", "standard", "full"):
            node(suite, scenario, level)


def node(suite, scenario, level):
    name = f"{scenario.stem} at {level}"
    gpus = sum(group.get("count", 1) for group in json.loads(scenario.read_text())["gpus"])
    state = suite.folder / f"{scenario.stem}-{level}"
    faults = scenario.with_suffix(".faults")
    if faults.exists():
        (state / "driver").mkdir(parents=True)
        (state / ".gpumeter-demo").touch()
        shutil.copy(faults, state / "driver/faults")
    demo = Demo(
        suite, "--speed", "30", scenario=scenario, state=state,
        config=f"sampling: {{level: {level}}}\nattribution: {{presence: true}}\n"
               "prices: {currency: EUR, rates: [{gpu_hour: 2.4}]}\n",
        awaited="gpumeter_build_info{")
    if gpus:
        harness.wait_for(f"{name}: a closed window", 60, lambda: slot_seconds(demo.page()) > 0, demo.program)
    text = demo.page()
    demo.program.stop()

    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    told = (lint.stdout + lint.stderr).strip()
    suite.expect(lint.returncode == 0 and not told, f"{name}: promtool answers {lint.returncode}: {told}")
    counts = Counter(
        match[1]
        for line in text.splitlines()
        if not ON_TOP.match(line) and (match := re.match(r'gpu(?:meter)?_[^ {]*\{gpu="\d+",uuid="([^"]*)"', line)))
    suite.expect(len(counts) == gpus, f"{name}: {len(counts)} GPUs have series, not {gpus}")
    for uuid, count in counts.items():
        suite.expect(count <= MOST.get(level, count), f"{name}: {uuid} has {count} series, more than {MOST.get(level)}")
    print(f"{name}: {len(text.splitlines())} lines, at most {max(counts.values(), default=0)} series per GPU")


def slot_seconds(page):
    return sum(float(value) for value in re.findall(r"^gpu_slot_seconds_total\{[^}]*\} (\S+)", page, re.M))


harness.run(nodes)
