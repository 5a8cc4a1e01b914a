"""F5: XIDs by the ten thousand."""

import json
import time
from collections import Counter

from harness import Failed

from . import SMOKE
from .measure import of, within
from .node import Node, alone
from .table import scenario


@scenario(
    "F5", "an XID storm of 10,000 a second",
    "counters exact by GPU and code; at most 10 lines of the log a second; processor time below 2 %",
    "two GPUs fire two codes each; what the driver says it fired is compared with the page, for each GPU and code")
def xid_storm(suite, table):
    count = 30_000 if SMOKE else 300_000
    node = Node(suite, "F5")
    before = node.program.log.stat().st_size
    node.wait_up()
    time.sleep(3)
    rest, twin = node.processor(), time.monotonic()
    time.sleep(5 if SMOKE else 20)
    quiet = (node.processor() - rest) / (time.monotonic() - twin)
    storms = [(gpu, xid) for gpu in (3, 5) for xid in (13, 31)]
    wanted = {storm: count // 4 for storm in storms}
    fired = lambda: {(storm["gpu"], storm["xid"]): storm["fired"] for storm in node.truth("xids")
                     if (storm["gpu"], storm["xid"]) in wanted}
    counted = lambda: {(int(labels["gpu"]), int(labels["xid"])): value
                       for labels, value in of(node.metrics(), "gpu_xid_errors_total")
                       if (int(labels["gpu"]), int(labels["xid"])) in wanted}
    node.condition({"xids": [{"gpu": gpu, "xid": xid, "per_second": 2_500, "count": count // 4} for gpu, xid in storms]})
    rest, began = node.processor(), time.monotonic()
    time.sleep(count / 10_000 - 0.5)
    busy = (node.processor() - rest) / (time.monotonic() - began)
    exact = within(20, lambda: fired() == wanted and counted() == wanted, node.program)
    each = lambda found: f"{sum(found.values()):.0f} ({', '.join(f'{number:.0f}' for number in found.values())})"
    table.row(f"{count} XIDs of two codes on two GPUs, 10,000 a second: fired by the driver, counted",
              f"{each(wanted)}, the same", f"{each(fired())}, {each(counted())}", exact)
    # The demos of all faults write to one log, one after the other.
    log = node.program.log.read_bytes()[before:].decode(errors="replace")
    seconds = Counter(line[:19] for line in log.splitlines() if "XID" in line)
    most = max(seconds.values(), default=0)
    table.row("most lines of the log in a second", "1 to 10", str(most), 1 <= most <= 10)
    # A real driver brings events from an interrupt; the simulated one reads files for each, inside the agent.
    driver = driver_in_storm(suite, node)
    node.end()
    what = f"processor time in the storm, less {driver:.1%} of the simulated driver's own; at rest {quiet:.1%}"
    table.row(what, "< 2 %", f"{busy - driver:.1%}", driver > 0 and busy - driver < 0.02, speed=True)


# As the agent does: waits for the first event, then takes those behind it. What Python needs for a call is left out.
STORM_ALONE = """
import ctypes, sys, time
driver, libc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
status, handle, event = driver.nvmlInit_v2(), ctypes.c_void_p(), ctypes.c_void_p()
data, bits = ctypes.create_string_buffer(64), ctypes.c_ulonglong(8)
status = status or driver.nvmlEventSetCreate(ctypes.byref(event))
for gpu in range(8):
    status = status or driver.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle))
    status = status or driver.nvmlDeviceRegisterEvents(handle, bits, event)
began, until, events, calls = time.process_time(), time.monotonic() + float(sys.argv[2]), 0, 0
while time.monotonic() < until:
    wait = 200
    while driver.nvmlEventSetWait_v2(event, data, wait) == 0:
        events, calls, wait = events + 1, calls + 1, 0
    calls += 1
took, began, count = time.process_time() - began, time.process_time(), 0
for _ in range(calls):
    if libc.memcmp(data, data, 0) == 0:
        events, count, wait = events + 0, count + 1, 0
print(status, events, took - (time.process_time() - began))
"""


def driver_in_storm(suite, node, seconds=3):
    """The share of a processor that the simulated driver needs for such a storm in a process that is not an agent."""
    folder = suite.folder / "F5-driver"
    node.lend(folder, "clock")
    storm = {"xid": 13, "per_second": 5_000, "count": 5_000_000}
    (folder / "state").write_text(json.dumps({"xids": [{"gpu": gpu, **storm} for gpu in (3, 5)]}))
    status, events, took = alone(folder, STORM_ALONE, str(seconds))
    if status != "0" or int(events) == 0:
        raise Failed(f"the simulated driver alone: status {status}, {events} events")
    return float(took) / int(events) * 10_000
