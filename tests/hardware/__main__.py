"""Checks a gpumeter binary on this machine's NVIDIA GPUs, or over its simulated driver. See docs/hardware.md."""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import check_account
import check_cost
import check_kill
import check_mig
import check_page
import check_recording
import node
import report
from programs import Programs
from report import NotPossible
from session import Session

ROOT = HERE.parents[1]
# Seconds for everything, less what the end takes.
LONGEST = 345
CHECKS = {1: "the page against other readers", 2: "a recording and its replay", 3: "used time, energy and activity",
          4: "what the agent costs", 5: "kill -9, then the bill", 6: "MIG instances"}
# What the simulated driver cannot show; anything else that is not possible there is a failure.
NOT_SIMULATED = ("page against nvidia-smi", "a tenant's used time", "work lost", "of the time inside the driver", "of a processor",
                 "resident memory")


def main():
    arguments = parse()
    binary = find_binary(arguments.binary)
    simulated = arguments.simulated
    if not simulated and not node.has_driver():
        sys.exit("hardware: there is no NVIDIA driver on this machine; --simulated checks over the simulated one")
    if simulated and not unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromName("units")).wasSuccessful():
        sys.exit("hardware: its own unit checks fail")
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(name, interrupt)
    signal.alarm(LONGEST + 10)
    folder, kept = choose_folder(arguments)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    work = Path(tempfile.mkdtemp(prefix="gpumeter-hardware-"))
    table, programs = report.Report(folder, simulated), Programs(logs)
    interrupted = None
    try:
        check_all(table, programs, folder, binary, work)
    except KeyboardInterrupt as signalled:
        interrupted = str(signalled) or "interrupted"
        print(f"hardware: {interrupted}; what was started is ended", file=sys.stderr)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        programs.end_all()
        shutil.rmtree(work, ignore_errors=True)
    for number, what in CHECKS.items():
        if not any(line.check == number for line in table.lines):
            table.impossible(number, what, f"{interrupted} before it" if interrupted else "not reached")
    text = table.write()
    for name in report.tidy(folder):
        print(f"hardware: {name} is not kept: the folder would be larger than 10 MB", file=sys.stderr)
    print(f"\n{text}")
    status = 130 if interrupted else verdict(table, simulated)
    if kept or status:
        print(f"everything is kept in {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(status)


def parse():
    parser = argparse.ArgumentParser(prog=".ci/hardware", description=__doc__)
    parser.add_argument("--binary", metavar="FILE", help="gpumeter to check; by default $GPUMETER, target/release/gpumeter, or PATH's")
    parser.add_argument("--out", metavar="DIR", help="folder for everything; by default gpumeter-hardware-TIME here (--simulated: none)")
    parser.add_argument("--simulated", action="store_true", help="check over the simulated driver of the binary instead of a real one")
    return parser.parse_args()


def choose_folder(arguments):
    """The folder for everything, and whether it is kept in any case; one of a simulated run without --out is not where all is well."""
    if arguments.simulated and not arguments.out:
        return Path(tempfile.mkdtemp(prefix="gpumeter-hardware-out-")), False
    folder = Path(arguments.out or time.strftime("gpumeter-hardware-%Y%m%d-%H%M%S")).resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"hardware: {folder} is not empty; --out names another folder")
    return folder, True


def interrupt(number, _):
    raise KeyboardInterrupt("the six minutes were over" if number == signal.SIGALRM else "interrupted")


def find_binary(given):
    candidates = [given] if given else [os.environ.get("GPUMETER"), ROOT / "target/release/gpumeter", shutil.which("gpumeter")]
    for candidate in filter(None, candidates):
        if os.access(candidate, os.X_OK) and Path(candidate).is_file():
            return Path(candidate).resolve()
    sys.exit(f"hardware: {given or 'no gpumeter'} cannot be run; --binary FILE names one, `cargo build --release` builds one")


def check_all(table, programs, folder, binary, work):
    """Runs every check; one that fails says so in the table, and the others go on."""
    try:
        here = (node.SimulatedNode if table.simulated else node.Node)(binary, programs, work)
    except NotPossible as why:
        for number, what in CHECKS.items():
            table.impossible(number, what, why)
        return
    session = Session(here, table, programs, folder, time.monotonic() + LONGEST)
    table.notes += notes(binary, here)
    print("\n".join(table.notes), flush=True)
    guarded(session, 1, check_page.check)
    if guarded(session, 3, check_account.start):
        guarded(session, 5, check_kill.kill)
        guarded(session, 2, begin_recording)
        guarded(session, 3, check_account.loads)
        if session.recording:
            guarded(session, 2, lambda session: session.recording.check())
        # Over the simulated driver nothing is slowed down by the other agent, and the minute of the kill passes meanwhile.
        cost = (4, check_cost.check)
        account = [(3, check_account.judge), (6, check_mig.check), (5, check_kill.reconcile)]
        for number, part in [cost, *account] if here.simulated else [*account, cost]:
            guarded(session, number, part)


def begin_recording(session):
    session.recording = check_recording.Recording(session)


def guarded(session, number, check):
    """Whether a check, or a part of it, came to its end."""
    try:
        check(session)
        return True
    except NotPossible as why:
        session.report.impossible(number, CHECKS[number], why)
    except Exception as error:
        trace = traceback.format_exc()
        with open(session.folder / "logs/errors.log", "a") as log:
            log.write(trace)
        session.report.impossible(number, CHECKS[number], f"the check itself failed (logs/errors.log): {type(error).__name__}: {error}")
    return False


def notes(binary, here):
    """What was checked, for whoever reads the table elsewhere."""
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20).stdout.strip()
    system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    user = "root" if os.geteuid() == 0 else "not root"
    lines = [f"{version}, {time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime())}, {system}, {user}"]
    if here.simulated:
        return lines + ["SIMULATED: the driver is simulated and no figure is of real hardware"]
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader"]
        try:
            lines += subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()
        except (OSError, subprocess.TimeoutExpired):
            lines.append("nvidia-smi does not answer")
    return lines


def verdict(table, simulated):
    """The exit status: 1 where something differs, or is not possible over the simulated driver that should be."""
    wrong = table.differs()
    if simulated:
        wrong += [line for line in table.lines if line.verdict == report.NOT_POSSIBLE and not line.what.startswith(NOT_SIMULATED)]
    for line in wrong:
        print(f"hardware: FAILED: {line.check} {line.what}: {line.found}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
