"""A real Prometheus on the demo: two alerts fire and end, and every dashboard query answers.

The demo runs its own scenario with its XIDs replaced by one early one. Times in the rules are shortened by
`shortened`; the conditions are those that ship. GpuHeldIdle stays as it is and is left to the rule tests:
the account steps every 15 s, so its windows cannot be shortened to seconds.
"""

import json
import time

import dashboards
import harness
from harness import ROOT, Demo, Prometheus, wait_for

XID_AT = 45  # seconds from the demo's start
XID, XID_ACTION, XID_GPU = 119, "reset_gpu", 1
HUNG_GPU = 2

ALERTS = {
    "GpuNotAnswering", "GpuXidError", "GpuUnhealthy", "GpuLost", "GpuNeedsReplacement", "GpuFabricFailed",
    "GpuThrottledByHeat", "GpuHeldIdle",
    "GpumeterDown", "GpumeterNoDriver", "GpumeterLedgerFailing", "GpumeterLedgerNotDurable", "GpumeterAccountWrong",
    "GpumeterConfigReloadFailed", "GpumeterClockStepped",
    "GpumeterNoAccount",
}

# Panels that may be empty although this suite brings an XID and a hung driver, and why.
MAY_BE_EMPTY = {"Collector errors": "a reason is born with its first error"}


def prometheus(suite):
    demo = Demo(suite, scenario=scenario_with_an_xid(suite))
    server = Prometheus(suite, scrape=demo.instance, rules=shortened(suite))
    wait_for("the first scrape", 10, lambda: server.query("up == 1"), server.program)

    loaded = {rule["name"]: rule["health"] for rule in server.alerts()}
    suite.expect(loaded.keys() == ALERTS, f"Prometheus loaded the alerts {sorted(loaded)}")

    # The XID first: its time is set.
    wait_for("GpuXidError to fire", XID_AT + 30, lambda: firing(server, "GpuXidError"), demo.program)
    xid_seen = time.time()
    labels = firing(server, "GpuXidError")[0]
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

    wait_for("account counters that move", 180, lambda: server.query("sum(increase(gpu_tenant_held_seconds_total[1m])) > 0"), demo.program, 1)
    time.sleep(45)  # three windows more, for every rate over them
    loaded = {rule["name"]: rule["health"] for rule in server.alerts()}
    suite.expect(loaded == dict.fromkeys(ALERTS, "ok"), f"the rules' evaluations: {loaded}")
    for path in dashboards.FILES:
        queries(suite, server, demo, path, moments=(None, xid_seen, hang_seen))


def scenario_with_an_xid(suite):
    """The demo's own scenario, read from a first short run, with one XID at a time we know."""
    first = Demo(suite, state=suite.folder / "first")
    scenario = first.scenario()
    first.program.stop()
    scenario["xids"] = [{"at": XID_AT, "gpu": XID_GPU, "xid": XID}]
    path = suite.folder / "scenario.json"
    path.write_text(json.dumps(scenario))
    return path


def shortened(suite):
    """The rules as they ship, with the waiting of two of them cut from minutes to seconds."""
    rules = (ROOT / "alerts/gpumeter.yaml").read_text()
    waits = (("for: 1m", "for: 1s", 1), ("[15m]", "[15s]", 2), ("keep_firing_for: 5m", "keep_firing_for: 5s", 2))
    for long, short, count in waits:
        if rules.count(long) != count:
            raise harness.Failed(f"alerts/gpumeter.yaml has {long!r} {rules.count(long)} times; mend the shortening")
        rules = rules.replace(long, short)
    path = suite.folder / "rules.yaml"
    path.write_text(rules)
    return path


def firing(server, alert):
    return [series["metric"] for series in server.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')]


def queries(suite, server, demo, path, moments):
    """Every query of a dashboard answers well at the first of the moments at which it answers at all."""
    dashboard = dashboards.load(path)
    values = {"instance": demo.instance, "gpu": ".+", "__rate_interval": "1m", "__range": "5m"}
    for name, selector, label in dashboards.variables(dashboard):
        found = server.label_values(label, dashboards.substitute(selector, **values))
        suite.expect(found, f"{path.name}: variable {name} has nothing to choose from")
    for panel in dashboards.panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        for target in panel["targets"]:
            place = f"{path.name}, {panel['title']}: {target['expr']}"
            expression = dashboards.substitute(target["expr"], **values)
            try:
                result = next(filter(None, (server.query(expression, at) for at in moments)), [])
            except harness.Failed as refused:
                suite.expect(False, f"{place}: {refused}")
                continue
            if panel["title"] not in MAY_BE_EMPTY:
                suite.expect(result, f"{place}: nothing")
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
