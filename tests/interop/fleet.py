"""A thousand nodes in one Prometheus: how long the dashboards of a fleet and the rules take.

The page of an agent on a simulated node of eight GPUs is sent a thousand times by remote write, with a node, GPUs, tenants and
workloads of its own each time: 15 minutes of samples at 15 s, and an hour of what is read over more than that. One node in a
hundred has the page of one with faults. What the rules record of it is sent for the 24 hours before. Then every panel of the
dashboards fleet, tenants and health is asked, and every rule evaluated, three times; the middle one is printed. Times are
reported, not judged: another machine has others.
"""

import math
import re
import statistics
import struct
import sys
import time
import urllib.request

import yaml

import dashboards
import harness
import shortened
from harness import PATIENCE, ROOT, Demo, Prometheus, wait_for

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
SCRAPE, RAW, LONG, RECORDED = 15, 15 * 60, 3600, 24 * 3600
DASHBOARDS = ("fleet", "tenants", "health")
RULES = ("lean", "recording", "tenants", "standard", "budgets")
TIMES = 3
# Names of a node and its GPUs end in four digits of the node, names of tenants in four digits of 25 teams. Their places in
# the page's bytes are marked by what no label contains.
NODE, TEAM, TEAMS = "\x01\x01\x01\x01", "\x02\x02\x02\x02", 25
FAULTY = 100
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# At what times panels with a time axis are asked: as wide as the default span, and a point per minute.
SPAN, STEP = 6 * 3600, 60


def fleet(suite):
    demo = Demo(suite, config=Demo.CONFIG.read_text().replace("level: full", "level: standard\n  medium: 1s\n  slow: 1s")
                .replace("birth_delay: 60s", "birth_delay: 5s"))
    grown = lambda: re.search(r'^gpu_tenant_held_cost_total\{.*tenant="alice".*\} (?!0$)', demo.page(), re.M)
    wait_for("account series", 60, grown, demo.program, 1)
    well = page(demo)
    demo.condition({"gpus": {"6": {"state": "lost"}}, "xids": [{"gpu": 1, "xid": 119, "per_second": 1, "count": 3}]})
    demo.faults({"function": "*", "gpu": 7, "hang": True})
    wait_for("the faults", 60, lambda: "gpu_absence_info{" in demo.page() and re.search(r'^gpu_up\{gpu="7",.*\} 0', demo.page(), re.M), demo.program, 1)
    broken = page(demo)
    demo.program.stop()

    server = Prometheus(suite, "--web.enable-remote-write-receiver", config={"storage": {"tsdb": {"out_of_order_time_window": "25h"}}})
    end = int(time.time()) // SCRAPE * SCRAPE
    began = time.monotonic()
    far = looked_back(suite)
    requests = {name: request(series, end, far) for name, series in (("well", well), ("broken", broken))}
    for number in range(NODES):
        body = requests["broken" if number % FAULTY == FAULTY - 1 else "well"]
        send(server, body.replace(NODE.encode(), b"%04d" % number).replace(TEAM.encode(), b"%04d" % (number % TEAMS)))
    took = time.monotonic() - began
    head = harness.get_json(f"{server.url}/api/v1/status/tsdb")["data"]["headStats"]["numSeries"]
    print(f"fleet: {NODES} nodes of 8 GPUs, {len(well)} series each at level standard ({len(well) / 8:.0f} per GPU), {head} in all; "
          f"sent in {took:.0f} s; Prometheus has {memory(server)} GiB resident")

    print("fleet: rules, at one time")
    recorded = rules(server, end)
    for name, series in recorded.items():
        send_recorded(server, series, end)
    print(f"fleet: {sum(len(found) for _, found in recorded.values())} recorded series, 24 hours of them; panels at {SPAN // 3600} h, a point per {STEP} s")
    for name in DASHBOARDS:
        panels(server, name, end)
    print(f"fleet: Prometheus has {memory(server)} GiB resident")


def page(demo):
    """(labels, value, increase per second) of each series of the page, with the labels of a node of its own."""
    first, began = parsed(demo.page()), time.monotonic()
    time.sleep(16)  # a window of the account closes
    second, span = parsed(demo.page()), time.monotonic() - began
    series = []
    for (name, labels), value in second.items():
        before = first.get((name, labels), value)
        grows = name.endswith(("_total", "_count", "_sum", "_bucket"))
        series.append(([("__name__", name), *own(labels)], value, (value - before) / span if grows and value >= before else 0))
    return series + [([("__name__", "up"), *own(())], 1.0, 0)]


def parsed(text):
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = LINE.match(line).groups()
            found[name, tuple(LABEL.findall(labels or ""))] = float(value)
    return found


def own(labels):
    """Labels with the places of the node and of the team in them."""
    changed = [("cluster", "east"), ("instance", f"node-{NODE}"), ("job", "gpu-nodes")]
    for name, value in labels:
        if name in ("uuid", "workload", "mig_uuid", "serial"):
            value = f"{value}-{NODE}"
        elif name == "tenant" and not value.startswith("__"):
            value = f"{value}-{TEAM}"
        changed.append((name, value))
    return changed


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def message(field, body):
    return varint(field << 3 | 2) + varint(len(body)) + body


def time_series(labels, samples):
    """A TimeSeries of the remote-write protocol."""
    out = b"".join(message(1, message(1, name.encode()) + message(2, value.encode())) for name, value in sorted(labels))
    for at, value in samples:
        out += message(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at * 1000))
    return message(1, out)


def request(series, end, far):
    """A WriteRequest of a node's series, up to a time."""
    out = []
    for labels, value, slope in series:
        begin = end - (LONG if labels[0][1] in far else RAW)
        out.append(time_series(labels, [(at, value + slope * (at - begin)) for at in range(begin, end + 1, SCRAPE)]))
    return b"".join(out)


def looked_back(suite):
    """Metrics that a rule or a panel reads over more than the raw samples' span; over more than an hour, only recorded ones."""
    expressions = [rule["expr"] for name in RULES for group in groups(name) for rule in group["rules"]]
    expressions += [target["expr"] for name in DASHBOARDS for panel in dashboards.panels(load(name)) for target in panel["targets"]]
    found = set()
    for name, span in re.findall(r"\b(gpu\w+)(?:\{[^}]*\})?\[(\w+)\]", " ".join(expressions)):
        if (seconds := shortened.seconds(span)) > RAW:
            found.add(name)
            # A gauge that is looked for, not added up.
            suite.expect(seconds <= LONG or name == "gpumeter_build_info", f"{name} is read over {span}")
    return found


def groups(name):
    return yaml.safe_load((ROOT / f"alerts/{name}.yaml").read_text())["groups"]


def load(name):
    return dashboards.load(ROOT / f"dashboards/{name}.json")


def send(server, body):
    """Sends a WriteRequest, as one literal of snappy."""
    if not body:
        return
    packed = varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/api/v1/write", packed, headers), timeout=PATIENCE):
        pass


def send_recorded(server, series, end):
    """The 24 hours before, at the interval of its group; values move a little, as those of a fleet do."""
    interval, found = series
    moves = [(at, 1 + 0.1 * math.sin(at / 3600)) for at in range(end - RECORDED // interval * interval, end, interval)]
    body = b""
    for labels, value in found:
        body += time_series(labels, [(at, value * move) for at, move in moves])
        if len(body) > 8 << 20:
            send(server, body)
            body = b""
    send(server, body)


def rules(server, end):
    """What the rules record at a time, by rule; prints what each group takes."""
    recorded = {}
    for name in RULES:
        for group in groups(name):
            interval = {"1m": 60, "1h": 3600}.get(group.get("interval"), SCRAPE)
            wall = processor = 0
            for index, rule in enumerate(group["rules"]):
                result, seconds, busy = timed(server, lambda: server.query(rule["expr"], end))
                wall, processor = wall + seconds, processor + busy
                if "record" in rule:
                    found = [(named(series["metric"] | rule.get("labels", {}), rule["record"]), float(series["value"][1])) for series in result]
                    recorded[group["name"], index] = interval, found
                    # What later rules read.
                    send(server, b"".join(time_series(labels, [(end, value)]) for labels, value in found))
            print(f"fleet: group {group['name']}, every {interval} s: {1000 * wall:.0f} ms, {1000 * processor:.0f} ms of processor time")
    return recorded


def named(labels, name):
    return [("__name__", name), *((label, value) for label, value in labels.items() if label != "__name__")]


def panels(server, name, end):
    dashboard = load(name)
    values = {"cluster": ".+", "job": ".+", "instance": ".+", "tenant": ".+", "__rate_interval": "1m", "__range": "6h"}
    slow = []
    for panel in dashboards.panels(dashboard):
        wall = processor = series = 0
        for target in panel["targets"]:
            expression = dashboards.substitute(target["expr"], **values)
            ask = (lambda: server.query(expression, end)) if target["instant"] else (lambda: server.query_range(expression, end - SPAN, end, STEP))
            result, seconds, busy = timed(server, ask)
            wall, processor, series = wall + seconds, processor + busy, series + len(result)
        slow += [panel["title"]] * (wall > 1)
        print(f"fleet: {name}, {panel['title']}: {1000 * wall:.0f} ms, {1000 * processor:.0f} ms of processor time, {series} series")
    print(f"fleet: {name}: {'every panel within a second' if not slow else 'more than a second: ' + ', '.join(slow)}")


def timed(server, ask):
    """The answer, and the median of its seconds and of Prometheus' processor seconds."""
    spans = []
    for _ in range(TIMES):
        before, began = processor(server), time.monotonic()
        result = ask()
        spans.append((time.monotonic() - began, processor(server) - before))
    return result, statistics.median(span for span, _ in spans), statistics.median(span for _, span in spans)


def processor(server):
    fields = open(f"/proc/{server.program.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory(server):
    [kilobytes] = re.findall(r"VmRSS:\s+(\d+)", open(f"/proc/{server.program.process.pid}/status").read())
    return round(int(kilobytes) / 1024 / 1024, 1)


harness.run(fleet)
