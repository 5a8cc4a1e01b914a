"""OTLP and scrapes give the same values: demo -> OTLP -> Collector -> Prometheus, compared with the scraped page.

The demo pushes by HTTP and by gRPC to a Collector that requires a client certificate and a token, and by HTTP directly to a
Prometheus; each way ends in a Prometheus of its own. Every tick is pushed, and then the scenario's clock is held: no tick
follows, so the last push and the page are of one snapshot. Every sample of the page, but those of the push itself, must
stand in each Prometheus under the name that the official translation gives it, with its labels and its exact value.
"""

import json
import subprocess
import time

import harness
import samples
from harness import Collector, Demo, Prometheus, free_port, wait_for

# What OpenTelemetry adds: its own names for what we also send under ours, and a series per resource.
BY_OTLP = ("hw_", "target_info")
# What Prometheus says of a scrape.
BY_SCRAPE = ("up", "scrape_")


def otlp(suite):
    port = free_port()
    direct = Prometheus(suite, scrape=f"127.0.0.1:{port}", otlp=True)
    over_http, over_grpc = Prometheus(suite, otlp=True, name="http"), Prometheus(suite, otlp=True, name="grpc")
    collector = Collector(suite, over_http, over_grpc)
    destinations = collector.destinations() + [{"endpoint": f"{direct.url}/api/v1/otlp"}]
    # Account series that are old enough to have values, without the wait of a minute.
    config = Demo.CONFIG.read_text().replace("birth_delay: 60s", "birth_delay: 5s")
    config += "otlp: " + json.dumps({"interval": "1s", "traces": 1000000, "destinations": destinations}) + "\n"
    demo = Demo(suite, config=config, port=port)
    wait_for("account series", 180, lambda: grown(demo.page()), demo.program, 1)
    servers = {"directly": direct, "over HTTP": over_http, "over gRPC": over_grpc}
    for way, server in servers.items():
        wait_for(f"anything {way}", 60, lambda: pushed(server, demo), collector.program, 1)
    wrong_token_is_told(suite, collector, demo)

    demo.clock.hold_between_ticks()
    held = time.time()
    page = samples.of_text(demo.page())
    for way, server in servers.items():
        try:
            wait_for("the last push", 60, lambda: not samples.differences(page, pushed(server, demo)), collector.program, 0.5)
        except harness.Failed:
            suite.expect(False, f"the page (first) and OTLP {way} (second):\n"
                         + "\n".join(samples.differences(page, pushed(server, demo), 30)))
    scraped_at = lambda: float(direct.query("max(timestamp(up))")[0]["value"][1])
    wait_for("scrapes of the page that stands still", 60, lambda: scraped_at() > held + 3, direct.program)
    scraped = by_scrape(direct, demo)
    for way, server in servers.items():
        came = pushed(server, demo)
        for line in samples.differences(scraped, came):
            suite.expect(False, f"scraped (first) and pushed {way} (second): {line}")
        for what, count in (("histogram", sum(name.endswith("_bucket") for name, _ in came)),
                            ("tenant's counter above 0",
                             sum(name.startswith("gpu_tenant_") and value > 0 for (name, _), value in came.items())),
                            ("series of every GPU", min(sum(("gpu", str(gpu)) in labels for _, labels in came) for gpu in range(8)))):
            suite.expect(count, f"no {what} came {way}")
        info = server.query("target_info", at=demo.clock.utc() / 1e9)
        suite.expect(len(info) == 1, f"{len(info)} series of target_info {way}, one node")
        print(f"otlp: {len(page)} samples are on the page, {len(scraped)} were scraped and {len(came)} pushed {way}")
    suite.expect(samples.of_text(demo.page()) == page, "the page moved although the clock was held")
    suite.expect(len(page) > 500, f"only {len(page)} samples on the page")
    events = collector.program.log.read_text()
    for what, line in (("event", "EventName: gpu.holding.granted"), ("span of a tick", ": tick"), ("span of a push", ": push"),
                       ("span of a commit", ": commit"), ("span of a resolver", ": resolver.round")):
        suite.expect(line in events, f"the Collector got no {what}")


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
    result = server.query('{job="gpumeter", instance="demo-node"}', at=demo.clock.utc() / 1e9)
    return without(samples.of_prometheus(result, "job", "instance"), BY_OTLP)


def by_scrape(server, demo):
    """What was scraped."""
    result = server.query(f'{{job="gpumeter", instance="{demo.instance}"}}')
    return without(samples.of_prometheus(result, "job", "instance"), BY_SCRAPE)


def without(found, beginnings):
    return {key: value for key, value in found.items() if not key[0].startswith(beginnings)}


harness.run(otlp)
