"""F13, F14: peers that are too slow, or too many."""

import select
import socket
import time
from collections import Counter

from . import measure
from .measure import milliseconds, percentile, within
from .node import Node
from .table import scenario


@scenario(
    "F13", "1,000 slow lorises: requests that never end, byte by byte",
    "a deadline of 5 s for the head, then closed; scrape p99 below 5 ms meanwhile; descriptors back to where they were",
    "1,000 half requests are opened and kept alive while another peer scrapes")
def slow_loris(suite, table, count=1_000):
    node = Node(suite, "F13")
    node.wait_up()
    measure.scrape(node.port)
    before = node.fds()
    peers = {}
    began = time.monotonic()
    poll = select.poll()
    for _ in range(count):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", node.port))
        peers[peer.fileno()] = peer
        poll.register(peer, select.POLLOUT)
    opened, statuses, times, last = time.monotonic() - began, [], [], 0.0
    started = {}
    while peers and time.monotonic() - began < 12:
        for handle, event in poll.poll(0):
            peer = peers.get(handle)
            if peer is None:
                continue
            try:
                if handle not in started:
                    peer.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ")
                    started[handle] = time.monotonic()
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
        statuses.append(status)
        times.append(seconds)
        time.sleep(0.02)
    lasted = time.monotonic() - began
    left = len(peers)
    for peer in peers.values():
        peer.close()
    table.row(f"{count} half requests, opened in {opened:.1f} s, byte by byte: the last is closed after",
              "<= 6 s", f"{lasted:.1f} s, {left} left", not left and lasted <= 6 + opened)
    failed = sum(status != 200 for status in statuses)
    p99 = percentile(times, 0.99)
    table.row(f"{len(times)} scrapes meanwhile: not answered 200", "0", str(failed), not failed)
    table.row("their p99", "< 5 ms", f"{milliseconds(p99)} (median {milliseconds(percentile(times, 0.5))}, longest {milliseconds(max(times))})",
              p99 < 0.005, speed=True)
    within(5, lambda: node.fds() <= before, node.program)
    table.row("open descriptors afterwards", f"<= {before}", str(node.fds()), node.fds() <= before)
    node.end()


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

    # Other work on the machine may keep the client from the processor: the best of three is the agent's own.
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
    """What so many scrapers are answered, of which each asks as soon as it is connected and nobody waits for another."""
    poll, peers, answers = select.poll(), {}, {}
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port), 10)
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
        poll.register(peer, select.POLLIN)
        peers[peer.fileno()], answers[peer.fileno()] = peer, b""
    until = time.monotonic() + 10
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
