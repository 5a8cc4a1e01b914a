"""The queries of every dashboard on a live Prometheus: each answers, or stands in `EMPTY` with its reason.

`draw` has Grafana's own components draw them, and `write` makes docs/dashboards.md of what they answered. `stack.py` asks all dashboards but
that of unit costs, which `unit_cost.py` asks.
"""

import json
import shutil
import time
from pathlib import Path

import dashboards
import pictures
import shortened
from harness import PATIENCE, ROOT, Failed

PAGE = ROOT / "docs/dashboards.md"
ORDER = ["fleet", "node", "gpu", "tenants", "unit-cost", "workload", "health", "agent"]
UNIT_COST = "unit-cost"
# Queries that have nothing to show in the combined scenarios, with the reason: dashboard, panel, what is in the query.
EMPTY = [
    ("workload", None, "> 20", "quantiles stand for the ranks of a workload of more than 20 GPUs"),
    ("fleet", "Held without use", "", "nobody is without a process for half an hour"),
    ("tenants", "GPUs that are held without use", "", "nobody is without a process for half an hour"),
    ("agent", "Series left out", "", "no page is larger than limits.series"),
]
# What Grafana fills in; account counters move every 15 s, which is the scrape interval that the document asks for.
VALUES = {"job": ".+", "instance": ".+", "uuid": ".+", "tenant": ".+", "workload": ".+", "namespace": ".*", "owner": ".*", "__rate_interval": "1m", "__range": "5m"}
# Over which span panels with a time axis are asked where the present has nothing.
SPAN, STEP = 120, 10
# A picture's width in pixels, and its largest size in bytes.
WIDTH, MOST_BYTES = 1600, 400 * 1024


class Answers:
    """What the panels' queries answer for a cluster, by dashboard, panel and query."""

    # Over which span, and at which steps, panels with a time axis are drawn.
    span, step = 2 * SPAN, STEP / 2

    def __init__(self, server, cluster, instance=".+", names=tuple(name for name in ORDER if name != UNIT_COST)):
        self.server, self.cluster = server, cluster
        self.values = VALUES | {"cluster": cluster, "instance": instance}
        self.results = {}
        # By the place of their query.
        self.problems = {}
        self.dashboards = {name: dashboards.load(ROOT / f"dashboards/{name}.json") for name in names}
        self.missing = self.asked()
        self.ask()

    def asked(self):
        """Every query, with its dashboard and panel."""
        return [(name, panel, target) for name, dashboard in self.dashboards.items()
                for panel in dashboards.panels(dashboard) for target in panel["targets"]]

    def ask(self):
        """Asks the queries that have not answered yet; what was wrong with an answer stays known."""
        choices = {name: list(self._choices(dashboard)) for name, dashboard in self.dashboards.items()}
        self.missing = [one for one in self.missing if not self._ask(choices[one[0]], *one)]
        return self.missing

    def _choices(self, dashboard):
        """The settings of the variables: one for each value of one that allows a single value, as a person would choose them."""
        single = [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query" and not variable["multi"]]
        chosen = [(name, selector, label) for name, selector, label in dashboards.variables(dashboard)
                  if name in [variable["name"] for variable in single] and name != "instance"]
        if not chosen:
            return [self.values]
        [(name, selector, label)] = chosen
        found = self.server.label_values(label, dashboards.substitute(selector, **self.values))
        return [self.values | {name: value} for value in found]

    def drawn(self, name):
        """A dashboard, each of whose queries has what it answered: series over time, or their last values. Of GPUs and workloads
        the one is chosen of which the most is known."""
        choices = [self._drawn(self.dashboards[name], values) for values in self._choices(self.dashboards[name])]
        return max(choices, key=lambda dashboard: sum(bool(target["answer"]) for panel in dashboard["panels"] for target in panel["targets"]))

    def _drawn(self, dashboard, values):
        now = time.time()

        def answer(target):
            expression = shortened.panel(dashboards.substitute(target["expr"], **values))
            if target["range"]:
                return self.server.query_range(expression, now - self.span, now, self.step)
            return [{"metric": series["metric"], "values": [series["value"]]} for series in self.server.query(expression, at=now)]

        panels = [panel | {"targets": [target | {"answer": answer(target)} for target in panel.get("targets", [])]} for panel in dashboard["panels"]]
        chosen = [f"{name} {values[name]}" for name, _, _ in dashboards.variables(dashboard) if values[name] not in (".+", ".*")]
        return dashboard | {"panels": panels, "chosen": ", ".join(chosen)}

    def _ask(self, choices, name, panel, target):
        answered, found = False, []
        for values in choices:
            expression = shortened.panel(dashboards.substitute(target["expr"], **values))
            try:
                result = self.server.query(expression)
                if not result and target["range"]:
                    now = time.time()
                    result = [series | {"value": series["values"][-1]} for series in self.server.query_range(expression, now - SPAN, now, STEP)]
            except Failed as refused:
                found.append(str(refused))
                continue
            if result:
                answered = True
                found += problems(panel, target, result)
                self.results.setdefault((name, panel["title"], target["refId"]), result)
        if found:
            self.problems[place_of(name, panel, target)] = found
        return answered


def place_of(name, panel, target):
    return f"{name}, {panel['title']}: {target['expr']}"


def problems(panel, target, result):
    """What is wrong with an answer: NaN, a value outside of the panel's bounds, series that look alike."""
    found = []
    numbers = [float(series["value"][1]) for series in result]
    if any(number != number for number in numbers):
        found.append("NaN")
    defaults = panel["fieldConfig"]["defaults"]
    # The two clocks of a counter and of Prometheus differ by a little.
    low, high = defaults.get("min", float("-inf")) - 0.05, defaults.get("max", float("inf")) + 0.05
    if outside := [number for number in numbers if not low <= number <= high]:
        found.append(f"{outside[:3]} lie outside of the panel's bounds")
    text = target["legendFormat"]
    names = [part.split("}}")[0] for part in text.split("{{")[1:]]
    if text:
        shown = [tuple(series["metric"].get(name) for name in names) for series in result]
        if len(shown) != len(set(shown)):
            found.append("two series have one legend")
    return found


def check(suite, answers):
    """Waits until every query has answered that is not declared empty."""
    level, server = answers.cluster, answers.server
    deadline = time.monotonic() + PATIENCE
    while (late := [one for one in answers.missing if not declared(level, *one)]) and time.monotonic() < deadline:
        time.sleep(2)
        answers.ask()
    for place in (place_of(*one) for one in late):
        suite.expect(place in answers.problems, f"{level}: {place}: nothing, and EMPTY does not say why")
    for place, found in answers.problems.items():
        suite.expect(False, f"{level}: {place}: {'; '.join(found)}")
    for entry in [entry for entry in EMPTY if entry[0] in answers.dashboards]:
        answering = [one for one in answers.asked() if is_in(entry, *one) and one not in answers.missing]
        suite.expect(not answering, f"{level}: {entry} is declared empty, and {len(answering)} of its queries answer")
    for name, selector, label in (one for dashboard in answers.dashboards.values() for one in dashboards.variables(dashboard)):
        suite.expect(server.label_values(label, dashboards.substitute(selector, **answers.values)), f"{level}: variable {name} has nothing to choose from")
    suite.checks += len(answers.results)
    print(f"cluster {level}: {len(answers.results)} queries of {len(answers.dashboards)} dashboards answer, {len(answers.missing)} are declared empty")


def declared(level, name, panel, target):
    needs_full = level == "standard" and "Needs level full." in panel["description"]
    return needs_full or any(is_in(entry, name, panel, target) for entry in EMPTY)


def is_in(entry, name, panel, target):
    dashboard, title, part, _ = entry
    return name == dashboard and title in (None, panel["title"]) and part in target["expr"]


def draw(suite, browser, answers, keep=False):
    """Draws each dashboard as Grafana's components do: all of it appears, and nothing is said on the console."""
    script = Path(shutil.which("gpumeter-python")).parents[1] / "grafana/draw.js"
    for name in answers.dashboards:
        file = suite.folder / f"{answers.cluster}-{name}.html"
        data = json.dumps(answers.drawn(name)).replace("</", "<\\/")
        file.write_text(f'<!doctype html><meta charset="utf-8"><title>{name}</title><style>body {{ margin: 0; background: #111217; }}</style>'
                        f'<link rel="stylesheet" href="{script.with_suffix(".css")}"><script src="{script}"></script><body><script>draw({data}, {WIDTH})</script>')
        page = browser.page(file.as_uri(), WIDTH, 1000)
        try:
            page.wait(f"the dashboard {name}", "window.undrawn?.().length === 0", PATIENCE)
        except Failed as late:
            raise Failed(f"{answers.cluster}: {late}: {page.run('window.undrawn?.()')}") from late
        page.listen(0.5)  # plots are painted in a frame after that
        said = [line for line in page.said if "/public/" not in line]  # fonts and icons, which are not in Grafana's packages
        suite.expect(not said, f"{answers.cluster}, {name}: on the console: {said[:3]}")
        height = page.run("document.querySelector('#dashboard').getBoundingClientRect().height")
        path = pictures.PICTURES / f"dashboard-{name}.png" if keep else suite.folder / f"{answers.cluster}-{name}.png"
        pictures.take(page, path, {"x": 0, "y": 0, "width": WIDTH, "height": height}, MOST_BYTES)
        page.close()


HEAD = """# Dashboards

For the person who reads a dashboard. [monitoring.md](monitoring.md#dashboards) installs the dashboards. An empty panel shows a sentence that
says why. Panels that are empty on a node where all is well are marked.

`UPDATE=1 .ci/interop stack` writes this page. It runs every query of every dashboard on a real Prometheus that scrapes agents on simulated
nodes. Each query has two results: first of a node where all is well, then of a cluster of a dozen GPUs. That cluster has MIG, time-slicing,
MPS, pods and jobs, and boards that are lost, hung, hot, worn and throttled. The pictures show it, drawn by Grafana's own components, except
for state timelines, which those lack. Windows are at most a fifth as long here. So sums of the account, which steps every 15 s, dip now and
then.

`UPDATE=1 .ci/interop unit_cost` writes the section *Unit cost*. Its queries have one result, of two simulated nodes and stand-ins of model
servers.
"""


def write(sections):
    """The page of all dashboards: these sections, and the others as they are."""
    old = {part.split("\n")[0]: part for part in PAGE.read_text().split("\n## ")[1:]}
    parts = [HEAD]
    for name in ORDER:
        title = dashboards.load(ROOT / f"dashboards/{name}.json")["title"].split(" / ")[1]
        parts.append(sections.get(name) or f"## {old[title].rstrip()}\n")
    PAGE.write_text("\n".join(parts))


def section(name, dashboard, choices, well=None):
    """A dashboard on the page: the result of each query where all is well, and that of the first of the choices which has one."""
    title = dashboard["title"].split(" / ")[1]
    parts = [f"## {title}\n\n{dashboard['description']}\n\n![The dashboard {title} of that cluster](pictures/dashboard-{name}.png)\n"]
    parts += [f"{panel['options']['content']}\n" for panel in dashboard["panels"] if panel["type"] == "text" and panel["options"]["content"].startswith("- ")]
    for panel in dashboards.panels(dashboard):
        parts.append(f"### {panel['title']}\n\n{panel['description']}\n")
        answered = not well or any((name, panel["title"], target["refId"]) in well.results for target in panel["targets"])
        if not answered and "Needs level full." not in panel["description"]:
            parts.append(f"**Empty on the node where all is well**: {panel['fieldConfig']['defaults'].get('noValue', 'not said')}.\n")
        lines = ["```promql"]
        for target in panel["targets"]:
            key = name, panel["title"], target["refId"]
            best = next((answers for answers in choices if key in answers.results), choices[-1])
            shown = [summary(panel, target, answers.results.get(key)) for answers in ([well] if well else []) + [best]]
            lines += [f"# {' | '.join(shown)}", target["expr"]]
        parts.append("\n".join([*lines, "```\n"]))
    return "\n".join(parts)


def summary(panel, target, result):
    """The first series of an answer in words."""
    if not result:
        return "nothing"
    unit = unit_of(panel, target)
    shown = []
    for series in sorted(result, key=lambda series: sorted(series["metric"].items()))[:3]:
        name = target["legendFormat"] or " ".join(value for label, value in sorted(series["metric"].items())
                                                  if label not in ("__name__", "cluster", "job", "instance", "uuid"))
        for label, value in series["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        shown.append(f"{' '.join(name.split('{{')[0].split())} {number(float(series['value'][1]), unit)}".strip())
    return ", ".join(shown) + (f" and {len(result) - 3} more" if len(result) > 3 else "")


def unit_of(panel, target):
    """The unit of the panel, or in a table of the query's column."""
    if panel["type"] == "table":
        [organize] = [one for one in panel["transformations"] if one["id"] == "organize"]
        several = len(panel["targets"]) > 1
        column = organize["options"]["renameByName"].get(f"Value #{target['refId']}" if several else "Value")
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"]["options"] == column:
                for one in override["properties"]:
                    if one["id"] == "unit":
                        return one["value"]
    return panel["fieldConfig"]["defaults"]["unit"]


def number(value, unit):
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "dateTimeAsIso":
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(value / 1000))
    if unit in ("bytes", "hertz", "Bps"):
        for prefix in ("", "k", "M", "G", "T"):
            if abs(value) < 1000:
                break
            value /= 1000
        return f"{value:.3g} {prefix}{ {'bytes': 'B', 'hertz': 'Hz', 'Bps': 'B/s'}[unit]}"
    short = {"watt": " W", "celsius": " °C", "joule": " J", "s": " s", "ops": "/s", "reqps": "/s"}.get(unit, "")
    return f"{value:.4g}{short}"
