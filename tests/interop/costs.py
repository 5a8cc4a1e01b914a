"""The page of costs in Chromium: with made-up answers every control, by mouse and by keyboard, hostile names, errors, paper;
then over demos with a past, of a node and of a fleet, whose sums must be those of `bill`. Nothing on the console, no violation of the policy, no
finding of axe, no request to anybody but the server.

`GPUMETER_SMOKE=1` leaves out one colour scheme and the demos with a past.
"""

import base64
import csv
import http.server
import io
import json
import os
import pathlib
import re
import shlex
import subprocess
import threading
import urllib.error
import urllib.request
from datetime import date, timedelta
from random import Random
from urllib.parse import parse_qsl, urlsplit

import harness
from browser import Browser
from harness import GPUMETER, SMOKE, Demo, free_port, get_json, wait_for
from page import GUARD, HOSTILE, Checked

# What a name may do to the text around it, and to a spreadsheet.
RIGHT_TO_LEFT = "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd"
LONG = "n" * 200
FORMULA = '=HYPERLINK("https://evil.example","x"),y'
TELLING = ["constructor", "__proto__"]
MOST_COMPRESSED = 60 * 1024
# A page of 200 rows.
MOST_ELEMENTS = 6_000
A4 = {"paperWidth": 8.27, "paperHeight": 11.69}
PROPERTIES = ["tenant", "workload", "gpu", "uuid", "model", "class", "day", "node", "cluster", "pool", "user", "namespace", "account", "unit",
              "attribute:cost_center"]
HOUR_NS = 3_600_000_000_000


# Answers


def ns(hours):
    return str(round(hours * HOUR_NS))


def row(name, held, idle, amount, *, key="tenant", remainder=False, budget=None, center=None, before=None, spread=None, kwh=1.5, filtered=True):
    """A row of an answer; `amount` is none where there are no prices."""
    used = held - idle
    parts = {"held": held, "within": used * 0.75, "lent": used * 0.25, "idle": idle, "unmeasured": 0, "unavailable": 0, "used": used,
             "beyond": used / 8, "outside": 0, "unheld": 0, "charged": held, "unpriced": 0}
    shown = {part: f"{hours:.2f}" for part, hours in parts.items()} | {
        "idle_share": f"{100 * idle / held:.1f}" if held else None, "kwh": None if kwh is None else f"{kwh:.2f}",
        "co2e_kg": None if kwh is None else f"{kwh / 4:.2f}", "amount": None if amount is None else f"{amount:.2f}",
        "spread": None if spread is None else f"{spread:.2f}"}
    return {f"{part}_ns": ns(hours) for part, hours in parts.items()} | {
        "name": name, "values": [name], "filter": {key: name} if filtered else None, "remainder": remainder, "cost_center": center,
        "attributes": {"cost_center": center} if center else {}, "energy_uj": None if kwh is None else str(round(kwh * HOUR_NS)),
        "money": None if amount is None else f"{amount:.9f}", "energy_money": None if amount is None else "0.000000000",
        "co2e_grams": None, "spread": None if spread is None else f"{spread:.9f}", "shown": shown,
        "budget": budget and {"amount": f"{budget:.9f}", "used": amount / budget}, "before": before}


def total(rows, priced=True):
    add = lambda name: sum(float(one["shown"][name] or 0) for one in rows)
    return row("total", add("held"), add("idle"), add("amount") if priced else None, filtered=False, kwh=add("kwh"))


def days_of(rows, first=date(2026, 10, 1), count=31):
    weight = lambda day, place: 1 + (day * (place + 3)) % 5
    part = lambda one, name, day, place: f"{float(one['shown'][name] or 0) * weight(day, place) / 93:.2f}"
    entry = lambda one, day, place: {"name": one["name"], "held": part(one, "held", day, place), "idle": part(one, "idle", day, place),
                                     "amount": one["money"] and part(one, "amount", day, place)}
    others = lambda rest, day: [entry(one, day, 0) | {"name": None} for one in rest[:1]]
    return [{"day": str(first + timedelta(days=day)), "rows": [entry(one, day, place) for place, one in enumerate(rows[:10])] + others(rows[10:], day)} for day in range(count)]


def week():
    held = lambda weekday, hour: 9 + (3 if weekday < 6 and 8 <= hour < 19 else 0)
    used = lambda weekday, hour: held(weekday, hour) * (0.8 if weekday < 6 and 8 <= hour < 19 else 0.4)
    cell = lambda weekday, hour: {"weekday": weekday, "hour": hour, "held": held(weekday, hour), "used": used(weekday, hour),
                                  "idle": held(weekday, hour) - used(weekday, hour)}
    return [cell(weekday, hour) for weekday in range(1, 8) for hour in range(24)]


def answer(rows, *, priced=True, **more):
    """An answer for October 2026 by tenant, with what is given in place of its own."""
    whole = total(rows, priced)
    period = {"name": "2026-10", "from": "2026-10-01T00:00:00+02:00", "to": "2026-11-01T00:00:00+01:00", "asked_to": None,
              "time_zone": "Europe/Zurich", "open": False, "hours": 745}
    before = {"period": {"name": "2026-09", "from": "2026-09-01T00:00:00+02:00", "to": "2026-10-01T00:00:00+02:00", "asked_to": None,
                         "time_zone": "Europe/Zurich", "open": False, "hours": 720},
              "total": row("total", 2000, 900, 5100 if priced else None, filtered=False)}
    return {"schema": 1, "source": {"kind": "fleet", "node": None, "nodes": 20, "clusters": ["zurich-1"], "simulated": True},
            "period": period, "request": {"period": "last-month", "group": "tenant", "filters": [], "spread": [], "top": None},
            "command": "gpumeter bill --exports DIR --month 2026-10 --by tenant",
            "focus_command": "gpumeter bill --exports DIR --month 2026-10 --focus costs.parquet",
            "currency": "EUR" if priced else None, "partial": False, "notices": [], "total": whole, "before": before,
            "shares": {"idle": 0.412, "unallocated": 0.081, "unavailable": 0.0061}, "budget": None, "projection": None,
            "statement": None, "groups": ["tenant"], "properties": PROPERTIES, "rows": rows, "rest": None, "days": days_of(rows), "hours": week()} | more


def usual(**more):
    rows = [
        row("ml", 1234.5, 410.25, 3086.25, budget=3000, center="4711", before={"held": "1100.00", "amount": "2750.00"}, kwh=812.5),
        row("bio", 640, 32, 1600, budget=2500, center="4712", before={"held": "640.00", "amount": "1600.00"}, kwh=460.25),
        row("physics", 220.75, 180, 551.88, center="4711", kwh=None),
        row("__unallocated__", 300, 300, 750, remainder=True, kwh=40, before={"held": "500.00", "amount": "1250.00"}),
        row("__terms__", 0, 0, -61.25, remainder=True, kwh=None),
    ]
    notices = [{"kind": "missing_node", "text": "gpu-7 has no file for 2026-10-09: its 8 GPUs are not in these sums."},
               {"kind": "conflict", "text": "Two ledgers hold GPU-1 on 2026-10-12; its day is not billed."}]
    return answer(rows, notices=notices, budget={"amount": "5500.000000000", "used": 0.953},
                  statement={"number": 3, "amount": "5900.000000000", "now": "5926.884999999", "difference": "26.884999999"}) | more


def with_rest():
    rows = [row(f"slurm:alpha/{number}", 4, 1, 10, key="workload", center="4711" if number % 3 else None) for number in range(200)]
    rest = row("149 others", 400, 100, 1000, key="workload", filtered=False)
    whole = total([*rows, rest])
    return answer(rows, groups=["workload"], rest=rest, total=whole)


def hostile():
    names = [*HOSTILE, RIGHT_TO_LEFT, LONG, FORMULA, "@sum", "-", *TELLING]
    rows = [row(name, 10 + place, 1, 25, center=name, budget=100) for place, name in enumerate(names)]
    notice = {"kind": "unreadable_file", "text": f"node={HOSTILE[0]}/date=2026-10-01.parquet cannot be read: {RIGHT_TO_LEFT}"}
    return answer(rows, notices=[notice], command=f"gpumeter bill --tenant '{HOSTILE[0]}'")


def explanation():
    """What the agent answers for a line of half a GPU in one hour."""
    begin, end = "2026-10-31T22:00:00Z", "2026-10-31T23:00:00Z"
    line = {"tenant": "ml", "holder": "slurm:alpha/7", "labels": {"slurm_account": HOSTILE[0]}, "gpu": 3, "uuid": "GPU-3", "gpu_instance": None,
            "rate": "5", "energy_rate": None, "terms": None, "held_ns": ns(0.5), "within_ns": ns(0.125), "lent_ns": "0", "idle_ns": ns(0.375),
            "unmeasured_ns": "0", "unavailable_ns": "0", "used_ns": ns(0.125), "charged_ns": ns(0.5), "unpriced_ns": "0", "money": "1.250000000",
            "energy_money": "0.000000000", "grade": "split_by_memory", "measured_ns": ns(0.0625),
            "spans": [{"from": begin, "to": end}],
            "tenancies": [{"from": begin, "to": end, "version": {"id": "3", "begin": begin, "recorded": begin},
                           "basis": {"rule": {"number": 2, "match": {"slurm_account": HOSTILE[0]}, "tenant": "ml"}}}]}
    rate = {"id": "5", "unit": "gpu_hour", "price": "2.500000000", "class": "on_demand", "selector": {"model": "*H100*"}, "derivation": None,
            "since": begin, "until": None, "recorded": begin}
    gpu = {"gpu": 3, "uuid": "GPU-3", "model": "H100", "remarks": [], "xids": [],
           "events": [{"from": begin, "to": end, "kind": "bridged", "time_ns": ns(0.1)}]}
    return {"bill": {"time_zone": "Europe/Zurich", "currency": "EUR", "rates": [rate], "terms": []}, "lines": [line], "gpus": [gpu]}


def whole():
    """What the agent answers for the same line as a whole."""
    line = explanation()["lines"][0]
    sums = {name: line[name] for name in ("within_ns", "lent_ns", "idle_ns", "unmeasured_ns", "unavailable_ns", "used_ns", "charged_ns",
                                          "unpriced_ns", "money", "energy_money")}
    sums |= {"lines": 1, "energy_uj": "0"}
    priced = {**sums, "rate": 5, "energy_rate": None, "terms": None, "mig_slices": None}
    return {"bill": explanation()["bill"], "total": sums, "priced": [priced], "inside": [], "remainders": {}}


class StandIn:
    """A server with the files of an agent, and answers that a test chooses: `answers` maps a path to a function of its query."""

    def __init__(self, suite, files):
        self.files, self.answers, self.asked = files, {}, []
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                stand_in.reply(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        suite.end_first(self.server.shutdown)

    def reply(self, request):
        path, query = urlsplit(request.path).path, urlsplit(request.path).query
        if path not in self.answers:
            return self.reply_with(request, *self.files(request.path))
        self.asked.append((path, parse_qsl(query)))
        try:
            status, body = 200, self.answers[path](dict(parse_qsl(query)))
        except urllib.error.HTTPError as refused:
            status, body = refused.code, {"error": refused.reason}
        self.reply_with(request, status, [("Content-Type", "application/json")], json.dumps(body).encode())

    @staticmethod
    def reply_with(request, status, headers, body):
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        try:
            request.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass


def files_of(agent):
    def read(path):
        try:
            with urllib.request.urlopen(f"{agent}{path}", timeout=harness.PATIENCE) as reply:
                return reply.status, reply.headers.items(), reply.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers.items(), refused.read()
    return read


def refuse(status, text):
    raise urllib.error.HTTPError("", status, text, None, None)


# Checks


class Costs(Checked):
    """The page of costs, from load to end."""

    def __init__(self, suite, browser, name, server, query="", size=(1400, 1000), scheme="light", awaited="#report:not([hidden]):not([aria-busy])"):
        self.suite, self.name, self.url = suite, f"costs, {name}, {scheme}", server
        self.page = browser.page(f"{server}/costs{query}", *size, scheme=scheme, script=GUARD)
        self.wait("its report", f"document.querySelector({json.dumps(awaited)}) !== null")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def choose(self, selector, value):
        self.run(f"(() => {{const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)}; "
                 "one.dispatchEvent(new Event('change', {bubbles: true}));})()")

    def query(self):
        return self.run("location.search")

    def settled(self, what, script="true"):
        """Waits for the report that is asked for."""
        self.wait(what, f"{script} && document.querySelector('#report:not([hidden]):not([aria-busy])') !== null")

    def cells(self, column):
        """The numbers of a column by its heading, those of the total last."""
        return self.run(f"""(() => {{
            const table = document.querySelector('#rows table');
            const heads = [...table.querySelectorAll('thead th')].filter((one) => !one.hidden).map((one) => one.textContent);
            const place = heads.indexOf({json.dumps(column)});
            if (place < 0) return null;
            const cell = (row) => [...row.children].filter((one) => !one.hidden)[place].textContent;
            return [...table.querySelectorAll('tbody tr'), ...table.querySelectorAll('tfoot tr')].map(cell);
        }})()""")

    def heads(self):
        return self.run("[...document.querySelectorAll('#rows thead th')].filter((one) => !one.hidden).map((one) => one.textContent)")

    def adds_up(self, column):
        cells = self.cells(column)
        if not self.expect(cells, f"there is no column {column}: {self.heads()}"):
            return
        cents = [round(100 * float(re.sub("[,%]", "", cell).strip() or 0)) for cell in cells if cell != "–"]
        self.expect(sum(cents[:-1]) == cents[-1], f"the column {column} does not add up: {cells}")

    def csv(self):
        """The lines of the CSV that a reader would save."""
        self.run("(() => {const make = URL.createObjectURL; window.saved = []; URL.createObjectURL = (blob) => {window.saved.push(blob); return make.call(URL, blob);};})()")
        self.page.call("Page.setDownloadBehavior", behavior="deny")
        self.click("#csv")
        self.wait("a CSV", "window.saved.length === 1")
        return list(csv.DictReader(io.StringIO(self.run("window.saved[0].text()"))))

    def narrow(self, where):
        for width in (1000, 640, 360):
            self.page.resize(width, 800)
            wide = self.run("document.documentElement.scrollWidth")
            self.expect(wide <= width, f"{where}: at {width} pixels it is {wide} wide")
        self.axe(f"{where} on a phone")
        self.page.resize(1400, 1000)

    def pdf(self):
        """What a printer gets, as text, and how many pages it has."""
        printed = base64.b64decode(self.page.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True, **A4)["data"])
        file = pathlib.Path(os.environ.get("PICTURES") or self.suite.folder) / "costs.pdf"
        file.write_bytes(printed)
        return subprocess.run(["pdftotext", "-layout", file, "-"], check=True, capture_output=True, text=True).stdout

    def picture(self, name):
        """Saves what is shown, whole, where `PICTURES` names a folder: for eyes."""
        if folder := os.environ.get("PICTURES"):
            size = self.page.call("Page.getLayoutMetrics")["cssContentSize"]
            shot = self.page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**size, "scale": 1})
            pathlib.Path(folder, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def end(self, allowed=()):
        markup = self.count("main img, main b[onclick], main script, dialog img, dialog script, a[href^=javascript]")
        self.expect(markup == 0, f"{markup} elements are of a hostile name")
        super().end(allowed)


def walk(suite, browser, server, scheme):
    """Every control, by mouse."""
    server.answers = {"/api/v1/costs": lambda query: usual() if query.get("group", "tenant") == "tenant" else other_group(query),
                      "/api/v1/explain/whole": lambda query: whole(), "/api/v1/explain": lambda query: explanation()}
    page = Costs(suite, browser, "every control", server.url, scheme=scheme)
    text = page.text("main")
    for wanted in ("October 2026 by tenant", "gpu-7 has no file for 2026-10-09", "Two ledgers hold GPU-1", "5,926.88 EUR", "+16 % against September 2026: 5,100.00 EUR",
                   "41 %", "8.1 %", "0.6 %", "95 %", "of 5,500.00 EUR", "Statement 3: 5,900.00 EUR; the files now make 5,926.88 EUR, difference 26.88 EUR",
                   "not their processors, memory or network", "1,234.50", "held by nobody", "discounts by terms", "+12 %", "new",
                   "gpumeter bill --exports DIR --month 2026-10 --by tenant", "--focus costs.parquet"):
        page.expect(wanted in text, f"{wanted!r} is not there: {text[:3000]}")
    for column in ("EUR", "GPU-hours held", "hours used", "kWh"):
        page.adds_up(column)
    page.axe("the report")
    # The greatest amount first, remainders last, whatever the order.
    page.expect(page.cells("tenant")[0].startswith("ml"), f"not the greatest first: {page.cells('tenant')}")
    for column, name in (("tenant", "sort=name"), ("GPU-hours held", "sort=-held")):
        place = page.run(f"[...document.querySelectorAll('#rows thead th')].findIndex((one) => one.textContent === {json.dumps(column)}) + 1")
        page.click(f"#rows thead th:nth-of-type({place}) button")
        page.expect(name in page.query(), f"{column} sorts by {page.query()}")
        last = "".join(page.cells("tenant")[-3:])
        page.expect("held by nobody" in last and "discounts by terms" in last and last.endswith("total"), f"remainders are not last: {page.cells('tenant')}")
    page.click("#more")
    page.wait("all parts", "[...document.querySelectorAll('#rows thead th')].some((one) => !one.hidden && one.textContent === 'within')")
    for column in ("within", "lent", "beyond", "outside", "unmeasured", "unavailable"):
        page.adds_up(column)
    page.axe("the report with all parts")
    page.click("#more")
    for name in ("days", "hours"):
        page.click(f"#{name}-as-table")
        page.expect(page.count(f"#{name}-table tbody tr") == {"days": 31, "hours": 24}[name], f"{name} have no table")
        page.axe(f"the table of {name}")
        page.click(f"#{name}-as-table")
        page.expect(page.run(f"document.querySelector('#{name}-table').hidden"), f"the table of {name} stays")
    for name, words in (("days", "2026-10-"), ("map.idle", "idle")):
        box = page.run(f"(() => {{const one = document.querySelector('.{name} svg'); one.scrollIntoView({{block: 'center'}}); const box = one.getBoundingClientRect(); return [box.x + box.width / 3, box.y + box.height / 3];}})()")
        page.page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        page.wait(f"what is pointed at in {name}", f"[...document.querySelectorAll('.caption')].some((one) => one.textContent.includes({json.dumps(words)}))")
    filters(page, server)
    dialogs(page, server)
    buttons(page)
    advice(page, server)
    questions(page, server)
    page.narrow("the report")
    page.end()


def advice(page, server):
    """Findings, which are asked for by a button, and hostile names in them."""
    finding = {"tenant": "<img src=x onerror=alert(1)>", "workload": "slurm:c/lab/ada", "what": "used nothing in the last 2.5 h (median) of 13 of 13 runs",
               "how": "end the job after its last use of a GPU", "time_ns": "117000000000000", "amount": "65.000000000", "is_credit": False}
    node = finding | {"tenant": "", "workload": "gpu-9", "amount": "0.000000000", "organisation": {"amount": "2688.000000000", "returned_ns": "0"}}
    server.answers["/api/v1/advice"] = lambda query: {"from": "2026-11-01T00:00:00Z", "to": "2026-11-28T12:00:00Z", "findings": [finding, node], "currency": "EUR", "notes": ["no list of nodes"]}
    page.expect(page.run("document.querySelector('#advice-table').hidden"), "findings are asked for by themselves")
    page.click("#look-for-advice")
    page.wait("findings", "document.querySelectorAll('#advice-table tbody tr').length === 2")
    text = page.text("#advice")
    for wanted in ("<img src=x", "32.5", "65.00 EUR", "the organisation", "2,688.00 EUR", "end the job", "Looked at 2026-11-01", "no list of nodes"):
        page.expect(wanted in text, f"{wanted!r} is not among the findings: {text}")
    page.axe("the findings")


def questions(page, server):
    """Whether workloads fit, and demand, with hostile names; an error is said in the server's words."""
    one = {"name": "<img src=x onerror=alert(1)>", "present_ns": "7200000000000", "held_ns": "7200000000000", "used_ns": "3600000000000", "busy": 0.5, "memory_peak_bytes": 1 << 34, "dram": None, "amount": "4.000000000"}
    together = {"shared_ns": "7200000000000", "too_much_ns": "1800000000000", "too_busy_ns": "1800000000000", "too_full_ns": "0"}
    asked = []
    fit = {"workloads": [one, one | {"name": "ml/b"}], "on": {"name": "1g.10gb", "memory_bytes": 10**10}, "together": together, "currency": "EUR", "apart": "8.000000000", "joined": "4.000000000", "notes": ["a note"]}
    server.answers["/api/v1/fit"] = lambda query: asked.append(query) or fit
    series = {"mean": 3, "p95": 4}
    hours = [{"weekday": day + 1, "hour": hour, "quarters": 4, "held": series, "used": series, "expected": {"mean": 2.5, "lowest": 2, "highest": 3}} for day in range(7) for hour in range(24)]
    server.answers["/api/v1/demand"] = lambda query: {"hours": hours, "tested": 100, "hits": 95, "notes": []}
    page.run("document.querySelector('#fit-workloads').value = 'ml/a  ml/b'; document.querySelector('#fit-on').value = '1g.10gb'")
    page.click("#fit button[type=submit]")
    page.wait("an answer", "document.querySelectorAll('#answer-table tbody tr').length === 2")
    text = page.text("#questions")
    for wanted in ("<img src=x", "too much for 0.5 h (25 %)", "8.00 EUR", "a note", "16 GiB"):
        page.expect(wanted in text, f"{wanted!r} is not in the answer: {text}")
    page.axe("the answer of fit")
    page.click("#demand")
    page.wait("demand", "document.querySelectorAll('#answer-table tbody tr').length === 24")
    text = page.text("#questions")
    page.expect("95 % were within" in text and "3.0, 3.0 (2.5)" in text, f"the demand is not told: {text}")
    page.axe("the demand")


def other_group(query):
    """What a row or a report is made of by another property."""
    key = query["group"]
    rows = [row(f"{key}-{number}", 8 + number, 2, 20, key=key) for number in range(3)]
    if key == "day":
        rows = [one | {"name": f"2026-10-0{place}", "values": [f"2026-10-0{place}"], "filter": {"period": f"2026-10-0{place}..2026-10-0{place + 1}"}}
                for place, one in enumerate(rows, 1)]
    return answer(rows, groups=[key])


def filters(page, server):
    """Periods, groups, filters and spread, each in the address; and back."""
    page.run("document.querySelector('#period').focus()")
    for value, query in (("last-month", "?period=last-month"), ("this-quarter", "?period=this-quarter"), ("last-year", "?period=last-year"), ("this-month", "?sort=-held")):
        page.choose("#period", value)
        page.wait(f"the period {value}", f"location.search.includes({json.dumps(query.split('&')[0][1:])}) || {json.dumps(value)} === 'this-month'")
    page.choose("#period", "month")
    page.choose("#month", "2026-09")
    page.wait("a month", "location.search.includes('period=2026-09')")
    page.choose("#period", "days")
    page.choose("#from", "2026-10-03")
    page.choose("#to", "2026-10-16")
    page.click("#show-days")
    page.wait("days", "location.search.includes('period=2026-10-03..2026-10-17')")
    page.expect(page.run("[document.querySelector('#from').value, document.querySelector('#to').value]") == ["2026-10-03", "2026-10-16"], "the last day is another one")
    page.choose("#group", "node")
    page.wait("another group", "location.search.includes('group=node') && document.querySelector('#title').textContent.includes('by node')")
    page.run("history.back()")
    page.wait("the group before", "!location.search.includes('group=') && document.querySelector('#title').textContent.includes('by tenant')")
    page.choose("#group", "…")
    page.click("#property")
    page.page.type("k8s_label_team")
    page.page.press("Enter")
    page.wait("a group by a label", "location.search.includes('group=k8s_label_team')")
    page.choose("#group", "tenant")
    page.wait("tenants", "document.querySelector('#title').textContent.includes('by tenant')")
    page.click("#rows tbody tr:first-child a.only")
    page.settled("a filter by a row", "location.search.includes('tenant=') && document.querySelectorAll('#filters li').length === 1")
    page.expect(page.run("document.activeElement.id") == "report", "after a filter the focus is nowhere")
    page.click("#rows td a.chip")
    page.settled("a filter by a chip", "location.search.includes('attribute%3Acost_center=') && document.querySelectorAll('#filters li').length === 2")
    page.axe("filters")
    page.click("#spread")
    page.settled("spread", "location.search.includes('spread=__unallocated__')")
    asked = dict(server.asked[-1][1])
    page.expect(asked.get("attribute:cost_center") and asked.get("tenant") and asked.get("spread") == "__unallocated__" and "sort" not in asked,
                f"the server is asked {asked}")
    page.click("#filters li button")
    page.wait("one filter less", "document.querySelectorAll('#filters li').length === 1")
    page.click("#filters li button")
    page.wait("no filter", "document.querySelectorAll('#filters li').length === 0")
    page.click("#spread")
    page.wait("nothing spread", "!location.search.includes('spread')")
    for value in ("dark", "light", ""):
        page.choose("#theme", value)
        page.expect(page.run("document.documentElement.dataset.theme ?? ''") == value, f"theme {value!r}")


def dialogs(page, server):
    is_open, is_closed = "document.querySelector('#details').open", "!document.querySelector('#details').open"
    page.run("history.replaceState(null, '', '?period=last-month'); dispatchEvent(new PopStateEvent('popstate'))")
    page.settled("the report")
    page.click("#rows tbody tr:first-child a.row-name")
    page.wait("details of a row", f"{is_open} && location.search.includes('open=ml')")
    page.wait("what it is made of", "document.querySelectorAll('#details .inside tbody tr').length === 3")
    page.axe("details")
    page.narrow("details")
    for name in page.run("[...document.querySelectorAll('#details .inside nav a')].map((one) => one.textContent)"):
        place = page.run(f"[...document.querySelectorAll('#details .inside nav a')].findIndex((one) => one.textContent === {json.dumps(name)}) + 2")
        page.click(f"#details .inside nav a:nth-child({place})")
        page.wait(f"its {name}", f"document.querySelector('#details [aria-current]')?.textContent === {json.dumps(name)} && document.querySelectorAll('#details .inside tbody tr').length === 3")
    page.click("#details .why button")
    page.wait("an explanation", "document.querySelectorAll('#details .explanation li').length > 3")
    told = page.text("#details .why")
    for words in ("One line of the bill", "Together 1.25 EUR, as in the bill", "slurm:alpha/7 on GPU 3", "0.50 hours between 2026-10-31 23:00 and 2026-11-01 00:00", f"by rule 2 (slurm_account is {HOSTILE[0]})",
                  "2.50 EUR per GPU-hour", "1,800 s × 2.50 EUR per GPU-hour = 1.25 EUR", "50 % was measured per process", "split by memory", "the agent was away"):
        page.expect(words in told, f"the explanation has no {words!r}: {told}")
    page.axe("an explanation")
    asked = []
    server.answers["/api/v1/explain"] = lambda query: asked.append(query) or explanation()
    page.click("#details .inside td button")
    page.wait("an explanation of a part", "document.querySelectorAll('#details .explanation').length >= 1 && document.activeElement.tagName === 'H3'")
    wait_for("a request of that part", harness.PATIENCE, lambda: asked)
    page.expect(asked[-1] == {"from": "2026-10-01", "to": "2026-10-02", "time_zone": "Europe/Zurich", "tenant": "ml"}, f"asked for {asked}")
    page.page.press("Escape")
    page.wait("closed details", f"{is_closed} && !location.search.includes('open=')")
    page.run("history.back()")
    page.wait("open details again", is_open)
    page.click("#close-details")
    page.wait("closed details", is_closed)
    page.click("#rows tbody tr:first-child a.row-name")
    page.wait("details of a row", is_open)
    page.click("#only")
    page.wait("only this row", f"{is_closed} && location.search.includes('tenant=ml')")


def buttons(page):
    """CSV, JSON, print, links."""
    lines = page.csv()
    page.expect([line["tenant"] for line in lines] == ["ml", "bio", "physics", "__unallocated__", "__terms__"], f"the CSV has {lines}")
    page.expect(lines[0]["amount"] == "3086.250000000" and lines[0]["held_hours"] == "1234.5000" and lines[0]["currency"] == "EUR", f"the CSV has {lines[0]}")
    page.run("(() => {window.print = () => (window.printed = true);})()")
    page.click("#print")
    page.wait("print", "window.printed === true")
    page.expect(page.run("document.querySelector('#json').getAttribute('href')").startswith("api/v1/costs?"), "JSON is elsewhere")
    page.click("#copy-link")
    page.wait("a copied link", "/copied|does not allow/.test(document.querySelector('#said').textContent)")
    page.click("#command button")
    page.expect(page.run("document.querySelector('#live').hidden"), "a fleet has no live page")


def keyboard(suite, browser, server):
    """The page without a mouse."""
    server.answers = {"/api/v1/costs": lambda query: usual()}
    page = Costs(suite, browser, "keyboard", server.url)
    page.click("#node")
    page.page.press("Tab", shift=True)
    page.expect(page.run("document.activeElement.className") == "skip", "the first stop is not the skip link")
    page.page.press("Enter")
    page.expect(page.run("document.activeElement.id") == "report", "the skip link does not lead to the report")
    page.run("document.querySelector('#period').focus()")
    seen = set()
    for _ in range(200):
        stop = page.run("""(() => {
            const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
            if (one === document.body || one.wasStop) return [];
            one.wasStop = true;
            return [one.id || `${one.tagName} ${one.textContent.slice(0, 30)}`, box.width > 0 && box.height > 0, style.outlineStyle !== 'none' || style.outlineWidth !== '0px'];
        })()""")
        if not stop:
            break
        seen.add(stop[0])
        page.expect(stop[1] and stop[2], f"{stop[0]} has the focus and does not show it")
        page.page.press("Tab")
    for wanted in ("period", "group", "spread", "more", "rows", "days-as-table", "hours-as-table", "csv", "json", "print", "copy-link"):
        page.expect(wanted in seen, f"Tab does not reach {wanted}: {sorted(seen)}")
    page.run("document.querySelector('#rows thead button').focus()")
    page.page.press(" ")
    page.expect("sort=name" in page.query(), "a column does not sort by the keyboard")
    page.run("document.querySelector('#rows tbody a.row-name').focus()")
    page.page.press("Enter")
    page.wait("details by Enter", "document.querySelector('#details').open")
    page.page.press("Escape")
    page.wait("details closed by Escape", "!document.querySelector('#details').open")
    page.wait("the focus back", "document.activeElement.closest('#rows') !== null")
    page.end()


def cases(suite, browser, server, scheme):
    """Answers that are not usual."""
    def of(name, made, query=""):
        server.answers = {"/api/v1/costs": lambda asked: made}
        page = Costs(suite, browser, name, server.url, query, scheme=scheme)
        page.axe("the report")
        return page

    free = [row("ml", 10, 4, None), row("bio", 4, 1, None)]
    page = of("no prices", answer(free, priced=False, before=None, budget=None))
    page.expect(page.heads() == ["tenant", "idle", "GPU-hours held", "hours used", "kWh", "kg CO₂e"], f"without prices: {page.heads()}")
    page.expect("There are no prices" in page.text("#totals") and "null" not in page.text("main"), f"without prices: {page.text('#totals')}")
    page.end()

    part = answer([row("ml", 10, 4, 25)], partial=True, before=None, shares={"idle": 0.4, "unallocated": None, "unavailable": None},
                  notices=[{"kind": "partial", "text": "Incomplete: files are missing."}])
    page = of("a reader of some tenants", part)
    page.expect("PARTIAL" in page.text("#marks") and "Unallocated" not in page.text("#totals"), "a partial report shows more")
    page.end()

    page = of("nothing", answer([], days=[], hours=None, before=None, shares={"idle": None, "unallocated": None, "unavailable": None}))
    page.expect("Nothing is recorded for this period" in page.text("main"), "an empty report says nothing")
    page.expect(page.run("document.querySelector('#days').hidden && document.querySelector('#hours').hidden"), "an empty report has plots")
    page.narrow("nothing")
    page.end()

    opened = usual()
    opened["before"]["period"] |= {"to": "2026-09-28T15:22:00+02:00", "hours": 663.4}
    opened["period"] |= {"to": "2026-10-28T14:22:00+01:00", "asked_to": "2026-11-01T00:00:00+01:00", "open": True, "hours": 663.4}
    page = of("an open month", opened | {"statement": None, "projection": {"amount": "6610.101000000", "lowest": "6400.000000000", "highest": "6900.500000000"}})
    text = page.text("main")
    for wanted in ("still open; the period ends 2026-11-01 00:00", "between 6,400.00 and 6,900.50", "against the same 663 hours of September 2026"):
        page.expect(wanted in text, f"{wanted!r} is not there: {text[:2000]}")
    page.end()

    page = of("200 rows", with_rest(), "?group=workload")
    page.expect(len(page.cells("workload")) == 202, f"{len(page.cells('workload'))} rows")
    page.expect(page.cells("workload")[-2] == "149 others", f"the last row is {page.cells('workload')[-2]}")
    page.adds_up("EUR")
    page.adds_up("GPU-hours held")
    elements = page.elements()
    print(f"elements of 200 rows: {elements}; first load: {page.page.bytes} bytes")
    page.expect(elements <= MOST_ELEMENTS, f"200 rows have {elements} elements")
    page.end()

    made = hostile()
    page = of("hostile names", made)
    text = page.run("document.body.textContent")
    for name in HOSTILE:
        page.expect(name in text, f"{name} is not shown as text")
    page.expect("\u202e" not in text and "\\u{202e}" in text, "a mark of writing direction is not escaped")
    page.expect(LONG not in text and "n" * 119 + "…" in text, "a name of 200 characters is not cut")
    page.narrow("hostile names")
    names = [line["tenant"] for line in page.csv()]
    page.expect(f"'{FORMULA}" in names and "'@sum" in names and "-" in names and all(name in names for name in (*HOSTILE, *TELLING)), f"the CSV has {names}")
    page.click("#rows tbody tr:first-child a.row-name")
    page.wait("details", "document.querySelector('#details').open")
    page.axe("details of a hostile name")
    page.end()


def errors(suite, browser, server):
    """What goes wrong, in words, and what to do then."""
    server.answers = {"/api/v1/costs": lambda query: refuse(400, 'unknown parameter "tennant"; use tenant') if "tennant" in query else usual()}
    page = Costs(suite, browser, "a wrong link", server.url, "?tennant=ml", awaited="#problem:not([hidden])")
    page.expect('unknown parameter "tennant"; use tenant' in page.text("#problem"), f"the error is {page.text('#problem')}")
    page.expect("ml" in page.text("#filters"), "the wrong filter cannot be removed")
    page.axe("an error")
    page.click("#filters li button")
    page.wait("the report without it", "!document.querySelector('#report').hidden && document.querySelector('#problem').hidden")
    page.end(allowed=["status of 400"])
    tries = []

    def second(query):
        tries.append(query)
        return usual() if len(tries) > 1 else refuse(503, "the files are being read: 40 of 310 days; try again")

    server.answers = {"/api/v1/costs": second}
    page = Costs(suite, browser, "a busy server", server.url, awaited="#problem:not([hidden])")
    page.expect("40 of 310 days" in page.text("#problem"), f"the error is {page.text('#problem')}")
    page.click("#retry")
    page.wait("the report at the second try", "!document.querySelector('#report').hidden && document.querySelector('#problem').hidden")
    server.answers = {"/api/v1/costs": lambda query: refuse(503, "one at a time") if query.get("group") != "tenant" and "group" in query else usual(),
                      "/api/v1/explain/whole": lambda query: refuse(400, "unknown parameter; use tenant")}
    page.click("#rows tbody tr:first-child a.row-name")
    page.wait("an error in the details", "document.querySelector('#details [role=alert]')?.textContent === 'one at a time'")
    page.click("#details .why button")
    page.wait("an error of the explanation", "document.querySelector('#details .why [role=alert]')?.textContent.includes('unknown parameter')")
    page.end(allowed=["status of 400", "status of 503"])


def paper(suite, browser, server):
    """A4, upright: every column, every row, the amount next to the name, and no controls."""
    for name, made in (("the usual month", usual()), ("200 rows", with_rest()), ("hostile names", hostile())):
        server.answers = {"/api/v1/costs": lambda query: made}
        page = Costs(suite, browser, f"paper of {name}", server.url, scheme="dark")
        text = page.pdf()
        numbers = {cell for row in [*made["rows"], made["total"]] for cell in (row["shown"]["held"], row["shown"]["amount"], row["shown"]["used"])}
        missing = {cell for cell in numbers if f"{float(cell):,.2f}" not in text}
        page.expect(not missing, f"not on paper: {missing}")
        for wanted in ("EUR", "held", "idle", "used", "kWh", "CO₂e", "total", "October 2026"):
            page.expect(wanted in text, f"not on paper: {wanted}")
        page.expect(not re.search(r"\bonly\b|Theme|Group by|Copy|Print", text), "controls are on paper")
        page.page.call("Emulation.setEmulatedMedia", media="print")
        page.page.resize(718, 1000)
        shown = page.run("[...document.querySelectorAll('#rows thead th')].filter((one) => one.offsetWidth).map((one) => one.textContent)")
        page.expect(len(shown) <= 8 and shown[1] == "EUR", f"the columns on paper: {shown}")
        wide = page.run("document.documentElement.scrollWidth")
        page.expect(wide <= 718, f"on paper it is {wide} wide")
        page.end()


def past(suite, browser, scheme):
    """A node with two months of past: the page's sums are those of `bill`, and the facts behind a row are in sentences."""
    demo = Demo(suite, "--history", "60d", scenario="cluster", name=f"past-{scheme}")
    page = Costs(suite, browser, "a node with a past", demo.url, "?period=last-month", scheme=scheme)
    files = sum(size for name, size in page.page.sizes.items() if "/api/" not in name)
    print(f"first load: {files} bytes of files, {page.page.bytes - files} of the answer")
    page.expect(files <= MOST_COMPRESSED, f"the files have {files} bytes")
    page.axe("the report")
    for group in ("model", "class", "workload", "gpu", "account", "namespace", "user", "day"):
        page.choose("#group", group)
        page.settled(f"by {group}", f"location.search.includes('group={group}')")
        for column in ("USD", "GPU-hours held", "hours used", "kWh"):
            page.adds_up(column)
    page.expect(len(page.cells("USD")) - 1 == page.count("#days-table tbody tr"), "not a row for each day")
    page.run("history.replaceState(null, '', '?period=last-month'); dispatchEvent(new PopStateEvent('popstate'))")
    page.settled("tenants", "document.querySelector('#title').textContent.includes('by tenant')")
    shown = {name: amount for name, amount in get_shown(demo, "last-month")}
    command = page.run("document.querySelector('#command code').textContent")
    billed = bill_rows(f"{command} --url {demo.url}")
    page.expect(shown.keys() == billed.keys(), f"the page has {sorted(shown)}, the bill {sorted(billed)}")
    for name, amount in billed.items():
        page.expect(abs(amount - shown.get(name, 0)) < 0.01, f"{name}: {shown.get(name)} on the page, {amount} on the bill")
    page.expect(abs(sum(billed.values()) - sum(shown.values())) < 0.01, "the totals differ")
    page.picture(f"node-{scheme}")
    page.click("#rows tbody tr:first-child a.row-name")
    page.wait("what it is made of", "document.querySelectorAll('#details .inside tbody tr').length > 0")
    page.click("#details .inside td button")
    page.wait("an explanation", "document.querySelectorAll('#details .explanation li').length > 2")
    told = page.text("#details .why")
    page.expect("USD per GPU-hour" in told and "held the GPU for" in told and "its tenant is" in told, f"the explanation is {told[:600]}")
    page.axe("an explanation")
    page.page.press("Escape")
    page.wait("closed details", "!document.querySelector('#details').open")
    text = page.pdf()
    for wanted in ("USD", "held", "idle", "used", "kWh", "total"):
        page.expect(wanted in text, f"not on paper: {wanted}")
    page.narrow("the report")
    page.run("document.querySelector('#live').click()")
    page.wait("the live page", "document.querySelectorAll('.tile').length > 0")
    page.run("document.querySelector('#costs').click()")
    page.wait("the page of costs", "document.querySelector('#report:not([hidden]):not([aria-busy])') !== null")
    page.end()


class Fleet:
    """`gpumeter fleet` over the exports of a demo with a past of many nodes, and a closed month of them."""

    def __init__(self, suite, demo, zone="Etc/UTC"):
        self.exports, name = demo.state / "exports", zone.replace("/", "-")
        statements, config = suite.folder / f"statements-{name}", suite.folder / f"fleet-{name}.yaml"
        config.write_text(f"billing: {{time_zone: {zone}}}\n")
        month = (date.today().replace(day=1) - timedelta(days=1)).strftime("%Y-%m")
        closing = ["statement", "close", "--month", month, "--exports", self.exports, "--accept-gaps", "--statements", statements, "--time-zone", zone]
        # A month is closed once.
        if not statements.exists():
            subprocess.run([GPUMETER, *closing], check=True, capture_output=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ["env", f"CACHE_DIRECTORY={suite.folder / f'cache-{name}'}", GPUMETER, "fleet", "--exports", self.exports, "--statements", statements]
        self.program = suite.start(f"fleet-{name}", *command, "--config", config, "--listen", f"127.0.0.1:{port}")
        wait_for("the first look", harness.PATIENCE, self.is_ready, self.program)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=harness.PATIENCE):
                return True
        except OSError:
            return False


def fleet(suite, browser):
    """Twenty nodes with two months of past: the sums of every group are those of `bill` over the exports, and the page says what is missing."""
    demo = Demo(suite, "--history", "60d", "--nodes", "20", scenario="cluster", name="past-fleet")
    combinations(suite, demo, 10)
    fleet = Fleet(suite, demo)
    for scheme in ("light", "dark"):
        page = Costs(suite, browser, "a fleet with a past", fleet.url, "?period=last-month", scheme=scheme)
        page.axe("the report")
        told = page.text("main")
        page.expect(page.text("#node") == "20 nodes", f"it is of {page.text('#node')}")
        for wanted in ("statement 1", "unallocated", "complete: the exports of the 20 nodes", "of them held by nobody", "the tenants that have a budget"):
            page.expect(wanted in told.lower(), f"not said: {wanted}: {told[:1500]}")
        for group in ("node", "pool", "workload", "day", "tenant"):
            page.choose("#group", group)
            page.settled(f"by {group}", f"location.search.includes('group={group}') || {group!r} === 'tenant'")
            for column in ("USD", "GPU-hours held", "hours used", "kWh"):
                page.adds_up(column)
        shown = {name: amount for name, amount in get_shown(fleet, "last-month")}
        command = page.run("document.querySelector('#command code').textContent")
        billed = bill_rows(command.replace("--exports DIR", f"--exports {fleet.exports}"))
        page.expect(shown.keys() == billed.keys(), f"the page has {sorted(shown)}, the bill {sorted(billed)}")
        for name, amount in billed.items():
            page.expect(abs(amount - shown.get(name, 0)) < 0.01, f"{name}: {shown.get(name)} on the page, {amount} on the bill")
        page.picture(f"fleet-{scheme}")
        page.click("#rows tbody tr:first-child a.row-name")
        page.wait("what it is made of", "document.querySelectorAll('#details .inside tbody tr').length > 0")
        page.picture(f"fleet-row-{scheme}")
        page.page.press("Escape")
        text = page.pdf()
        for wanted in ("USD", "held", "idle", "used", "kWh", "total"):
            page.expect(wanted in text, f"not on paper: {wanted}")
        page.page.resize(390, 844)
        page.picture(f"fleet-phone-{scheme}")
        page.end()


def combinations(suite, demo, count):
    """Random periods, groups and filters in three zones: what the page shows is what the command says that it names."""
    random = Random(41)
    days = [date.today() - timedelta(days=day) for day in range(2, 59)]
    groups = ("tenant", "node", "model", "class", "day", "workload", "user", "namespace", "account", "pool", "gpu", "attribute:cost_center")
    for zone in ("Etc/UTC", "Europe/Zurich", "Asia/Kathmandu"):
        fleet = Fleet(suite, demo, zone)
        for _ in range(count):
            begin, end = sorted(random.sample(days, 2))
            asked = {"period": random.choice(["last-month", f"{begin}..{end}", f"{begin}..{end}"]), "group": random.choice(groups), "top": "1000"}
            if random.random() < 0.6:
                of = random.choice(["tenant", "node", "model"])
                rows = get_json(f"{fleet.url}/api/v1/costs", **asked | {"group": of})["rows"]
                filters = [row["filter"] for row in rows if row["filter"] and not row["remainder"]]
                asked |= random.choice(filters)
            elif random.random() < 0.3:
                asked["spread"] = "__unallocated__"
            answer = get_json(f"{fleet.url}/api/v1/costs", **asked)
            shown = [(float(row["held_ns"]) / 3.6e12, float(row["money"] or 0) + float(row["spread"] or 0)) for row in answer["rows"]]
            billed = billed_rows(answer["command"].replace("--exports DIR", f"--exports {fleet.exports}"))
            suite.expect(len(shown) == len(billed), f"{zone}, {asked}: {len(shown)} rows on the page, {len(billed)} on the bill: {answer['command']}")
            for one, other in zip(sorted(shown), sorted(billed)):
                # The bill rounds its lines together, each by at most one of the last digit.
                suite.expect(all(abs(mine - theirs) < 0.0003 for mine, theirs in zip(one, other)), f"{zone}, {asked}: {one} on the page, {other} on the bill: {answer['command']}")
            total = sum(amount for _, amount in billed)
            suite.expect(abs(float(answer["total"]["money"] or 0) - total) < 0.0002, f"{zone}, {asked}: the total is {answer['total']['money']} and {total}")
        fleet.program.stop()


def billed_rows(command):
    """Held hours and amount, with its share of remainders, by line of the command that the page names."""
    printed = subprocess.run([GPUMETER, *shlex.split(command)[1:], "--csv"], capture_output=True, text=True)
    if printed.returncode not in (0, 1):
        raise harness.Failed(f"{command}: {printed.stderr}")
    rows = {}
    for line in csv.DictReader(io.StringIO(printed.stdout)):
        known = rows.setdefault(line["line"].rsplit("+", 1)[0], [0, 0])
        known[0] += float(line["held_hours"])
        known[1] += float(line["amount"] or 0) + float(line["spread"] or 0)
    return [tuple(row) for row in rows.values()]


def get_shown(demo, period):
    answer = get_json(f"{demo.url}/api/v1/costs", period=period)
    return [(row["name"], float(row["shown"]["amount"])) for row in answer["rows"]]


def bill_rows(command):
    """The amounts of the command that the page names, by the first property."""
    words = command.split()
    printed = subprocess.run([GPUMETER, *words[1:], "--csv"], capture_output=True, text=True)
    if printed.returncode:
        raise harness.Failed(f"{command}: {printed.stderr}")
    rows = {}
    for line in csv.DictReader(io.StringIO(printed.stdout)):
        rows[line["tenant"]] = rows.get(line["tenant"], 0) + float(line["amount"])
    return rows


def check(suite):
    browser = Browser(suite)
    demo = Demo(suite)
    server = StandIn(suite, files_of(demo.url))
    for scheme in ("light",) if SMOKE else ("light", "dark"):
        walk(suite, browser, server, scheme)
        cases(suite, browser, server, scheme)
    keyboard(suite, browser, server)
    errors(suite, browser, server)
    paper(suite, browser, server)
    for scheme in () if SMOKE else ("light", "dark"):
        past(suite, browser, scheme)
    if not SMOKE:
        fleet(suite, browser)


if __name__ == "__main__":
    harness.run(check)
