"""What gpumeter costs, beside nvitop-exporter and all-smi: the same node, the same driver, the same minute.

A node of eight H100 with 200 real processes. Processor time is measured by the kernel, per thread. The simulated driver
runs inside its caller, so for the agent's own time the driver calls that its samplers report are subtracted, and two
threads that belong to the driver: the one that waits for events, which sleeps with a real driver, and the demo's clock.
The driver time of the other exporters is not known and is included.

`.ci/figures [--write FILE]`; GPUMETER_SMOKE=1 measures for seconds instead of minutes, and prints the results
without checking them.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import harness
from harness import SMOKE, Demo, Failed, get, wait_for
from peers import families, start_all_smi, start_nvitop_exporter

# Seconds for which each is watched at rest, and scrapes of each kind.
WATCHED, SCRAPES = (6, 60) if SMOKE else (90, 1_000)
GPUS, PROCESSES = 8, 200
# Processes that do nothing.
IDLE = 400 if SMOKE else 3_200
GZIP = "Accept-Encoding: gzip\r\n"


class Figure(NamedTuple):
    id: str
    what: str
    target: str
    measured: str
    # None where there is no aim.
    ok: bool | None

    @property
    def verdict(self):
        return {None: "", True: "ok", False: "missed"}[self.ok]


class Watched:
    """A program that is measured: its page and its process."""

    def __init__(self, name, port, pid):
        self.name, self.port, self.pid = name, port, pid

    def processor(self, *threads):
        """Seconds of processor time of its threads so far, of those names or of all."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                if not threads or (task / "comm").read_text().strip() in threads:
                    total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                pass  # it ended just now
        return total / 1e9

    def scrape(self, extra="", path="/metrics"):
        """Seconds that a scrape took, and the answer."""
        began, answer = time.monotonic(), b""
        with socket.create_connection(("127.0.0.1", self.port), 30) as stream:
            stream.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{extra}Connection: close\r\n\r\n".encode())
            while piece := stream.recv(1 << 18):
                answer += piece
        if answer[8:12] != b" 200":
            raise Failed(f"{self.name}: {answer[:60]!r}")
        return time.monotonic() - began, answer.partition(b"\r\n\r\n")[2]

    def series(self):
        return len(re.findall(rb"(?m)^[a-z]", self.scrape()[1]))


def scenario(suite, **more):
    phases = [{"from": 0, "to": 600, "demand": 0.02, "memory_bytes": 1 << 28, "sm": 0.8, "tensor": 0.5, "dram": 0.4,
               "encoder": 0.0, "decoder": 0.0}]
    processes = [{"pid": 0, "name": "/usr/bin/python3", "gpu": n % GPUS, "instance": None, "phases": phases}
                 for n in range(PROCESSES)]
    path = suite.folder / f"figures-{len(more)}.json"
    path.write_text(json.dumps({"local": True, "seed": 1, "cycle_seconds": 600, "gpus": [{"profile": "h100", "count": GPUS}],
                                "processes": processes, **more}))
    return path


def figures(suite):
    write = arguments().write
    found = []

    def told(id, what, target, measured, ok):
        figure = Figure(id, what, target, measured, ok)
        found.append(figure)
        print(" | ".join((*figure[:4], figure.verdict)), flush=True)

    if arguments().idle:
        idle(suite, told)
        for figure in found:
            suite.expect(SMOKE or figure.ok, f"{figure.id}: {figure.what}: {figure.measured}, not {figure.target}")
        return
    demo = Demo(suite, scenario=scenario(suite), config="sampling: {level: full}\nattribution: {presence: true}\n")
    ours = Watched("gpumeter", demo.port, demo.program.process.pid)
    wait_for("all processes", 60, lambda: len(processes(demo)) == PROCESSES, demo.program)
    others = peers(suite, demo)
    everyone = [ours, *others]

    at_rest(demo, ours, others, told)
    scrapes(demo, ours, others, told)
    latency(everyone, told)
    demo.program.stop()
    for other in others:
        os.kill(other.pid, signal.SIGTERM)
    as_by_default(suite, told)
    idle(suite, told)
    calls(suite, told)
    attribution(told)
    if write:
        write.write_text(page(found))
    for figure in found:
        suite.expect(SMOKE or figure.ok is not False, f"{figure.id}: {figure.what}: {figure.measured}, not {figure.target}")


def processes(demo):
    return {labels["pid"] for labels, _ in families(demo.page()).get("gpu_process_memory_bytes", ())}


def peers(suite, demo):
    """nvitop-exporter and all-smi over the same driver, each asking once a second, as soon as they show everything."""
    found = []
    demo.hold_between_ticks()
    for name, start in (("nvitop-exporter", start_nvitop_exporter), ("all-smi", start_all_smi)):
        program, port, _ = start(suite, demo, GPUS, 1)
        found.append(Watched(name, port, program.process.pid))
    demo.clock.release()
    return found


def at_rest(demo, ours, others, told):
    """P1: a sample per second without scrapes."""
    driver = of_driver(demo, ours)
    before = [one.processor() for one in (ours, *others)]
    began = time.monotonic()
    time.sleep(WATCHED)
    seconds = time.monotonic() - began
    spent = [(one.processor() - was) / seconds * 1e3 for one, was in zip((ours, *others), before)]
    driver = drivers_part(driver, of_driver(demo, ours)) / seconds * 1e3
    mine, nvitop, all_smi = spent
    told("P1", f"a full sample of {GPUS} GPUs and {PROCESSES} processes, less the driver's {driver:.2f} ms", "<= 1.0 ms",
         f"{mine - driver:.2f} ms", mine - driver <= 1.0)
    # The targets exclude time in the driver, which is not known for the other exporters.
    told("P1", f"the same with the driver, to that of all-smi ({all_smi:.0f} ms)", "<= 1/20 without it", ratio(mine, all_smi), None)
    told("P1", f"to that of nvitop-exporter ({nvitop:.0f} ms)", "<= 1/50 without it", ratio(mine, nvitop), None)


def ratio(mine, other):
    """The share as `1/35`; a cost that was not seen, since it is below the tenth that is printed beside it, has none."""
    return f"1/{other / mine:.0f}" if mine > 0 and other / mine >= 0.5 else "lost in the noise"


def of_driver(demo, ours):
    """Of our processor seconds, calls of the driver as timed by the clock, the samplers that make them, and the driver's own threads."""
    return in_driver(demo), ours.processor("sampler"), ours.processor("enumerate", "demo")


def drivers_part(before, after):
    """The seconds between two reads that were spent in the driver; calls on a busy machine wait for a processor too."""
    calls, samplers, threads = (now - then for then, now in zip(before, after))
    return min(calls, samplers) + threads


def in_driver(demo):
    """The seconds that its samplers have spent in driver calls."""
    found = families(demo.page())
    return sum(value for _, value in found.get("gpumeter_driver_call_duration_seconds_sum", ()))


def scrapes(demo, ours, others, told):
    """P2, P3: the cost of an answer on our serving thread; for the others of the process, less its cost at rest."""
    series = ours.series()
    # One scrape per snapshot, so that no page is reused and the caches of the processor are cold.
    plain = cost(ours, WATCHED // 3, "", "io", pause=1.001)
    none = cost(ours, WATCHED // 3, "", "io", pause=1.001, path="/-/ready")
    demo.hold_between_ticks()
    ours.scrape(GZIP)
    packed = cost(ours, SCRAPES // 2, GZIP, "io")
    demo.clock.release()
    told("P2", f"an answer of {series} series, written for it", "<= 0.4 ms", f"{plain * 1e3:.3f} ms", plain <= 0.4e-3)
    told("P2", "of that, a series", "<= 0.1 us", f"{plain / series * 1e6:.3f} us", plain / series <= 0.1e-6)
    told("P2", "an answer without a page, at the same pace", "", f"{none * 1e3:.3f} ms", None)
    told("P3", "an answer that was compressed for another one", "<= 0.15 ms", f"{packed * 1e3:.3f} ms", packed <= 0.15e-3)
    for other, most in zip(others, (100, 35)):
        # Ten scrapes a second, so that their cost exceeds the noise; warm caches favour the other exporter.
        count, asked, rest = other.series(), WATCHED * 3, at_ease(other)
        began = time.monotonic()
        spent = cost(other, asked, "", pause=0.1)
        taken = time.monotonic() - began
        spent -= (rest + at_ease(other)) / 2 * taken / asked
        told("P2", f"a series of ours to one of {other.name} ({spent / count * 1e6:.1f} us, {count} series)", f"<= 1/{most}",
             ratio(plain / series, spent / count), plain / series * most <= spent / count)


def at_ease(one):
    """Processor seconds per second without scrapes."""
    before, began = one.processor(), time.monotonic()
    time.sleep(WATCHED / 9)
    return (one.processor() - before) / (time.monotonic() - began)


def cost(one, count, extra, *threads, pause=0.005, path="/metrics"):
    """Processor seconds of an answer, over so many."""
    before = one.processor(*threads)
    for _ in range(count):
        one.scrape(extra, path)
        time.sleep(pause)
    return (one.processor(*threads) - before) / count


def latency(everyone, told):
    """P4: how long scrapers wait while a sample is taken each second; each exporter is measured alone."""
    p99 = {one.name: alone(one, everyone) for one in everyone}
    mine = p99["gpumeter"]
    told("P4", "99 % of scrapes are answered within", "<= 2 ms", f"{mine * 1e3:.2f} ms", mine <= 2e-3)
    told("P4", f"to that of all-smi ({p99['all-smi'] * 1e3:.1f} ms)", "<= 1/10", ratio(mine, p99["all-smi"]),
         mine * 10 <= p99["all-smi"])


def alone(one, everyone):
    """Seconds in which 99 % of its scrapes are answered while the others are stopped; ours runs, as it drives the clock."""
    others = [other.pid for other in everyone[1:] if other is not one]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    taken = []
    try:
        for _ in range(SCRAPES):
            taken.append(one.scrape()[0])
            # Scrapes fall on every moment of the second.
            time.sleep(0.0207)
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)
    return statistics.quantiles(taken, n=100)[98]


def as_by_default(suite, told):
    """P5: the default configuration, with two scrapers every 15 s."""
    demo = Demo(suite, scenario=scenario(suite), config="node: {name: figures}\n", state=suite.folder / "default")
    ours = Watched("gpumeter", demo.port, demo.program.process.pid)
    wait_for("its GPUs", 60, lambda: demo.page().count("\ngpu_up{") == GPUS, demo.program)
    time.sleep(2 if SMOKE else 20)
    driver, before, began = of_driver(demo, ours), ours.processor(), time.monotonic()
    while (passed := time.monotonic() - began) < 2 * WATCHED:
        for extra in ("", GZIP):
            ours.scrape(extra)
        time.sleep(min(15, 2 * WATCHED - passed))
    seconds = time.monotonic() - began
    spent, driver = (ours.processor() - before) / seconds, drivers_part(driver, of_driver(demo, ours)) / seconds
    told("P5", f"of a processor, by default, two scrapers at 15 s, less the driver's {driver:.3%}", "<= 0.1 %",
         f"{spent - driver:.3%}", spent - driver <= 0.001)
    demo.program.stop()


def idle(suite, told):
    """P10: idle processes in the default configuration, without scrapes."""
    few, many = (at_rest_with(suite, count) for count in (GPUS, IDLE))
    each = (many - few) / (IDLE - GPUS)
    told("P10", f"of a processor, {IDLE} processes that do nothing, less the driver's part", "<= 0.6 %", f"{many:.3%}",
         many <= 0.006)
    told("P10", f"each of them in a tick (with {GPUS} it is {few:.3%})", "<= 1.5 us", f"{each * 1e6:.2f} us", each <= 1.5e-6)


def at_rest_with(suite, count):
    """The share of a processor that the agent takes for itself with so many idle processes."""
    phases = [{"from": 0, "to": 600, "demand": 0.0, "memory_bytes": 1 << 20}]
    jobs = [{"pid": 0, "name": "/usr/bin/python3", "gpu": n % GPUS, "instance": None, "phases": phases} for n in range(count)]
    demo = Demo(suite, scenario=scenario(suite, processes=jobs), config="node: {name: figures}\n",
                state=suite.folder / f"idle-{count}")
    ours = Watched("gpumeter", demo.port, demo.program.process.pid)
    # Each process needs a pipe of the demo and a pidfd of the agent.
    opened = lambda: sum(value for _, value in families(demo.page()).get("process_open_fds", ()))
    wait_for("all processes", 120, lambda: opened() >= 2 * count, demo.program)
    time.sleep(2 if SMOKE else 20)
    driver, before, began = of_driver(demo, ours), ours.processor(), time.monotonic()
    time.sleep(WATCHED)
    seconds = time.monotonic() - began
    spent, driver = (ours.processor() - before) / seconds, drivers_part(driver, of_driver(demo, ours)) / seconds
    demo.program.stop()
    return spent - driver


def calls(suite, told):
    """P9: calls of a fast tick, and the share of time inside a driver that is as slow as real ones."""
    phases = [{"from": 0, "to": 600, "demand": 0.5, "memory_bytes": 1 << 30}]
    jobs = [{"pid": 0, "name": "/usr/bin/python3", "gpu": gpu, "phases": phases} for gpu in range(GPUS)]
    slow = scenario(suite, processes=jobs, delays="realistic")
    demo = Demo(suite, scenario=slow, config="node: {name: figures}\n", state=suite.folder / "slow")
    wait_for("its GPUs", 60, lambda: demo.page().count("\ngpu_up{") == GPUS, demo.program)
    # The governor has then seen each tier.
    time.sleep(5 if SMOKE else 90)
    asked = lambda: sum(value for labels, value in families(demo.page())["gpumeter_driver_call_duration_seconds_count"])
    counts, driver, began = [asked()], in_driver(demo), time.monotonic()
    for tick in range(WATCHED if SMOKE else 2 * WATCHED):
        time.sleep(max(0, began + tick + 1 - time.monotonic()))
        counts.append(asked())
    share = (in_driver(demo) - driver) / (time.monotonic() - began)
    # Most ticks read the fast tier only.
    each = statistics.median(after - before for before, after in zip(counts, counts[1:])) / GPUS
    told("P9", "calls of a fast tick, for each GPU", "<= 8", f"{each:.1f}", each <= 8)
    told("P9", f"of the time inside a driver with the delays of real ones, {GPUS} GPUs with a process each", "<= 0.5 %",
         f"{share:.2%}", share <= 0.005)
    demo.program.stop()


def attribution(told):
    """P11: what attribution costs beside 250 pods and 3,000 processes, by a program of its own."""
    command = ["cargo", "run", "--release", "--locked", "--features", "examples", "--example", "attribution_cost"]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, timeout=1800)
    rows = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("| P11 ")]
    if done.returncode or not rows:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")
    for row in rows:
        id, what, target, measured, verdict = (cell.strip() for cell in row)
        told(id, what, target, measured, {"ok": True, "missed": False}.get(verdict))


PAGE = """# What gpumeter costs

Written by `.ci/figures --write docs/figures.md`, on a virtual machine with {cores} processors ({model}). {gpus} simulated H100 and {processes} real
processes run next to nvitop-exporter and all-smi, over the same driver. Each exporter takes one sample a second.

- Times are processor time, as the kernel counts it by thread. Only P4 is time by the clock, of each exporter while the others rest.
- An exporter that is asked once a second finds none of its data in the processor's caches, and is woken first. For P2 the others are asked ten
  times a second. Otherwise their responses would not stand out from their other work.
- The simulated driver works inside each exporter. For the agent, the table leaves out its calls, its wait for events (which a real driver lets
  sleep) and the demo's clock, where it says so. For the others this part is unknown and stays included.
- P11 is the output of `cargo run --release --features examples --example attribution_cost`.

| | what | aim | measured | |
|---|---|---|---|---|
"""


def page(found):
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    head = PAGE.format(gpus=GPUS, processes=PROCESSES, cores=os.cpu_count(), model=model[1] if model else "of unknown make")
    return head + "".join(f"| {' | '.join(figure[:4])} | {figure.verdict} |\n" for figure in found)


def arguments():
    parser = argparse.ArgumentParser(prog=".ci/figures", description=__doc__)
    parser.add_argument("--write", metavar="FILE", type=Path, help="writes the table there, as a page")
    parser.add_argument("--idle", action="store_true", help="measures only what processes cost that do nothing (P10)")
    return parser.parse_args()


if __name__ == "__main__":
    harness.run(figures)
