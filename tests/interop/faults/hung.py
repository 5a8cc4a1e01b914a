"""F1c: a call that no signal can end, as in a driver that waits for hardware."""

import os
import socket
import subprocess
import time
from pathlib import Path

from harness import GPUMETER, PATIENCE, Failed

from . import FAST, PERIOD, SECOND
from .measure import ages_of_others, of, within
from .node import Node
from .table import scenario


@scenario(
    "F1c", "a driver call in uninterruptible sleep, which no signal ends",
    "as F1; after SIGTERM the listener and the ledger are closed within 2 s, although the process cannot end",
    "the simulated call writes to a frozen file system")
def uninterruptible_call(suite, table):
    node = Node(suite, "F1c", config=FAST)
    node.wait_up()
    image, mount = suite.folder / "frozen.ext4", suite.folder / "frozen"
    mount.mkdir()
    image.touch()
    os.truncate(image, 16 << 20)
    as_root("mkfs.ext4", "-q", "-F", image)
    as_root("mount", "-o", "loop", image, mount)
    try:
        as_root("fsfreeze", "-f", mount)
        frozen_mount(node, table, mount / "byte")
    finally:
        subprocess.run(["fsfreeze", "-u", mount], capture_output=True)
        try:
            node.program.process.wait(PATIENCE)
            ended = "it does"
        except subprocess.TimeoutExpired:
            ended = "it does not"
            node.program.kill()
        as_root("umount", mount)
    table.row("the file system thaws, and the process ends", "it does", ended, ended == "it does")


def as_root(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}; the scenario needs root and a loop device")


def frozen_mount(node, table, byte):
    node.faults({"function": "nvmlDeviceGetFieldValues", "gpu": 3, "write": str(byte)})
    what = "a call that writes to a frozen file system, on one of 8 GPUs"
    in_flight = lambda: [labels["call"] for labels, _ in
                         of(node.metrics(), "gpumeter_driver_call_in_flight_seconds", gpu="3")]
    named = within(10, lambda: node.up()["3"] == 0 and "nvmlDeviceGetFieldValues" in in_flight(), node.program)
    table.row(f"{what}: the page names it", "up 0, and the call", f"up {node.up()['3']:.0f}, {in_flight()}", named)
    states = [state_of(node.pid, sampler) for sampler in node.threads("sampler")]
    if "D" not in states:
        raise Failed("no call is in uninterruptible sleep: nothing of it can be measured")
    table.row("samplers in uninterruptible sleep", "1 of 8", f"{states.count('D')} of {len(states)}",
              states.count("D") == 1 and len(states) == 8)
    oldest = 0.0
    for _ in range(20):
        found, now = node.metrics(), node.clock.utc() / SECOND
        oldest = max(oldest, *ages_of_others(found, now))
        time.sleep(0.1)
    table.row("age of the other seven", f"<= {2 * PERIOD} s", f"{oldest:.2f} s", oldest <= 2 * PERIOD,
              speed=True)
    [stuck] = [sampler for sampler in node.threads("sampler") if state_of(node.pid, sampler) == "D"]
    held = lambda: {open_file(link) for link in Path(f"/proc/{node.pid}/task/{stuck}/fd").iterdir()}
    bill = lambda: subprocess.run([GPUMETER, "bill", "--ledger", node.state / "ledger.db"], capture_output=True)
    ledger = lambda: any("ledger.db" in path for path in held())
    if not ledger() or not listens(node.port):
        raise Failed("there is no ledger or listener to be closed")
    began = time.monotonic()
    node.program.process.terminate()
    closed = lambda: not listens(node.port) and not ledger()
    while not closed() and time.monotonic() - began < PATIENCE:
        time.sleep(0.02)
    seconds = time.monotonic() - began
    answer = bill().returncode
    table.row("after SIGTERM the listener refuses, and no file of the ledger is open", "<= 2 s",
              f"{seconds:.2f} s", seconds <= 2, speed=True, holds=closed())
    table.row("then the ledger opens for another process, while this one cannot end", "0, D",
              f"{answer}, {state_of(node.pid, stuck)}", answer == 0 and state_of(node.pid, stuck) == "D")


def open_file(link):
    """The target of a descriptor, which may be closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def state_of(pid, thread):
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def listens(port):
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0
