"""F18, F19: too few descriptors, too little memory."""

import shutil
import socket
import time

import samples
from harness import Failed

from . import SMOKE
from .measure import metrics, of, within
from .node import Node, alone, crowd, written
from .table import scenario


@scenario(
    "F18", "64 file descriptors",
    "the listener keeps one in reserve and answers; GPUs and account go on, details of processes suffer first",
    "run with RLIMIT_NOFILE 64, 1,000 processes and 200 silent peers")
def few_descriptors(suite, table):
    scenario = written(suite, "F18.json", crowd(1_000))
    wrap = ["bash", "-c", 'ulimit -n 64; exec "$0" "$@"']
    node = Node(suite, "F18", scenario=scenario, config="sampling: {level: full}\n", wrap=wrap)
    node.wait_up()
    before = node.fds()
    idle = []
    for _ in range(200):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", node.port))
        idle.append(peer)
    time.sleep(0.3)
    answers = [node.scrape()[0] for _ in range(50)]
    good = answers.count(200)
    table.row("64 descriptors, 1,000 processes, 200 silent peers: scrapes answered 200", "50 of 50",
              f"{good} of 50, at rest {before} open", good == 50)
    within(10, lambda: sum(node.up().values()) == 8, node.program)
    found = node.metrics()
    errors = sum(value for _, value in of(found, "gpumeter_ledger_errors_total"))
    up = sum(value for _, value in of(found, "gpu_up"))
    table.row("GPUs up, failed commits", "8, 0", f"{up:.0f}, {errors:.0f}", up == 8 and errors == 0)
    for peer in idle:
        peer.close()
    within(10, lambda: node.fds() <= before + 1, node.program)
    table.row("open descriptors afterwards", f"<= {before + 1}", str(node.fds()), node.fds() <= before + 1)
    node.end()


# MiB of its own that the agent may need.
MOST = 24

DRIVER_ALONE = """
import ctypes, re, sys, time
own = lambda: int(re.search(r"^RssAnon:\\s+(\\d+)", open("/proc/self/status").read(), re.M)[1])
before = own()
driver = ctypes.CDLL(sys.argv[1])
status = driver.nvmlInit_v2()
handle, count = ctypes.c_void_p(), ctypes.c_uint(0)
for gpu in range(8):
    status = status or driver.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle))
    for _ in range(3):
        driver.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
print(0 if status else own() - before)
"""


def driver_alone(suite, scenario):
    """MiB that the simulated driver needs for a scenario in a process that is not an agent."""
    donor = Node(suite, "F19-donor")
    donor.end()
    folder = suite.folder / "F19-driver"
    donor.lend(folder)
    shutil.copy(scenario, folder / "scenario")
    needed = alone(folder, DRIVER_ALONE)
    if not needed or int(needed[0]) <= 0:
        raise Failed("the simulated driver alone does not tell what it needs")
    return int(needed[0]) / 1024


@scenario(
    "F19", "5,000 processes, in 24 MiB of memory of its own",
    "limits of processes and series are reached before memory is",
    "the most anonymous memory of the process in half a minute, less what the simulated driver, which lives in it, needs "
    "alone. A memory cgroup would not tell: the simulated `/proc` lies on a disk, and its cached files would be charged")
def little_memory(suite, table):
    scenario = written(suite, "F19.json", crowd(5_000))
    # A real driver stores its processes in the kernel, the simulated one in the memory of the agent.
    driver = driver_alone(suite, scenario)
    # The settings of packaging/systemd/gpumeter.service.
    node = Node(suite, "F19", scenario=scenario, wrap=["env", "MALLOC_ARENA_MAX=1"],
                config="sampling: {level: full}\nattribution: {presence: true}\n")
    node.wait_up()
    until = time.monotonic() + (8 if SMOKE else 30)
    body, own = b"", 0.0
    while time.monotonic() < until and node.program.alive():
        _, body, _ = node.scrape()
        # The kernel may reclaim pages of mapped files at any time.
        own = max(own, node.memory("RssAnon") - driver)
        time.sleep(0.2)
    alive = node.program.alive()
    table.row(f"5,000 processes: alive, most memory of its own beside {driver:.1f} MiB of the driver's",
              f"alive, <= {MOST} MiB", f"{'alive' if alive else 'ended'}, {own:.1f} MiB", alive and own <= MOST)
    series = len(metrics(body.decode()))
    table.row("series, and the page parses", "<= 20000", str(series),
              0 < series <= 20_000 and bool(samples.of_text(body.decode())))
    node.end()
