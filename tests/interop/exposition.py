"""The page, checked by promtool's linter and by prometheus_client's OpenMetrics parser."""

import re
import subprocess

from prometheus_client.openmetrics.parser import text_string_to_metric_families

import harness
import samples
from harness import OPENMETRICS, TEXT, Demo, Failed, get


def exposition(suite):
    demo = Demo(suite)
    # Account series appear after a minute; a page without them would prove little.
    harness.wait_for("account series", 180, lambda: "gpu_tenant_held_seconds_total{" in demo.page(), demo.program, 1)
    text, metrics = both_pages(demo)

    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    suite.expect(lint.returncode == 0 and not (lint.stdout + lint.stderr).strip(),
                 f"promtool check metrics answers {lint.returncode}:\n{lint.stdout}{lint.stderr}")

    for family in text_string_to_metric_families(metrics):
        suite.expect(family.documentation, f"{family.name} has no help text")
        suite.expect(family.type != "unknown", f"{family.name} has no type")
    described = set(re.findall(r"^# HELP (\S+)", text, re.M))
    typed = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    suite.expect(described == typed, f"HELP or TYPE alone: {sorted(described ^ typed)}")

    on_text, on_openmetrics = samples.of_text(text), samples.of_openmetrics(metrics)
    suite.expect(len(on_text) > 100, f"only {len(on_text)} samples on the page")
    for line in samples.differences(on_text, on_openmetrics):
        suite.expect(False, f"text (first) and OpenMetrics (second): {line}")
    odd = [samples.show(key) for key, value in on_text.items() if value != value]
    suite.expect(not odd, f"NaN on the page, where absent would be said by absence: {odd}")


def both_pages(demo):
    """Both pages of one snapshot: the text page before and after is the same, compressed or not."""
    for _ in range(50):
        before, headers = get(f"{demo.url}/metrics", TEXT)
        metrics, metrics_headers = get(f"{demo.url}/metrics", OPENMETRICS)
        after, after_headers = get(f"{demo.url}/metrics", TEXT, "gzip")
        if before == after:
            break
    else:
        raise Failed("two text pages in a row are never the same: is a page rendered per request?")
    if not headers["Content-Type"].startswith("text/plain; version=0.0.4"):
        raise Failed(f"the text page is called {headers['Content-Type']}")
    if not metrics_headers["Content-Type"].startswith(OPENMETRICS):
        raise Failed(f"the OpenMetrics page is called {metrics_headers['Content-Type']}")
    if after_headers["Content-Encoding"] != "gzip":
        raise Failed("gzip was offered and not taken")
    return before, metrics


harness.run(exposition)
