"""What breaks around the agent, and what must not: one row per fault, with its target and what was measured.

    .ci/faults [ID]...      no argument: all of them; GPUMETER_FAULTS=smoke keeps to a few minutes

A scenario is a function that takes a `Suite` and a `Row` maker; SCENARIOS lists them in the order of the table.
Every one starts an agent of its own over the simulated driver. A row that misses its target fails the run.
"""

import asyncio
import ctypes
import json
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
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

    def row(self, fault, what, target, measured, ok):
        self.rows.append((fault, what, target, measured, ok))
        print(" | ".join((fault, what, target, measured, "ok" if ok else "MISSED")), flush=True)


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
              ratio <= 1.2 or percentile(hung, 0.99) < 0.005)
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
    node.faults({"function": "*", "hang": True})
    wait_for("all GPUs stale", 20, lambda: not any(node.up().values()), node.program)
    found = node.metrics()
    named = {labels["gpu"]: labels["call"] for labels, _ in of(found, "gpumeter_driver_call_in_flight_seconds")}
    table.row("F1b", "one lock in the driver holds every call: GPUs whose call is named", "8", str(len(named)),
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
        table.row("F2", f"{what}: HTTP answers after the start", "<= 50 ms", milliseconds(answered), answered <= 0.05)
        success = [value for _, value in of(found, "gpumeter_collector_success", collector="driver")]
        reasons = [labels["reason"] for labels, _ in
                   of(found, "gpumeter_collector_errors_total", collector="driver")]
        up = sum(value for _, value in of(found, "gpu_up"))
        if reason is None:
            ok = success in ([], [0.0]) and up == 0 and program.alive()
            table.row("F2", f"{what}: no GPU is up, the agent is", "both", f"{up:.0f} up, success {success}", ok)
            lines = lambda: "does not return" in program.tail(50)
            try:
                told = bool(wait_for("the log", 10, lines, program))
            except Failed:
                told = False
            table.row("F2", f"{what}: the call is named in the log", "yes", "yes" if told else "no", told)
        else:
            ok = success == [0.0] and reason in reasons and up == 0
            table.row("F2", f"{what}: the page says so", f"success 0, {reason}", f"{success}, {reasons}", ok)
        began = time.monotonic()
        program.stop()
        seconds = time.monotonic() - began
        table.row("F2", f"{what}: SIGTERM ends it", "<= 2 s", f"{seconds:.2f} s", seconds <= 2)


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
    table.row("F13", f"{len(times)} scrapes meanwhile: p99, and those not answered 200", "< 5 ms, 0",
              f"{milliseconds(p99)} (median {milliseconds(percentile(times, 0.5))}), {failed}", p99 < 0.005 and not failed)
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
    table.row("F14", "the last of them, the client's own work included", "<= 1 s", f"{seconds:.2f} s", seconds <= 1)
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
    odd = set()
    while time.monotonic() < until:
        for (name, labels), value in samples.of_text(node.page()).items():
            if value != value or (name.endswith("_ratio") and not 0 <= value <= 1.02):
                odd.add(name)
        time.sleep(0.2)
    count = rejected()
    table.row("F20", "every answer is garbage: answers that were rejected", "> 0", f"{count:.0f}", count > 0)
    table.row("F20", "ratios outside 0 to 1 and NaN on the page", "none", ", ".join(sorted(odd)) or "none", not odd)
    grown = node.memory("VmHWM") - before
    table.row("F20", "most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
    node.faults()
    node.wait_up()
    imbalance = [value for _, value in of(node.metrics(), "gpumeter_ledger_imbalance_seconds")]
    table.row("F20", "imbalance of the account afterwards", "0", str(imbalance), imbalance == [0.0])
    node.end()


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
    ("F2", bad_starts),
    ("F13", slow_loris),
    ("F14", thousand_scrapers),
    ("F15", bad_configurations),
    ("F17", bad_requests),
    ("F18", few_descriptors),
    ("F19", little_memory),
    ("F20", garbage),
    ("W", stalled_pulse),
]


def faults(suite):
    unknown = set(sys.argv[1:]) - {name for name, _ in SCENARIOS}
    if unknown:
        raise Failed(f"there is no {', '.join(sorted(unknown))}; known: {' '.join(name for name, _ in SCENARIOS)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8_192), hard), hard))
    table = Table()
    for name, scenario in SCENARIOS:
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        try:
            scenario(suite, table)
        except Failed as failed:
            table.row(name, scenario.__name__.replace("_", " "), "comes to its end", str(failed).splitlines()[0], False)
        finally:
            suite.end()
    print("\n| fault | what | target | measured | |\n|---|---|---|---|---|")
    for fault, what, target, measured, ok in table.rows:
        print(f"| {fault} | {what} | {target} | {measured} | {'ok' if ok else '**missed**'} |")
        suite.expect(ok, f"{fault}: {what}: {measured}, not {target}")


if __name__ == "__main__":
    harness.run(faults)
