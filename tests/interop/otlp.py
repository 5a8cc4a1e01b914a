"""Both roads lead to the same numbers: demo -> OTLP -> Collector -> Prometheus, against the demo's own page.

The scenario's clock is held, so that the driver's numbers and the account stand still, and every sample of the
page must then stand in Prometheus under the name that the official translation gives it, with its value. What
still moves (the agent's own CPU time) must be one of the values that the page has shown since the clock was held.
"""

import time

import harness
import samples
from harness import Collector, Demo, Failed, Prometheus, wait_for

# The push is every tick's, so that the last one is the page's snapshot when the clock stops.
EVERY_TICK = {"otlp": {"interval": "1s"}}
# What OpenTelemetry adds: its own names for what we also send under ours, and a series per resource.
ALSO_THERE = ("hw_", "target_info")


def otlp(suite):
    server = Prometheus(suite, otlp=True)
    collector = Collector(suite, server)
    demo = Demo(suite, "--fresh", "--otlp-endpoint", collector.endpoint, config=EVERY_TICK)
    wait_for("account series", 180, lambda: "gpu_tenant_held_seconds_total{" in demo.page(), demo.program, 1)
    wait_for("anything through OTLP", 60, lambda: arrived(server, demo), collector.program, 1)

    shown = {}
    demo.clock.hold()
    # What is pushed under the held time counts by its first value, so no page may be missed from here on.
    settled, deadline = time.monotonic() + 5, time.monotonic() + 90
    while True:
        page = samples.of_text(demo.page())
        for key, value in page.items():
            shown.setdefault(key, set()).add(value)
        if time.monotonic() > settled:
            pushed = arrived(server, demo)
            left = findings(page, shown, pushed)
            if not left or time.monotonic() > deadline:
                break
        time.sleep(0.2)
    suite.expect(len(page) > 100, f"only {len(page)} samples on the page")
    suite.expect(any(name.endswith("_bucket") for name, _ in pushed), "no histogram came through OTLP")
    for finding in left[:20]:
        suite.expect(False, finding)
    suite.expect(len(left) <= 20, f"and {len(left) - 20} more")
    still = sum(len(values) == 1 for values in shown.values())
    suite.expect(still > 0.8 * len(page), f"only {still} of {len(page)} samples stood still, so little was compared")

    info = server.query("target_info", at=demo.clock.utc() / 1e9)
    suite.expect(len(info) == 1, f"{len(info)} series of target_info, one node")


def arrived(server, demo):
    """What Prometheus has of the demo at the demo's own time."""
    result = server.query('{job="gpumeter"}', at=demo.clock.utc() / 1e9)
    return samples.of_prometheus(result, "job", "instance")


def findings(page, shown, pushed):
    if not page:
        raise Failed("the page is empty")
    lines = []
    for key in page:
        if key not in pushed:
            lines.append(f"{samples.show(key)} did not come through OTLP")
        elif pushed[key] not in shown[key]:
            seen = sorted(shown[key])
            was = seen[0] if len(seen) == 1 else f"{seen[0]} to {seen[-1]}, in {len(seen)} steps,"
            lines.append(f"{samples.show(key)} is {pushed[key]!r} through OTLP and was {was} on the page")
    for key in pushed:
        if key not in page and not key[0].startswith(ALSO_THERE):
            lines.append(f"{samples.show(key)} came through OTLP alone")
    return sorted(lines)


harness.run(otlp)
