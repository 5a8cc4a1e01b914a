"""The dashboards by themselves: they are what Grafana expects, their queries parse, and what they ask for is
exported at the default level; what the alerts ask for, at the lowest."""

import itertools
import json
import re
import subprocess

import harness
from harness import ROOT

# What chooses the targets in every query.
TARGETS = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
FILES = sorted((ROOT / "dashboards").glob("*.json"))
LEVELS = ("lean", "standard", "full")


def load(path):
    return json.loads(path.read_text())


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables(dashboard):
    """(name, metric selector, label) of each variable that queries Prometheus."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
            yield variable["name"], selector, label


def substitute(text, **values):
    """Replaces variables as Grafana does: $name, and built-in ones."""
    for name, value in values.items():
        text = re.sub(rf"\${name}\b", value, text)
    return text


def outside_by(expression):
    """The expression without its lists of labels to join or group by."""
    return re.sub(r"\b(?:by|on|without|group_left|group_right) ?\([^)]*\)", "", expression)


def dashboards(suite):
    suite.expect(FILES, "there is no dashboard")
    rules = []
    for path in FILES:
        dashboard = load(path)
        shape(suite, path.name, dashboard)
        known = {variable["name"] for variable in dashboard["templating"]["list"]}
        for panel in panels(dashboard):
            for target in panel["targets"]:
                unknown = set(re.findall(r"\$(?!__)(\w+)", target["expr"])) - known
                suite.expect(not unknown, f"{path.name}, {panel['title']}: no variable is called {unknown}")
                for metric, selector in re.findall(r"\b((?:gpu|gpumeter|process)_\w+)\b(?:\{([^}]*)\})?", outside_by(target["expr"])):
                    suite.expect(selector.startswith(TARGETS), f"{path.name}, {panel['title']}: {metric} is of any target: {selector}")
                expression = substitute(target["expr"], cluster=".*", job=".*", instance="n1", gpu=".+", __rate_interval="1m", __range="1h")
                rules.append({"record": f"query:{len(rules)}", "expr": expression})
    file = suite.folder / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}, indent=1))
    parsed = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    suite.expect(parsed.returncode == 0, f"a query does not parse:\n{parsed.stdout}{parsed.stderr}")

    for path, level in [*((path, "standard") for path in FILES), (ROOT / "alerts/gpumeter.yaml", "lean")]:
        exported(suite, path, level)


def exported(suite, path, level):
    """Every family that a file names is in the catalogue, and exported at that level."""
    rows = re.findall(r"^\| `(\w+)` \|(?:[^|]*\|){2}([^|]*)\| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    levels = {name: of for name, _, of in rows if of in LEVELS}
    labels = {label for _, of, _ in rows for label in re.findall(r"\w+", of)}
    # What stands after a colon is part of a recording rule's name.
    named = set(re.findall(r"(?<![\w:/.-])(?:gpu|gpumeter)_\w+", path.read_text())) - labels
    suite.expect(named, f"{path.name} names no family")
    for name in sorted(named):
        family = name if name in levels else re.sub(r"_(?:bucket|count|sum)$", "", name)
        of = levels.get(family)
        suite.expect(of and LEVELS.index(of) <= LEVELS.index(level),
                     f"{path.name} needs {name}, which is exported from level {of}, not from {level}")


def shape(suite, name, dashboard):
    ids = [panel["id"] for panel in dashboard["panels"]]
    suite.expect(len(ids) == len(set(ids)), f"{name}: a panel id is given twice")
    suite.expect("__inputs" not in dashboard, f"{name}: __inputs are resolved by the import dialog alone")
    suite.expect(dashboard["id"] is None and dashboard["uid"], f"{name}: id is null and uid is set")
    suite.expect(dashboard["editable"], f"{name}: it cannot be edited")
    for variable in dashboard["templating"]["list"]:
        # A target need not have the label: All has to match its absence, too.
        if variable["name"] in ("cluster", "job"):
            suite.expect(variable["includeAll"] and variable["allValue"] == ".*", f"{name}: {variable['name']} cannot be left open")
    for panel in panels(dashboard):
        title = f"{name}, {panel['id']} {panel['title']}"
        suite.expect(panel.get("description"), f"{title}: no description")
        defaults = panel["fieldConfig"]["defaults"]
        suite.expect(defaults.get("unit"), f"{title}: no unit")
        may_be_empty = re.search(r"\b(?:empty|absent)\b", panel.get("description", ""), re.I)
        suite.expect(not may_be_empty or defaults.get("noValue"), f"{title}: it may be empty and does not say what that means")
        suite.expect(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, f"{title}: its own data source")
        suite.expect(panel["targets"], f"{title}: no query")
        at = panel["gridPos"]
        suite.expect(at["x"] + at["w"] <= 24, f"{title}: wider than the page")
    for one, other in itertools.combinations([panel for panel in dashboard["panels"]], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        suite.expect(apart, f"{name}: panels {one['id']} and {other['id']} overlap")


if __name__ == "__main__":
    harness.run(dashboards)
