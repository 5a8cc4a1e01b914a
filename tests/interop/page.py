"""The live page and a bill's HTML in Chromium: every control, by mouse and by keyboard; nothing on the console, no violation
of the policy, no finding of axe, no request to anybody but the agent; hostile names are text; the largest node stays small.

`GPUMETER_SMOKE=1` leaves out one colour scheme of each node, the controls where all is MIG, an agent that stops, the
measurements, and the page that is open for a day.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import harness
from browser import Browser
from harness import GPUMETER, SMOKE, Demo, free_port, get, get_json, wait_for

MOST_COMPRESSED = 100 * 1024
MOST_ELEMENTS = 2_000
HOSTILE = ['<img src=x onerror="hacked(1)">', "\"'><svg onload=hacked(2)>", "</script><script>hacked(3)<", "javascript:hacked(4)"]
# Names of processes have 15 bytes.
HOSTILE_PROCESS = "<b onclick=x>"
# A page on which a hostile name ran tells.
GUARD = "window.hacked = (number) => console.error('hacked', number);"

CONFIG = """
node: {name: %s}
sampling: {level: full, interval: %s}
attribution: {presence: true}
prices: {book: example}
tenants: {budgets: {%s: %s}}
limits: {birth_delay: 15s}
"""


def axe():
    return (Path(shutil.which("gpumeter-python")).parents[1] / "axe.js").read_text()


def text_of(name):
    """What is shown of a hostile name: a unit's has no slash."""
    return name.replace("/", "") if name == HOSTILE[2] else name


# Nodes


def process(pid, gpu, name="python3", instance=None, demand=0.7, cgroup=None, uid=1001):
    phase = {"from": 0, "to": 600, "demand": demand, "memory_bytes": 2 << 30, "sm": 0.8, "tensor": 0.4, "dram": 0.3}
    cgroup = cgroup or f"/user.slice/user-{uid}.slice/session-1.scope"
    return {"pid": pid, "name": name, "gpu": gpu, "instance": instance, "phases": [phase], "host": {"uid": uid, "cgroup": cgroup}}


def users(*names):
    return [{"uid": 1001 + place, "name": name} for place, name in enumerate(names)]


def healthy_node():
    processes = [process(4000 + gpu, gpu, uid=1001 + gpu % 3, demand=0.4 + 0.15 * (gpu % 4)) for gpu in range(7)]
    return {"seed": 1, "gpus": [{"profile": "h100", "count": 8}], "users": users("alice", "bob", "carol"), "processes": processes}


def mig_node():
    layout = [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]
    gpus = [{"profile": "h100", "mig": layout}, {"profile": "h100", "mig": {"mode": "on", "instances": []}}, {"profile": "h100"}]
    processes = [process(4000, 0, instance=0), process(4001, 0, instance=1, uid=1002), process(4002, 2, uid=1002)]
    return {"seed": 1, "gpus": gpus, "users": users("alice", "bob"), "processes": processes}


def wrong_node():
    """Faults of every kind, and hostile names of users, units, Slurm accounts and processes."""
    unit = HOSTILE[2].replace("/", "")
    processes = [
        process(4000, 0, HOSTILE_PROCESS, uid=1001),
        process(4100, 1, HOSTILE_PROCESS, uid=1002),
        process(4200, 2, HOSTILE_PROCESS, cgroup=f"/system.slice/{unit}.service"),
        process(4300, 3, HOSTILE_PROCESS, cgroup="/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"),
        process(4400, 4, HOSTILE_PROCESS, uid=1002),
        {key: value for key, value in process(4500, 5).items() if key != "host"},
        process(4600, 6, demand=0),
    ]
    return {
        "seed": 1, "gpus": [{"profile": "h100", "count": 10}], "users": users(*HOSTILE[:2]), "processes": processes,
        "jobs": [{"job_id": 7, "gpus": [3], "cluster": "alpha", "account": HOSTILE[3], "user": HOSTILE[0], "uid": "1001"}],
        "memory_errors": [{"at": 1, "gpu": 0, "kind": "dram_uncorrected"}],
        "remaps": [{"at": 1, "gpu": 0, "cause": "uncorrectable", "failure": True}],
        "throttles": [{"from": 0, "to": 600, "gpu": 1, "reason": "hw_thermal"}, {"from": 0, "to": 600, "gpu": 2, "reason": "sw_thermal"},
                      {"from": 0, "to": 600, "gpu": 4, "reason": "sw_power_cap"}],
    }


def large_node():
    """16 GPUs with 7 instances each and 200 processes each, of 112 holders."""
    layout = [{"profile": "1g.10gb", "start": start} for start in range(7)]
    processes = []
    for gpu in range(16):
        for number in range(200):
            instance = number % 7
            owner = process(10_000 + gpu * 200 + number, gpu, instance=instance, uid=1001 + gpu * 7 + instance, demand=0.02)
            owner["phases"][0]["memory_bytes"] = 128 << 20
            processes.append(owner)
    return {"seed": 1, "gpus": [{"profile": "h100", "count": 16, "mig": layout}], "users": users(*(f"user{number}" for number in range(112))),
            "processes": processes}


def start_demo(suite, name, node, *arguments, budget=("alice", 1000), interval="1s"):
    folder = suite.folder / name
    folder.mkdir()
    scenario, config = folder / "node.json", folder / "config.yaml"
    scenario.write_text(json.dumps(node))
    config.write_text(CONFIG % (name, interval, json.dumps(budget[0]), budget[1]))
    return Demo(suite, "--config", config, *arguments, scenario=scenario, state=folder / "demo")


# Checks


class Checked:
    """A page that is looked at from load to end."""

    def __init__(self, suite, browser, name, url, size=(1400, 1000), scheme="light"):
        self.suite, self.name, self.url = suite, f"{name}, {scheme}", url
        self.page = browser.page(f"{url}/", *size, scheme=scheme, script=GUARD)
        self.page.wait(f"tiles of {self.name}", "document.querySelectorAll('.tile, .meter svg path[d*=L]').length > 1")

    def expect(self, holds, finding):
        return self.suite.expect(holds, f"{self.name}: {finding}")

    def run(self, script):
        return self.page.run(script)

    def wait(self, what, script):
        return self.page.wait(f"{self.name}: {what}", script)

    def click(self, selector):
        self.page.click(selector)

    def count(self, selector):
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def axe(self, where):
        if not self.run("typeof axe === 'object'"):
            self.run(axe() + "; true")
        found = json.loads(self.run("axe.run(document).then((found) => JSON.stringify(found.violations))"))
        for one in found:
            nodes = [node["target"] + [node["failureSummary"][:200]] for node in one["nodes"][:3]]
            self.expect(False, f"axe in {where}: {one['id']}: {one['help']}: {nodes}")
        self.expect(not found, f"axe finds something in {where}")

    def elements(self):
        return self.run("document.querySelectorAll('*').length")

    def end(self, allowed=()):
        """What must hold at the end of every page."""
        own = urlsplit(self.url).netloc
        # The browser's own icons are data.
        elsewhere = {url for url in self.page.requests if urlsplit(url).netloc != own and not url.startswith(("about:", "data:"))}
        self.expect(not elsewhere, f"it asks others: {elsewhere}")
        said = [line for line in self.page.said if not any(words in line for words in allowed)]
        self.expect(not said, f"on the console: {said[:5]}")
        self.expect(not self.run("window.violations"), f"violations of the policy: {self.run('window.violations')}")
        self.page.close()


def walk(checked):
    """Every control of the page, by mouse."""
    tested = set()

    def control(name):
        tested.add(name)
        return f"#{name}"

    def choose(name, value):
        selector = json.dumps(control(name))
        checked.run(f"(() => {{const one = document.querySelector({selector}); one.value = {json.dumps(value)}; one.dispatchEvent(new Event('input', {{bubbles: true}})); one.dispatchEvent(new Event('change', {{bubbles: true}}));}})()")

    tiles = checked.count(".tile")
    checked.click(control("filter"))
    checked.page.type("nothing has this name")
    checked.wait("a filter that leaves nothing", "document.querySelectorAll('.tile').length === 0")
    checked.expect("0 of" in checked.run("document.querySelector('#shown').textContent"), "the filter does not tell how many are shown")
    checked.page.call("Input.dispatchKeyEvent", type="keyDown", key="a", windowsVirtualKeyCode=65, modifiers=2, commands=["selectAll"])
    checked.page.type("gpu 1")
    checked.wait("a filter by name", f"document.querySelectorAll('.tile').length > 0 && document.querySelectorAll('.tile').length < {tiles}")
    choose("filter", "")
    for value in checked.run("[...document.querySelector('#show').options].map((one) => one.value)"):
        choose("show", value)
        shown = checked.count(".tile")
        checked.expect(shown == tiles if value == "all" else shown <= tiles, f"show {value}: {shown} of {tiles} tiles")
    choose("show", "all")
    for value in checked.run("[...document.querySelector('#sort').options].map((one) => one.value)"):
        choose("sort", value)
        checked.expect(checked.count(".tile") == tiles, f"sort by {value} loses tiles")
    choose("sort", "gpu")
    for value in ("dark", "light", ""):
        choose("theme", value)
        theme = checked.run("document.documentElement.dataset.theme ?? ''")
        checked.expect(theme == value, f"theme {value!r} becomes {theme!r}")
    pause = control("pause")
    checked.click(pause)
    # An answer that is under way is still shown; the page gives up after ten seconds.
    for _ in range(100):
        if checked.page.waiting:
            checked.page.listen(0.2)
    checked.expect(not checked.page.waiting, f"a paused page asks {checked.page.waiting}")
    checked.page.listen(1)
    clock = checked.run("document.querySelector('#clock').textContent")
    checked.page.listen(2.5)
    checked.expect(clock == checked.run("document.querySelector('#clock').textContent"), "a paused page goes on")
    checked.click(pause)
    checked.wait("the page to go on", f"document.querySelector('#clock').textContent !== {json.dumps(clock)}")
    if not checked.run(f"document.querySelector('{control('more-problems')}').hidden"):
        before = checked.count("#problems li")
        checked.click("#more-problems")
        checked.expect(checked.count("#problems li") > before, "no more problems are shown")
        checked.click("#more-problems")
        checked.expect(checked.count("#problems li") == before, "all problems stay")
    checked.click(control("open-processes"))
    checked.wait("processes", "document.querySelectorAll('#processes tbody tr').length > 0")
    for table in ("tenants", "workloads", "processes"):
        control(table)
        for column in range(1, checked.count(f"#{table} thead th:not([hidden])") + 1):
            head = f"#{table} thead th:not([hidden]):nth-of-type({column})"
            if not checked.count(f"{head} button"):
                continue
            checked.click(f"{head} button")
            first = checked.run(f"document.querySelector('{head}').ariaSort")
            checked.click(f"{head} button")
            second = checked.run(f"document.querySelector('{head}').ariaSort")
            checked.expect({first, second} == {"ascending", "descending"}, f"column {column} of {table} sorts {first}, {second}")
    checked.axe("the page with processes")
    checked.click("#open-processes")
    checked.expect(checked.run("document.querySelector('#processes').hidden"), "processes stay open")
    dialogs(checked, control)
    links = checked.run("[...document.querySelectorAll('footer a, noscript a')].map((one) => one.href)")
    for link in links:
        checked.expect(link.startswith(checked.url), f"{link} leads away")
        if "api/v1/bill" not in link:
            checked.expect(get(link)[0], f"{link} is empty")
    untested = set(checked.run(
        "[...document.querySelectorAll('button[id], input[id], select[id], [tabindex][id]')].map((one) => one.id)")) - tested
    checked.expect(untested <= {"gpus", "details-title"}, f"no test of these controls: {untested}")


def dialogs(checked, control):
    """Details of a GPU, a tenant and a workload, with links and buttons."""
    is_open, is_closed = "document.querySelector('#details').open", "!document.querySelector('#details').open"
    checked.click(".tile h3 a")
    checked.wait("details of a GPU", is_open)
    checked.wait("plots", "document.querySelectorAll('.chart canvas').length === 4")
    checked.wait("legends with the last values, though nothing is pointed at",
                 "[...document.querySelectorAll('.chart')].every((chart) => [...chart.querySelectorAll('.u-value')].every((one) => /[0-9]/.test(one.textContent)))")
    checked.wait("its processes", "document.querySelector('#details-body section:last-child li') !== null")
    checked.axe("a GPU's details")
    checked.click("#details-body section .bar button")
    checked.expect(checked.count("#details-body .table tbody tr") == 20, "the history has no rows as a table")
    checked.axe("a GPU's history as a table")
    checked.click("#details-body section .bar button")
    checked.click(control("copy-link"))
    checked.wait("a copied link", "/copied|does not allow/.test(document.querySelector('#said').textContent)")
    address = checked.run("location.href")
    checked.expect("#gpu=GPU-" in address, f"{address} is no link to a GPU")
    checked.click(control("close-details"))
    checked.wait("closed details", f"{is_closed} && location.hash === ''")
    for table, kind in (("tenants", "tenant"), ("workloads", "workload")):
        if not checked.count(f"#{table} tbody a[href]"):
            continue
        checked.click(f"#{table} tbody a[href]")
        checked.wait(f"details of a {kind}", f"{is_open} && location.hash.startsWith('#{kind}=') && document.querySelectorAll('#details-body dd').length > 1")
        checked.axe(f"a {kind}'s details")
        if checked.count("#details-body .links a[href]"):
            checked.click("#details-body .links a[href]")
            checked.wait("the details behind a link", f"{is_open} && !location.hash.startsWith('#{kind}=')")
            checked.run("history.back()")
            checked.wait("the details before", f"location.hash.startsWith('#{kind}=')")
        checked.page.press("Escape")
        checked.wait("details closed by Escape", is_closed)


def keyboard(checked):
    """The page without a mouse."""
    checked.click("#node")  # from there on, so that the skip link is the stop before
    checked.page.press("Tab", shift=True)
    checked.expect(checked.run("document.activeElement.className") == "skip", "the first stop is not the skip link")
    checked.page.press("Enter")
    checked.expect(checked.run("document.activeElement.id") == "gpus", "the skip link does not lead to the GPUs")
    checked.page.press("/")
    checked.expect(checked.run("document.activeElement.id") == "filter", "/ does not lead to the filter")
    checked.expect(checked.run("document.activeElement.value") == "", "/ is typed into the filter")
    seen = set()
    for _ in range(400):
        checked.page.press("Tab")
        stop = checked.run("""(() => {
            const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
            const name = one.id || `${one.tagName} of ${one.closest('[id]')?.id}: ${one.textContent.slice(0, 30)}`;
            if (one === document.body || one.wasStop) return [];
            one.wasStop = true;
            return [name, box.width > 0 && box.height > 0, style.outlineStyle !== 'none' || style.outlineWidth !== '0px'];
        })()""")
        if not stop:
            break
        seen.add(stop[0])
        checked.expect(stop[1] and stop[2], f"{stop[0]} has the focus and does not show it")
    for wanted in ("show", "sort", "tenants", "workloads", "open-processes"):
        checked.expect(wanted in seen, f"Tab does not reach {wanted}: {sorted(seen)}")
    checked.run("document.querySelector('.tile h3 a').focus()")
    checked.page.press("Enter")
    checked.wait("details by Enter", "document.querySelector('#details').open")
    for _ in range(30):
        checked.page.press("Tab")
        inside = checked.run("document.activeElement === document.body || document.querySelector('#details').contains(document.activeElement)")
        checked.expect(inside, "the focus leaves the open details")
    checked.page.press("Escape")
    checked.wait("details closed by Escape", "!document.querySelector('#details').open")
    back = checked.run("document.activeElement.closest('.tile') !== null")
    checked.expect(back, "the focus does not return to the link of the details")
    checked.run("document.querySelector('#tenants thead button').focus()")
    checked.page.press(" ")
    checked.expect(checked.run("document.querySelector('#tenants thead th').ariaSort") is not None, "a column does not sort by the keyboard")


def healthy(suite, browser, schemes):
    demo = start_demo(suite, "healthy", healthy_node(), "--speed", "10")
    wait_for("the tenants' minutes", 60, lambda: demo.api("summary")["recent_seconds"] > 0, demo.program)
    # At that speed a GPU whose readings are late by a fifth of a second does not answer.
    demo.clock.run(1)
    wait_for("a healthy node", 60, lambda: not demo.api("summary")["problems"], demo.program)
    for scheme in schemes:
        checked = Checked(suite, browser, "healthy", demo.url, scheme=scheme)
        checked.page.listen(1)
        checked.expect(checked.page.bytes <= MOST_COMPRESSED, f"the first load has {checked.page.bytes} bytes")
        print(f"first load: {checked.page.bytes} bytes over {len(checked.page.requests)} requests; {checked.elements()} elements with 8 GPUs")
        checked.expect(checked.run("document.querySelector('#attention').hidden"), "a healthy node needs attention")
        checked.axe("the page")
        walk(checked)
        keyboard(checked)
        for width in (1000, 640, 360):
            checked.page.resize(width, 800)
            wide = checked.run("document.documentElement.scrollWidth")
            checked.expect(wide <= width, f"at {width} pixels it is {wide} wide")
        checked.axe("a narrow window")
        checked.end()
    if not SMOKE:
        marks(suite, browser, demo)
    return demo


def marks(suite, browser, demo):
    """Driver released, agent stopped, agent gone."""
    checked = Checked(suite, browser, "marks", demo.url)
    socket = ["--socket", demo.state / "control.sock"]
    subprocess.run([GPUMETER, "quiesce", "--for", "10m", *socket], check=True, capture_output=True)
    checked.wait("the mark of a released driver", "document.querySelector('#marks').textContent.includes('QUIESCED')")
    checked.axe("a released driver")
    subprocess.run([GPUMETER, "resume", *socket], check=True, capture_output=True)
    checked.wait("no mark", "!document.querySelector('#marks').textContent.includes('QUIESCED')")
    demo.program.process.send_signal(harness.signal.SIGSTOP)
    checked.wait("the mark of an agent that stands still", "document.querySelector('#marks').textContent.includes('STALE')")
    demo.program.process.send_signal(harness.signal.SIGCONT)
    checked.wait("no mark", "!document.querySelector('#marks').textContent.includes('STALE')")
    demo.program.kill()
    checked.wait("the mark of an agent that is gone", "document.querySelector('#marks').textContent.includes('STALE')")
    demo.start()
    checked.wait("no mark", "!document.querySelector('#marks').textContent.includes('STALE')")
    checked.end(allowed=["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING"])


def divided(suite, browser, schemes):
    demo = start_demo(suite, "mig", mig_node(), "--speed", "10")
    for scheme in schemes:
        checked = Checked(suite, browser, "MIG", demo.url, scheme=scheme)
        checked.wait("instances", "document.querySelector('.tile:first-child .mig > div') !== null")
        parts = checked.run("[...document.querySelectorAll('.tile:first-child .mig > div')].map((one) => [one.textContent, one.className, getComputedStyle(one).flexGrow])")
        checked.expect([part[2] for part in parts if part[1] == "instance"] == ["1", "4"], f"instances are not to scale: {parts}")
        checked.expect(any(part[1] == "free" for part in parts), f"no free slices: {parts}")
        checked.axe("the page")
        if not SMOKE:
            walk(checked)
        checked.end()


def wrong(suite, browser, schemes):
    """Everything wrong at once."""
    # At 90 times real time, ticks of 1 s are late whenever the machine is busy, and more than a twentieth of two hours without use is
    # unknown. Ticks of 10 s are not.
    demo = start_demo(suite, "wrong", wrong_node(), "--speed", "90", budget=(HOSTILE[0], 0.01), interval="10s")
    demo.condition({"gpus": {"7": {"state": "lost"}}})
    demo.faults({"function": "nvmlDeviceGetTemperature", "gpu": 8, "hang": True}, {"function": "nvmlDeviceGetTemperatureV", "gpu": 8, "hang": True})
    problems = ("failed", "lost", "does not answer", "degraded", "over its budget", "unknown owners", "held without use")

    def all_there():
        titles = " ".join(problem["title"] for problem in demo.api("summary")["problems"])
        return all(words in titles for words in problems)

    wait_for(f"problems {problems}", 300, all_there, demo.program)
    demo.clock.run(1)
    for scheme in schemes:
        checked = Checked(suite, browser, "everything wrong", demo.url, scheme=scheme)
        checked.axe("the page")
        for name in HOSTILE:
            shown = checked.run(f"document.body.textContent.includes({json.dumps(text_of(name))})")
            checked.expect(shown, f"{name} is not shown as text")
        walk(checked)
        checked.click("#open-processes")
        checked.wait("a hostile process", f"document.querySelector('#processes').textContent.includes({json.dumps(HOSTILE_PROCESS)})")
        markup = checked.count("main img, main svg:not([viewBox]), main b[onclick], main script, a[href^=javascript]")
        checked.expect(markup == 0, f"{markup} elements are of a hostile name")
        checked.end()
    without_account(suite, browser, demo)
    bill(suite, browser, demo, hostile=True)


def without_account(suite, browser, demo):
    """An agent whose ledger is not there, on the same GPUs."""
    port, config = free_port(), suite.folder / "no-account.yaml"
    config.write_text(f"ledger: {{path: {suite.folder}/missing/ledger.db}}\nweb: {{control: off}}\n")
    agent = suite.start("no-account", GPUMETER, "run", "--config", config, "--listen", f"127.0.0.1:{port}", "--nvml-library",
                        demo.driver / "libnvidia-ml.so.1")
    url = f"http://127.0.0.1:{port}"
    wait_for("an agent without an account", 30, lambda: get_json(f"{url}/api/v1/summary")["gpus"], agent)
    checked = Checked(suite, browser, "no account", url)
    checked.wait("the mark", "document.querySelector('#marks').textContent.includes('NO ACCOUNT')")
    checked.page.listen(2)
    checked.axe("the page")
    checked.end()
    agent.stop()


def bill(suite, browser, demo, hostile=False):
    """The bill as one file."""
    file = suite.folder / "bill.html"
    for by in ("tenant,model",) if SMOKE else ("tenant", "tenant,model", "workload"):
        printed = subprocess.run([GPUMETER, "bill", "--url", demo.url, "--html", "--by", by], capture_output=True, text=True)
        suite.expect(printed.returncode == 0, f"bill --html: {printed.stderr}")
        file.write_text(printed.stdout)
        for scheme in ("light", "dark"):
            page = browser.page(file.as_uri(), 1100, 900, scheme=scheme, script=GUARD)
            page.wait("the bill", "document.readyState === 'complete' && document.querySelector('table') !== null")
            checked = Checked.__new__(Checked)
            checked.suite, checked.name, checked.url, checked.page = suite, f"bill by {by}, {scheme}", file.as_uri(), page
            checked.axe("the bill")
            requests = [url for url in page.requests if url != file.as_uri()]
            checked.expect(not requests, f"it asks {requests}")
            checked.expect(not page.said, f"on the console: {page.said[:5]}")
            checked.expect(page.run("document.querySelectorAll('script, img, [onload], [onerror], [onclick]').length") == 0, "it has active parts")
            wide = page.run("document.documentElement.scrollWidth")
            checked.expect(wide <= 1100, f"it is {wide} pixels wide in a window of 1100")
            if hostile and by != "workload":
                for name in HOSTILE:
                    checked.expect(page.run(f"document.body.textContent.includes({json.dumps(text_of(name))})"), f"{name} is not shown as text")
            page.close()


def large(suite, browser):
    """The largest node, and what pages cost there."""
    demo = start_demo(suite, "large", large_node())
    wait_for("its holders", 120, lambda: len(demo.api("summary")["workloads"]) >= 112, demo.program)
    checked = Checked(suite, browser, "16 GPUs, 112 instances, 3,200 processes", demo.url)
    checked.click("#open-processes")
    checked.wait("processes", "document.querySelectorAll('#processes tbody tr').length > 0")
    elements = checked.elements()
    print(f"elements at 16 GPUs x 7 instances x 200 processes, processes open: {elements}")
    checked.expect(elements <= MOST_ELEMENTS, f"the page has {elements} elements")
    checked.click(".tile h3 a")
    checked.wait("plots", "document.querySelectorAll('.chart canvas').length === 4")
    elements = checked.elements()
    print(f"the same with a GPU's details open: {elements}")
    checked.expect(elements <= MOST_ELEMENTS, f"with details the page has {elements} elements")
    checked.page.press("Escape")
    checked.expect(checked.page.bytes <= MOST_COMPRESSED, f"the first load has {checked.page.bytes} bytes")
    if not SMOKE:
        checked.axe("the page")
        costs(browser, demo, checked)
    checked.end()


def costs(browser, demo, checked, seconds=60):
    """The table of docs/page.md."""
    def cpu():
        fields = Path(f"/proc/{demo.program.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def agent(pages):
        before, began = cpu(), time.monotonic()
        for page in pages:
            page.listen(seconds / len(pages))
        if not pages:
            time.sleep(seconds)
        return 100 * (cpu() - before) / (time.monotonic() - began)

    before = checked.page.metrics()
    one = agent([checked.page])
    after = checked.page.metrics()
    busy = {name: (after[name] - before[name]) / seconds * 1000 for name in ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")}
    print(f"main thread of the page, ms per second: {busy}")
    others = [browser.page(f"{demo.url}/", script=GUARD) for _ in range(9)]
    for page in others:
        page.wait("tiles", "document.querySelectorAll('.tile').length > 0")
    ten = agent([checked.page, *others])
    for page in others:
        page.close()
    checked.click("#pause")
    none = agent([])
    checked.click("#pause")
    print(f"agent, percent of a processor: {none:.2f} with no page, {one:.2f} with one, {ten:.2f} with ten")


def day(suite, browser, speed=60):
    """A page left open for a day of the node and of its own timers: neither browser nor agent grows."""
    demo = start_demo(suite, "day", healthy_node(), "--speed", str(speed))
    hasten = f"""
        const setReal = window.setTimeout, now = performance.now.bind(performance);
        window.setTimeout = (run, pause, ...more) => setReal(run, pause / {speed}, ...more);
        performance.now = () => now() * {speed};
    """
    page = browser.page(f"{demo.url}/", script=GUARD + hasten)
    page.wait("the bill", "document.querySelector('#tenants thead')?.textContent.includes('Month')")
    # At that speed a GPU is soon late, and what is told of it moves the page below the mouse.
    demo.clock.run(1)
    page.click("#open-processes")
    page.click(".tile h3 a")
    demo.clock.run(speed)

    def sizes():
        page.call("HeapProfiler.collectGarbage")
        metrics = page.metrics()
        resident = int(Path(f"/proc/{demo.program.process.pid}/statm").read_text().split()[1]) * 4096
        return {"heap": metrics["JSHeapUsedSize"], "nodes": metrics["Nodes"], "listeners": metrics["JSEventListeners"], "agent": resident}

    hour = 3600 / speed
    page.listen(4 * hour)
    early = sizes()
    page.listen(20 * hour)
    late = sizes()
    asked = sum("api/v1/summary" in url for url in page.requests)
    print(f"after 4 and after 24 hours: {early}, {late}; {asked} times asked for the summary")
    # On a busy machine less often than in real time, but not rarely.
    suite.expect(asked > 24 * 60, f"the page asked {asked} times in a day")
    for name, most in (("heap", 1.2), ("nodes", 1.1), ("listeners", 1.1), ("agent", 1.15)):
        suite.expect(late[name] <= early[name] * most, f"{name} grows from {early[name]} to {late[name]} in a day")
    suite.expect(not page.said, f"a day: on the console: {page.said[:5]}")
    page.close()


def check(suite):
    browser = Browser(suite)
    both = ("light", "dark")
    healthy(suite, browser, both[:1] if SMOKE else both)
    divided(suite, browser, both[1:] if SMOKE else both)
    wrong(suite, browser, both[1:] if SMOKE else both)
    large(suite, browser)
    if not SMOKE:
        day(suite, browser)


if __name__ == "__main__":
    harness.run(check)
