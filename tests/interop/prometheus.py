"""A real Prometheus on the demo: alerts fire and end, and every dashboard query answers.

Prometheus runs with the configuration and the rules that docs/monitoring.md has, installed by its commands. The demo
runs its own scenario with incidents of the hardware added. Times in the rules are shortened by `shortened`; the
conditions are those that ship.
"""

import json
import re
import subprocess
import time

import yaml

import dashboards
import harness
from harness import ROOT, Demo, Prometheus, free_port, wait_for

XID_AT = 90  # seconds from the demo's start
XID, XID_ACTION, XID_GPU = 119, "reset_gpu", 1
HUNG_GPU, LOST_GPU, HOT_GPU = 7, 6, 5
WORN_GPU, LINKED_GPU = 4, 3
IDLE_GPU, IDLE_TENANT = 2, "alice"
# The demo's configuration at the default level, with hardware errors read within a second.
CONFIG = Demo.CONFIG.read_text().replace("level: full", "level: standard\n  slow: 1s")
# The document's job, and the targets by the label `instance` that it makes of their addresses.
JOB, NODE, SILENT_NODE = "gpu-nodes", "127.0.0.1", "127.0.0.2"
RUNBOOKS = "https://wiki.example.com/gpumeter/runbooks/"

ALERTS = {
    "GpuNotAnswering", "GpuXidError", "GpuUnhealthy", "GpuLost", "GpuNeedsReplacement", "GpuFabricFailed",
    "GpuThrottledByHeat", "GpuHeldIdle",
    "GpumeterDown", "GpumeterNoDriver", "GpumeterLedgerFailing", "GpumeterLedgerNotDurable", "GpumeterAccountWrong",
    "GpumeterConfigReloadFailed", "GpumeterClockStepped",
    "GpumeterNoAccount", "GpumeterAbsent", "GpumeterDuplicateAgents", "GpumeterOtlpPointsLost", "GpumeterResolverFailing",
    "GpumeterPriceMissing", "GpumeterGrantUnmatched", "GpumeterClockNotAnchored", "GpumeterUnattributedUse",
    "GpumeterSeriesDropped",
}

# What the dashboard's variables are set to; no target has the label cluster.
VALUES = {"cluster": ".*", "job": JOB, "instance": NODE, "uuid": ".+", "tenant": ".+", "workload": ".+", "__rate_interval": "1m",
          "__range": "5m"}

# Times in the rules and their shorter replacements here: a key of a rule, or a part of its expression.
SHORTER = {
    "GpuNotAnswering": {"for": "1s"},
    "GpuXidError": {"[15m]": "[15s]", "keep_firing_for": "5s"},
    "GpuUnhealthy": {"for": "2s"},
    "GpuLost": {"for": "1s"},
    "GpuNeedsReplacement": {"for": "1s"},
    "GpuThrottledByHeat": {"[10m]": "[20s]", "for": "5s"},
    "GpuHeldIdle": {"[30m]": "[2m]", "[5m]": "[40s]", "offset 25m": "offset 80s", "for": "5s"},
    "GpumeterDown": {"for": "1s"},
    "GpumeterAbsent": {"for": "10s"},
    "GpumeterOtlpPointsLost": {"for": "5s"},
}

# Incidents on the node, in seconds from the demo's start.
INCIDENTS = {
    "xids": [{"at": XID_AT, "gpu": XID_GPU, "xid": XID}],
    "recoveries": [{"from": XID_AT, "to": 600, "gpu": XID_GPU, "action": "gpu_reset"}],
    "throttles": [{"from": 1, "to": 600, "gpu": HOT_GPU, "reason": "sw_thermal"}],
    "memory_errors": [{"at": XID_AT, "gpu": WORN_GPU, "kind": "dram_uncorrected"},
                      {"at": XID_AT, "gpu": WORN_GPU, "kind": "sram_threshold"}],
    "remaps": [{"at": XID_AT, "gpu": WORN_GPU, "cause": "uncorrectable", "pending": True},
               {"at": XID_AT, "gpu": WORN_GPU, "cause": "correctable", "failure": True}],
    "link_errors": [{"at": XID_AT, "gpu": LINKED_GPU, "link": 0, "kind": "crc_flit"}],
    "replays": [{"at": XID_AT, "gpu": LINKED_GPU}],
}
# The alerts that fire in the course of it; the others are left to the rule tests.
EXPECTED = ALERTS - {
    "GpuFabricFailed", "GpumeterNoDriver", "GpumeterLedgerFailing", "GpumeterLedgerNotDurable", "GpumeterAccountWrong",
    "GpumeterConfigReloadFailed", "GpumeterClockStepped", "GpumeterNoAccount", "GpumeterDuplicateAgents", "GpumeterResolverFailing",
    "GpumeterPriceMissing", "GpumeterGrantUnmatched", "GpumeterClockNotAnchored", "GpumeterUnattributedUse",
    "GpumeterSeriesDropped",
}


def prometheus(suite):
    nobody = f"http://127.0.0.1:{free_port()}"
    demo = Demo(suite, "--otlp-endpoint", nobody, scenario=scenario(suite), config=CONFIG)
    silent = f"{SILENT_NODE}:{free_port()}"
    server = Prometheus(suite, config=documented(suite, targets=[demo.instance, silent]))
    wait_for("the first scrape", 10, lambda: server.query("up == 1"), server.program)

    rules = server.alerts()
    suite.expect({rule["name"] for rule in rules} == ALERTS, f"Prometheus loaded the alerts {[rule['name'] for rule in rules]}")
    for rule in rules:
        runbook = rule["annotations"]["runbook_url"]
        suite.expect(runbook == f"{RUNBOOKS}{rule['name']}.md", f"the runbook of {rule['name']} is at {runbook}")
    wait_for("GpumeterAbsent to fire on the silent node alone", 30,
             lambda: instances(server, "GpumeterAbsent") == [SILENT_NODE], server.program)

    wait_for("GpumeterOtlpPointsLost to fire", 60, lambda: firing(server, "GpumeterOtlpPointsLost"), demo.program)
    fired = firing(server, "GpumeterOtlpPointsLost")
    suite.expect([labels["destination"] for labels in fired] == [f"{nobody}/v1/metrics"], f"GpumeterOtlpPointsLost fires on {fired}")

    # The XID's time is set, and on a busy machine its alert may have ended by now.
    fired = lambda: server.query('last_over_time(ALERTS{alertname="GpuXidError", alertstate="firing"}[10m])')
    wait_for("GpuXidError to fire", XID_AT + 30, fired, demo.program)
    xid_seen = time.time()
    labels = fired()[0]["metric"]
    suite.expect((labels["gpu"], labels["action"]) == (str(XID_GPU), XID_ACTION), f"GpuXidError fires with {labels}")
    suite.expect("tenant" not in labels, "GpuXidError carries a tenant")
    suite.expect(server.query(f'gpu_xid_errors_total{{xid="{XID}"}} == 1'), f"XID {XID} is not counted once")
    wait_for("GpuXidError to end", 60, lambda: not firing(server, "GpuXidError"), demo.program)

    suite.expect(not firing(server, "GpuNotAnswering"), "GpuNotAnswering fires while every GPU answers")
    demo.faults({"function": "*", "gpu": HUNG_GPU, "hang": True})
    wait_for("GpuNotAnswering to fire", 30, lambda: firing(server, "GpuNotAnswering"), demo.program)
    hang_seen = time.time()
    fired = firing(server, "GpuNotAnswering")
    suite.expect([labels["gpu"] for labels in fired] == [str(HUNG_GPU)], f"GpuNotAnswering fires on {fired}")
    demo.faults()
    wait_for("GpuNotAnswering to end", 30, lambda: not firing(server, "GpuNotAnswering"), demo.program)

    demo.condition({"gpus": {str(LOST_GPU): {"state": "lost", "quiet": True}}})
    wait_for("GpuLost to fire", 30, lambda: gpus(server, "GpuLost") == {LOST_GPU}, demo.program)
    lost_seen = time.time()
    demo.condition({})
    for alert, gpu in (("GpuUnhealthy", XID_GPU), ("GpuUnhealthy", WORN_GPU), ("GpuNeedsReplacement", WORN_GPU), ("GpuThrottledByHeat", HOT_GPU)):
        wait_for(f"{alert} to fire on GPU {gpu}", 30, lambda: gpu in gpus(server, alert), demo.program)

    wait_for("account counters that move", 180, lambda: server.query("sum(increase(gpu_tenant_held_seconds_total[1m])) > 0"), demo.program, 1)
    wait_for("GpuHeldIdle to fire", 240, lambda: firing(server, "GpuHeldIdle"), demo.program, 1)
    idle = [(labels["gpu"], labels["tenant"]) for labels in firing(server, "GpuHeldIdle")]
    suite.expect(idle == [(str(IDLE_GPU), IDLE_TENANT)], f"GpuHeldIdle fires for {idle}")
    loaded = {rule["name"]: rule["health"] for rule in server.alerts()}
    suite.expect(loaded == dict.fromkeys(ALERTS, "ok"), f"the rules' evaluations: {loaded}")
    for path in dashboards.FILES:
        queries(suite, server, path, moments=(None, xid_seen, hang_seen, lost_seen))

    node = dashboards.load(ROOT / "dashboards/node.json")
    age = next(panel for panel in dashboards.panels(node) if panel["title"] == "Sample age")
    ages = server.query(dashboards.substitute(age["targets"][0]["expr"], **VALUES), at=time.time() + 60)
    suite.expect(ages and all(float(series["value"][1]) < 10 for series in ages), f"a minute after the last scrape the samples' age is {ages}")

    suite.expect(not firing(server, "GpumeterDown"), "GpumeterDown fires while the agent answers")
    demo.program.stop()
    wait_for("GpumeterDown to fire on the node alone", 30, lambda: instances(server, "GpumeterDown") == [NODE], server.program)
    fired = {series["metric"]["alertname"] for series in server.query('last_over_time(ALERTS{alertstate="firing"}[1h])')}
    suite.expect(fired == EXPECTED, f"fired, although it should not: {fired - EXPECTED}; did not fire: {EXPECTED - fired}")
    print(f"prometheus: fired in job {JOB}: {' '.join(sorted(fired))}")


def documented(suite, targets):
    """The configuration in docs/monitoring.md with our targets, and the rules as its commands install them, shortened."""
    document = (ROOT / "docs/monitoring.md").read_text()
    blocks = re.findall(r"^```\w+\n(.*?)^```", document, re.M | re.S)
    config = yaml.safe_load(next(block for block in blocks if block.startswith("# prometheus.yml\n")))
    install = next(block for block in blocks if "\nrunbooks=" in block)

    folder = suite.folder / "rules"
    folder.mkdir()
    script = install.replace("/etc/prometheus/rules", str(folder))
    installed = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, capture_output=True, text=True)
    suite.expect(installed.returncode == 0, f"the document's commands fail:\n{installed.stdout}{installed.stderr}")
    shortened(folder)

    suite.expect(config["rule_files"] == ["/etc/prometheus/rules/*.yaml"], "the document loads other files than it installs")
    config["rule_files"] = [f"{folder}/*.yaml"]
    # The label `cluster` is for several clusters; here it is absent.
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    del config["alerting"]
    return config


def scenario(suite):
    """The demo's own scenario from a short first run, with incidents at known times."""
    first = Demo(suite, state=suite.folder / "first")
    text = first.scenario()
    first.program.stop()
    path = suite.folder / "scenario.json"
    path.write_text(json.dumps(text | INCIDENTS))
    return path


def shortened(folder):
    """Shortens times in the installed rules as `SHORTER` says."""
    changed = set()
    for path in folder.glob("*.yaml"):
        rules = yaml.safe_load(path.read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            for long, short in SHORTER.get(rule["alert"], {}).items():
                if long in rule:
                    rule[long] = short
                elif long in rule["expr"]:
                    rule["expr"] = rule["expr"].replace(long, short)
                else:
                    raise harness.Failed(f"{rule['alert']} has no {long}; mend SHORTER")
                changed.add(rule["alert"])
        path.write_text(json.dumps(rules, indent=1))
    if changed != SHORTER.keys():
        raise harness.Failed(f"no rule is called {SHORTER.keys() - changed}; mend SHORTER")


def firing(server, alert):
    return [series["metric"] for series in server.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')]


def gpus(server, alert):
    return {int(labels["gpu"]) for labels in firing(server, alert)}


def instances(server, alert):
    return [labels.get("instance") for labels in firing(server, alert)]


def queries(suite, server, path, moments):
    """Every query of a dashboard has a valid result at the first time at which it has one at all."""
    dashboard = dashboards.load(path)
    for name, selector, label in dashboards.variables(dashboard):
        found = server.label_values(label, dashboards.substitute(selector, **VALUES))
        suite.expect(bool(found) == (name != "cluster"), f"{path.name}: variable {name} has {found} to choose from")
    for panel in dashboards.panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        for target in panel["targets"]:
            place = f"{path.name}, {panel['title']}: {target['expr']}"
            expression = dashboards.substitute(target["expr"], **VALUES)
            try:
                result = next(filter(None, (server.query(expression, at) for at in moments)), [])
            except harness.Failed as refused:
                suite.expect(False, f"{place}: {refused}")
                continue
            suite.expect(result or defaults.get("noValue"), f"{place}: nothing, and the panel does not say what that means")
            numbers = [float(series["value"][1]) for series in result]
            suite.expect(all(number == number for number in numbers), f"{place}: NaN")
            low, high = defaults.get("min", float("-inf")), defaults.get("max", float("inf"))
            outside = [number for number in numbers if not low <= number <= high]
            suite.expect(not outside, f"{place}: {outside[:3]} lie outside of the panel's {low} to {high}")
            legend(suite, place, target["legendFormat"], result)


def legend(suite, place, text, result):
    """A label that a legend names is on every series, and no two series have one legend."""
    names = [part.split("}}")[0] for part in text.split("{{")[1:]]
    for series in result:
        missing = [name for name in names if name not in series["metric"]]
        suite.expect(not missing, f"{place}: the legend names {missing}, which {series['metric']} lacks")
    if text:
        shown = [tuple(series["metric"].get(name) for name in names) for series in result]
        suite.expect(len(shown) == len(set(shown)), f"{place}: two series have one legend")


harness.run(prometheus)
