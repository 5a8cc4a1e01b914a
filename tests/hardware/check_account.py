"""3: used time, energy and activity by the account, against what loads did by their own clocks."""

import json
import statistics
import time

import duty
from report import NotPossible
from session import TURNS, Watch
from tolerances import LIMITS

CHECK = 3
# New counters are exported at once, since nobody takes their rate.
CONFIG = {"sampling": {"level": "full"}, "attribution": {"presence": True}, "limits": {"birth_delay": "0s"}}
KINDS = ("tensor", "copy", "fp32")


def start(session):
    """The agent whose account is checked, and its watch."""
    session.agent = session.node.agent("account", **CONFIG)
    page = session.agent.page()
    if not session.gpu:
        session.choose_gpu(page)
    uuid = session.gpu or page.find("gpu_info")[0][0]["uuid"]
    session.watch = Watch(session, session.agent, uuid)


def loads(session):
    """Runs the loads, one after the other."""
    watch, seconds, spans = session.watch, session.seconds, session.spans
    low, high = session.worker("a"), session.worker("b")
    session.pids = {"low": low.pid, "high": high.pid}
    # The first state of the account after a restart is that at the next window.
    watch.wait(max(0, duty.window_after(watch.since) - time.time()))
    spans["duty"] = duty_phase(session, low, high)
    spans["idle"] = hold_phase(session, low)
    spans["short"] = short_phase(session)
    for kind in KINDS:
        spans[kind] = load(session, kind, low, seconds["activity"])


def judge(session):
    """Compares what the account says with what the loads did."""
    if not session.spans:
        return  # they did not run, and the table says why
    session.watch.settle(max(span[1] for span in session.spans.values()))
    (session.folder / "account.json").write_text(json.dumps({"spans": session.spans, **session.watch.record()}) + "\n")
    for part, limit in ((used_time, "used"), (process_time, "process"), (tenant_time, "tenant"), (energy, "energy"), (activity, "tensor")):
        try:
            part(session, session.spans)
        except (NotPossible, KeyError) as why:
            session.report.impossible(CHECK, LIMITS[limit].what, f"its load did not run: {why}" if isinstance(why, KeyError) else why)


def duty_phase(session, low, high):
    """Two processes of 30 and 60 % that take turns in each second."""
    watch, seconds = session.watch, session.seconds["duty"]
    for load, worker in (("low", low), ("high", high)):
        share, offset = TURNS[load]
        begin = time.time()
        watch.work(load, worker, seconds, "tensor", share, offset)
    for load, worker in (("low", low), ("high", high)):
        watch.finish(load, worker, seconds + 30)
    session.dismiss("b")
    return begin, time.time()


def hold_phase(session, worker):
    begin = time.time()
    session.node.begin("hold", worker)
    session.watch.wait(session.seconds["hold"])
    session.node.finish("hold")
    return begin, time.time()


def short_phase(session):
    """A process that opens CUDA, works for two seconds and ends."""
    session.need(40)
    worker = session.node.worker("c", session.gpu)
    begin = time.time()
    worker.do(60, session.watch.poll, do="start")
    session.watch.work("short", worker, 2)
    session.watch.finish("short", worker, 30)
    session.programs.end(worker.program)
    return begin, time.time()


def load(session, kind, worker, seconds):
    begin = time.time()
    session.watch.work(kind, worker, seconds, kind)
    session.watch.finish(kind, worker, seconds + 30)
    return begin, time.time()


def used_time(session, spans):
    watch = session.watch
    for name, least in (("duty", 0.5), ("idle", 0.5), ("short", 0)):
        limit = LIMITS["used" if name == "duty" else name]
        used, start, stop = watch.used(*spans[name])
        true = watch.truth.busy(start, stop)
        allowed = limit.bound if name == "short" else least + limit.bound * (stop - start)
        # Each change of processes may cost the simulated GPM a tick (SimulatedNode.finish).
        allowed += sum(start - 1 <= at <= stop + 1 for at in session.node.changes)
        found = f"{used:.2f} s, by the clocks {true:.2f} s, idle {stop - start - used:.2f} s"
        session.report.judge(CHECK, limit.what, found, limit.allowed, abs(used - true) <= allowed)
    page = watch.history[-1][1]
    held, slot = (page.sum(f"gpu_{name}_seconds_total", uuid=watch.uuid) for name in ("tenant_held", "slot"))
    session.report.judge(CHECK, "held time of all tenants, less the GPU's time", f"{held - slot:+.6f} s of {slot:.3f} s", "0",
                         abs(held - slot) < 1e-6)


def process_time(session, spans):
    limit, watch = LIMITS["process"], session.watch
    begin, end = spans["duty"][0] + 3, spans["duty"][1] - 1
    found, holds = [], True
    for load, pid in session.pids.items():
        values = [page.value("gpu_process_utilization_ratio", uuid=watch.uuid, pid=str(pid), engine="sm")
                  for at, page in watch.pages if begin <= at <= end]
        values = [value for value in values if value is not None]
        if not values:
            raise NotPossible(f"the driver tells no utilization of the process {pid}, as in other pid namespaces or on some boards")
        mean, true = statistics.mean(values), watch.truth.busy(begin, end, [load]) / (end - begin)
        holds = holds and abs(mean - true) <= limit.bound
        found.append(f"{mean:.3f} ({true:.3f})")
    session.report.judge(CHECK, limit.what, ", ".join(found), limit.allowed, holds)


def tenant_time(session, spans):
    limit, watch = LIMITS["tenant"], session.watch
    page = [page for at, page in watch.pages if spans["duty"][0] + 2 <= at <= spans["duty"][1] - 1][-1:]
    tenants = {load: labels["tenant"] for load, pid in session.pids.items()
               for one in page for labels, _ in one.find("gpu_process_memory_bytes", uuid=watch.uuid, pid=str(pid))}
    if len(set(tenants.values())) < len(session.pids) or any(tenant.startswith("__") for tenant in tenants.values()):
        whose = ", ".join(sorted(set(tenants.values()))) or "nobody"
        raise NotPossible(f"both loads belong to {whose}; systemd-run --scope would part them")
    found, holds = [], True
    for load, tenant in tenants.items():
        used, start, stop = watch.used(*spans["duty"], tenant=tenant)
        # Of the worker that goes on, later loads are not in the span.
        true = watch.truth.busy(start, stop, [load])
        holds = holds and abs(used - true) <= 0.5 + limit.bound * (stop - start)
        found.append(f"{tenant} {used:.2f} s ({true:.2f} s)")
    session.report.judge(CHECK, limit.what, ", ".join(found), limit.allowed, holds)


def energy(session, spans):
    limit, watch = LIMITS["energy"], session.watch
    counter = [(at, page.value("gpu_energy_joules_total", uuid=watch.uuid)) for at, page in watch.pages]
    counter = [sample for sample in counter if sample[1] is not None]
    if not counter:
        raise NotPossible("the board has no energy counter")
    # The first state is that before the first window.
    (start, before), (stop, after) = watch.history[1 if len(watch.history) > 2 else 0], watch.history[-1]
    mine = after.sum("gpu_tenant_energy_joules_total", uuid=watch.uuid) - before.sum("gpu_tenant_energy_joules_total", uuid=watch.uuid)
    true = duty.at(counter, stop) - duty.at(counter, start)
    session.report.judge(CHECK, limit.what, f"{mine:.0f} J, the driver {true:.0f} J, in {stop - start:.0f} s", limit.allowed,
                         true > 0 and abs(mine - true) <= limit.bound * true)


def activity(session, spans):
    """SM, tensor and DRAM activity in the three loads."""
    for kind in KINDS:
        limit = LIMITS[kind]
        # The first second warms up, and GPM looks back one tick.
        begin, end = spans[kind][0] + 1.5, spans[kind][1] - 0.2
        rates = {name: session.watch.counter(begin, end, f"gpu_{name}_active_seconds_total") for name in ("sm", "tensor", "dram")}
        if None in rates.values():
            session.report.impossible(CHECK, limit.what, "the board or its driver does not report activity (GPM, Hopper and later)")
            continue
        first, second = limit.bound
        high = {"tensor": "sm", "copy": "dram", "fp32": "sm"}[kind]
        holds = rates[high] >= first and (rates["tensor"] >= second if kind == "tensor" else rates["tensor"] <= second)
        found = ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items())
        session.report.judge(CHECK, limit.what, found, limit.allowed, holds)
