"""F3, F4: hardware that is removed and returns, and a driver that is reloaded under the agent."""

import time

from harness import PATIENCE

from . import FAST, PERIOD, SECOND, SMOKE
from .measure import Counters, balanced, driver_problem, of, of_the_driver, within
from .node import Node
from .table import scenario


@scenario(
    "F3", "a GPU is lost (XID 79) and comes back",
    "the event is counted once; the account closes the interval at the last good sample; no negative rate",
    "the simulated driver answers GPU_IS_LOST for one of 8 GPUs, then answers again")
def lost_gpu(suite, table):
    node = Node(suite, "F3", config=FAST)
    node.wait_up()
    time.sleep(2)
    counters = Counters()
    counters.see(node.metrics())
    xids = lambda found: sum(value for _, value in of(found, "gpu_xid_errors_total", gpu="3", xid="79"))
    node.condition({"gpus": {"3": {"state": "lost"}}})
    began, shown = time.monotonic(), None
    while (passed := time.monotonic() - began) < (3 if SMOKE else 6) or (shown is None and passed < PATIENCE):
        found = node.metrics()
        counters.see(found)
        if shown is None and not any(of(found, "gpu_power_watts", gpu="3")):
            shown = time.monotonic() - began
        time.sleep(0.05)
    within(10, lambda: sum(node.up().values()) == 7, node.program)
    found = node.metrics()
    why = [labels["reason"] for labels, _ in of(found, "gpu_absence_info", gpu="3")]
    up = {labels["gpu"]: value for labels, value in of(found, "gpu_up")}
    table.row("a GPU is lost (XID 79): its readings are withdrawn", f"<= {3 * PERIOD} s",
              f"{shown:.2f} s" if shown else "never", shown is not None and shown <= 3 * PERIOD,
              speed=True, holds=shown is not None)
    table.row("the page says why; the other seven are up", "lost, 7", f"{', '.join(why)}, {sum(up.values()):.0f}",
              why == ["lost"] and sum(up.values()) == 7)
    lost = time.monotonic() - began
    node.condition({})
    began = time.monotonic()
    node.wait_up()
    back = time.monotonic() - began
    table.row("it is back: up again", "<= 5 s", f"{back:.1f} s", back <= 5, speed=True)
    until = time.monotonic() + 3
    while time.monotonic() < until or (not xids(found) and time.monotonic() < until + PATIENCE):
        counters.see(found := node.metrics())
        time.sleep(0.1)
    table.row("XID 79 in the end", "1", f"{xids(found):.0f}", xids(found) == 1)
    counters.row(table)
    balanced(table, node)
    unavailable, = node.account("SELECT sum(unavailable_ns) FROM counter JOIN gpu ON gpu = id WHERE gpu_index = 3")
    others, = node.account("SELECT sum(unavailable_ns) FROM counter JOIN gpu ON gpu = id WHERE gpu_index != 3")
    seconds, most = unavailable / SECOND, lost + back + 2 * PERIOD
    table.row(f"on the account it was unavailable, of {lost:.1f} s and {back:.1f} s until it was back; the others",
              f"{lost - 2 * PERIOD:.1f} to {most:.1f} s, 0", f"{seconds:.1f} s, {others / SECOND:.1f} s",
              lost - 2 * PERIOD <= seconds <= most, speed=True,
              holds=seconds > 0 and others == 0)


@scenario(
    "F4", "the driver is unloaded and reloaded, all handles are dead",
    "full recovery within 5 s without a restart; nothing of the driver is held open when it is to go",
    "the simulated driver's epoch and version change: handles of the former epoch return errors; open and mapped files "
    "are read in /proc")
def driver_reload(suite, table):
    node = Node(suite, "F4", config=FAST)
    node.wait_up()
    counters = Counters(without=of_the_driver())
    counters.see(node.metrics())
    node.condition({"driver": {"loaded": False}})
    gone = within(20, lambda: not any(node.up().values()) and driver_problem(node.url)[0] == [0.0], node.program)
    files = node.driver_files() if gone else {"?"}
    table.row("the driver is unloaded: the page says so; files of the driver that stay open or mapped", "success 0, 0",
              f"success {driver_problem(node.url)[0]}, {len(files)}", gone and not files)
    time.sleep(1 if SMOKE else 20)  # the longest wait between two looks is reached
    recovers(node, table, 2, "another version is loaded: all GPUs are up, as its own")
    counters.see(node.metrics())
    node.tell("quiesce")
    files = node.driver_files()
    table.row("quiesced: files of the driver that are open or mapped", "0", str(len(files)), not files)
    recovers(node, table, 3, "reloaded meanwhile, and resumed: all GPUs are up", lambda: node.tell("resume"))
    recovers(node, table, 4, "reloaded under the agent, all handles dead at once: all GPUs are up")
    counters.see(node.metrics())
    counters.row(table)
    balanced(table, node)


def recovers(node, table, epoch, what, then=lambda: None):
    """Loads a driver of another version, so that every handle of the last one is dead."""
    version = f"59{epoch}.48.01"
    node.condition({"driver": {"epoch": epoch, "version": version}})
    then()
    began = time.monotonic()
    named = lambda: sum(1 for _ in of(node.metrics(), "gpu_info", driver_version=version))
    back = within(30, lambda: sum(node.up().values()) == 8 and named() == 8, node.program)
    seconds = time.monotonic() - began
    table.row(what, "<= 5 s", f"{seconds:.1f} s", seconds <= 5, speed=True, holds=back)
