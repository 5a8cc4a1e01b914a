"""OTLP and scrapes give the same values: demo -> OTLP -> Collector -> Prometheus, compared with the scraped page.

One Prometheus has both. Every tick is pushed, and then the scenario's clock is held: no tick follows, so the last
push and the page are of one snapshot, the agent's own numbers included. Every sample of the page must stand in
Prometheus under the name that the official translation gives it, with its labels and its exact value.
"""

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
    server = Prometheus(suite, scrape=f"127.0.0.1:{port}", otlp=True)
    collector = Collector(suite, server.url)
    # Account series that are old enough to have values, without the wait of a minute.
    config = Demo.CONFIG.read_text().replace("birth_delay: 60s", "birth_delay: 5s") + "otlp: { interval: 1s }\n"
    demo = Demo(suite, "--otlp-endpoint", collector.endpoint, config=config, port=port)
    wait_for("account series", 180, lambda: grown(demo.page()), demo.program, 1)
    wait_for("anything through OTLP", 60, lambda: pushed(server, demo), collector.program, 1)

    demo.clock.hold_between_ticks()
    held = time.time()
    page = samples.of_text(demo.page())
    try:
        wait_for("the last push", 30, lambda: not samples.differences(page, pushed(server, demo)), collector.program, 0.5)
    except harness.Failed:
        suite.expect(False, "the page (first) and OTLP (second):\n" + "\n".join(samples.differences(page, pushed(server, demo), 30)))
    scraped_at = lambda: float(server.query("max(timestamp(up))")[0]["value"][1])
    wait_for("scrapes of the page that stands still", 30, lambda: scraped_at() > held + 3, server.program)
    came, scraped = pushed(server, demo), by_scrape(server, demo)
    for line in samples.differences(scraped, came):
        suite.expect(False, f"scraped (first) and pushed (second): {line}")
    suite.expect(samples.of_text(demo.page()) == page, "the page moved although the clock was held")

    suite.expect(len(page) > 500, f"only {len(page)} samples on the page")
    for what, count in (("histogram", sum(name.endswith("_bucket") for name, _ in came)),
                        ("tenant's counter above 0", sum(name.startswith("gpu_tenant_") and value > 0 for (name, _), value in came.items())),
                        ("series of every GPU", min(sum(("gpu", str(gpu)) in labels for _, labels in came) for gpu in range(8)))):
        suite.expect(count, f"no {what} came through OTLP")
    print(f"otlp: {len(page)} samples are on the page, {len(scraped)} were scraped and {len(came)} pushed")
    info = server.query("target_info", at=demo.clock.utc() / 1e9)
    suite.expect(len(info) == 1, f"{len(info)} series of target_info, one node")


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
