"""What breaks around the agent, and what must not: one row per fault, with its target and what was measured.

    .ci/faults [--write FILE] [ID]...   no ID: all of them; GPUMETER_FAULTS=smoke keeps to a few minutes

FILE gets the table of a full run, as a page. A scenario is a function that takes a `Suite` and a `Table`; SCENARIOS
lists them in the order of the table.
Every one starts an agent of its own over the simulated driver. A row that misses its target fails the run.
"""

import asyncio
import ctypes
import json
import os
import random
import re
import resource
import select
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import harness
import samples
from harness import GPUMETER, Demo, Failed, free_port, get, wait_for
from simclock import SimClock

SMOKE = os.environ.get("GPUMETER_FAULTS") == "smoke"
SECOND = 10**9
# Every tier is read within a second, so that no call waits long to be hit.
FAST = "sampling: {interval: 500ms, medium: 500ms, slow: 1s, level: full}\n"
PERIOD = 0.5


class Table:
    """The rows as they come."""

    def __init__(self):
        self.rows = []

    def row(self, fault, what, target, measured, ok, speed=False):
        """A finding; one of speed is only told in the smoke run, whose machine may be busy with something else."""
        verdict = "ok" if ok else "missed, told only" if speed and SMOKE else "**missed**"
        self.rows.append((fault, what, target, measured, verdict))
        print(" | ".join((fault, what, target, measured, verdict)), flush=True)


class Node(Demo):
    """A demo in a folder of its own, whose command may stand behind another."""

    def __init__(self, suite, name, *arguments, wrap=(), **options):
        self.wrap = list(wrap)
        super().__init__(suite, *arguments, state=suite.folder / name, **options)

    def start(self):
        self.command = self.wrap + self.command
        self.wrap = []
        super().start()

    @property
    def pid(self):
        return self.program.process.pid

    def scrape(self, gzip=False, timeout=10):
        """Status, body and seconds of one scrape, connection included."""
        return scrape(self.port, gzip, timeout)

    def metrics(self):
        return metrics(self.page())

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self, what):
        """VmRSS, VmHWM or RssAnon in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB", status, re.M)[1]) / 1024

    def forget_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def threads(self, name):
        """The ids of its threads of that name."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [int(task.name) for task in tasks if (task / "comm").read_text().strip() == name]

    def up(self):
        return {labels["gpu"]: value for labels, value in of(self.metrics(), "gpu_up")}

    def wait_up(self, count=8, seconds=60):
        wait_for(f"{count} GPUs", seconds, lambda: sum(self.up().values()) == count, self.program)

    def end(self):
        self.program.stop()

    def condition(self, state):
        """What happens to hardware and driver: the simulated driver's file `state`."""
        aside = self.driver / "state.new"
        aside.write_text(json.dumps(state))
        aside.rename(self.driver / "state")

    def truth(self, name):
        return json.loads((self.driver / "truth").read_text())[name]

    def driver_files(self):
        """What it has open or mapped of the driver."""
        process = Path(f"/proc/{self.pid}")
        there = [os.readlink(link) for link in (process / "fd").iterdir() if link.is_symlink()]
        there += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines() if "/" in line]
        return {path for path in there if re.search(r"/(libnvidia-ml|nvidia)[^/]*$", path)}

    def processor(self):
        """Seconds of processor time so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def tell(self, *command):
        """A command to the agent over its local socket."""
        name, *rest = command
        done = subprocess.run([GPUMETER, name, "--socket", self.state / "control.sock", *rest],
                              capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Failed(f"gpumeter {name}: {done.stderr.strip()}")

    def account(self, question):
        """A row of the ledger, read beside the agent."""
        with closing(sqlite3.connect(f"file:{self.state / 'ledger.db'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(question).fetchone()


class Counters:
    """Every counter of the pages that it was shown, and those that went back."""

    def __init__(self, without=()):
        self.without, self.last, self.back = without, {}, set()

    def see(self, found):
        for key, value in found.items():
            name = key.partition("{")[0]
            if not re.search(r"_(total|count|sum|bucket)$", name) or name in self.without:
                continue
            if value < self.last.get(key, value):
                self.back.add(name)
            self.last[key] = value

    def row(self, fault, table):
        back = ", ".join(sorted(self.back))
        kept = " of the agent and its account" if self.without else ""
        table.row(fault, f"{len(self.last)} counters{kept}, of which any went back", "none", back or "none", not back)


def of_the_driver():
    """The counters that the reference says begin anew with the driver: it may set them back."""
    reference = (harness.ROOT / "docs/metrics.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|.*\| driver load \|", reference, re.M))


def balanced(fault, table, node, what="the account afterwards"):
    """What the page says of the account, and, once the agent has ended, whether its ledger has every nanosecond."""
    found = node.metrics()
    said = {name: sum(value for _, value in of(found, name)) for name in
            ("gpumeter_ledger_imbalance_seconds", "gpumeter_account_unsettled_windows_total",
             "gpumeter_ledger_unobserved_seconds_total")}
    settled(node)
    node.end()
    gap, gpus = node.account("SELECT sum(abs(settled_until_ns - first_seen_ns - slot_ns)), count(*) FROM gpu")
    parts, = node.account("SELECT sum(within_ns + lent_ns + waste_ns + unmeasured_ns + unavailable_ns) FROM counter")
    slots, = node.account("SELECT sum(slot_ns) FROM gpu")
    wrong = [f"{name} {value:.0f}" for name, value in said.items() if value]
    wrong += [f"{gap} ns without an account"] if gap else []
    wrong += [f"{parts - slots} ns held too much"] if parts != slots else []
    table.row(fault, f"{what}: imbalance, unsettled, missing and double time of {gpus} GPUs", "0",
              ", ".join(wrong) or "0", not wrong and gpus > 0)


def settled(node):
    """Waits until the account has come to now; a window is long, so time runs faster meanwhile."""
    now = node.clock.utc()
    node.clock.run(4)
    wait_for("the account", 60, lambda: node.account("SELECT min(settled_until_ns) FROM gpu")[0] > now, node.program)
    node.clock.run(1)


def metrics(page):
    """{(name, labels as written): value} of a page, cheaply; `samples` reads it strictly."""
    return {key: float(value) for key, value in re.findall(r"^([a-z][^ ]*(?:\{.*\})?) (\S+)$", page, re.M)}


def of(found, family, **wanted):
    """Labels and value of each series of a family."""
    for key, value in found.items():
        name, _, rest = key.partition("{")
        if name == family:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
            if all(labels.get(label) == text for label, text in wanted.items()):
                yield labels, value


def scrape(port, gzip=False, timeout=10):
    began = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout) as stream:
        stream.settimeout(timeout)
        encoding = "Accept-Encoding: gzip\r\n" if gzip else ""
        stream.sendall(f"GET /metrics HTTP/1.1\r\nHost: a\r\n{encoding}Connection: close\r\n\r\n".encode())
        try:
            while piece := stream.recv(1 << 18):
                answer += piece
        except ConnectionResetError:
            pass  # turned away: what was said before counts
    seconds = time.monotonic() - began
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return status, body, seconds


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("inf")


def milliseconds(seconds):
    return f"{seconds * 1000:.1f} ms"


def crowd(count):
    """A scenario of eight GPUs with that many processes of twenty users; a short one, or the simulator's own memory would be all."""
    phases = [{"from": 0, "to": 1, "demand": 0.5, "memory_bytes": 1 << 24}]
    host = lambda n: {"uid": 2_000 + n % 20, "cgroup": f"/user.slice/user-{2_000 + n % 20}.slice/session-{n}.scope"}
    processes = [{"pid": 10_000 + n, "name": "/usr/bin/job", "gpu": n % 8, "phases": phases, "host": host(n)}
                 for n in range(count)]
    users = [{"uid": 2_000 + n, "name": f"user{n}"} for n in range(20)]
    return {"cycle_seconds": 1, "gpus": [{"profile": "h100", "count": 8}], "users": users, "processes": processes}


def written(suite, name, value):
    path = suite.folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# F1, F1b: calls that do not return.


def hang_each_call(suite, table):
    node = Node(suite, "F1", config=FAST)
    node.wait_up()
    time.sleep(3)
    # Written at the simulated second; by now every tier has been read.
    calls = sorted(name for name in json.loads((node.driver / "calls").read_text()) if name != "pid")
    if SMOKE:
        calls = [name for name in calls if re.search("FieldValues|ProcessUtilization|PowerUsage", name)][:3]
    lanes = len(node.threads("lane"))
    hit, oldest, withdrawn, quiet, hung, stuck = [], 0.0, 0.0, [], [], 0
    blind = []
    for call in calls:
        # At the same pace as below, so that as many of them ask for a page that is not rendered yet.
        for _ in range(75):
            quiet.append(node.scrape()[2])
            time.sleep(0.02)
        node.faults({"function": call, "gpu": 3, "hang": True})
        last = last_sample(node.metrics(), "3")
        began, gone = time.monotonic(), None
        while time.monotonic() - began < (3 if gone is None else 4):
            status, body, seconds = node.scrape()
            now = node.clock.utc()
            found = metrics(body.decode())
            hung.append(seconds)
            ages = [(now - value * SECOND) / SECOND for labels, value in
                    of(found, "gpumeter_last_sample_timestamp_seconds") if labels["gpu"] != "3"]
            oldest = max(oldest, *ages) if status == 200 else float("inf")
            shown = any(of(found, "gpu_power_watts", gpu="3")) or any(of(found, "gpu_temperature_celsius", gpu="3"))
            last = last_sample(found, "3") or last
            if gone is None and not shown:
                gone = now / SECOND - last
                if not any(of(found, "gpumeter_driver_call_in_flight_seconds", gpu="3", call=call)):
                    blind.append(call)
            time.sleep(0.02)
        stuck = max(stuck, len(node.threads("lane")) - lanes)
        if gone is not None:
            hit.append(call)
            withdrawn = max(withdrawn, gone)
        node.faults()
        node.wait_up()
    what = f"each of {len(calls)} calls hangs on one of 8 GPUs; {len(hit)} are made while it runs"
    table.row("F1", f"{what}: age of the other seven", f"<= {2 * PERIOD} s", f"{oldest:.2f} s", oldest <= 2 * PERIOD)
    table.row("F1", "the hung GPU's readings are withdrawn after its last frame", f"<= {3 * PERIOD} s",
              f"{withdrawn:.2f} s", bool(hit) and withdrawn <= 3 * PERIOD)
    table.row("F1", "the call is named when they are", "each", f"not {blind}" if blind else "each", not blind)
    table.row("F1", "more threads in the driver than before", "0", str(stuck), stuck == 0)
    ratio = percentile(hung, 0.99) / percentile(quiet, 0.99)
    measured = f"{ratio:.2f}x ({milliseconds(percentile(hung, 0.99))}, before {milliseconds(percentile(quiet, 0.99))})"
    # Below 5 ms a ratio of two p99 is that of two neighbours on the machine.
    table.row("F1", "scrape p99 against the times between", "<= 1.2x or < 5 ms", measured,
              ratio <= 1.2 or percentile(hung, 0.99) < 0.005, speed=True)
    hang_at_start(node, table, ["nvmlDeviceGetUUID"] if SMOKE else [call for call in calls if call not in hit])
    node.end()


def hang_at_start(node, table, calls):
    """The calls that are made once, for a GPU that hangs when the agent starts."""
    fewest, hit = 8, 0
    for call in calls:
        node.program.kill()
        node.faults({"function": call, "gpu": 3, "hang": True})
        node.start()
        began = time.monotonic()
        up = 0
        # The hung one never comes; without it there is nothing to wait for but the others.
        while up < 7 and time.monotonic() - began < 10:
            up = sum(node.up().values())
            time.sleep(0.1)
        time.sleep(1)
        up = sum(node.up().values())
        hit += up < 8
        fewest = min(fewest, up)
        node.faults()
        node.wait_up()
    table.row("F1", f"each of {len(calls)} other calls hangs at the start, {hit} of them for one GPU: fewest GPUs up",
              "7, then 8", f"{fewest:.0f}, then 8", fewest >= 7 and hit > 0)


def last_sample(found, gpu):
    return next((value for _, value in of(found, "gpumeter_last_sample_timestamp_seconds", gpu=gpu)), None)


def hang_every_call(suite, table):
    node = Node(suite, "F1b", config=FAST + "attribution: {presence: true}\n")
    node.wait_up()
    node.faults({"function": "nvmlDeviceGetFieldValues", "gpu": 3, "hang": True, "lock": True})
    wait_for("all GPUs stale", 20, lambda: not any(node.up().values()), node.program)
    found = node.metrics()
    named = {labels["gpu"]: labels["call"] for labels, _ in of(found, "gpumeter_driver_call_in_flight_seconds")}
    table.row("F1b", "a call of one GPU hangs and holds the driver's lock: GPUs whose call is named", "8", str(len(named)),
              len(named) == 8)
    frozen = [name for name in ("gpu_power_watts", "gpu_utilization_ratio") if any(of(found, name))]
    table.row("F1b", "readings that are still shown", "none", ", ".join(frozen) or "none", not frozen)
    held = sum(1 for _ in of(found, "gpu_holding_ratio"))
    health = get(f"{node.url}/-/healthy")[0].strip()
    table.row("F1b", "holdings go on, and the agent is healthy", "both", f"{held} holdings, {health}",
              held > 0 and health == "healthy")
    began = time.monotonic()
    node.faults()
    node.wait_up()
    seconds = time.monotonic() - began
    table.row("F1b", "all GPUs answer again", "<= 5 s", f"{seconds:.1f} s", seconds <= 5)
    node.end()


# F2: no driver, none that works, one that does not return.


def bad_starts(suite, table):
    donor = Node(suite, "F2-donor")
    simulated = suite.folder / "F2-driver"
    simulated.mkdir()
    for name in ("libnvidia-ml.so.1", "scenario"):
        shutil.copy(donor.driver / name, simulated / name)
    donor.end()
    nonsense = written(suite, "F2-nonsense.so", "this is no library")
    library = simulated / "libnvidia-ml.so.1"
    hang = [{"function": "nvmlInit_v2", "hang": True}, {"function": "nvmlInitWithFlags", "hang": True}]
    refuse = [{"function": "nvmlInit_v2", "code": 9}, {"function": "nvmlInitWithFlags", "code": 9}]
    cases = [("no library", "/nonexistent/libnvidia-ml.so.1", [], "missing"),
             ("a file that is no library", nonsense, [], "missing"),
             ("a driver that is not loaded", library, refuse, "refused"),
             ("init does not return", library, hang, None)]
    for number, (what, path, faults, reason) in enumerate(cases):
        (simulated / "faults").write_text(json.dumps(faults))
        config = written(suite, f"F2-{number}.yaml", f"ledger: {{path: {suite.folder}/F2-{number}/ledger.db}}\n")
        # The machine may be busy with something else: the best of three is the agent's own.
        starts = []
        for attempt in range(3):
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            began = time.monotonic()
            program = suite.start(f"F2-{number}-{attempt}", GPUMETER, "run", "--config", config, "--nvml-library",
                                  path, "--listen", f"127.0.0.1:{port}")
            wait_for("an answer", 10, lambda: get(f"{url}/-/healthy"), program, every=0.002)
            starts.append(time.monotonic() - began)
            if attempt < 2:
                program.stop()
        answered = min(starts)
        found = wait_for("a page", 10, lambda: metrics(get(f"{url}/metrics")[0]), program, every=0.01)
        table.row("F2", f"{what}: HTTP answers after the start", "<= 50 ms", milliseconds(answered), answered <= 0.05,
                  speed=True)
        success, reasons = driver_problem(url)
        up = sum(value for _, value in of(found, "gpu_up"))
        if reason is None:
            ok = success in ([], [0.0]) and up == 0 and program.alive()
            table.row("F2", f"{what}: no GPU is up, the agent is", "both", f"{up:.0f} up, success {success}", ok)
            told = lambda: re.search("does not return.*nvmlInit_v2", program.tail(50))
            said = within(10, lambda: told() and driver_problem(url) == ([0.0], ["no_answer"]), program)
            table.row("F2", f"{what}: the log names the call, the page says so", "nvmlInit_v2, success 0, no_answer",
                      f"{'nvmlInit_v2' if told() else 'no call'}, {driver_problem(url)}", said)
        else:
            ok = success == [0.0] and reason in reasons and up == 0
            table.row("F2", f"{what}: the page says so", f"success 0, {reason}", f"{success}, {reasons}", ok)
        began = time.monotonic()
        program.stop()
        seconds = time.monotonic() - began
        table.row("F2", f"{what}: SIGTERM ends it", "<= 2 s", f"{seconds:.2f} s", seconds <= 2)


def within(seconds, probe, program):
    """Whether it came true in time."""
    try:
        return bool(wait_for("it", seconds, probe, program))
    except Failed:
        return False


def driver_problem(url):
    """What a page says of the driver: success, and the reasons of failures."""
    found = metrics(get(f"{url}/metrics")[0])
    success = [value for _, value in of(found, "gpumeter_collector_success", collector="driver")]
    return success, [labels["reason"] for labels, _ in of(found, "gpumeter_collector_errors_total", collector="driver")]


# F1c: a call that no signal ends.


def uninterruptible_call(suite, table):
    node = Node(suite, "F1c", config=FAST)
    node.wait_up()
    image, mount = suite.folder / "frozen.ext4", suite.folder / "frozen"
    mount.mkdir()
    image.touch()
    os.truncate(image, 16 << 20)
    as_root("mkfs.ext4", "-q", "-F", image)
    as_root("mount", "-o", "loop", image, mount)
    try:
        as_root("fsfreeze", "-f", mount)
        frozen_mount(node, table, mount / "byte")
    finally:
        subprocess.run(["fsfreeze", "-u", mount], capture_output=True)
        try:
            node.program.process.wait(10)
            ended = "it does"
        except subprocess.TimeoutExpired:
            ended = "it does not"
            node.program.kill()
        as_root("umount", mount)
    table.row("F1c", "the file system thaws, and the process ends", "it does", ended, ended == "it does")


def as_root(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}; the scenario needs root and a loop device")


def frozen_mount(node, table, byte):
    node.faults({"function": "nvmlDeviceGetFieldValues", "gpu": 3, "write": str(byte)})
    what = "a call that writes to a frozen file system, on one of 8 GPUs"
    in_flight = lambda: [labels["call"] for labels, _ in
                         of(node.metrics(), "gpumeter_driver_call_in_flight_seconds", gpu="3")]
    named = within(10, lambda: node.up()["3"] == 0 and "nvmlDeviceGetFieldValues" in in_flight(), node.program)
    table.row("F1c", f"{what}: the page names it", "up 0, and the call", f"up {node.up()['3']:.0f}, {in_flight()}", named)
    states = [state_of(node.pid, lane) for lane in node.threads("lane")]
    if "D" not in states:
        raise Failed("no call is in uninterruptible sleep: nothing of it can be measured")
    table.row("F1c", "lanes in uninterruptible sleep", "1 of 8", f"{states.count('D')} of {len(states)}",
              states.count("D") == 1 and len(states) == 8)
    oldest = 0.0
    for _ in range(20):
        found, now = node.metrics(), node.clock.utc() / SECOND
        oldest = max(oldest, *(now - value for labels, value in
                               of(found, "gpumeter_last_sample_timestamp_seconds") if labels["gpu"] != "3"))
        time.sleep(0.1)
    table.row("F1c", "age of the other seven", f"<= {2 * PERIOD} s", f"{oldest:.2f} s", oldest <= 2 * PERIOD)
    [stuck] = [lane for lane in node.threads("lane") if state_of(node.pid, lane) == "D"]
    held = lambda: {os.readlink(link) for link in Path(f"/proc/{node.pid}/task/{stuck}/fd").iterdir()}
    bill = lambda: subprocess.run([GPUMETER, "bill", "--ledger", node.state / "ledger.db"], capture_output=True)
    ledger = lambda: any("ledger.db" in path for path in held())
    if not ledger() or not listens(node.port):
        raise Failed("there is no ledger or listener to be closed")
    began = time.monotonic()
    node.program.process.terminate()
    closed = lambda: not listens(node.port) and not ledger()
    while not closed() and time.monotonic() - began < 10:
        time.sleep(0.02)
    seconds = time.monotonic() - began
    answer = bill().returncode
    table.row("F1c", "after SIGTERM the listener refuses, and no file of the ledger is open", "<= 2 s",
              f"{seconds:.2f} s", seconds <= 2)
    table.row("F1c", "then the ledger opens for another process, while this one cannot end", "0, D",
              f"{answer}, {state_of(node.pid, stuck)}", answer == 0 and state_of(node.pid, stuck) == "D")


def state_of(pid, thread):
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def listens(port):
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0


# F3 to F6: hardware that goes and comes.


def lost_gpu(suite, table):
    node = Node(suite, "F3", config=FAST)
    node.wait_up()
    time.sleep(2)
    counters = Counters()
    counters.see(node.metrics())
    xids = lambda found: sum(value for _, value in of(found, "gpu_xid_errors_total", gpu="3", xid="79"))
    node.condition({"gpus": {"3": {"state": "lost"}}})
    began, shown = time.monotonic(), None
    while time.monotonic() - began < (3 if SMOKE else 6):
        found = node.metrics()
        counters.see(found)
        if shown is None and not any(of(found, "gpu_power_watts", gpu="3")):
            shown = time.monotonic() - began
        time.sleep(0.05)
    why = [labels["reason"] for labels, _ in of(found, "gpu_absence_info", gpu="3")]
    up = {labels["gpu"]: value for labels, value in of(found, "gpu_up")}
    table.row("F3", "a GPU is lost (XID 79): its readings are withdrawn", f"<= {3 * PERIOD} s",
              f"{shown:.2f} s" if shown else "never", shown is not None and shown <= 3 * PERIOD)
    table.row("F3", "the page says why; the other seven are up", "lost, 7", f"{', '.join(why)}, {sum(up.values()):.0f}",
              why == ["lost"] and sum(up.values()) == 7)
    lost = time.monotonic() - began
    node.condition({})
    began = time.monotonic()
    node.wait_up()
    back = time.monotonic() - began
    table.row("F3", "it is back: up again", "<= 5 s", f"{back:.1f} s", back <= 5)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        counters.see(found := node.metrics())
        time.sleep(0.1)
    table.row("F3", "XID 79 in the end", "1", f"{xids(found):.0f}", xids(found) == 1)
    counters.row("F3", table)
    balanced("F3", table, node)
    unavailable, = node.account("SELECT sum(unavailable_ns) FROM counter JOIN gpu ON gpu = id WHERE gpu_index = 3")
    others, = node.account("SELECT sum(unavailable_ns) FROM counter JOIN gpu ON gpu = id WHERE gpu_index != 3")
    seconds, most = unavailable / SECOND, lost + back + 2 * PERIOD
    table.row("F3", f"on the account it was unavailable, of {lost:.1f} s and {back:.1f} s until it was back; the others",
              f"{lost - 2 * PERIOD:.1f} to {most:.1f} s, 0", f"{seconds:.1f} s, {others / SECOND:.1f} s",
              lost - 2 * PERIOD <= seconds <= most and others == 0)


def driver_reload(suite, table):
    node = Node(suite, "F4", config=FAST)
    node.wait_up()
    counters = Counters(without=of_the_driver())
    counters.see(node.metrics())
    version = lambda text: sum(1 for _ in of(node.metrics(), "gpu_info", driver_version=text))
    node.condition({"driver": {"loaded": False}})
    gone = within(20, lambda: not any(node.up().values()) and driver_problem(node.url)[0] == [0.0], node.program)
    files = node.driver_files() if gone else {"?"}
    table.row("F4", "the driver is unloaded: the page says so; files of the driver that stay open or mapped", "success 0, 0",
              f"success {driver_problem(node.url)[0]}, {len(files)}", gone and not files)
    time.sleep(1 if SMOKE else 20)  # the longest wait between two looks is reached
    node.condition({"driver": {"epoch": 2, "version": "590.48.01"}})
    began = time.monotonic()
    back = within(30, lambda: sum(node.up().values()) == 8 and version("590.48.01") == 8, node.program)
    seconds = time.monotonic() - began
    table.row("F4", "another version is loaded: all GPUs are up, as its own", "<= 5 s", f"{seconds:.1f} s",
              back and seconds <= 5)
    counters.see(node.metrics())
    node.tell("quiesce")
    files = node.driver_files()
    table.row("F4", "quiesced: files of the driver that are open or mapped", "0", str(len(files)), not files)
    node.condition({"driver": {"epoch": 3, "version": "595.10.01"}})
    node.tell("resume")
    began = time.monotonic()
    back = within(30, lambda: sum(node.up().values()) == 8 and version("595.10.01") == 8, node.program)
    seconds = time.monotonic() - began
    table.row("F4", "reloaded meanwhile, and resumed: all GPUs are up", "<= 5 s", f"{seconds:.1f} s", back and seconds <= 5)
    node.condition({"driver": {"epoch": 4, "version": "595.20.01"}})
    began = time.monotonic()
    back = within(30, lambda: sum(node.up().values()) == 8 and version("595.20.01") == 8, node.program)
    seconds = time.monotonic() - began
    table.row("F4", "reloaded under the agent, all handles dead at once: all GPUs are up", "<= 5 s", f"{seconds:.1f} s",
              back and seconds <= 5)
    counters.see(node.metrics())
    counters.row("F4", table)
    balanced("F4", table, node)


def xid_storm(suite, table):
    count = 30_000 if SMOKE else 300_000
    node = Node(suite, "F5")
    node.wait_up()
    time.sleep(3)
    rest, twin = node.processor(), time.monotonic()
    time.sleep(5 if SMOKE else 20)
    quiet = (node.processor() - rest) / (time.monotonic() - twin)
    fired = lambda: sum(storm["fired"] for storm in node.truth("xids") if storm["xid"] == 13)
    counted = lambda: sum(value for _, value in of(node.metrics(), "gpu_xid_errors_total", xid="13"))
    node.condition({"xids": [{"gpu": gpu, "xid": 13, "per_second": 5_000, "count": count // 2} for gpu in (3, 5)]})
    rest, began = node.processor(), time.monotonic()
    time.sleep(count / 10_000 - 0.5)
    busy = (node.processor() - rest) / (time.monotonic() - began)
    exact = within(20, lambda: fired() == count and counted() == count, node.program)
    table.row("F5", f"{count} XIDs of two GPUs, 10,000 a second: fired by the driver, counted", f"{count}, {count}",
              f"{fired()}, {counted():.0f}", exact)
    log = node.program.log.read_text()
    seconds = Counter(line[:19] for line in log.splitlines() if "XID" in line)
    most = max(seconds.values(), default=0)
    table.row("F5", "most lines of the log in a second", "1 to 10", str(most), 1 <= most <= 10)
    # A real driver brings events from an interrupt; the simulated one reads files for each, inside the agent.
    driver = driver_in_storm(suite, node)
    node.end()
    what = f"processor time in the storm, less {driver:.1%} of the simulated driver's own; at rest {quiet:.1%}"
    table.row("F5", what, "< 2 %", f"{busy - driver:.1%}", driver > 0 and busy - driver < 0.02, speed=True)


# As the agent does: waits for the first event, then takes those behind it. What Python needs for a call is left out.
STORM_ALONE = """
import ctypes, sys, time
driver, libc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
status, handle, event = driver.nvmlInit_v2(), ctypes.c_void_p(), ctypes.c_void_p()
data, bits = ctypes.create_string_buffer(64), ctypes.c_ulonglong(8)
status = status or driver.nvmlEventSetCreate(ctypes.byref(event))
for gpu in range(8):
    status = status or driver.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle))
    status = status or driver.nvmlDeviceRegisterEvents(handle, bits, event)
began, until, events, calls = time.process_time(), time.monotonic() + float(sys.argv[2]), 0, 0
while time.monotonic() < until:
    wait = 200
    while driver.nvmlEventSetWait_v2(event, data, wait) == 0:
        events, calls, wait = events + 1, calls + 1, 0
    calls += 1
took, began, count = time.process_time() - began, time.process_time(), 0
for _ in range(calls):
    if libc.memcmp(data, data, 0) == 0:
        events, count, wait = events + 0, count + 1, 0
print(status, events, took - (time.process_time() - began))
"""


def driver_in_storm(suite, node, seconds=3):
    """The share of a processor that the simulated driver needs for such a storm in a process that is no agent."""
    folder = suite.folder / "F5-driver"
    folder.mkdir()
    for name in ("libnvidia-ml.so.1", "scenario", "clock"):
        shutil.copy(node.driver / name, folder)
    storm = {"xid": 13, "per_second": 5_000, "count": 5_000_000}
    (folder / "state").write_text(json.dumps({"xids": [{"gpu": gpu, **storm} for gpu in (3, 5)]}))
    done = subprocess.run([sys.executable, "-c", STORM_ALONE, folder / "libnvidia-ml.so.1", str(seconds)],
                          capture_output=True, text=True, timeout=60)
    status, events, took = done.stdout.split() if done.returncode == 0 else (done.stderr, 0, 0)
    if status != "0" or int(events) < 0.8 * seconds * 10_000:
        raise Failed(f"the simulated driver alone: status {status}, {events} events")
    return float(took) / int(events) * 10_000


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


def mig_walk(suite, table):
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
        while (passed := time.monotonic() - began) < (20 if took is None else took + PERIOD):
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
    table.row("F6", f"{steps} random MIG layouts while it runs: the new one is on the page", f"<= {2 * PERIOD} s",
              f"{slowest:.2f} s", slowest <= 2 * PERIOD)
    table.row("F6", "instances that add up to more than their GPU, or are two layouts at once", "never",
              ", ".join(f"{what}: {number}" for what, number in wrong.items()) or "never", not wrong)
    counters.row("F6", table)
    balanced("F6", table, node)


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
    held = sum(value for labels, value in of(found, "gpu_holding_ratio", gpu="1"))
    if held > 1.000001:
        yield "holdings"


# F13, F14, F17: peers that mean harm, or are too many.


def slow_loris(suite, table, count=1_000):
    node = Node(suite, "F13")
    node.wait_up()
    scrape(node.port)
    before = node.fds()
    peers = {}
    began = time.monotonic()
    poll = select.poll()
    for _ in range(count):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", node.port))
        peers[peer.fileno()] = peer
        poll.register(peer, select.POLLOUT)
    opened, statuses, times, last = time.monotonic() - began, [], [], 0.0
    started = {}
    while peers and time.monotonic() - began < 12:
        for handle, event in poll.poll(0):
            peer = peers.get(handle)
            if peer is None:
                continue
            try:
                if handle not in started:
                    peer.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ")
                    started[handle] = time.monotonic()
                    poll.modify(handle, select.POLLIN)
                elif event and not peer.recv(4096):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                poll.unregister(handle)
                peers.pop(handle).close()
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            for peer in peers.values():
                try:
                    peer.send(b"x")  # each byte is soon after the last one
                except OSError:
                    pass
        status, _, seconds = node.scrape()
        statuses.append(status)
        times.append(seconds)
        time.sleep(0.02)
    lasted = time.monotonic() - began
    left = len(peers)
    for peer in peers.values():
        peer.close()
    table.row("F13", f"{count} half requests, opened in {opened:.1f} s, byte by byte: the last is closed after",
              "<= 6 s", f"{lasted:.1f} s, {left} left", not left and lasted <= 6 + opened)
    failed = sum(status != 200 for status in statuses)
    p99 = percentile(times, 0.99)
    table.row("F13", f"{len(times)} scrapes meanwhile: not answered 200", "0", str(failed), not failed)
    table.row("F13", "their p99", "< 5 ms", f"{milliseconds(p99)} (median {milliseconds(percentile(times, 0.5))})",
              p99 < 0.005, speed=True)
    try:
        wait_for("its descriptors", 5, lambda: node.fds() <= before, node.program)
    except Failed:
        pass
    table.row("F13", "open descriptors afterwards", f"<= {before}", str(node.fds()), node.fds() <= before)
    node.end()


def thousand_scrapers(suite, table, count=1_000):
    node = Node(suite, "F14")
    node.wait_up()
    for gzip in (True, False):
        node.scrape(gzip)
    node.forget_peak()
    before = node.memory("VmRSS")

    async def one():
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1 << 20)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)
        writer.close()
        return answer[9:12], time.monotonic() - began

    async def all_at_once():
        return await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)

    began = time.monotonic()
    answers = asyncio.run(all_at_once())
    seconds = time.monotonic() - began
    kinds = Counter(answer[0].decode() if isinstance(answer, tuple) else repr(answer) for answer in answers)
    grown = node.memory("VmHWM") - before
    table.row("F14", f"{count} scrapes at once, by answer", f"200: {count}",
              ", ".join(f"{kind or 'nothing'}: {number}" for kind, number in kinds.items()), kinds["200"] == count)
    table.row("F14", "the last of them, the client's own work included", "<= 1 s", f"{seconds:.2f} s", seconds <= 1,
              speed=True)
    table.row("F14", "most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
    node.end()


REQUESTS = [
    ("a header of 20 kB", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", {431}),
    ("a target of 20 kB", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", {414, 431}),
    ("500 headers", b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 500 + b"\r\n", {400, 431}),
    ("a body of 100 MB", b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", {413}),
    ("another method", b"DELETE /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", {405}),
    ("a method of its own", b"FROB /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", {400, 405}),
    ("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    ("two lengths", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", {400}),
    ("a signed length", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd", {400}),
    ("an endless chunk", b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
     {400, 405, 413}),
    ("a header that is folded", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", {400}),
    ("a blank before the colon", b"GET /metrics HTTP/1.1\r\nHost : a\r\n\r\n", {400}),
    ("a zero byte", b"GET /met\x00rics HTTP/1.1\r\nHost: a\r\n\r\n", {400}),
]
# A second request hidden in the body of the first: whoever stands before the agent sees one.
SMUGGLED = [
    ("length and chunks", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"0\r\n\r\nGET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunked that is none", b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"
     b"GET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a body with a request", b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 36\r\n\r\n"
     b"GET /-/ready HTTP/1.1\r\nHost: abcd\r\n\r\n"),
]


def converse(port, request):
    """All that is answered until the peer closes or falls silent."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 5) as stream:
        stream.settimeout(0.5)
        try:
            stream.sendall(request)
            while piece := stream.recv(65536):
                answer += piece
        except OSError:
            pass
    return answer


def bad_requests(suite, table):
    node = Node(suite, "F17")
    node.wait_up()
    wrong = []
    for what, request, allowed in REQUESTS:
        status = int(converse(node.port, request)[9:12] or 0)
        if status not in allowed:
            wrong.append(f"{what}: {status}")
    table.row("F17", f"{len(REQUESTS)} malformed or oversize requests are refused by the right status", "each",
              "; ".join(wrong) or "each", not wrong)
    split = [what for what, request in SMUGGLED if converse(node.port, request).count(b"HTTP/1.1 ") > 1]
    table.row("F17", f"{len(SMUGGLED)} requests that hide another are answered once", "each",
              "; ".join(split) or "each", not split)
    node.forget_peak()
    before = node.memory("VmRSS")
    for _ in range(100 if SMOKE else 1_000):
        with socket.create_connection(("127.0.0.1", node.port), 5) as stream:
            try:
                stream.sendall(REQUESTS[0][1])
                stream.recv(100)
            except OSError:
                pass
    grown = node.memory("VmHWM") - before
    table.row("F17", "most memory above that before, over many of them", "<= 2 MiB", f"{grown:.1f} MiB", grown <= 2)
    table.row("F17", "it answers as before", "200", str(node.scrape()[0]), node.scrape()[0] == 200)
    node.end()


# F15: configurations that are wrong, at the start and while it runs.

HOSTILE = [
    ("an unknown key", "sampling: {intervall: 1s}", r":1: .*did you mean `sampling\.interval`|:1: .*did you mean `interval`"),
    ("a wrong unit", "\nsampling:\n  interval: 5 parsecs\n", r":3: sampling\.interval: "),
    ("a tab", "sampling:\n\tinterval: 1s\n", r":2:"),
    ("a key twice", "web: {created: true}\nweb: {created: false}\n", r":2: web: is given twice"),
    ("a negative price", "prices: {currency: USD, rates: [{gpu_hour: -1}]}", r"is negative"),
    ("more than a GPU", "attribution: {standing: [{gpu: 0, fraction: 1, user: a}, {gpu: 0, fraction: 1, user: b}]}",
     r":1: attribution\.standing"),
    ("a bomb", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh")), r"too long, too deep"),
    ("a deep one", "[" * 100_000, r"too long, too deep"),
    ("a binary", "\x00\x01\x02\x7fELF", r":1"),
    ("two mistakes", "web: {listen: nowhere}\nlimits: {processes: -1}\n", r"(?s):1: web\.listen.*:2: limits\.processes"),
]


def bad_configurations(suite, table):
    missed = []
    for number, (what, text, expected) in enumerate(HOSTILE):
        path = written(suite, f"F15-{number}.yaml", text)
        for command in (["check-config", path], ["run", "--config", path, "--listen", "127.0.0.1:0"]):
            done = subprocess.run([GPUMETER, *command], capture_output=True, text=True, timeout=20)
            if done.returncode != 2 or not re.search(expected, done.stderr):
                missed.append(f"{what} ({command[0]}): {done.returncode} {done.stderr.strip()[:200]}")
    table.row("F15", f"{len(HOSTILE)} hostile files: status 2, and file:line, key and fix", "each",
              "; ".join(missed) or "each", not missed)
    node = Node(suite, "F15", config="sampling: {interval: 500ms}\n")
    config = suite.folder / "demo.yaml"
    success = lambda: [value for _, value in of(node.metrics(), "gpumeter_config_reload_success")]
    interval = lambda: [value for _, value in of(node.metrics(), "gpumeter_sampling_interval_seconds", tier="fast")]
    lost = []
    for number, (what, text, _) in enumerate(HOSTILE):
        config.write_text(text)
        os.kill(node.pid, 1)
        try:
            wait_for("the refusal", 10, lambda: success() == [0.0], node.program)
            if interval() != [0.5]:
                lost.append(f"{what}: interval {interval()}")
        except Failed:
            lost.append(f"{what}: success {success()}")
        config.write_text("sampling: {interval: 500ms}\n")
        os.kill(node.pid, 1)
        wait_for("the good one", 10, lambda: success() == [1.0], node.program)
    table.row("F15", f"{len(HOSTILE)} hostile reloads: the old one stays, success 0, then 1 again", "each",
              "; ".join(lost) or "each", not lost)
    node.end()


# F18, F19: too few descriptors, too little memory.


def few_descriptors(suite, table):
    scenario = written(suite, "F18.json", crowd(1_000))
    wrap = ["bash", "-c", 'ulimit -n 64; exec "$0" "$@"']
    node = Node(suite, "F18", scenario=scenario, config="sampling: {level: full}\n", wrap=wrap)
    node.wait_up()
    before = node.fds()
    idle = []
    for _ in range(200):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", node.port))
        idle.append(peer)
    time.sleep(0.3)
    answers = [node.scrape()[0] for _ in range(50)]
    good = answers.count(200)
    table.row("F18", "64 descriptors, 1,000 processes, 200 silent peers: scrapes answered 200", "50 of 50",
              f"{good} of 50, at rest {before} open", good == 50)
    found = node.metrics()
    errors = sum(value for _, value in of(found, "gpumeter_ledger_errors_total"))
    up = sum(value for _, value in of(found, "gpu_up"))
    table.row("F18", "GPUs up, failed commits", "8, 0", f"{up:.0f}, {errors:.0f}", up == 8 and errors == 0)
    for peer in idle:
        peer.close()
    try:
        wait_for("its descriptors", 10, lambda: node.fds() <= before + 1, node.program)
    except Failed:
        pass
    table.row("F18", "open descriptors afterwards", f"<= {before + 1}", str(node.fds()), node.fds() <= before + 1)
    node.end()


DRIVER_ALONE = """
import ctypes, re, sys, time
own = lambda: int(re.search(r"^RssAnon:\\s+(\\d+)", open("/proc/self/status").read(), re.M)[1])
before = own()
driver = ctypes.CDLL(sys.argv[1])
status = driver.nvmlInit_v2()
handle, count = ctypes.c_void_p(), ctypes.c_uint(0)
for gpu in range(8):
    status = status or driver.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle))
    for _ in range(3):
        driver.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
print(0 if status else own() - before)
"""


def driver_alone(suite, scenario):
    """MiB that the simulated driver needs for a scenario in a process that is no agent."""
    folder = suite.folder / "F19-driver"
    donor = Node(suite, "F19-donor")
    folder.mkdir()
    shutil.copy(donor.driver / "libnvidia-ml.so.1", folder)
    donor.end()
    shutil.copy(scenario, folder / "scenario")
    done = subprocess.run([sys.executable, "-c", DRIVER_ALONE, folder / "libnvidia-ml.so.1"],
                          capture_output=True, text=True, timeout=60)
    if done.returncode or int(done.stdout) <= 0:
        raise Failed(f"the simulated driver alone: {done.stdout}{done.stderr}")
    return int(done.stdout) / 1024


def little_memory(suite, table):
    scenario = written(suite, "F19.json", crowd(5_000))
    # A real driver keeps its processes in the kernel; the simulated one lives inside the agent.
    driver = driver_alone(suite, scenario)
    cap = 24 + driver
    group = Path("/sys/fs/cgroup/memory") / f"gpumeter-faults-{os.getpid()}"
    capped = "not capped: no memory cgroup can be made here"
    try:
        # As packaging/gpumeter.service runs it.
        node = Node(suite, "F19", scenario=scenario, config="sampling: {level: full}\nattribution: {presence: true}\n",
                    wrap=["env", "MALLOC_ARENA_MAX=1"])
        node.wait_up()
        try:
            group.mkdir()
            # The demo has written twenty thousand files, which are not the agent's: it moves in afterwards, with
            # what it has.
            (group / "memory.move_charge_at_immigrate").write_text("1")
            (group / "memory.limit_in_bytes").write_text(str(int(cap * (1 << 20))))
            (group / "cgroup.procs").write_text(str(node.pid))
            capped = f"in a cgroup of 24 MiB and {driver:.1f} for the simulated driver"
        except OSError:
            pass
        until = time.monotonic() + (8 if SMOKE else 30)
        body, own = b"", 0.0
        while time.monotonic() < until and node.program.alive():
            try:
                _, body, _ = node.scrape()
                # Of its files the kernel takes pages back as it likes.
                own = max(own, node.memory("RssAnon") - driver)
            except (OSError, TypeError):
                break  # it was killed between two looks
            time.sleep(0.2)
        time.sleep(0.2)
        alive = node.program.alive()
        table.row("F19", f"5,000 processes, {capped}: alive, most memory of its own", "alive, <= 24 MiB",
                  f"{'alive' if alive else 'killed'}, {own:.1f} MiB", alive and own <= 24)
        series = len(metrics(body.decode()))
        table.row("F19", "series, and the page parses", "<= 20000", str(series),
                  0 < series <= 20_000 and bool(samples.of_text(body.decode())))
        node.end()
    finally:
        suite.end()
        if group.exists():
            group.rmdir()


# F20: a driver that lies.


def garbage(suite, table):
    node = Node(suite, "F20", config=FAST)
    node.wait_up()
    rejected = lambda: sum(value for _, value in of(node.metrics(), "gpumeter_samples_rejected_total"))
    node.forget_peak()
    before = node.memory("VmRSS")
    node.faults({"function": "*", "garbage": True})
    until = time.monotonic() + (5 if SMOKE else 20)
    odd, negative, counters = set(), set(), Counters()
    while time.monotonic() < until:
        page = node.page()
        counters.see(metrics(page))
        for (name, labels), value in samples.of_text(page).items():
            if value != value or value in (float("inf"), -float("inf")) or name.endswith("_ratio") and not 0 <= value <= 1:
                odd.add(name)
            # A margin is negative where a limit acts; an offset has a sign.
            if value < 0 and not re.search("celsius|offset|step", name):
                negative.add(name)
        time.sleep(0.2)
    count = rejected()
    table.row("F20", "every answer is garbage: answers that were rejected", "> 0", f"{count:.0f}", count > 0)
    table.row("F20", "ratios outside 0 to 1, NaN and infinity on the page", "none", ", ".join(sorted(odd)) or "none",
              not odd)
    table.row("F20", "negative values on the page", "none", ", ".join(sorted(negative)) or "none", not negative)
    grown = node.memory("VmHWM") - before
    table.row("F20", "most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
    node.faults()
    node.wait_up()
    time.sleep(2)
    counters.see(node.metrics())
    counters.row("F20", table)
    balanced("F20", table, node)


# W: the pulse stalls, and nothing but the pulse.

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000


def stalled_pulse(suite, table):
    path = suite.folder / "notify"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(path))
    wrap = ["env", "-u", "WATCHDOG_PID", f"NOTIFY_SOCKET={path}", "WATCHDOG_USEC=1000000"]
    node = Node(suite, "W", wrap=wrap)
    node.wait_up()
    heard = drain(manager, 3)
    gaps = [later - earlier for earlier, later in zip(heard, heard[1:])]
    table.row("W", "systemd's watchdog of 1 s is fed: longest silence", "<= 1 s", f"{max(gaps, default=9):.2f} s",
              max(gaps, default=9) <= 1)
    libc = ctypes.CDLL(None, use_errno=True)
    [pulse] = node.threads("pulse")
    if libc.ptrace(PTRACE_SEIZE, pulse, None, None) or libc.ptrace(PTRACE_INTERRUPT, pulse, None, None):
        raise Failed(f"ptrace: {os.strerror(ctypes.get_errno())}; the scenario needs the right to trace")
    os.waitpid(pulse, WALL)
    drain(manager, 0.2)
    silent = drain(manager, 3)
    table.row("W", "the pulse alone is stopped: signs of life in 3 s", "0", str(len(silent)), not silent)
    status = scrape(node.port)[0]
    table.row("W", "pages are still served", "200", str(status), status == 200)
    wait_for("an unhealthy agent", 15, lambda: unhealthy(node), node.program, 0.5)
    libc.ptrace(17, pulse, None, None)  # PTRACE_DETACH: it goes on
    heard = drain(manager, 2)
    table.row("W", "it goes on: signs of life in 2 s, and health", "> 0, healthy", str(len(heard)),
              bool(heard) and not unhealthy(node))
    node.end()
    manager.close()


def unhealthy(node):
    return converse(node.port, b"GET /-/healthy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")[9:12] == b"503"


def drain(manager, seconds):
    """When each WATCHDOG=1 of so many seconds came."""
    until, heard = time.monotonic() + seconds, []
    while (left := until - time.monotonic()) > 0:
        manager.settimeout(left)
        try:
            if manager.recv(4096).strip() == b"WATCHDOG=1":
                heard.append(time.monotonic())
        except TimeoutError:
            break
    return heard


SCENARIOS = [
    ("F1", hang_each_call),
    ("F1b", hang_every_call),
    ("F1c", uninterruptible_call),
    ("F2", bad_starts),
    ("F3", lost_gpu),
    ("F4", driver_reload),
    ("F5", xid_storm),
    ("F6", mig_walk),
    ("F13", slow_loris),
    ("F14", thousand_scrapers),
    ("F15", bad_configurations),
    ("F17", bad_requests),
    ("F18", few_descriptors),
    ("F19", little_memory),
    ("F20", garbage),
    ("W", stalled_pulse),
]


PAGE = """# What breaks around the agent, and what does not

Written by `.ci/faults --write docs/faults.md`, which breaks one thing after the other over the simulated driver and
measures; here on a virtual machine with {cores} cores. A row that misses its target fails the command.

"""


def faults(suite):
    wanted = sys.argv[1:]
    page = None
    if wanted[:1] == ["--write"]:
        page, wanted = Path(wanted[1]) if len(wanted) > 1 else None, wanted[2:]
        if page is None or wanted or SMOKE:
            raise Failed("--write FILE stands alone: a page is written of a full run")
    unknown = set(wanted) - {name for name, _ in SCENARIOS}
    if unknown:
        raise Failed(f"there is no {', '.join(sorted(unknown))}; known: {' '.join(name for name, _ in SCENARIOS)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8_192), hard), hard))
    table = Table()
    for name, scenario in SCENARIOS:
        if wanted and name not in wanted:
            continue
        try:
            scenario(suite, table)
        except Failed as failed:
            table.row(name, scenario.__name__.replace("_", " "), "comes to its end", str(failed).splitlines()[0], False)
        finally:
            suite.end()
    lines = ["| fault | what | target | measured | |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    print("", *lines, sep="\n")
    if page:
        page.write_text(PAGE.format(cores=os.cpu_count()) + "\n".join(lines) + "\n")
    for fault, what, target, measured, verdict in table.rows:
        suite.expect(verdict != "**missed**", f"{fault}: {what}: {measured}, not {target}")


if __name__ == "__main__":
    harness.run(faults)
