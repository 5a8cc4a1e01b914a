"""What the checks share: the node, the table, the time that is left, the GPU for loads, and the loads."""

import time

import duty
from report import NotPossible

# Seconds of each part, on real hardware and over the simulator.
REAL = {"pairs": 5, "looks": 5, "look": 1.5, "duty": 40, "hold": 20, "activity": 8, "record": 60, "pair": 4, "settle": 2, "kill": 6}
SIMULATED = {"pairs": 2, "looks": 3, "look": 1.5, "duty": 10, "hold": 4, "activity": 8, "record": 20, "pair": 1, "settle": 0.5, "kill": 3}
PERIOD = 1.0
# Share of a period at which each of two loads begins, so that they never work at one time.
TURNS = {"low": (0.3, 0.0), "high": (0.6, 0.35)}


class Session:
    def __init__(self, node, report, programs, folder, deadline):
        self.node, self.report, self.programs, self.folder = node, report, programs, folder
        self.deadline = deadline
        self.seconds = SIMULATED if node.simulated else REAL
        self.gpu = None
        self.agent = None
        self.watch = None
        self.recording = None
        self.killed = None
        # Of the loads of check 3: their spans, and pids by name.
        self.spans, self.pids = {}, {}
        self._workers = {}
        self._problem = None

    def left(self):
        return self.deadline - time.monotonic()

    def need(self, seconds):
        """Fails where so many seconds are not left."""
        if self.left() < seconds:
            raise NotPossible(f"{seconds:.0f} s are needed, and only {max(0, self.left()):.0f} of the six minutes are left")

    def choose_gpu(self, page):
        """The GPU for loads, by UUID: the one that does least, of those without MIG."""
        # The loader may have found a simulated library where a real one was expected.
        self.report.simulated |= page.value("gpumeter_simulated") == 1
        free = []
        for labels, _ in page.find("gpu_info", mig="false"):
            uuid = labels["uuid"]
            busy = page.value("gpu_utilization_ratio", uuid=uuid)
            if page.value("gpu_up", uuid=uuid) == 1 and busy is not None:
                free.append((busy, page.value("gpu_memory_used_bytes", uuid=uuid) or 0, uuid))
        self.gpu = min(free)[2] if free and min(free)[0] <= 0.05 else None
        return self.gpu

    def worker(self, name):
        """The worker of that name, started and with CUDA open; a failure is remembered, since the next would fail too."""
        if self._problem:
            raise self._problem
        if name not in self._workers:
            try:
                if not self.gpu:
                    raise NotPossible("no GPU without MIG is idle")
                self.need(30)
                worker = self.node.worker(name, self.gpu)
                worker.do(60, do="start")
                self._workers[name] = worker
            except NotPossible as problem:
                self._problem = problem
                raise
        return self._workers[name]

    def has_workers(self):
        return not self._problem

    def dismiss(self, name):
        if worker := self._workers.pop(name, None):
            self.programs.end(worker.program)


class Truth:
    """What loads really did, by their own clocks: bursts by CUDA events, or counters of the simulated driver."""

    def __init__(self):
        self.bursts, self.samples = {}, {}

    def add(self, load, answer):
        self.bursts.setdefault(load, []).extend(answer["bursts"])

    def note(self, busy):
        """Takes down the simulated driver's counters."""
        for load, sample in busy.items():
            known = self.samples.setdefault(load, [])
            if not known or sample[0] > known[-1][0]:
                known.append(sample)

    def busy(self, begin, end, loads=None):
        """Seconds that loads, or these, were busy in the span."""
        chosen = lambda kept: [value for load, value in kept.items() if loads is None or load in loads]
        total = sum(duty.busy_within(bursts, begin, end) for bursts in chosen(self.bursts))
        return total + sum(duty.at(samples, end) - duty.at(samples, begin) for samples in chosen(self.samples))


class Watch:
    """The account of a GPU on the agent's page over time, and what loads really did meanwhile."""

    def __init__(self, session, agent, uuid):
        self.session, self.agent, self.uuid = session, agent, uuid
        self.truth = Truth()
        # (settled until, page), once for each state of the account; (time, page) of the page's samples.
        self.history, self.pages = [], []
        # What is settled before this time has a gap in which the agent was not there.
        self.since = 0
        page = agent.page()
        self.first = page.value("gpumeter_last_sample_timestamp_seconds", uuid=uuid) or time.time()
        self.poll()

    def poll(self):
        try:
            page = self.agent.page()
        except OSError:
            return  # it is just being started again
        self.truth.note(self.session.node.busy())
        sampled = page.value("gpumeter_last_sample_timestamp_seconds", uuid=self.uuid)
        if sampled and (not self.pages or sampled > self.pages[-1][0]):
            self.pages.append((sampled, page))
        settled = duty.settled_until(self.first, page.sum("gpu_slot_seconds_total", uuid=self.uuid))
        if not self.history or settled > self.history[-1][0]:
            self.history.append((settled, page))

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.5, left))
            self.poll()

    def settle(self, until, seconds=45):
        """Waits until the account is settled up to a time."""
        end = time.monotonic() + min(seconds, max(0, self.session.left() - 20))
        while self.history[-1][0] < until:
            if time.monotonic() > end:
                raise NotPossible(f"the account is not settled within {seconds} s")
            self.wait(0.5)

    def work(self, load, worker, seconds, kind="tensor", share=1, offset=0):
        """Tells a worker to be a load for some seconds; `finish` waits for it."""
        until = time.time() + seconds
        self.session.node.begin(load, worker)
        worker.ask(do="work", kind=kind, until=until, duty=share, period=PERIOD, offset=offset)
        return until

    def finish(self, load, worker, seconds):
        answer = worker.answer(seconds, self.poll)
        self.session.node.finish(load)
        self.truth.add(load, answer)
        self.poll()
        return answer

    def used(self, begin, end, **labels):
        """Used time by the account over the settled span around a phase, and that span."""
        both = duty.around([state for state in self.history if state[0] >= self.since], begin, end)
        if not both:
            raise NotPossible("the account does not reach from before to after it")
        (start, before), (stop, after) = both
        used = [page.sum("gpu_tenant_used_seconds_total", uuid=self.uuid, **labels) for page in (before, after)]
        return used[1] - used[0], start, stop

    def record(self):
        """Everything seen, to be looked at elsewhere."""
        family = lambda page, name: [[labels.get("tenant"), value] for labels, value in page.find(name, uuid=self.uuid)]
        return {
            "pages": [[at, page.value("gpu_busy_seconds_total", uuid=self.uuid), page.value("gpu_energy_joules_total", uuid=self.uuid)]
                      for at, page in self.pages],
            "account": [[settled, page.sum("gpu_slot_seconds_total", uuid=self.uuid), family(page, "gpu_tenant_used_seconds_total")]
                        for settled, page in self.history],
            "bursts": self.truth.bursts, "samples": self.truth.samples,
        }

    def counter(self, begin, end, family):
        """The mean rate of a counter by the pages sampled in a span, or None."""
        inside = [(at, page.value(family, uuid=self.uuid)) for at, page in self.pages if begin <= at <= end]
        inside = [sample for sample in inside if sample[1] is not None]
        if len(inside) < 2:
            return None
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
