"""Prometheus' own parser reads every query of the dashboards. What else they must be, `cargo test` checks."""

import json
import re
import subprocess

import harness
from harness import ROOT

FILES = sorted((ROOT / "dashboards").glob("*.json"))


def load(path):
    return json.loads(path.read_text())


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel.get("targets")]


def variables(dashboard):
    """(name, metric selector, label) of each variable that queries Prometheus."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
            yield variable["name"], selector, label


def substitute(text, **values):
    """Replaces variables as Grafana does: $name, and built-in ones."""
    for name, value in values.items():
        text = re.sub(rf"\${name}\b", lambda _: value, text)
    return text


def dashboards(suite):
    suite.expect(FILES, "there is no dashboard")
    rules = []
    for dashboard in map(load, FILES):
        queries = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
        queries += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
        for query in queries:
            expression = substitute(query, __rate_interval="1m", __interval="1m", __range="1h")
            rules.append({"record": f"query:{len(rules)}", "expr": expression})
    file = suite.folder / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}, indent=1))
    for promtool in ("promtool", "promtool-oldest"):
        parsed = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
        suite.expect(parsed.returncode == 0, f"{promtool}: a query does not parse:\n{parsed.stdout}{parsed.stderr}")


if __name__ == "__main__":
    harness.run(dashboards)
