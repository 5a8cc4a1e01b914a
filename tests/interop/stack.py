"""The live stack: agents on simulated nodes, a real Prometheus with the rules, a real Alertmanager, and a receiver.

All scenarios of `scenarios.py` run at once, each in a cluster of its own; with GPUMETER_SMOKE=1 only the two that combine
many incidents, and one whose agent pushes. While they are in force, the alerts of each must be exactly the expected ones, after
twice the longest window; every query of the dashboards answers or is declared empty (`panels.py`); after their end nothing is left.
Agents that push OTLP, to Prometheus or to a real Collector, must have the alerts of those that are scraped, with their cluster.

Prometheus runs with the configuration and the rules that docs/monitoring.md has, installed by its commands. Windows are divided
by `shortened.py`; the conditions are those that ship. A whole run draws the dashboards; with UPDATE=1 it
writes docs/dashboards.md and its pictures. The dashboard of unit costs is that of `unit_cost.py`.
"""

import json
import os
import re
import subprocess
import time

import yaml

import harness
import panels
import scenarios
import shortened
from alertmanager import Alertmanager, Receiver
from browser import Browser
from harness import ROOT, SMOKE, Failed, Prometheus, free_port, wait_for

RUNBOOKS = "https://wiki.example.com/gpumeter/runbooks/"


def stack(suite):
    world = Stack(suite, [one for one in scenarios.ALL if one.smoke or not SMOKE])
    world.check_loaded()
    quiet = [one for one in world.scenarios if one.name != "absent"]
    for one in quiet:
        world.wait(one, "to be watched, and well", lambda found: not found)

    began = time.monotonic()
    for one in world.scenarios:
        one.begin(world.nodes[one.name], Watch(world, one))
    for one in sorted(world.scenarios, key=world.window):
        while (left := began + 2 * world.window(one) - time.monotonic()) > 0:
            time.sleep(left)
        world.judge(one)
    answers = [panels.Answers(world.server, level, world.instance(level, 1)) for level in ("standard", "full")]
    for one in answers:
        panels.check(suite, one)

    update = os.environ.get("UPDATE") == "1"
    if not SMOKE:
        well = panels.Answers(world.server, "healthy")
        browser = Browser(suite)
        panels.draw(suite, browser, well)
        panels.draw(suite, browser, answers[1], keep=update)

    world.configure(further=False)
    for one in world.scenarios:
        one.end(world.nodes[one.name], Watch(world, one))
    for one in world.scenarios:
        world.wait(one, "to be well again", lambda found: not found)
    world.check_sent()
    rules = {rule["name"]: rule["health"] for rule in world.server.alerts()}
    suite.expect(set(rules.values()) == {"ok"}, f"the rules' evaluations: {rules}")
    if update and not SMOKE:
        standard, full = answers
        panels.write({name: panels.section(name, dashboard, [full, standard], well) for name, dashboard in full.dashboards.items()})


class Stack:
    def __init__(self, suite, chosen):
        self.suite, self.scenarios = suite, chosen
        self.port, server, collector = free_port(), free_port(), free_port()
        self.receiver = Receiver()
        self.alertmanager = Alertmanager(suite, self.receiver)
        self._collect(collector, server)
        self.nodes = {}
        seed = 0
        for number, one in enumerate(chosen, 1):
            self.nodes[one.name] = nodes = []
            for place, (content, settings) in enumerate(one.nodes, 1):
                seed += 1
                # All have one port, each an address of its own: `instance` is the address, as docs/monitoring.md makes it.
                hosts = [address(number, place + further) for further in range(one.targets + 1)]
                listens = [argument for host in hosts[1:] for argument in ("--listen", f"{host}:{self.port}")]
                name = f"{one.name}-{place}"
                nodes.append(scenarios.Node(suite, name, content, settings, *listens, seed=seed, host=hosts[0], port=self.port,
                                            **self._pushing(one, name, server, collector)))
        self.rules = self._installed()
        self.windows = {}
        for path in self.rules.glob("*.yaml"):
            divided = shortened.rules(yaml.safe_load(path.read_text()))
            path.write_text(json.dumps(divided, indent=1))
            self.windows |= shortened.windows(divided)
        self.server = Prometheus(
            suite, f"--query.lookback-delta={shortened.LOOKBACK}", "--rules.alert.resend-delay=5s", config=self._documented(),
            otlp=True, port=server)

    def configure(self, further):
        """Gives Prometheus another configuration: with the scenarios' further targets, or without."""
        self.server.configure(self._documented(further))

    def _documented(self, further=True):
        """The configuration in docs/monitoring.md, with our targets and addresses."""
        config = documented("# prometheus.yml\n") | documented("# prometheus.yml, if agents push")
        self.suite.expect(config["rule_files"] == ["/etc/prometheus/rules/*.yaml"], "the document loads other files than it installs")
        config["rule_files"] = [f"{self.rules}/*.yaml"]
        config["scrape_configs"][0]["static_configs"] = [
            {"targets": [f"{address(number, place)}:{self.port}" for place in range(1, len(one.nodes) + one.targets * further + 1)],
             "labels": {"cluster": one.name}}
            for number, one in enumerate(self.scenarios, 1) if not one.pushes]
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [self.alertmanager.address]
        return config

    def _pushing(self, scenario, name, server, collector):
        """What lets an agent push to Prometheus or the Collector, at these ports, in the way of its scenario."""
        ways = {
            "": {},
            scenarios.PLAIN: {"pushes": pushes(f"http://127.0.0.1:{server}/api/v1/otlp", name=name)},
            scenarios.LABELLED: {"pushes": pushes(f"http://127.0.0.1:{server}/api/v1/otlp", name=name),
                                 "environment": [f"OTEL_RESOURCE_ATTRIBUTES=cluster={scenario.name}"]},
            scenarios.COLLECTED: {"pushes": pushes(f"http://127.0.0.1:{collector}", name=name, cluster=scenario.name)},
        }
        return ways[scenario.pushes]

    def _collect(self, port, server):
        """Starts a Collector by the configuration in docs/monitoring.md, with our addresses."""
        config = documented("# collector.yaml")
        config["receivers"]["otlp"]["protocols"] = {"http": {"endpoint": f"127.0.0.1:{port}"}}
        config["exporters"]["otlp_http"]["metrics_endpoint"] = f"http://127.0.0.1:{server}/api/v1/otlp/v1/metrics"
        config["service"]["telemetry"] = {"metrics": {"level": "none"}}
        path = self.suite.folder / "collector.yaml"
        path.write_text(json.dumps(config, indent=1))
        self.suite.start("otelcol", "otelcol", "--config", path)

    def _installed(self):
        """The folder that the document's commands install the rules into, those for agents that push among them."""
        folder = self.suite.folder / "rules"
        folder.mkdir()
        install = next(block for block in blocks() if "\nrunbooks=" in block)
        script = install.replace("/etc/prometheus/rules", str(folder)).replace("for name in", "for name in pushed")
        installed = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, capture_output=True, text=True)
        if installed.returncode:
            raise Failed(f"the document's commands fail:\n{installed.stdout}{installed.stderr}")
        return folder

    def check_loaded(self):
        """Prometheus has every alert, with the runbook's address that the document sets."""
        loaded = {rule["name"]: rule for rule in self.server.alerts()}
        self.suite.expect(loaded.keys() == self.windows.keys(), f"Prometheus loaded the alerts {loaded.keys()}")
        for name, rule in loaded.items():
            runbook = rule["annotations"]["runbook_url"]
            self.suite.expect(runbook == f"{RUNBOOKS}{name}.md", f"the runbook of {name} is at {runbook}")

    def window(self, scenario):
        """The longest window of a scenario's alerts; one that expects none waits for those of all."""
        names = {alert[0] for alert in scenario.expected} or self.windows.keys()
        return max(self.windows[name] for name in names)

    def instance(self, name, place):
        """The node's label."""
        number = [one.name for one in self.scenarios].index(name) + 1
        return address(number, place)

    def found(self, scenario):
        """The alerts of a scenario that have not ended."""
        return {(labels["alertname"], labels["severity"], place(labels), labels.get("tenant"), receiver, "firing" if state == "active" else state)
                for labels, receivers, state in self.alertmanager.alerts() if scenario.owns(labels) for receiver in receivers}

    def wait(self, scenario, what, holds):
        """Waits until a condition holds of the scenario's alerts, while its targets are scraped."""
        def probe():
            sign = f'gpumeter_build_info{{instance=~"{scenario.name}-.*"}}' if scenario.pushes else f'up{{cluster="{scenario.name}"}}'
            return (not scenario.nodes or self.server.query(sign)) and holds(self.found(scenario))
        try:
            wait_for(what, 60, probe, self.alertmanager.program, 0.5)
        except Failed as late:
            raise Failed(f"{scenario.name}: {late}; its alerts are {sorted(self.found(scenario), key=str)}") from late

    def judge(self, scenario):
        """The alerts are the expected ones, as soon as a busy machine allows."""
        try:
            wait_for("the expected alerts", 30, lambda: self.found(scenario) == scenario.expected, self.alertmanager.program, 0.5)
        except Failed:
            found = self.found(scenario)
            self.suite.expect(False, f"{scenario.name}: missing {lines(scenario.expected - found)}, unexpected {lines(found - scenario.expected)}")
        else:
            print(f"stack: {scenario.name}: {lines(scenario.expected) or 'no alert'}")

    def check_sent(self):
        """Who was to hear of an alert has heard of its beginning and of its end; nobody of what is silenced all the time."""
        for one in self.scenarios:
            for name, _, where, tenant, receiver, state in one.expected:
                if state != "firing" or receiver == "nobody":
                    continue
                def told():
                    return [states for to, labels, states in self.receiver.sent() if one.owns(labels) and
                            (to, labels["alertname"], place(labels), labels.get("tenant")) == (receiver, name, where, tenant)]
                try:
                    wait_for(f"{receiver} to hear of {name}", 30, lambda: told() and all(states[-1] == "resolved" for states in told()))
                except Failed:
                    self.suite.expect(False, f"{one.name}: {receiver} was told of {name} {where}: {told()}")
        pages = {(labels.get("cluster"), labels["alertname"]) for to, labels, _ in self.receiver.sent() if to == "on-call"}
        expected = {(one.name, alert[0]) for one in self.scenarios for alert in one.expected if alert[4] == "on-call"}
        self.suite.expect(pages == expected, f"pages were sent: {pages}, not {expected}")


class Watch:
    """What a scenario may wait for."""

    def __init__(self, stack, scenario):
        self.stack, self.scenario = stack, scenario

    def alerts(self, what, holds):
        self.stack.wait(self.scenario, what, holds)

    def query(self, expression):
        wait_for(expression, 60, lambda: self.stack.server.query(expression), self.stack.server.program, 0.5)


def blocks():
    """What stands between fences in docs/monitoring.md."""
    return re.findall(r"^```\w+\n(.*?)^```", (ROOT / "docs/monitoring.md").read_text(), re.M | re.S)


def pushes(endpoint, **node):
    """A part of an agent's configuration."""
    return yaml.safe_dump({"node": node, "otlp": {"endpoint": endpoint, "interval": "1s"}})


def documented(beginning):
    """The block of YAML there that begins so."""
    return yaml.safe_load(next(block for block in blocks() if block.startswith(beginning)))


def address(scenario, place):
    return f"127.0.{scenario}.{place}"


def place(labels):
    """The node of its cluster that an alert is about, and its GPU."""
    node = re.search(r"\d*$", labels.get("instance", ""))[0]
    return f"{node}/{labels['gpu']}" if "gpu" in labels else node


def lines(alerts):
    return "; ".join(" ".join(part or "-" for part in alert) for alert in sorted(alerts, key=str))


harness.run(stack)
