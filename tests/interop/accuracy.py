"""The error of the used time of each tenant against what its processes really did, for gpumeter and for the rules of peers.

    gpumeter-python tests/interop/accuracy.py        after .ci/tools; python3 does as well

One simulated node has a GPU for each sharing mode and load. The simulated driver writes what every process really did to
its file `truth`; gpumeter knows only what the driver reports. Both are compared over ten whole minutes. The
peers' rules get the true busy time of each device, second by second, its holders and its processes, so
their difference is the error of the rule itself: `copy` books the device's busy time to every holder (dcgm-exporter joined to
pods), `equal` divides it equally among those with a process, `request` books the requested share of the time (OpenCost).

Under MPS processes run at the same time; there true use is the busy time of each second, divided by SM time.
"""

import json
import sys
import time
from datetime import datetime

import harness
from harness import Demo, Failed, wait_for

SECOND = 10**9
MINUTES = 10
SPEEDS = (5, 2, 1)
MODES = ("exclusive", "time-slice", "MPS", "MIG", "mixed", "short-lived", "bare metal")
RULES = ("gpumeter", "copy", "equal", "request")
# Demand of each tenant by time: (from, to, share of the time for which it wants the device).
LOADS = {
    "steady": ([(0, 600, 0.5)], [(0, 600, 0.25)], [(0, 600, 0.1)]),
    "bursts": ([(0, 200, 0.9)], [(150, 400, 0.6)], [(300, 450, 0.3), (500, 600, 1.0)]),
    "idle neighbour": ([(0, 600, 0.8)], [(0, 600, 0.0)], [(0, 600, 0.0)]),
}
MEMORY = (8 << 30, 6 << 30, 5 << 30)  # by tenant; each process a little more than the last
INSTANCES = (("3g.40gb", 4, 4), ("2g.20gb", 0, 2), ("1g.10gb", 2, 1))  # profile, start, eighths of the GPU


class Tenant:
    """A unit (a user on bare metal) with processes on one GPU, and its grant."""

    def __init__(self, gpu, letter, share):
        self.gpu, self.share = gpu, share
        self.name = f"load{gpu}{letter}"
        self.unit = f"{self.name}.service"
        self.pids = []


class Cell:
    """One GPU under one load and mode."""

    def __init__(self, gpu, load, mode):
        self.gpu, self.load, self.mode = gpu, load, mode
        shares = {"exclusive": (1,), "mixed": (0.5, 0.25, 0), "MIG": tuple(size / 8 for _, _, size in INSTANCES),
                  "bare metal": (0, 0, 0)}.get(mode, (0.25, 0.25, 0.25))
        self.tenants = [Tenant(gpu, letter, share) for letter, share in zip("abc", shares)]

    def devices(self):
        """Tenants by the device that they share: an instance each under MIG."""
        return [[tenant] for tenant in self.tenants] if self.mode == "MIG" else [self.tenants]

    def board(self):
        board = {"profile": "h100", "count": 1}
        if self.mode == "MIG":
            board["mig"] = [{"profile": profile, "start": start} for profile, start, _ in INSTANCES]
        if self.mode == "MPS":
            board["mps"] = True
        return board

    def processes(self, pid):
        for index, tenant in enumerate(self.tenants):
            phases = LOADS[self.load][index]
            runs = [phases] if self.mode != "short-lived" else short(phases)
            for number, run in enumerate(runs):
                tenant.pids.append(next(pid))
                memory = MEMORY[index] + (number << 21)
                yield {
                    "pid": tenant.pids[-1], "name": "/usr/bin/python3", "gpu": self.gpu,
                    "instance": index if self.mode == "MIG" else None,
                    "phases": [{"from": begin, "to": end, "demand": demand, "memory_bytes": memory, "sm": 0.8}
                               for begin, end, demand in run],
                    "host": {"uid": 5000, "cgroup": f"/system.slice/{tenant.unit}"},
                }

    def grants(self):
        # An instance cannot be granted in the configuration, and the bare-metal case has no grants.
        if self.mode not in ("MIG", "bare metal"):
            for tenant in self.tenants:
                if tenant.share:
                    yield {"gpu": self.gpu, "fraction": tenant.share, "unit": tenant.unit}


def short(phases):
    """The same demand by processes that live for three to nine seconds, one second apart."""
    runs = []
    for begin, end, demand in phases:
        life = 3
        while begin < end:
            runs.append([(begin, min(begin + life, end), demand)])
            begin, life = begin + life + 1, 3 + (life + 1) % 7
    return runs


def accuracy(suite):
    # On a busy machine a tick may be missed, and a burst with it; then everything is repeated more slowly.
    for speed in SPEEDS:
        table, wrong = measured(suite, speed)
        print_table(table, speed)
        if not wrong:
            break
    suite.expect(not wrong, "; ".join(wrong))


def measured(suite, speed):
    """Errors and grades by load and mode, and what is wrong with them."""
    cells = [Cell(gpu, load, mode) for gpu, (load, mode) in
             enumerate((load, mode) for load in LOADS for mode in MODES)]
    demo = start(suite, cells, speed)
    truth, span = observe(demo, speed)
    lines = bill(demo, span)
    demo.program.stop()
    table, wrong = {}, []
    for cell in cells:
        errors, grades = compare(suite, cell, truth, lines, span)
        table[cell.load, cell.mode] = errors, grades
        if grades <= {"measured", "split_by_activity"} and errors["gpumeter"] > 0.01:
            wrong.append(f"{cell.load}, {cell.mode}: {errors['gpumeter']:.2%} of the device's time, graded {grades}")
    return table, wrong


def start(suite, cells, speed):
    pid = iter(range(20_000, 60_000))
    scenario = {
        "seed": 11, "cycle_seconds": 600, "gpus": [cell.board() for cell in cells],
        "users": [{"uid": 5000, "name": "worker"}],
        "processes": [process for cell in cells for process in cell.processes(pid)],
    }
    grants = [grant | {"id": f"grant-{number}"} for number, grant in
              enumerate(grant for cell in cells for grant in cell.grants())]
    config = {"node": {"name": "accuracy"}, "sampling": {"level": "standard"}, "attribution": {"standing": grants}}
    path = suite.folder / "scenario.json"
    path.write_text(json.dumps(scenario))
    state = suite.folder / f"speed-{speed}"
    return Demo(suite, "--speed", str(speed), scenario=path, state=state, config=json.dumps(config))


def observe(demo, speed):
    """Reads the truth at least once in each simulated second, until ten whole minutes are closed; the span in UTC."""
    zero = demo.clock.utc() - demo.clock.elapsed()
    begin = (demo.clock.utc() // (60 * SECOND) + 1) * 60 * SECOND
    span = begin, begin + MINUTES * 60 * SECOND
    samples, deadline = [], time.monotonic() + harness.PATIENCE + 120 * MINUTES / speed
    while not samples or samples[-1]["elapsed_ns"] + zero < span[1] + 2 * SECOND:
        sample = json.loads((demo.driver / "truth").read_text())
        if not samples or sample["elapsed_ns"] > samples[-1]["elapsed_ns"]:
            samples.append(sample)
        if time.monotonic() > deadline:
            raise Failed("the simulated driver does not write what is true any more")
        time.sleep(0.2 / speed)
    return Truth(samples, zero, span), span


class Truth:
    """What processes and devices did between the samples of the driver's file `truth`."""

    def __init__(self, samples, zero, span):
        self.steps = []
        for before, after in zip(samples, samples[1:]):
            begin, end = before["elapsed_ns"] + zero, after["elapsed_ns"] + zero
            inside = min(end, span[1]) - max(begin, span[0])
            if inside > 0:
                self.steps.append((begin - zero, end - zero, inside / (end - begin), processes(before), processes(after)))

    def of(self, pids):
        """For each step: nanoseconds that these processes were busy, of SM time, how long the step was, when it was."""
        for begin, end, part, before, after in self.steps:
            busy = sum(after[pid][0] - before.get(pid, (0, 0))[0] for pid in pids if pid in after) * part
            sm = sum(after[pid][1] - before.get(pid, (0, 0))[1] for pid in pids if pid in after) * part
            yield busy, sm, (end - begin) * part, (begin + end) / 2 / SECOND % 600


def processes(sample):
    return {process["pid"]: (process["busy_ns"], process.get("used", {}).get("sm", 0)) for process in sample["processes"]}


def bill(demo, span):
    """Used time and grade by tenant over the span."""
    stamps = [datetime.fromtimestamp(at / SECOND).astimezone().isoformat() for at in span]
    wait_for("the bill of the last minute", 240, lambda: closed(demo) >= span[1], demo.program)
    lines = {}
    for line in demo.api("bill", **{"from": stamps[0], "to": stamps[1]})["lines"]:
        used, grades = lines.get(line["tenant"], (0, set()))
        lines[line["tenant"]] = used + line["used_ns"], grades | {line["grade"]} if line["used_ns"] else grades
    return lines


def closed(demo):
    return datetime.fromisoformat(demo.api("bill")["closed_until"].replace("Z", "+00:00")).timestamp() * SECOND


def compare(suite, cell, truth, lines, span):
    """The largest error of a tenant by rule, as a share of the device's time, and gpumeter's grades."""
    worst, grades = dict.fromkeys(RULES, 0.0), set()
    for tenants in cell.devices():
        weight = tenants[0].share if cell.mode == "MIG" else 1
        true, peers, total = on_device(cell, tenants, truth)
        suite.expect(total > 0.99 * (span[1] - span[0]), f"{cell.load}, {cell.mode}: truth of {total / SECOND:.0f} s only")
        for tenant in tenants:
            used, grade = lines.get(tenant.unit, (0, set()))
            grades |= grade
            found = {"gpumeter": used / weight} | {rule: peers[rule][tenant.name] for rule in RULES[1:]}
            for rule in RULES:
                worst[rule] = max(worst[rule], abs(found[rule] - true[tenant.name]) / total)
    return worst, grades


def on_device(cell, tenants, truth):
    """True use of each tenant, what the peers' rules book, and the device's time."""
    true = dict.fromkeys((tenant.name for tenant in tenants), 0.0)
    peers = {rule: dict(true) for rule in RULES[1:]}
    total = 0.0
    for parts in zip(*(truth.of(tenant.pids) for tenant in tenants)):
        length, when = parts[0][2:]
        total += length
        busy = sum(part[0] for part in parts)
        if cell.mode == "MPS":
            # Processes that run side by side each count as if alone, so the device is busy for less than the sum.
            busy = side_by_side([part[0] / length for part in parts]) * length
        sm = sum(part[1] for part in parts)
        active = [present(cell, tenant, when) for tenant in tenants]
        for tenant, part, here in zip(tenants, parts, active):
            share = 1 if cell.mode == "MIG" else tenant.share
            true[tenant.name] += busy * part[1] / sm if cell.mode == "MPS" and sm else part[0]
            peers["copy"][tenant.name] += busy if share or (cell.mode == "bare metal" and here) else 0
            peers["equal"][tenant.name] += busy / sum(active) if here else 0
            peers["request"][tenant.name] += share * length
    return true, peers, total


def side_by_side(shares):
    free = 1.0
    for share in shares:
        free *= 1 - min(share, 1)
    return 1 - free


def present(cell, tenant, when):
    return any(begin <= when < end for begin, end, _ in LOADS[cell.load][cell.tenants.index(tenant)])


def print_table(table, speed):
    print(f"largest error of a tenant's used time, % of the device's time, over {MINUTES} minutes at speed {speed}")
    print(f"{'load':15}{'rule':10}" + "".join(f"{mode:>13}" for mode in MODES))
    for load in LOADS:
        for rule in RULES:
            cells = (f"{100 * table[load, mode][0][rule]:.2f}" for mode in MODES)
            print(f"{load if rule == RULES[0] else '':15}{rule:10}" + "".join(f"{cell:>13}" for cell in cells))
        grades = ("/".join(sorted(short_grade(grade) for grade in table[load, mode][1])) or "-" for mode in MODES)
        print(f"{'':15}{'grade':10}" + "".join(f"{grade:>13}" for grade in grades))


def short_grade(grade):
    return grade.removeprefix("split_").replace("_", " ")


if __name__ == "__main__":
    sys.exit(harness.run(accuracy))
