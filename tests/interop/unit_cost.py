"""What a token costs, by a real Prometheus with alerts/unit_cost.yaml: two models on one node, one model over two nodes, and the sums
against `gpumeter bill`.

Agents run over simulated GPUs, an hour in two minutes. Model servers are stand-ins of ours (`model_server.py`). The demo's kubelet names no
controllers, so Prometheus writes them into gpu_workload_info as a kubelet would report them.

Every query of the dashboard of unit costs answers. A whole run draws its second hour; with UPDATE=1 it writes that section of
docs/dashboards.md and its picture.
"""

import json
import os
import re
import subprocess
import time

import yaml

import harness
import panels
from browser import Browser
from harness import GPUMETER, MID_MONTH, PATIENCE, ROOT, SMOKE, Demo, Prometheus, bill_of, wait_for
from model_server import ModelServer

SPEED = 30
# Simulated seconds of the run, and what a GPU costs per hour.
SECONDS = 900 if SMOKE else 7200
PRICE = 3.6
CLUSTER = "simulated"
PER_MILLION = '1e6 * namespace_owner_unit:gpu_workload_{}:per_unit1h{{unit="output_tokens"}}'
CONFIG = f"""sampling: {{level: standard, workload_counters: true, driver_share: 1000000}}
attribution: {{presence: false}}
prices: {{currency: EUR, rates: [{{gpu_hour: {PRICE}}}]}}
"""
# Pod, its GPU or replica of one, its use; the controller of the pods named so; the node.
PODS = [[("chat-x1", "0", 0.25), ("draw-x2", "1", 0.9), ("wide-0", "2", 0.4), ("quiet-0", "3", 0.1)],
        [("wide-1", "0", 0.4), ("train-0", "1", 0.8), ("burst-0", "2::0", 0.6), ("small-0", "2::1", 0.01)]]
OWNERS = {"chat-x1": ("Deployment", "chat"), "draw-x2": ("Deployment", "draw"), "wide-0": ("StatefulSet", "wide"), "wide-1": ("StatefulSet", "wide"),
          "quiet-0": ("StatefulSet", "quiet"), "train-0": ("Job", "train"), "burst-0": ("StatefulSet", "burst"), "small-0": ("StatefulSet", "small")}
# Output tokens per second of each model, and what a million costs by what is held: GPUs * price / tokens.
MODELS = {"Deployment/chat": (500, 1), "Deployment/draw": (250, 1), "StatefulSet/wide": (1000, 2), "StatefulSet/burst": (400, 0.5)}


def unit_cost(suite):
    nodes = [Demo(suite, scenario=scenario(suite, number, pods), config=CONFIG, name=f"node{number}", began=MID_MONTH.timestamp())
             for number, pods in enumerate(PODS, 1)]
    seconds = lambda: nodes[0].clock.elapsed() / 1e9
    servers = {
        "chat-x1": ModelServer(suite, "vllm", "llama", seconds, 500),
        "draw-x2": ModelServer(suite, "sglang", "flux", seconds, 250, running=7),
        "wide-0": ModelServer(suite, "vllm", "giant", seconds, 1000),
        "burst-0": ModelServer(suite, "vllm", "tiny", seconds, 400),
        # It waits for requests all the time.
        "quiet-0": ModelServer(suite, "vllm", "idle", seconds, 0, requests=0, running=0),
    }
    server = Prometheus(suite, config=configuration(suite, nodes, servers))
    # Its rules look back an hour of the nodes, not of the machine.
    hourly = Prometheus(suite, config=configuration(suite, nodes, servers, f"{3600 // SPEED}s"), name="hourly")
    for one in (server, hourly):
        wait_for("the first scrape of all", PATIENCE, lambda: len(one.query("up == 1")) == len(nodes) + len(servers), one.program)
    for node in nodes:
        node.clock.run(SPEED)
    wait_for("the time to pass", PATIENCE + 2 * SECONDS / SPEED, lambda: seconds() > SECONDS, server.program, 0.5)
    show(suite, Answers(hourly, nodes[0].clock))
    for node in nodes:
        node.hold_between_ticks()
    wait_for("series that stand still", PATIENCE, lambda: stands_still(server), server.program, 1)
    error = scrape_error(server)
    per_million(suite, server, nodes, error)
    sums(suite, server, nodes, error)


class Answers(panels.Answers):
    """What the dashboard's queries answer, drawn over the last hour of the nodes and on their clock."""

    span, step = 3600 / SPEED, 1

    def __init__(self, server, clock):
        self.clock = clock
        super().__init__(server, CLUSTER, names=(panels.UNIT_COST,))

    def drawn(self, name):
        real, simulated = time.time(), self.clock.utc() / 1e9
        drawn = super().drawn(name)
        for series in (series for panel in drawn["panels"] for target in panel["targets"] for series in target["answer"]):
            series["values"] = [(simulated - SPEED * (real - at), value) for at, value in series["values"]]
        return drawn | {"chosen": "two simulated nodes, stand-ins of model servers"}


def show(suite, answers):
    """Each query answers; a whole run draws them."""
    panels.check(suite, answers)
    if SMOKE:
        return
    whole_hour(suite, answers.server)
    update = os.environ.get("UPDATE") == "1"
    panels.draw(suite, Browser(suite), answers, keep=update)
    if update:
        panels.write({name: panels.section(name, dashboard, [answers]) for name, dashboard in answers.dashboards.items()})


def whole_hour(suite, server):
    """Prices of exactly an hour are off by a scrape and the 25 s that money comes later, at most."""
    held = values(server, PER_MILLION.format("held_cost"), "owner")
    off = max((held.get((owner,), 0) / price(owner) - 1 for owner in MODELS), key=abs)
    suite.expect(abs(off) <= (SPEED + 25) / 3600, f"of a whole hour, a million tokens have the prices {held}")
    print(f"unit_cost: of a whole hour, prices of a million output tokens are off by {off:+.3%} at most")


def price(owner):
    """What a million output tokens of an owner cost by what it holds."""
    tokens, gpus = MODELS[owner]
    return gpus * PRICE / 3600 / tokens * 1e6


def scenario(suite, number, pods):
    """A node whose pods hold a GPU each, or share one, and use a part of its time; one GPU is free."""
    gpus = {gpu.split("::")[0] for _, gpu, _ in pods}
    content = {"cycle_seconds": 2 * SECONDS, "gpus": [{"profile": "h100", "count": len(gpus) + 1}], "users": [], "processes": [], "pods": [], "seed": number,
               "replicas": {gpu.split("::")[0]: 2 for _, gpu, _ in pods if "::" in gpu}}
    for place, (name, gpu, demand) in enumerate(pods):
        uid, container = f"{number}{place}00dead-0000-4000-8000-000000000000", f"{number}{place}" * 32
        content["pods"].append({"namespace": "llm", "name": name, "uid": uid, "containers": [{"name": "main", "id": container, "devices": [gpu]}]})
        phase = {"from": 0, "to": 2 * SECONDS, "demand": demand, "memory_bytes": 8 << 30, "sm": 0.8, "tensor": 0.5, "dram": 0.4}
        content["processes"].append({"pid": 4100 + place, "name": "/usr/bin/python3", "gpu": int(gpu.split("::")[0]), "phases": [phase],
                                     "host": {"uid": 0, "cgroup": f"/kubepods/burstable/pod{uid}/{container}"}})
    path = suite.folder / f"node{number}.json"
    path.write_text(json.dumps(content))
    return path


def configuration(suite, nodes, servers, hour="1h"):
    """Of a Prometheus whose rules take this time for an hour."""
    rules = yaml.safe_load((ROOT / "alerts/unit_cost.yaml").read_text().replace("[1h]", f"[{hour}]"))
    rules["groups"][0]["interval"] = "2s"
    path = suite.folder / f"unit_cost-{hour}.yaml"
    path.write_text(json.dumps(rules))
    controllers = [{"source_labels": ["__name__", "k8s_pod_name"], "regex": f"gpu_workload_info;{pod}", "target_label": f"k8s_owner_{label}", "replacement": value}
                   for pod, owner in OWNERS.items() for label, value in zip(("kind", "name"), owner)]
    return {
        "rule_files": [str(path)],
        "scrape_configs": [
            {"job_name": "gpumeter", "static_configs": [{"targets": [node.instance for node in nodes], "labels": {"cluster": CLUSTER}}], "metric_relabel_configs": controllers},
            {"job_name": "servers", "static_configs": [{"targets": [one.target], "labels": {"cluster": CLUSTER, "namespace": "llm", "pod": pod}} for pod, one in servers.items()]},
        ],
    }


def stands_still(server):
    """The last closed window is in the recorded series, which no longer change."""
    [total] = values(server, "sum(gpu_tenant_held_cost_total) - sum(gpu_tenant_held_cost_total offset 5s)").values()
    recorded = values(server, "sum(namespace_owner:gpu_workload_held_cost:increase1h) - sum(namespace_owner:gpu_workload_held_cost:increase1h offset 5s)")
    return total == 0 and recorded and abs(recorded[()]) < 1e-3


def scrape_error(server):
    """The share by which Prometheus may miss a sum: half a scrape at each end, by which it extrapolates, and what was counted before the
    first scrape."""
    [seconds] = values(server, "max(timestamp(gpu_tenant_held_cost_total) - min_over_time(timestamp(gpu_tenant_held_cost_total)[1h:1s]))").values()
    [first] = values(server, "sum(min_over_time(gpu_tenant_held_cost_total[1h])) / sum(gpu_tenant_held_cost_total)").values()
    return 1 / seconds + first


def values(server, expression, *labels):
    return {tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1]) for one in server.query(expression)}


def per_million(suite, server, nodes, error):
    # Tokens are counted at once, money up to 25 s later: windows of 15 s close after 10 s.
    allowed = 2 * error + 25 / SECONDS + 0.01
    held, used = (values(server, PER_MILLION.format(f"{basis}_cost"), "owner") for basis in ("held", "used"))
    joules, dynamic = (values(server, PER_MILLION.format(energy), "owner") for energy in ("energy_joules", "dynamic_energy_joules"))
    unmeasured = values(server, "sum by (instance, gpu) (increase(gpu_tenant_unmeasured_seconds_total[1h])) "
                                "/ sum by (instance, gpu) (increase(gpu_tenant_held_seconds_total[1h]))", "instance", "gpu")
    suite.expect({owner for owner, in held} == set(MODELS), f"a million tokens have prices of {sorted(held)}, not of {sorted(MODELS)}")
    for owner, (_, gpus) in MODELS.items():
        expected = price(owner)
        found = held.get((owner,), 0)
        suite.expect(abs(found / expected - 1) <= allowed, f"{owner}: {found} a million, not {expected} within {allowed:.1%}")
        # On a busy machine a part of the time is not measured, which is neither used nor idle.
        share = used.get((owner,), 0) / found if found else 0
        places = [(node.instance, gpu.split("::")[0], demand) for node, pods in zip(nodes, PODS) for pod, gpu, demand in pods if "/".join(OWNERS[pod]) == owner]
        demand = sum(demand for *_, demand in places) / gpus
        lost = max(unmeasured.get((instance, gpu), 0) for instance, gpu, _ in places)
        suite.expect(demand - lost - 0.05 < share < demand + 0.05, f"{owner}: used is {share:.0%} of held, {demand:.0%} of the time is busy, and {lost:.0%} not measured")
        money, seconds = (sum(values(server, f'namespace_owner:gpu_workload_used_{amount}:increase1h{{owner="{owner}"}}').values()) for amount in ("cost", "seconds"))
        suite.expect(abs(money / (seconds * PRICE / 3600) - 1) < 0.001, f"{owner}: {seconds} s used are {money} EUR")
        suite.expect(0 < dynamic.get((owner,), 0) < joules.get((owner,), 0), f"{owner}: joules {joules}, dynamic {dynamic}")
        print(f"unit_cost: {owner}: held {found:.3f}, used {used[(owner,)]:.3f} EUR per million output tokens, expected {expected:.3f} held; "
              f"{joules[(owner,)] / 1e6:.3f} J a token, {dynamic[(owner,)] / 1e6:.3f} dynamic")
    running = values(server, "namespace_owner_model:llm_requests_running:sum", "owner", "model")
    suite.expect(running.get(("Deployment/draw", "flux")) == 7, f"two ranks of SGLang run the same 7 requests: {running}")


def sums(suite, server, nodes, error):
    """Owners and remainders against the tenants, and both against the bills."""
    increase = lambda selector: sum(values(server, f"sum(increase({selector}[1h]))").values())
    owners, used = (sum(values(server, f"sum(namespace_owner:gpu_workload_{basis}_cost:increase1h)").values()) for basis in ("held", "used"))
    whole = increase("gpu_tenant_held_cost_total")
    remainders = increase('gpu_tenant_held_cost_total{tenant=~"__.*__"}')
    held = owners + remainders
    unused = remainders + PRICE / 3600 * (increase("gpu_tenant_idle_seconds_total") + increase("gpu_tenant_unmeasured_seconds_total"))
    billed = sum(total(suite, node) for node in nodes)
    # Of what Prometheus scraped last.
    counted = sum(values(server, "sum(gpu_tenant_held_cost_total)").values())
    suite.expect(abs(counted - billed) < 1e-6, f"counters have {counted} EUR, bills {billed}")
    for name, found, expected in (("owners and remainders, of the tenants' sum", held, whole), ("used, idle, unmeasured and remainders, of the tenants' sum", used + unused, whole),
                                  ("owners and remainders, of the bills", held, billed)):
        off = found / expected - 1
        suite.expect(abs(off) <= error, f"{name}: {found} of {expected}, {off:+.2%}; the scrape's own error is {error:.2%}")
        print(f"unit_cost: {name}: {found:.4f} of {expected:.4f} EUR, {off:+.2%}; the scrape's own error is at most {error:.2%}")


def total(suite, node):
    """What a node's counters must have: its bill, which goes to the last whole minute, and the windows of 15 s since then at the
    same price."""
    done = subprocess.run([GPUMETER, "bill", "--url", node.url, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(done.returncode == 0, f"gpumeter bill: {done.stderr}")
    lines = bill_of(done.stdout)["lines"]
    counted = sum(float(value) for value in re.findall(r"(?m)^gpu_tenant_held_seconds_total{.*} (\S+)", node.page()))
    since = counted - sum(line["held_ns"] for line in lines) / 1e9
    gpus = len({line["gpu"] for line in lines})
    # A bill reads the ledger, which is a window ahead of the page of a clock that is held.
    suite.expect(-15.001 <= since / gpus <= 75, f"{node.name}: {since} s on {gpus} GPUs are counted and not billed")
    return sum(float(line["money"] or 0) for line in lines) + since * PRICE / 3600


harness.run(unit_cost)
