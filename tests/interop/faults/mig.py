"""F6: a GPU whose MIG layout changes while it is read."""

import os
import random
import re
import subprocess
import time
from collections import Counter

from harness import PATIENCE, ROOT, Failed

from . import FAST, PERIOD, SMOKE
from .measure import Counters, balanced, of
from .node import Node, written
from .table import scenario


# Compute slices and memory slots, and where they may begin.
PROFILES = {"1g.10gb": (1, 1, range(7)), "2g.20gb": (2, 2, (0, 2, 4)), "3g.40gb": (3, 4, (0, 4)),
            "4g.40gb": (4, 4, (0,)), "7g.80gb": (7, 8, (0,))}


def layout(dice):
    """A layout that an H100 can have; sometimes none, which turns MIG off."""
    free, placed = set(range(8)), []
    for _ in range(dice.randrange(8)):
        name = dice.choice(list(PROFILES))
        _, size, starts = PROFILES[name]
        fits = [start for start in starts if set(range(start, start + size)) <= free]
        if fits:
            start = dice.choice(fits)
            free -= set(range(start, start + size))
            placed.append({"profile": name, "start": start})
    return placed


@scenario(
    "F6", "MIG is reconfigured: instances and UUIDs come and go",
    "new instances within a period; nothing counted twice between a GPU and its instances; the account conserves time "
    "and energy, over 10,000 steps",
    "random layouts. In virtual time: samplers, meter and ledger over the simulated driver (`tests/code/mig_walk`), with every "
    "law checked after every tick. In real time: the binary, looked at through its page")
def mig_walk(suite, table):
    walk_in_virtual_time(table)
    phases = [{"from": 0, "to": 600, "demand": 0.7, "memory_bytes": 1 << 30}]
    begin = [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]
    scenario = written(suite, "F6.json", {
        "cycle_seconds": 600, "gpus": [{"profile": "h100"}, {"profile": "h100", "mig": begin}],
        "processes": [{"pid": 10_000 + n, "name": "/usr/bin/job", "gpu": 1, "instance": n, "phases": phases}
                      for n in range(2)]})
    config = FAST + "attribution: {presence: true}\n"
    node = Node(suite, "F6", scenario=scenario, config=config)
    node.wait_up(2)
    dice, steps, slowest, known = random.Random(9855), 8 if SMOKE else 60, 0.0, set()
    counters, wrong, last = Counters(), Counter(), None
    shown = lambda found: sorted(labels["profile"] for labels, _ in of(found, "gpu_mig_info", gpu="1"))
    for _ in range(steps):
        placed = layout(dice)
        wanted = sorted(placement["profile"] for placement in placed)
        if wanted == last:
            continue
        node.condition({"mig": {"1": placed}})
        began, took = time.monotonic(), None
        while (passed := time.monotonic() - began) < (PATIENCE if took is None else took + PERIOD):
            found = node.metrics()
            counters.see(found)
            wrong.update(doubled(found))
            if took is None and shown(found) == wanted and any(of(found, "gpu_power_watts", gpu="1")):
                took = passed
            time.sleep(0.03)
        slowest = max(slowest, float("inf") if took is None else took)
        uuids = {labels["mig_uuid"] for labels, _ in of(found, "gpu_mig_info", gpu="1")}
        wrong["a UUID that was there before"] += len(uuids & known)
        known |= uuids
        last = wanted
    wrong += Counter()
    # A change just after a tick is read a period later, and the tick loop comes a fifth of a period after that.
    table.row(f"{steps} random layouts in real time: the new one is on the page, tick loop and page included",
              f"<= {1.5 * PERIOD} s", f"{slowest:.2f} s", slowest <= 1.5 * PERIOD, speed=True,
              holds=slowest < float("inf"))
    table.row("instances that add up to more than their GPU, or are two layouts at once", "never",
              ", ".join(f"{what}: {number}" for what, number in wrong.items()) or "never", not wrong)
    counters.row(table)
    balanced(table, node)
    node.end()
    cut_by_default(suite, table, scenario)


def cut_by_default(suite, table, scenario, steps=4 if SMOKE else 20):
    """Only the event reports it: by default a layout is read every 5 s."""
    node = Node(suite, "F6-default", scenario=scenario)
    node.wait_up(2)
    shown = lambda found: sorted(labels["profile"] for labels, _ in of(found, "gpu_mig_info", gpu="1"))
    layouts = [[{"profile": "3g.40gb", "start": start}, {"profile": "1g.10gb", "start": 4 - start}] for start in (0, 4)]
    layouts.append([{"profile": "7g.80gb", "start": 0}])
    slowest, wrong, known = 0.0, Counter(), set()
    for step in range(steps):
        placed = layouts[step % len(layouts)]
        before = {labels["mig_uuid"] for labels, _ in of(node.metrics(), "gpu_mig_info", gpu="1")}
        known |= before
        # Anywhere between two ticks, so that the medium tier is due at some of them only.
        time.sleep(0.3 + 0.37 * (step % 7))
        node.condition({"mig": {"1": placed}})
        began, took = time.monotonic(), float("inf")
        while (passed := time.monotonic() - began) < PATIENCE:
            found = node.metrics()
            wrong.update(doubled(found))
            uuids = {labels["mig_uuid"] for labels, _ in of(found, "gpu_mig_info", gpu="1")}
            if shown(found) == sorted(placement["profile"] for placement in placed) and not uuids & known:
                took = passed
                break
            time.sleep(0.03)
        slowest = max(slowest, took)
    wrong += Counter()
    # A tick of one second, and the tick loop a fifth of it later.
    table.row(f"{steps} layouts with the default configuration: the new one is on the page, tick loop and page included",
              "<= 1.5 s", f"{slowest:.2f} s", slowest <= 1.5, speed=True, holds=slowest < float("inf"))
    table.row("the same: instances that add up to more than their GPU, or are two layouts at once", "never",
              ", ".join(f"{what}: {number}" for what, number in wrong.items()) or "never", not wrong)
    node.end()


def walk_in_virtual_time(table, steps=400 if SMOKE else 10_000):
    """The same walk over real samplers, meter and ledger, with all laws checked at every tick."""
    command = ["cargo", "test", "--locked", "--test", "code", "mig_walk::", "--", "--nocapture"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "GPUMETER_WALK_STEPS": str(steps)}, capture_output=True,
                          text=True, timeout=3_600)
    walked = re.search(r"walked: steps=(\d+) ticks=(\d+) instances=(\d+) settled_seconds=(\d+)", done.stdout)
    if done.returncode == 0 and not walked:
        raise Failed(f"{' '.join(command)} says nothing of its walk")
    broken = re.search(r"panicked at [^\n]*\n([^\n]*)", done.stdout + done.stderr)
    taken, ticks, instances, seconds = walked.groups() if walked else ["0"] * 4
    measured = (f"all at {taken} steps, {ticks} ticks, {instances} instances, {seconds} GPU-seconds" if walked else
                broken[1] if broken else f"status {done.returncode}")
    table.row(f"{steps} random layouts in virtual time: instances of the next tick are the new ones, slices and memory fit, "
              "UUIDs are new, no counter goes back, time and energy are in exactly one account", "at each tick", measured,
              walked and int(taken) >= steps)


def doubled(found):
    """What is counted twice between a GPU and its instances on one page."""
    whole = lambda name: sum(value for _, value in of(found, name, gpu="1"))
    slices = {labels["gpu_instance"]: PROFILES[labels["profile"]][0] for labels, _ in of(found, "gpu_mig_info", gpu="1")}
    if sum(slices.values()) > 7:
        yield "more than seven slices"
    if whole("gpu_mig_memory_total_bytes") > whole("gpu_memory_total_bytes") > 0:
        yield "memory"
    if whole("gpu_mig_memory_used_bytes") > whole("gpu_memory_used_bytes") > 0:
        yield "used memory"
    held = {}
    for labels, value in of(found, "gpu_holding_ratio", gpu="1"):
        instance = labels.get("gpu_instance", "")
        held[instance] = held.get(instance, 0) + value
    if any(share > 1.000001 for share in held.values()):
        yield "holdings"
