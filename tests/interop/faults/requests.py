"""F17: malicious requests."""

import random
import socket

from harness import PATIENCE

from . import SMOKE
from .measure import converse
from .node import Node
from .table import scenario


REQUESTS = [
    ("a header of 20 kB", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", {431}),
    ("a target of 20 kB", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", {414, 431}),
    ("500 headers", b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 500 + b"\r\n", {400, 431}),
    ("a body of 100 MB", b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", {413}),
    ("another method", b"DELETE /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", {405}),
    ("a method of its own", b"FROB /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", {400, 405}),
    ("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    ("two lengths", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", {400}),
    ("a signed length", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd", {400}),
    ("an endless chunk", b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
     {400, 405, 413}),
    ("a header that is folded", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", {400}),
    ("a blank before the colon", b"GET /metrics HTTP/1.1\r\nHost : a\r\n\r\n", {400}),
    ("a zero byte", b"GET /met\x00rics HTTP/1.1\r\nHost: a\r\n\r\n", {400}),
]
# A second request hidden in the body of the first (request smuggling): a proxy sees only one.
SMUGGLED = [
    ("length and chunks", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"0\r\n\r\nGET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunked that is none", b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"
     b"GET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a body with a request", b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 36\r\n\r\n"
     b"GET /-/ready HTTP/1.1\r\nHost: abcd\r\n\r\n"),
]


@scenario(
    "F17", "oversize heads and bodies, wrong methods, request smuggling",
    "431, 413, 405 and the like; constant memory",
    "hand-made requests, and the same with random damage")
def bad_requests(suite, table):
    node = Node(suite, "F17")
    node.wait_up()
    wrong = []
    for what, request, allowed in REQUESTS:
        status = int(converse(node.port, request)[9:12] or 0)
        if status not in allowed:
            wrong.append(f"{what}: {status}")
    table.row(f"{len(REQUESTS)} malformed or oversize requests are refused by the right status", "each",
              "; ".join(wrong) or "each", not wrong)
    split = [what for what, request in SMUGGLED if converse(node.port, request).count(b"HTTP/1.1 ") > 1]
    table.row(f"{len(SMUGGLED)} requests that hide another are answered once", "each",
              "; ".join(split) or "each", not split)
    node.forget_peak()
    before = node.memory("VmRSS")
    for _ in range(100 if SMOKE else 1_000):
        with socket.create_connection(("127.0.0.1", node.port), PATIENCE) as stream:
            try:
                stream.sendall(REQUESTS[0][1])
                stream.recv(100)
            except OSError:
                pass
    odd = damaged(node)
    table.row("the same with random damage, and what is answered that is no HTTP, or no status that is known", "none",
              "; ".join(odd[:5]) or "none", not odd)
    grown = node.memory("VmHWM") - before
    table.row("most memory above that before, over many of them", "<= 2 MiB", f"{grown:.1f} MiB", grown <= 2)
    table.row("it answers as before", "200", str(node.scrape()[0]), node.scrape()[0] == 200)
    node.end()


KNOWN = {0, 200, 400, 403, 404, 405, 408, 413, 414, 431, 501, 503, 505}


def damaged(node, count=100 if SMOKE else 2_000):
    """Requests with random damage: the answers that should not occur."""
    dice, odd = random.Random(9855), []
    whole = [request for _, request, _ in REQUESTS] + [request for _, request in SMUGGLED]
    for number in range(count):
        request = bytearray(dice.choice(whole)[:4_096])
        for _ in range(dice.randrange(1, 8)):
            at = dice.randrange(len(request))
            request[at:at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
            request = request or bytearray(b"G")
        answer = head_of_answer(node.port, bytes(request))
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0 if not answer else -1
        if status not in KNOWN:
            odd.append(f"{number}: {answer[:40]!r}")
    return odd


def head_of_answer(port, request):
    """The first bytes of an answer; None if there is none."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stream:
        try:
            stream.sendall(request)
            stream.shutdown(socket.SHUT_WR)
            return stream.recv(4096)
        except OSError:
            return b""
