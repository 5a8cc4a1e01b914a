"""A real Prometheus scrapes the page with dcgm-exporter's names as it would scrape dcgm-exporter: every query of published
dashboards, recording rules and alerts (dcgm_queries.json) is answered, but for those below with the reason."""

import json
import re
import time

import harness
from harness import ROOT, Demo, Prometheus, free_port, get, wait_for

# Counters that the published queries need beside dcgm-exporter's defaults: users switch them on in its file.
MORE = """
DCGM_FI_DEV_FB_TOTAL, gauge, Framebuffer memory (in MiB).
DCGM_FI_DEV_COUNT, gauge, Number of GPUs.
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Reasons for the clocks.
DCGM_FI_DEV_POWER_VIOLATION, counter, Throttling duration due to power constraints (in ns).
DCGM_FI_DEV_THERMAL_VIOLATION, counter, Throttling duration due to thermal constraints (in ns).
DCGM_FI_DEV_SYNC_BOOST_VIOLATION, counter, Throttling duration due to sync-boost constraints (in ns).
DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, counter, Throttling duration due to board limit constraints (in ns).
DCGM_FI_DEV_RELIABILITY_VIOLATION, counter, Throttling duration due to reliability constraints (in ns).
DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX, gauge, Highest power limit (in W).
DCGM_FI_DEV_MAX_SM_CLOCK, gauge, Highest SM clock (in MHz).
DCGM_FI_DEV_MAX_MEM_CLOCK, gauge, Highest memory clock (in MHz).
DCGM_FI_DEV_SLOWDOWN_TEMP, gauge, Slowdown temperature (in C).
DCGM_FI_DEV_SHUTDOWN_TEMP, gauge, Shutdown temperature (in C).
"""

# Queries without an answer, by what is in them, and why.
UNANSWERED = {
    "gpu_operator_reconciliation_status": "a metric of the GPU operator",
    "kube_pod_status_phase": "a metric of kube-state-metrics",
    "DCGM_FI_DEV_SLOWDOWN_TEMP": "the demo's boards, as all from Hopper on, report distances to their limits",
    "DCGM_FI_DEV_SHUTDOWN_TEMP": "the demo's boards, as all from Hopper on, report distances to their limits",
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": "an idle GPU is not throttled, so its time is not read",
}

# What the target's discovery adds where dcgm-exporter's chart is scraped; `honorLabels` is false there.
TARGET = {"namespace": "gpu", "service": "dcgm-exporter", "endpoint": "metrics", "pod": "dcgm-exporter-x7", "container": "dcgm-exporter"}
INSTANCE = "node-7:9400"


def dcgm(suite):
    counters = suite.folder / "counters.csv"
    counters.write_text((ROOT / "src/model/catalogue/dcgm/default-counters.csv").read_text() + MORE)
    config = (ROOT / "src/cli/demo/config.yaml").read_text() + f"\nweb:\n  dcgm_counters: {counters}\n"
    address = f"127.0.0.1:{free_port()}"
    demo = Demo(suite, "--dcgm-listen", address, scenario="cluster", config=config, awaited="gpu_utilization_ratio{")
    content(suite, address, demo)

    # A job as from dcgm-exporter's chart: the port metrics, the path /metrics, every 15 s there.
    job = {"job_name": "dcgm-exporter", "metrics_path": "/metrics",
           "static_configs": [{"targets": [address], "labels": TARGET | {"instance": INSTANCE}}]}
    server = Prometheus(suite, config={"scrape_configs": [job]})
    wait_for("the first scrape", 10, lambda: server.query("up == 1"), server.program)
    wait_for("a minute of samples", 90, lambda: server.query("count_over_time(up[2m]) > 40"), server.program, 1)
    busy = wait_for("a busy GPU", 60, lambda: server.query("DCGM_FI_PROF_GR_ENGINE_ACTIVE > 0"), demo.program)
    uuid = busy[0]["metric"]["UUID"]
    answered = unanswered = 0
    for source in json.loads((ROOT / "tests/interop/dcgm_queries.json").read_text()):
        for query in source["queries"]:
            name = f"{source['source']}: {query}"
            if any(part in query for part in UNANSWERED):
                unanswered += 1
                continue
            found = answers(server, query, uuid)
            # A scrape that a busy machine lets time out ends all series for a moment.
            if not found and server.query("min_over_time(up[10s]) == 0"):
                found = any(answers(server, query, uuid) or time.sleep(1) for _ in range(5))
            suite.expect(found, f"{name}: no answer")
            answered += 1
    print(f"dcgm: {answered} published queries answered, {unanswered} not:", *UNANSWERED.items(), sep="\n  ")

    of_pods = 'DCGM_FI_DEV_GPU_TEMP{exported_pod=~".+", exported_namespace=~".+", exported_container=~".+"}'
    pods = wait_for("series of pods", 10, lambda: server.query(of_pods), server.program)
    suite.expect(all(series["metric"]["pod"] == TARGET["pod"] for series in pods), f"the target's own pod is lost: {pods}")
    metadata = {series: kinds for series, kinds in types(get(f"http://{address}/metrics")[0]).items()}
    suite.expect(metadata["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "counter", f"types: {metadata}")
    energy = server.query("increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[30s]) / 1000 / 30")
    power = {series["metric"]["gpu"]: float(series["value"][1]) for series in server.query("avg_over_time(DCGM_FI_DEV_POWER_USAGE[30s])")}
    for series in energy:
        watts, gpu = float(series["value"][1]), series["metric"]["gpu"]
        # Millijoules and watts; load and scrapes vary within the half minute.
        suite.expect(0.5 < watts / power.get(gpu, watts) < 2, f"GPU {gpu}: energy grows by {watts} W, power is {power.get(gpu)} W")


def content(suite, address, demo):
    """What a client gets there, whatever it accepts, and on the agent's own port."""
    page, headers = get(f"http://{address}/metrics", accept=harness.OPENMETRICS)
    suite.expect(headers["Content-Type"].startswith("text/plain; version=0.0.4"), f"the page is {headers['Content-Type']}")
    suite.expect("DCGM_FI_DEV_GPU_UTIL{" in page and "gpu_up{" not in page, "the page has other names")
    own = demo.page()
    suite.expect("gpu_up{" in own and "DCGM_FI_DEV" not in own, "the native page has other names")
    profile = get(f"{demo.url}/metrics?profile=dcgm")[0]
    suite.expect("DCGM_FI_DEV_GPU_UTIL{" in profile, "profile=dcgm has other names")
    native = get(f"http://{address}/metrics?profile=native")[0]
    suite.expect("gpu_up{" in native, "profile=native has other names")
    suite.expect(get(f"http://{address}/health")[0].startswith("healthy"), "/health does not answer")


def types(page):
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def answers(server, query, uuid):
    """Whether a query has a result; of an alert, what it compares."""
    if variable := re.fullmatch(r"label_values\((?:(\w+), ?)?(\w+)\)", query):
        metric, label = variable.groups()
        return server.label_values(label, metric or "DCGM_FI_DEV_GPU_TEMP")
    query = query.replace("${selectedGPU?.uuid}", uuid)
    query = re.sub(r"\$\{?instance\}?", ".*", re.sub(r"\$\{?gpu\}?", ".*", query))
    query = re.sub(r"\s(?:>=|<=|==|>|<) [\d.]+$", "", query)
    return server.query(query)


if __name__ == "__main__":
    harness.run(dcgm)
