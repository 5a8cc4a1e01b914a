"""F13, F14: peers that are too slow, or too many."""

import select
import socket
import time
from collections import Counter
from typing import NamedTuple

from harness import PATIENCE

from . import SMOKE
from .measure import milliseconds, percentile, within
from .node import Node
from .table import scenario


@scenario(
    "F13", "1,000 slow lorises: requests that never end, byte by byte",
    "a deadline of 5 s for the head, then closed; scrape p99 below 5 ms meanwhile; descriptors back to where they were",
    "1,000 half requests are opened and kept alive while another peer scrapes, crowd after crowd; a twin that nobody "
    "troubles is scraped in turn, since a machine may be slow by itself")
def slow_loris(suite, table, count=1_000):
    node, twin = Node(suite, "F13"), Node(suite, "F13-twin")
    for one in (node, twin):
        one.wait_up()
        one.scrape()
    before = node.fds()
    # One crowd gives too few scrapes for a meaningful 99th percentile.
    sieges = [besieged(node, twin, count) for _ in range(1 if SMOKE else 3)]
    late = max(siege.lasted - siege.opened for siege in sieges)
    left = sum(siege.left for siege in sieges)
    table.row(f"{count} half requests at once, crowds: {len(sieges)}, byte by byte: the last is closed after",
              "<= 6 s", f"{late:.1f} s, {left} left", late <= 6, speed=True, holds=not left)
    statuses = [status for siege in sieges for status, _ in siege.answers]
    waits = [seconds for siege in sieges for _, seconds in siege.answers]
    at_rest = percentile([seconds for siege in sieges for seconds in siege.at_rest], 0.99)
    failed = sum(status != 200 for status in statuses)
    p99 = percentile(waits, 0.99)
    table.row(f"{len(statuses)} scrapes meanwhile: not answered 200", "0", str(failed), not failed)
    told = (f"median {milliseconds(percentile(waits, 0.5))}, longest {milliseconds(max(waits))}, "
            f"the twin's p99 {milliseconds(at_rest)}")
    table.row("their p99", "< 5 ms", f"{milliseconds(p99)} ({told})", p99 < 0.005, speed=True)
    within(5, lambda: node.fds() <= before, node.program)
    table.row("open descriptors afterwards", f"<= {before}", str(node.fds()), node.fds() <= before)
    node.end()
    twin.end()


class Siege(NamedTuple):
    """A crowd of half requests: seconds in which they were opened, and until the last was closed; how many never were;
    status and seconds of each scrape meanwhile, and the seconds of each of the twin."""

    opened: float
    lasted: float
    left: int
    answers: list
    at_rest: list


def besieged(node, twin, count):
    peers, started, answers, at_rest, last = {}, set(), [], [], 0.0
    began = time.monotonic()
    poll = select.poll()
    for _ in range(count):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", node.port))
        peers[peer.fileno()] = peer
        poll.register(peer, select.POLLOUT)
    opened = time.monotonic() - began
    while peers and time.monotonic() - began < PATIENCE:
        for handle, event in poll.poll(0):
            peer = peers.get(handle)
            if peer is None:
                continue
            try:
                if handle not in started:
                    peer.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ")
                    started.add(handle)
                    poll.modify(handle, select.POLLIN)
                elif event and not peer.recv(4096):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                poll.unregister(handle)
                peers.pop(handle).close()
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            for peer in peers.values():
                try:
                    peer.send(b"x")  # each byte is soon after the last one
                except OSError:
                    pass
        status, _, seconds = node.scrape()
        answers.append((status, seconds))
        time.sleep(0.01)
        at_rest.append(twin.scrape()[2])
        time.sleep(0.01)
    lasted = time.monotonic() - began
    for peer in peers.values():
        peer.close()
    return Siege(opened, lasted, len(peers), answers, at_rest)


@scenario(
    "F14", "1,000 scrapes at once",
    "all answered 200, the last within 1 s, memory at most 8 MiB more",
    "1,000 connections over loopback, each asking for a compressed page")
def thousand_scrapers(suite, table, count=1_000):
    node = Node(suite, "F14")
    node.wait_up()
    for gzip in (True, False):
        node.scrape(gzip)
    node.forget_peak()
    before = node.memory("VmRSS")

    # Other work on the machine may delay the client, so the best of three is counted.
    seconds, kinds = float("inf"), Counter()
    for _ in range(3):
        began = time.monotonic()
        answers = all_at_once(node.port, count)
        seconds = min(seconds, time.monotonic() - began)
        kinds.update(answer[9:12].decode(errors="replace") for answer in answers)
    grown = node.memory("VmHWM") - before
    table.row(f"{count} scrapes at once, three times, by answer", f"200: {3 * count}",
              ", ".join(f"{kind or 'nothing'}: {number}" for kind, number in kinds.items()), kinds["200"] == 3 * count)
    table.row("the last of them at the best time, the client's own work included", "<= 1 s", f"{seconds:.2f} s", seconds <= 1,
              speed=True)
    table.row("most memory above that before", "<= 8 MiB", f"{grown:.1f} MiB", grown <= 8)
    node.end()


def all_at_once(port, count):
    """The answers to this many scrapers, each of which requests as soon as it is connected."""
    poll, peers, answers = select.poll(), {}, {}
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port), PATIENCE)
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
        poll.register(peer, select.POLLIN)
        peers[peer.fileno()], answers[peer.fileno()] = peer, b""
    until = time.monotonic() + PATIENCE
    while peers and time.monotonic() < until:
        for handle, _ in poll.poll(1_000):
            try:
                piece = peers[handle].recv(1 << 18)
            except OSError:
                piece = b""  # turned away: what was said before counts
            answers[handle] += piece
            if not piece:
                poll.unregister(handle)
                peers.pop(handle).close()
    return list(answers.values())
