"""5: `kill -9` of the agent while a load runs; then nothing is lost, and the bill reconciles."""

import re
import time

from report import NotPossible
from tolerances import LIMITS

CHECK = 5


def kill(session):
    """Kills and restarts the agent; the checks that follow show what the account then is."""
    agent, watch, seconds = session.agent, session.watch, session.seconds["kill"]
    worker = None
    try:
        worker = session.worker("a")
        watch.work("tensor", worker, 2 * seconds + 3)
    except NotPossible:
        pass  # the account of an idle GPU is an account too
    watch.wait(seconds)
    session.killed = time.time()
    agent.program.kill()
    agent.start()
    watch.wait(seconds)
    if worker:
        watch.finish("tensor", worker, seconds + 40)
    watch.since = time.time()


def reconcile(session):
    """At least a minute after the kill: a bill covers whole minutes."""
    if not session.killed:
        raise NotPossible("the agent was not killed")
    agent, watch, limit = session.agent, session.watch, LIMITS["lost"]
    watch.settle((session.killed // 60 + 1) * 60, 90)
    settled, page = watch.history[-1]
    lost = settled - watch.first - page.sum("gpu_slot_seconds_total", uuid=watch.uuid)
    session.report.judge(CHECK, limit.what, f"{lost:+.2f} s", limit.allowed, abs(lost) <= limit.bound)
    imbalance = page.value("gpumeter_ledger_imbalance_seconds")
    session.report.judge(CHECK, "gpumeter_ledger_imbalance_seconds after it", f"{imbalance:g}", "0", imbalance == 0)
    agent.stop()
    bill(session, agent)


def bill(session, agent):
    """The bill of the ledger after the agent has ended."""
    code, text = agent.gpumeter("bill", "--ledger", agent.ledger, "--time-zone", "UTC")
    (session.folder / "bill.txt").write_text(text)
    line = re.search(r"^reconciles: (.*)$", text, re.M)
    found = line[1] if line else f"gpumeter bill ends with {code} (logs/account-bill.log)"
    holds = code == 0 and line and not re.search(r"held 0(\.0+)? s", found)
    session.report.judge(CHECK, "gpumeter bill after the kill", found, "reconciles", holds)
