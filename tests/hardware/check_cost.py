"""4: what the agent costs: work lost by a load that fills the GPU, time inside the driver, processor, memory."""

import shutil
import time

import duty
from report import NotPossible
from tolerances import LIMITS

CHECK = 4
CONFIG = {"sampling": {"interval": "1s"}, "attribution": {"presence": True}}


def check(session):
    """Pairs take turns in their order, so that a GPU that warms up favours none."""
    if session.agent and not session.node.simulated:
        session.agent.stop()
    session.need(session.seconds["pairs"] * (3 * session.seconds["pair"] + 5))
    watched = Watched()
    loaded, why = True, None
    try:
        worker = session.worker("a")
    except NotPossible as problem:
        loaded, why, worker = False, problem, None
    modes = ["alone", "agent"] + (["smi"] if shutil.which("nvidia-smi") and not session.node.simulated else [])
    rates = {mode: [] for mode in modes}
    for pair in range(session.seconds["pairs"] if loaded else 2):
        for mode in modes[pair % len(modes):] + modes[:pair % len(modes)]:
            rates[mode].append(beside(session, mode, worker, watched))
    if loaded:
        slowdown(session, rates)
    else:
        session.report.impossible(CHECK, LIMITS["slowdown"].what, why)
    watched.report(session)


def beside(session, mode, worker, watched):
    """The rate of work beside nothing, the agent, or nvidia-smi once a second."""
    agent = program = None
    if mode == "agent":
        agent = session.node.agent("cost", **CONFIG)
    if mode == "smi":
        program = session.programs.start("nvidia-smi-loop", ["nvidia-smi", "-l", "1"])
    try:
        time.sleep(session.seconds["settle"])
        watched.begin(agent)
        rate = work(session, worker, session.seconds["pair"]) if worker else time.sleep(session.seconds["pair"])
        watched.end(agent)
        return rate
    finally:
        if agent:
            agent.stop()
        if program:
            session.programs.end(program)


def work(session, worker, seconds):
    """Kernels per second of GPU time; of a simulated load, the share of time in which it was busy."""
    watch = session.watch
    begin = time.time()
    watch.work("tensor", worker, seconds)
    answer = watch.finish("tensor", worker, seconds + 30)
    if session.node.simulated:
        # The simulated driver writes what is true at its next call after a second.
        samples = watch.truth.samples.get("tensor", [])
        return duty.at(samples, time.time()) - duty.at(samples, begin) or 1.0
    return answer["iterations"] / answer["busy"]


def slowdown(session, rates):
    limit = LIMITS["slowdown"]
    if session.node.simulated:
        session.report.impossible(CHECK, limit.what, "a simulated load is not slowed down")
        return
    lost, scatter = duty.slowdown(rates["alone"], rates["agent"])
    session.report.judge(CHECK, limit.what, f"{lost:+.2%} (scatter alone {scatter:.2%})", limit.allowed, lost <= max(limit.bound, scatter))
    if "smi" in rates:
        session.report.add(CHECK, "the same beside nvidia-smi once a second", f"{duty.slowdown(rates['alone'], rates['smi'])[0]:+.2%}",
                           "for comparison", "ok")
    else:
        session.report.impossible(CHECK, "the same beside nvidia-smi once a second", "there is no nvidia-smi")


class Watched:
    """Driver time, processor and memory of the agent, by its own page, over all spans in which it was watched."""

    def __init__(self):
        self.seconds, self.driver, self.processor, self.memory = 0.0, 0.0, 0.0, 0
        self._before = None

    def look(self, agent):
        page = agent.page()
        return (time.monotonic(), page.sum("gpumeter_driver_call_duration_seconds_sum"), page.value("process_cpu_seconds_total"),
                page.value("process_resident_memory_bytes"))

    def begin(self, agent):
        self._before = self.look(agent) if agent else None

    def end(self, agent):
        if agent:
            now = self.look(agent)
            self.seconds += now[0] - self._before[0]
            self.driver += now[1] - self._before[1]
            self.processor += now[2] - self._before[2]
            self.memory = max(self.memory, now[3])

    def report(self, session):
        driver, processor = self.driver / self.seconds, self.processor / self.seconds
        figures = (("driver", driver, f"{driver:.3%}, {driver * 1e3:.2f} ms a tick"), ("processor", processor, f"{processor:.2%}"),
                   ("memory", self.memory, f"{self.memory / 2**20:.1f} MiB"))
        for name, value, found in figures:
            limit = LIMITS[name]
            if session.node.simulated:
                session.report.impossible(CHECK, limit.what, f"{found}, but a simulated driver works inside the agent")
            else:
                session.report.judge(CHECK, limit.what, found, limit.allowed, value <= limit.bound)
