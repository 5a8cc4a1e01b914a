"""The scenarios of the live stack: nodes, what befalls them, and the alerts that must follow.

Each has a cluster of its own, named like it, so that all run at once. An alert is written as (name, severity, place, tenant,
receiver, state): a place is a node of the cluster, 2, or one of its GPUs, 2/0; the state is firing, or suppressed where
another alert inhibits it.
"""

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field, replace

from harness import GPUMETER, PATIENCE, ROOT, Demo, Failed

# Seconds; what happens once has not happened twice before the end of a run, and the simulator walks over all of it at its start.
CYCLE = 1800
WHOLE = {"from": 0, "to": CYCLE}
USERS = [{"uid": 1001, "name": "alice"}, {"uid": 1002, "name": "bob"}, {"uid": 1003, "name": "vision"}]


def work(pid, gpu, unit="train.service", demand=0.9, **more):
    """A process of a service on a GPU."""
    phase = WHOLE | {"demand": demand, "memory_bytes": 8 << 30, "sm": 0.8, "tensor": 0.5, "dram": 0.4}
    return {"pid": pid, "name": "/usr/bin/python3", "gpu": gpu, "phases": [phase], "host": {"uid": 1001, "cgroup": f"/system.slice/{unit}"}} | more


def node(gpus=({"profile": "h100", "count": 2},), processes=(), **more):
    """What is on a node; without processes, one service works on each of two GPUs."""
    return {"cycle_seconds": CYCLE, "users": USERS, "gpus": list(gpus),
            "processes": list(processes) or [work(4101, 0), work(4102, 1)]} | more


def grants(count=2, holder="unit: train.service"):
    return "[" + ", ".join(f"{{id: grant-{gpu}, gpu: {gpu}, fraction: 1, {holder}}}" for gpu in range(count)) + "]"


def config(level="standard", standing=grants(), more=""):
    """Hardware errors are read within a second, and a busy machine stretches nothing."""
    return (f"sampling: {{level: {level}, medium: 1s, slow: 1s, driver_share: 1000000}}\n"
            f"attribution: {{standing: {standing}}}\n"
            "prices: {currency: EUR, rates: [{gpu_hour: 3}]}\n"
            f"limits: {{birth_delay: 5s}}\n{more}")


class Node(Demo):
    """An agent on a simulated node that can be stopped, started and mended."""

    def __init__(self, suite, name, content, settings, *arguments, seed, pushes="", **more):
        self.seed = seed  # of the GPUs' UUIDs
        self.pushes = pushes  # what its configuration says of that at any time
        self.content = suite.folder / f"{name}.json"
        self._write(content)
        super().__init__(suite, *arguments, scenario=self.content, config=settings + pushes, name=name, **more)

    def _write(self, content):
        self.content.write_text(json.dumps(content | {"seed": self.seed}))

    def stop(self):
        self.program.stop()

    def play(self, content):
        """The node as it would be with another content: a broken one, or a mended one."""
        self.stop()
        self._write(content)
        self.condition({})
        self.faults()
        self.command.append("--fresh")
        self.start()
        self.command.pop()

    def reload(self, settings):
        self.config.write_text(settings + self.pushes)
        os.kill(self.program.process.pid, signal.SIGHUP)

    def control(self, *arguments):
        done = subprocess.run([GPUMETER, *arguments, "--socket", self.state / "control.sock"], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"gpumeter {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def xids(self, gpu, xid, **more):
        """An XID every five seconds, so that what follows from it lasts."""
        self.condition({"xids": [{"gpu": gpu, "xid": xid, "per_second": 0.2, "count": 100_000}]} | more)

    @property
    def kubelet(self):
        return self.state / "host/var/lib/kubelet/pod-resources/kubelet.sock"


# Ways to push: without a cluster, with a resource attribute of that name, and to a Collector that makes it of `k8s.cluster.name`.
PLAIN, LABELLED, COLLECTED = "plain", "labelled", "collected"


@dataclass
class Scenario:
    name: str
    # What is on each node, and its agent's configuration.
    nodes: list
    # The alerts that must be there, and no others.
    expected: set = field(default_factory=set)
    # What happens, and what ends it; both are given the nodes and a `Watch`.
    begin: callable = lambda nodes, watch: None
    end: callable = lambda nodes, watch: None
    # Tenants by which alerts without a cluster are told.
    tenants: tuple = ()
    # Targets beside those of the nodes; they are taken away at the end.
    targets: int = 0
    # Its agents are scraped by nobody and push OTLP in one of the ways below.
    pushes: str = ""
    smoke: bool = False

    def owns(self, labels):
        if "cluster" in labels:
            return labels["cluster"] == self.name
        return labels.get("tenant") in self.tenants or self.pushes == PLAIN and labels.get("instance", "").startswith(f"{self.name}-")


def ticket(name, place, state="firing"):
    return name, "ticket", place, None, "tickets", state


def notice(name, place, tenant, receiver="gpu-users", state="firing"):
    return name, "notice", place, tenant, receiver, state


def page(name):
    return name, "page", "", None, "on-call", "firing"


def maintenance(place):
    return "GpuNodeInMaintenance", "none", place, None, "nobody", "firing"


def lost(nodes, _):
    nodes[0].condition({"gpus": {"1": {"state": "lost", "quiet": True}}})


def well(nodes, _):
    for one in nodes:
        one.condition({})
        one.faults()


def fallen_off(nodes, _):
    nodes[0].xids(1, 79, gpus={"1": {"state": "lost", "quiet": True}})


def mend(nodes, _):
    nodes[0].play(node())


def hung(nodes, _):
    nodes[0].faults({"function": "*", "gpu": 1, "hang": True})


def remap(nodes, _):
    nodes[0].play(node(remaps=[{"at": 1, "gpu": 1, "cause": "correctable", "pending": True}]))


def application_error(nodes, watch):
    # Whose it is, is known once the account has counted.
    watch.query(f'increase(gpu_tenant_held_seconds_total{{cluster="{watch.scenario.name}", tenant="train.service"}}[30s]) > 0')
    nodes[0].xids(0, 31)


def kubelet_away(nodes, _):
    nodes[0].kubelet.rename(nodes[0].kubelet.with_suffix(".away"))


def kubelet_back(nodes, _):
    nodes[0].kubelet.with_suffix(".away").rename(nodes[0].kubelet)


def stop(nodes, _):
    for one in nodes:
        one.stop()


def start(nodes, _):
    for one in nodes:
        one.start()


def one_lost_one_silent(nodes, watch):
    lost(nodes, watch)
    nodes[1].stop()


def both_well(nodes, watch):
    well(nodes, watch)
    nodes[1].start()


def refuse(nodes, watch):
    """A server that does not know OTLP refuses everything for good."""
    with_destination(nodes[0], f"otlp: {{endpoint: '{watch.stack.receiver.url}', interval: 1s}}\n")


def take_away(nodes, _):
    with_destination(nodes[0], "")


def with_destination(one, destination):
    one.stop()
    one.config.write_text(config(more=destination))
    one.start()


def spend(budget):
    return config(standing=grants(1, "unit: spender.service"), more=f"tenants: {{budgets: {{spender.service: {budget}}}}}\n")


def upgrade(nodes, _):
    """The driver of the first node is replaced."""
    nodes[0].control("quiesce", "--for", "1h")
    nodes[0].condition({"driver": {"loaded": False}})


def upgraded(nodes, watch):
    """It is rebooted, which somebody would hear of otherwise, and comes back; then the same with the second."""
    for number, one in enumerate(nodes, 1):
        if number > 1:
            one.control("quiesce", "--for", "1h")
            watch.alerts(f"node {number} to be in maintenance", lambda found: found == {maintenance(str(number))})
        one.stop()
        down = ticket("GpumeterDown", str(number), "suppressed")
        watch.alerts(f"node {number} to be down, and nobody to hear of it", lambda found: found == {maintenance(str(number)), down})
        one.condition({"driver": {"version": "590.48.01", "epoch": 2}})
        one.start()
        watch.alerts(f"node {number} to be back", lambda found: not found)


def pods():
    """A pod with a whole GPU, and two that share another by time-slicing."""
    holders = []
    for index, devices in enumerate((["0"], ["1::0"], ["1::1", "1::2"])):
        letter = "abc"[index]
        holders.append((f"{letter}{letter}00dead-0000-4000-8000-00000000000{index}", letter * 64, devices))
    listed = [{"namespace": "ml", "name": f"pod-{index}", "uid": uid, "containers": [{"name": "main", "id": container, "devices": devices}]}
              for index, (uid, container, devices) in enumerate(holders)]
    cgroups = [f"/kubepods/burstable/pod{uid}/{container}" for uid, container, _ in holders]
    processes = [work(4101 + index, int(devices[0][0]), demand=0.4, host={"uid": 0, "cgroup": cgroup})
                 for index, ((_, _, devices), cgroup) in enumerate(zip(holders, cgroups))]
    return node(processes=processes, pods=listed, replicas={"1": 4})


MIG = [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}, {"profile": "2g.20gb", "start": 0}]}, {"profile": "a100"}]

# Every feature at once, at both levels, so that every panel has something to show.
HEAT, WORN, LINKS, NARROW, RESET, LOST, HUNG, OLD = 5, 4, 3, 0, 1, 6, 7, 13


def calm():
    """Who is in the demo's cluster, on boards with NVLink, where all use what they hold, with a GPU under MPS and an old one."""
    demo = json.loads((ROOT / "src/cli/demo/cluster.json").read_text())
    content = {key: demo[key] for key in ("users", "processes", "pods", "replicas", "jobs")} | {"cycle_seconds": CYCLE}
    for process in content["processes"]:
        first = process["phases"][0]
        # An hour is too long for what is told of these: they hold nothing where they work, or nobody knows them.
        little = process["pid"] in (4402, 4501, 5002)
        process["phases"] = [first | WHOLE | ({"demand": 0.03, "encoder": 0, "decoder": 0} if little else {"demand": max(first["demand"], 0.3)})]
    content["pods"] = [{key: pod[key] for key in ("namespace", "name", "uid", "containers")} for pod in content["pods"]]
    content["gpus"] = [{"profile": "h100", "count": 11}, demo["gpus"][-1], {"profile": "h100", "mps": True}, {"profile": "t4"}]
    content["processes"] += [work(6001, 12, "solver.service", sm=0.3), work(6002, 12, "solver.service", 0.5, sm=0.2)]
    return content


def everything():
    """The same with incidents of the hardware."""
    content = calm()
    content["throttles"] = [WHOLE | {"gpu": HEAT, "reason": "sw_thermal"}, WHOLE | {"gpu": NARROW, "reason": "sw_power_cap"}]
    content["pcie"] = [WHOLE | {"gpu": NARROW, "generation": 3, "width": 8}]
    content["recoveries"] = [WHOLE | {"gpu": RESET, "action": "gpu_reset"}]
    content["memory_errors"] = [{"at": 20, "gpu": gpu, "kind": kind} for gpu, kind in (
        (WORN, "dram_uncorrected"), (WORN, "sram_threshold"), (OLD, "page_retired_uncorrected"))]
    content["remaps"] = [{"at": 20, "gpu": WORN, "cause": "uncorrectable", "pending": True},
                         {"at": 20, "gpu": WORN, "cause": "correctable", "failure": True}]
    # Errors that go on, so that every window has some.
    content["memory_errors"] += [{"at": at, "gpu": WORN, "kind": "dram_corrected"} for at in range(10, CYCLE, 5)]
    content["link_errors"] = [{"at": at, "gpu": LINKS, "link": 0, "kind": kind} for at in range(10, CYCLE, 5) for kind in ("crc_flit", "replay")]
    content["links_down"] = [WHOLE | {"gpu": LINKS, "link": 3}]
    content["replays"] = [{"at": at, "gpu": LINKS, "count": 3} for at in range(10, CYCLE, 5)]
    return content


def calm_config(level):
    text = Demo.CONFIG.read_text().replace("level: full", f"level: {level}\n  workload_counters: true\n  medium: 1s\n  slow: 1s\n  driver_share: 1000000")
    return text.replace("birth_delay: 60s", "birth_delay: 5s")


# Nobody takes what is pushed there, which waits on the disk until then.
PUSHES = "otlp: {endpoint: 'http://127.0.0.1:9', interval: 1s}\n"


def everything_at_once(nodes, _):
    nodes[0].config.write_text(nodes[0].config.read_text() + PUSHES)
    nodes[0].play(everything())
    nodes[0].faults({"function": "*", "gpu": HUNG, "hang": True})
    nodes[0].condition({
        "gpus": {str(LOST): {"state": "lost", "quiet": True}},
        "xids": [{"gpu": gpu, "xid": xid, "per_second": 0.2, "count": 100_000} for gpu, xid in ((RESET, 119), (LOST, 79))],
    })
    nodes[1].stop()


def all_well(nodes, watch):
    # One after the other: two nodes of a cluster that are down at a time are a page.
    nodes[1].start()
    watch.alerts("the second node to be back", lambda found: ticket("GpumeterDown", "2") not in found)
    nodes[0].config.write_text(nodes[0].config.read_text().replace(PUSHES, ""))
    nodes[0].play(calm())


def combined(level):
    of = {gpu: f"1/{gpu}" for gpu in range(14)}
    return Scenario(
        level, [(calm(), calm_config(level)), (node([{"profile": "t4", "count": 2}]), config(level))],
        {
            ticket("GpumeterDown", "2"), ticket("GpumeterOtlpFailing", "1"),
            ticket("GpuNotAnswering", of[HUNG]), ticket("GpuThrottledByHeat", of[HEAT]), ticket("GpuPcieLanesLost", of[NARROW]),
            ticket("GpuLost", of[LOST]), ticket("GpuXidError", of[LOST], "suppressed"),
            ticket("GpuActionNeeded", of[RESET]), ticket("GpuXidError", of[RESET], "suppressed"), ticket("GpuUnhealthy", of[RESET], "suppressed"),
            ticket("GpuNeedsReplacement", of[WORN]), ticket("GpuUnhealthy", of[WORN], "suppressed"),
            ticket("GpuUnhealthy", of[LINKS]), ticket("GpuUnhealthy", of[OLD]),
        },
        everything_at_once, all_well, smoke=True)


def hurry(nodes, _):
    """The agent waits half an hour of its own time for a job without a process."""
    nodes[0].clock.run(60)


def given_back(nodes, _):
    nodes[0].clock.run(1)
    nodes[0].reload(config())


SCRAPED = [
    combined("standard"),
    combined("full"),
    Scenario("healthy", [(node(), config())]),
    Scenario("mig", [(node(MIG, [work(4101, 0, instance=0), work(4102, 0, instance=1), work(4103, 1)]), config().replace(f"standing: {grants()}", "presence: true"))]),
    Scenario("time-slice", [(pods(), config(standing="[]"))]),
    Scenario("mps", [(node([{"profile": "h100", "mps": True}], [work(4101, 0, sm=0.3), work(4102, 0, sm=0.2)]), config(standing=grants(1)))]),
    Scenario("lost", [(node(), config())], {ticket("GpuLost", "1/1")}, lost, well),
    Scenario("hung", [(node(), config())], {ticket("GpuNotAnswering", "1/1")}, hung, well),
    Scenario("xid-79", [(node(), config())], {ticket("GpuLost", "1/1"), ticket("GpuXidError", "1/1", "suppressed")}, fallen_off, mend),
    Scenario("remap", [(node(), config())], {ticket("GpuUnhealthy", "1/1")}, remap, mend),
    Scenario("idle", [(node(processes=[work(4101, 0)]),
                       config(standing="[{id: a, gpu: 0, fraction: 1, unit: train.service}, {id: b, gpu: 1, fraction: 1, user: vision}]",
                              more="advice: {classes: [{match: {user_name: vision}, class: batch}]}\n"))],
             {notice("GpuHeldIdle", "1/1", "vision", "team-vision")}, hurry, given_back),
    Scenario("application", [(node(), config())], {notice("GpuApplicationError", "1/0", "train.service")}, application_error, mend),
    Scenario("budget", [(node(processes=[work(4101, 0, "spender.service")]), spend("0.001"))],
             {notice("GpuTenantOverBudget", "", "spender.service")}, end=lambda nodes, _: nodes[0].reload(spend("1000000")), tenants=("spender.service",)),
    Scenario("kubelet", [(pods(), config(standing="[]"))], {ticket("GpumeterResolverFailing", "1")}, kubelet_away, kubelet_back),
    Scenario("down", [(node(), config()), (node(), config())],
             {ticket("GpumeterDown", "1"), ticket("GpumeterDown", "2"), page("GpuClusterUnwatched")}, stop, start),
    # Two targets that lead to one agent: each of its GPUs is counted twice.
    Scenario("duplicate", [(node(), config())], {ticket("GpumeterDuplicateAgents", "")}, targets=1),
    Scenario("upgrade", [(node(), config()), (node(), config())], {maintenance("1")}, upgrade, upgraded),
    Scenario("refused", [(node(), config())], {ticket("GpumeterOtlpPointsLost", "1")}, refuse, take_away),
    Scenario("absent", [], {ticket("GpumeterAbsent", "1")}, targets=1),
]


def pushed(name, pushes, smoke=False):
    """The same with agents that push, which makes no difference to alerts."""
    (one,) = (one for one in SCRAPED if one.name == name)
    return replace(one, name=f"{name}-pushed", pushes=pushes, smoke=smoke)


ALL = SCRAPED + [
    Scenario("pushed", [(node(), config()), (node(), config())], {ticket("GpuLost", "1/1"), ticket("GpumeterSilent", "2")},
             one_lost_one_silent, both_well, pushes=PLAIN),
    pushed("lost", LABELLED),
    pushed("xid-79", COLLECTED, smoke=True),
    pushed("application", COLLECTED),
]
