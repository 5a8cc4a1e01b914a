"""W: the tick loop stalls, and nothing but the tick loop."""

import ctypes
import os
import socket
import time

from harness import Failed, wait_for

from .measure import converse, scrape, within
from .node import Node
from .table import scenario


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000


@scenario(
    "W", "the tick loop stalls, and nothing but the tick loop",
    "systemd's watchdog is not fed by anything else; health turns to 503; pages are still served",
    "the thread alone is stopped by ptrace")
def stalled_tick_loop(suite, table):
    path = suite.folder / "notify"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(path))
    wrap = ["env", "-u", "WATCHDOG_PID", f"NOTIFY_SOCKET={path}", "WATCHDOG_USEC=1000000"]
    node = Node(suite, "W", wrap=wrap)
    node.wait_up()
    times = drain(manager, 3)
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    table.row("systemd's watchdog of 1 s is fed: longest silence", "<= 1 s", f"{max(gaps, default=9):.2f} s",
              max(gaps, default=9) <= 1, speed=True, holds=times)
    libc = ctypes.CDLL(None, use_errno=True)
    [tick_loop] = node.threads("tick_loop")
    if libc.ptrace(PTRACE_SEIZE, tick_loop, None, None) or libc.ptrace(PTRACE_INTERRUPT, tick_loop, None, None):
        raise Failed(f"ptrace: {os.strerror(ctypes.get_errno())}; the scenario needs the right to trace")
    os.waitpid(tick_loop, WALL)
    drain(manager, 0.2)
    silent = drain(manager, 3)
    table.row("the tick loop alone is stopped: signs of life in 3 s", "0", str(len(silent)), not silent)
    status = scrape(node.port)[0]
    table.row("pages are still served", "200", str(status), status == 200)
    wait_for("an unhealthy agent", 15, lambda: unhealthy(node), node.program, 0.5)
    libc.ptrace(17, tick_loop, None, None)  # PTRACE_DETACH: it goes on
    times = []
    lives = within(10, lambda: times.extend(drain(manager, 1)) or times and not unhealthy(node), node.program)
    table.row("it goes on: signs of life, and health", "> 0, healthy", str(len(times)), lives)
    node.end()
    manager.close()


def unhealthy(node):
    return converse(node.port, b"GET /-/healthy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")[9:12] == b"503"


def drain(manager, seconds):
    """When each WATCHDOG=1 of so many seconds came."""
    until, times = time.monotonic() + seconds, []
    while (left := until - time.monotonic()) > 0:
        manager.settimeout(left)
        try:
            if manager.recv(4096).strip() == b"WATCHDOG=1":
                times.append(time.monotonic())
        except TimeoutError:
            break
    return times
