"""F2: no driver, an incomplete driver, and one that does not return."""

import json
import random
import re
import shutil
import time

from harness import GPUMETER, free_port, get, wait_for

from . import FAST, SMOKE
from .measure import driver_problem, metrics, milliseconds, of, within
from .node import Node, written
from .table import scenario


@scenario(
    "F2", "initialisation hangs, the library is missing, or the driver lacks functions",
    "HTTP answers within 50 ms of the start, with no GPU up and the reason on the page; tries again with back-off; all "
    "optional symbols are probed",
    "a matrix of starts: no library, one that is none, a driver that is not loaded, an initialisation that does not "
    "return, and the library without one symbol or several. Times are the best of three")
def bad_starts(suite, table):
    donor = Node(suite, "F2-donor", config=FAST)
    donor.wait_up()
    time.sleep(3)  # by then every tier was read, and what was called is written
    simulated = suite.folder / "F2-driver"
    donor.lend(simulated)
    calls = donor.calls()
    donor.end()
    nonsense = written(suite, "F2-nonsense.so", "this is no library")
    library = simulated / "libnvidia-ml.so.1"
    hang = [{"function": "nvmlInit_v2", "hang": True}, {"function": "nvmlInitWithFlags", "hang": True}]
    refuse = [{"function": "nvmlInit_v2", "code": 9}, {"function": "nvmlInitWithFlags", "code": 9}]
    cases = [("no library", "/nonexistent/libnvidia-ml.so.1", [], "missing"),
             ("a file that is no library", nonsense, [], "missing"),
             ("a driver that is not loaded", library, refuse, "refused"),
             ("init does not return", library, hang, None)]
    for number, (what, path, faults, reason) in enumerate(cases):
        (simulated / "faults").write_text(json.dumps(faults))
        config = written(suite, f"F2-{number}.yaml", f"ledger: {{path: {suite.folder}/F2-{number}/ledger.db}}\n")
        # Other work on the machine may delay the agent, so the best of three is counted.
        starts = []
        for attempt in range(3):
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            began = time.monotonic()
            program = suite.start(f"F2-{number}-{attempt}", GPUMETER, "run", "--config", config, "--nvml-library",
                                  path, "--listen", f"127.0.0.1:{port}")
            wait_for("an answer", 10, lambda: get(f"{url}/-/healthy"), program, every=0.002)
            starts.append(time.monotonic() - began)
            if attempt < 2:
                program.stop()
        answered = min(starts)
        found = wait_for("a page", 10, lambda: metrics(get(f"{url}/metrics")[0]), program, every=0.01)
        table.row(f"{what}: HTTP answers after the start", "<= 50 ms", milliseconds(answered), answered <= 0.05,
                  speed=True)
        success, reasons = driver_problem(url)
        up = sum(value for _, value in of(found, "gpu_up"))
        if reason is None:
            ok = success in ([], [0.0]) and up == 0 and program.alive()
            table.row(f"{what}: no GPU is up, the agent is", "both", f"{up:.0f} up, success {success}", ok)
            told = lambda: re.search("has not returned for.*nvmlInit_v2", program.tail(50))
            said = within(10, lambda: told() and driver_problem(url) == ([0.0], ["no_answer"]), program)
            table.row(f"{what}: the log names the call, the page says so", "nvmlInit_v2, success 0, no_answer",
                      f"{'nvmlInit_v2' if told() else 'no call'}, {driver_problem(url)}", said)
        else:
            told = lambda: driver_problem(url)[0] == [0.0] and reason in driver_problem(url)[1]
            ok = within(10, told, program) and up == 0
            table.row(f"{what}: the page says so", f"success 0, {reason}", ", ".join(map(str, driver_problem(url))), ok)
        began = time.monotonic()
        program.stop()
        seconds = time.monotonic() - began
        # A program that SIGTERM does not end is killed.
        table.row(f"{what}: SIGTERM ends it", "<= 2 s", f"{seconds:.2f} s", seconds <= 2, speed=True,
                  holds=program.process.returncode >= 0)
    (simulated / "faults").write_text("[]")
    missing_symbols(suite, table, simulated, calls)
    late_library(suite, table, simulated)


# The number of agents that run at the same time.
AT_ONCE = 6


def missing_symbols(suite, table, simulated, calls):
    """The library without one symbol, for each that the agent calls, and without several."""
    dice = random.Random(9855)
    alone = [[name] for name in calls]
    several = [dice.sample(calls, count) for count in (2, 3, 5, 8, 13, 21, len(calls) - 1) for _ in range(1 if SMOKE else 4)]
    cases = (dice.sample(alone, 4) if SMOKE else alone) + several
    whole = (simulated / "libnvidia-ml.so.1").read_bytes()
    ended, silent, read = [], [], 0
    for first in range(0, len(cases), AT_ONCE):
        batch = [(names, *started(suite, simulated, f"{first}-{number}", without(whole, names)))
                 for number, names in enumerate(cases[first:first + AT_ONCE])]
        for names, url, program in batch:
            shown = ", ".join(names) if len(names) < 4 else f"{len(names)} symbols"
            outcome = within(20, lambda: told_or_read(url), program)
            if not program.alive():
                ended.append(shown)
            elif not outcome:
                silent.append(shown)
            else:
                read += told_or_read(url) == "read"
            program.stop()
    what = f"the library without one of {len(cases) - len(several)} symbols, and {len(several)} times without several"
    table.row(f"{what}: the agent ends", "never", "; ".join(ended) or "never", not ended)
    table.row(f"all GPUs are up ({read} of {len(cases)}), or the page says why not", "each", "; ".join(silent) or "each",
              not silent and read > 0)


def without(library, names):
    """The library with these names blanked where symbols are looked up."""
    for name in names:
        text = b"\0" + name.encode() + b"\0"
        library = library.replace(text, b"\0_" + text[2:])
    return library


def started(suite, simulated, name, library):
    """An agent over a library of its own: its page, and the program."""
    folder = suite.folder / f"F2-symbols-{name}"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_bytes(library)
    shutil.copy(simulated / "scenario", folder)
    config = written(suite, f"F2-symbols-{name}.yaml", f"ledger: {{path: {folder}/ledger.db}}\nsampling: {{level: full}}\n")
    port = free_port()
    program = suite.start(f"F2-symbols-{name}", GPUMETER, "run", "--config", config, "--nvml-library",
                          folder / "libnvidia-ml.so.1", "--listen", f"127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}", program


def told_or_read(url):
    found = metrics(get(f"{url}/metrics")[0])
    if sum(value for _, value in of(found, "gpu_up")) == 8:
        return "read"
    errors = [value for _, value in of(found, "gpumeter_collector_errors_total")]
    return "told" if any(errors) else None


def late_library(suite, table, simulated):
    """A library that appears while the agent looks for it."""
    folder = suite.folder / "F2-late"
    folder.mkdir()
    config = written(suite, "F2-late.yaml", f"ledger: {{path: {folder}/ledger.db}}\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    program = suite.start("F2-late", GPUMETER, "run", "--config", config, "--nvml-library", folder / "libnvidia-ml.so.1",
                          "--listen", f"127.0.0.1:{port}")
    tried = lambda: sum(value for labels, value in of(metrics(get(f"{url}/metrics")[0]), "gpumeter_collector_errors_total",
                                                      collector="driver"))
    wait_for("a first try", 10, tried, program)
    time.sleep(6.5 if SMOKE else 30)
    within(10, lambda: tried() >= 2, program)
    tries, seconds = tried(), time.monotonic() - started
    # After 1, 2, 4 and 8 s, then every 10.
    most = 1 + sum(at <= seconds for at in (1, 3, 7, 15)) + int(max(0, seconds - 15) // 10)
    table.row(f"there is no library for {seconds:.0f} s: it was looked for", f"2 to {most} times", f"{tries:.0f} times",
              2 <= tries <= most)
    shutil.copy(simulated / "scenario", folder)
    shutil.copy(simulated / "libnvidia-ml.so.1", folder)
    began = time.monotonic()
    up = within(20, lambda: sum(value for _, value in of(metrics(get(f"{url}/metrics")[0]), "gpu_up")) == 8, program)
    took = time.monotonic() - began
    table.row("then it is there: all GPUs are up", "<= 12 s", f"{took:.1f} s" if up else "never", took <= 12,
              speed=True, holds=up)
