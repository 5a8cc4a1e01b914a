"""OTLP and scrapes give the same values: demo -> OTLP -> Collector -> Prometheus, compared with the scraped page.

The demo pushes by HTTP and by gRPC to a Collector that requires a client certificate and a token, and by HTTP directly to a
Prometheus; each way ends in a Prometheus of its own. Every tick is pushed, and then the scenario's clock is held: no tick
follows, so the last push and the page are of one snapshot. Every sample of the page, but those of the push itself, must
stand in each Prometheus under the name that the official translation gives it, with its labels and its exact value. The events of
two XIDs must name the pod and the job on their GPUs, and the agent's traces must come.

A whole run also pushes to a VictoriaMetrics, which shares no code of OTLP with the others.

The agent's traces come to the Collector with their parents. Another agent pushes the names of OpenTelemetry's conventions for
hardware to a Prometheus. Then an agent is killed again and again while its destination is away, which must get every tick in the end.
"""

import json
import re
import subprocess
import time
from datetime import datetime

import harness
import samples
from harness import Collector, Demo, Prometheus, VictoriaMetrics, free_port, wait_for

# What OpenTelemetry adds: its own names for what we also send under ours, and a series per resource.
BY_OTLP = ("hw_", "target_info")
# What Prometheus says of a scrape.
BY_SCRAPE = ("up", "scrape_")
KILLS = 3 if harness.SMOKE else 200


def otlp(suite):
    port = free_port()
    direct = Prometheus(suite, scrape=f"127.0.0.1:{port}", otlp=True)
    over_http, over_grpc = Prometheus(suite, otlp=True, name="http"), Prometheus(suite, otlp=True, name="grpc")
    collector = Collector(suite, over_http, over_grpc)
    servers = {"directly": direct, "over HTTP": over_http, "over gRPC": over_grpc}
    destinations = collector.destinations() + [{"endpoint": f"{direct.url}/api/v1/otlp"}]
    if not harness.SMOKE:
        servers["to VictoriaMetrics"] = VictoriaMetrics(suite)
        destinations.append({"endpoint": servers["to VictoriaMetrics"].endpoint})
    # Account series that are old enough to have values, without the wait of a minute.
    config = Demo.CONFIG.read_text().replace("birth_delay: 60s", "birth_delay: 5s")
    config += "otlp: " + json.dumps({"interval": "1s", "traces": 1_000_000, "destinations": destinations}) + "\n"
    # Without the container that comes to the job's GPU after a minute: an XID would be its tenant's too.
    content = json.loads((harness.ROOT / "src/cli/demo/cluster.json").read_text())
    joins = [one for one in content["processes"] if one["gpu"] == 10 and "docker" in one["host"]["cgroup"]]
    suite.expect(len(joins) == 1, f"containers that join the job: {joins}")
    content["processes"] = [one for one in content["processes"] if one not in joins]
    scenario = suite.folder / "cluster.json"
    scenario.write_text(json.dumps(content))
    demo = Demo(suite, config=config, port=port, scenario=scenario)
    wait_for("account series", 180, lambda: grown(demo.page()), demo.program, 1)
    for way, server in servers.items():
        wait_for(f"anything {way}", 60, lambda: pushed(server, demo), collector.program, 1)
    wrong_token_is_told(suite, collector, demo)
    xids_name_who_is_on_the_gpu(suite, collector, demo)
    spans = lambda: set(re.findall(r"^    Name +: (\S+)", collector.program.log.read_text(), re.M))
    wait_for("spans of all kinds", 60, lambda: spans() >= {"tick", "commit", "push", "resolver.round"}, collector.program, 0.5)
    traces_name_their_parents(collector)

    demo.hold_between_ticks()
    held = time.time()
    page = samples.of_text(demo.page())
    for way, server in servers.items():
        try:
            wait_for("the last push", 60, lambda: not differences(page, server, demo), collector.program, 0.5)
        except harness.Failed:
            suite.expect(False, f"the page (first) and OTLP {way} (second):\n" + "\n".join(differences(page, server, demo)))
    scraped_at = lambda: max((float(one["value"][1]) for one in direct.query("timestamp(up) and up == 1")), default=0)
    at = wait_for("scrapes of the page that stands still", 60, lambda: (at := scraped_at()) > held + 3 and at, direct.program)
    scraped = by_scrape(direct, demo, at)
    for way, server in servers.items():
        came = pushed(server, demo)
        for line in differences(scraped, server, demo):
            suite.expect(False, f"scraped (first) and pushed {way} (second): {line}")
        for what, count in (("histogram", sum(name.endswith("_bucket") for name, _ in came)),
                            ("tenant's counter above 0",
                             sum(name.startswith("gpu_tenant_") and value > 0 for (name, _), value in came.items())),
                            ("series of every GPU", min(sum(("gpu", str(gpu)) in labels for _, labels in came) for gpu in range(12)))):
            suite.expect(count, f"no {what} came {way}")
        if isinstance(server, Prometheus):
            info = server.query("target_info", at=demo.clock.utc() / 1e9)
            suite.expect(len(info) == 1, f"{len(info)} series of target_info {way}, one node")
        print(f"otlp: {len(page)} samples are on the page, {len(scraped)} were scraped and {len(came)} pushed {way}")
    suite.expect(samples.of_text(demo.page()) == page, "the page moved although the clock was held")
    suite.expect(len(page) > 500, f"only {len(page)} samples on the page")


def traces_name_their_parents(collector):
    """A commit and a push are children of a tick."""
    span = re.compile(r"Trace ID +: (\w+)\n +Parent ID +: (\w*)\n +ID +: (\w+)\n +Name +: (\S+)")

    def children():
        spans = span.findall(collector.program.log.read_text())
        ticks = {(trace, own) for trace, parent, own, name in spans if name == "tick" and not parent}
        return {name for trace, parent, _, name in spans if (trace, parent) in ticks}

    wait_for("a commit and a push of a tick", 60, lambda: {"commit", "push"} <= children(), collector.program, 1)


def hardware(suite):
    """The names of the conventions come to Prometheus, for every GPU and without ours beside them."""
    server = Prometheus(suite, otlp=True, name="hardware")
    config = Demo.CONFIG.read_text() + "otlp: " + json.dumps(
        {"interval": "1s", "names": "hw", "endpoint": f"{server.url}/api/v1/otlp"}) + "\n"
    demo = Demo(suite, config=config, name="hardware")
    at = None
    query = lambda text: server.query(text, at=at)
    values = lambda text: [float(one["value"][1]) for one in query(text)]
    names = ("hw_power_watts", "hw_energy_joules_total", "hw_temperature_celsius", "hw_status", "hw_errors_total",
             "hw_gpu_memory_limit_bytes", "hw_gpu_memory_usage_bytes", "hw_gpu_memory_utilization_ratio")

    def complete():
        nonlocal at
        at = demo.clock.utc() / 1e9
        return all(len(values(f"count by (hw_id) ({name})")) == 8 for name in names)

    wait_for("names of hardware of 8 GPUs", 120, complete, demo.program, 1)
    states = values("sum by (hw_id) (hw_status)")
    suite.expect(states == [1] * 8, f"a GPU is not in one state: {states}")
    shares = values("hw_gpu_memory_utilization_ratio - hw_gpu_memory_usage_bytes / hw_gpu_memory_limit_bytes")
    suite.expect(len(shares) == 8 and max(map(abs, shares)) < 1e-6, f"use of memory is not use by limit: {shares}")
    suite.expect(not values("gpu_power_watts"), "gpu_power_watts came beside hw_power_watts")
    count = len(query('{__name__=~"hw_.*"}'))
    print(f"otlp: {count} series have names of hardware")


def outage(suite):
    """A destination that is away while the agent is killed again and again gets every tick that was pushed, in order."""
    away = free_port()
    config = Demo.CONFIG.read_text() + "otlp: " + json.dumps(
        {"interval": "1s", "endpoint": f"http://127.0.0.1:{away}/api/v1/otlp"}) + "\n"
    demo = Demo(suite, config=config, name="outage")
    number = lambda name: next(value for (key, _), value in samples.of_text(demo.page()).items() if key == name)
    begun = demo.clock.utc() / 1e9
    # The ticks that were seen, by their time, and those whose push may not have been complete when the agent was killed.
    seen, cut = [], set()

    def waiting():
        seen.append(demo.api("health")["at"])
        return number("gpumeter_otlp_queue_bytes")

    longest = 0
    for _ in range(KILLS):
        before, life = longest, len(seen)
        # Two ticks, so that one is judged.
        grown = lambda: (size := waiting()) > before and len(set(seen[life:])) > 1 and size
        longest = wait_for("a longer backlog", 60, grown, demo.program, 0.2)
        cut.add(seen[-1])
        demo.program.kill()
        demo.start()
    suite.expect(number("gpumeter_otlp_points_dropped_total") == 0, "points were dropped")
    longest = waiting()
    # In order, into a Prometheus that takes nothing out of order.
    server = Prometheus(suite, otlp=True, name="outage", port=away)
    wait_for("an empty spool", 60 + 2 * KILLS, lambda: waiting() == 0, demo.program, 0.5)
    cut.add(seen[-1])
    counts = {name: number(f"gpumeter_otlp_points_{name}_total") for name in ("sent", "rejected", "dropped")}
    suite.expect(counts["rejected"] == counts["dropped"] == 0, f"points were lost: {counts}")
    span = int(demo.clock.utc() / 1e9 - begun) + 60
    series = server.query(f'gpumeter_ledger_open{{job="gpumeter"}}[{span}s]', at=demo.clock.utc() / 1e9)
    times = [float(at) for at, _ in series[0]["values"]]
    suite.expect(times[0] < begun + 2, f"the first of {len(times)} ticks came {times[0] - begun:.1f} s after the begin")
    came = {round(1000 * at) for at in times}
    lost = {at for at in seen if at not in cut and round(1e6 * datetime.fromisoformat(at).timestamp()) // 1000 not in came}
    suite.expect(not lost, f"of {len(set(seen))} ticks that were seen {len(lost)} did not come: {sorted(lost)[:5]}")
    print(f"otlp: {len(times)} ticks, {longest / 1024:.0f} KiB of which waited through {KILLS} kills, all came")


def xids_name_who_is_on_the_gpu(suite, collector, demo):
    """The Collector gets an XID's event over HTTP and over gRPC, with the pod or the job that holds the GPU, and its tenant."""
    holders = {}
    for pod in demo.scenario()["pods"]:
        for container in pod["containers"]:
            if container["devices"] == ["8"]:
                holders["8"] = f"k8s:{pod['uid']}/{container['name']}"
    for job in demo.scenario()["jobs"]:
        if job["gpus"] == [10]:
            holders["10"] = f"slurm:{job['cluster']}/{job['job_id']}"
    demo.condition({"xids": [{"gpu": int(gpu), "xid": 79, "per_second": 1, "count": 1} for gpu in holders]})

    def events():
        found = re.findall(r"^EventName: gpu\.xid\n(.*?)^Trace ID", collector.program.log.read_text(), re.M | re.S)
        found = [dict(re.findall(r"-> (\S+): \w+\((.*)\)$", attributes, re.M)) for attributes in found]
        return [one for one in found if one["xid"] == "79"]
    wait_for("events of XIDs over both ways", 60, lambda: len(events()) >= 2 * len(holders), collector.program, 0.5)
    for gpu, holder in holders.items():
        told = [one for one in events() if one["gpu"] == gpu]
        suite.expect(len(told) > 1 and all(one == told[0] for one in told), f"of the XID of GPU {gpu} HTTP and gRPC tell {told}")
        for one in told:
            suite.expect(holder in json.loads(one["workloads"]) and json.loads(one["tenants"]) == ["research"],
                         f"the XID of GPU {gpu} is told without {holder} of research: {one}")


def wrong_token_is_told(suite, collector, demo):
    """doctor says what a wrong token, and no client certificate, mean; and nothing of the secret."""
    bad = suite.folder / "bad-token"
    bad.write_text("Bearer wrong-secret")
    http, grpc = collector.destinations()
    for destination, words in ((http | {"header_files": {"Authorization": str(bad)}}, "credentials"),
                               (grpc | {"header_files": {"Authorization": str(bad)}}, "credentials"),
                               ({key: value for key, value in http.items() if key not in ("cert_file", "key_file")}, "cert_file")):
        config = suite.folder / "doctor.yaml"
        config.write_text(json.dumps({"nvml": {"library": str(demo.driver / "libnvidia-ml.so.1")},
                                      "ledger": {"enabled": False}, "otlp": {"destinations": [destination]}}))
        said = subprocess.run([harness.GPUMETER, "doctor", "--config", config], capture_output=True, text=True, timeout=harness.PATIENCE).stdout
        line = next((line for line in said.splitlines() if "FAILED" in line and "otlp:" in line), said)
        suite.expect("FAILED" in line and words in line, f"doctor does not say {words}: {line}")
        suite.expect("wrong-secret" not in said, "doctor shows a secret")


def grown(page):
    return any(name == "gpu_tenant_held_seconds_total" and value > 0 for (name, _), value in samples.of_text(page).items())


def pushed(server, demo):
    """What came through OTLP, at the demo's own time, under our names."""
    resource = {"job": "gpumeter", "instance": "demo-node"} if isinstance(server, Prometheus) else {"host_name": "demo-node"}
    selector = ", ".join(f'{label}="{value}"' for label, value in resource.items())
    result = server.query(f"{{{selector}}}", at=demo.clock.utc() / 1e9)
    return without(samples.of_prometheus(result, *resource), BY_OTLP)


def differences(page, server, demo):
    """Where a page and what came through OTLP differ. VictoriaMetrics keeps decimals of about 15 digits."""
    return samples.differences(page, pushed(server, demo), 30, 0.0 if isinstance(server, Prometheus) else 1e-12)


def by_scrape(server, demo, at):
    """What had been scraped then."""
    result = server.query(f'{{job="gpumeter", instance="{demo.instance}"}}', at=at)
    return without(samples.of_prometheus(result, "job", "instance"), BY_SCRAPE)


def without(found, beginnings):
    return {key: value for key, value in found.items() if not key[0].startswith(beginnings)}


harness.run(lambda suite: (otlp(suite), hardware(suite), outage(suite)), "otlp")
