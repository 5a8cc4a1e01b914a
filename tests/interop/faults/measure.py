"""Reads the output of agents: pages, counters over time, the account at the end."""

import re
import socket
import time

from harness import PATIENCE, ROOT, Failed, get, wait_for


class Counters:
    """Every counter of the pages that were added, and those that decreased. Those of a GPU instance begin anew when another
    instance is given its id."""

    def __init__(self, without=()):
        self.without, self.last, self.back, self.instances = without, {}, set(), {}

    def see(self, found):
        instances = {(labels["uuid"], labels["gpu_instance"]): labels["mig_uuid"]
                     for labels, _ in of(found, "gpu_mig_info")}
        others = {at for at, instance in instances.items() if self.instances.get(at, instance) != instance}
        self.instances |= instances
        for uuid, instance in others:
            of_instance = (f'uuid="{uuid}"', f'gpu_instance="{instance}"')
            begun = [key for key in self.last if key.startswith("gpu_mig_") and all(label in key for label in of_instance)]
            for key in begun:
                del self.last[key]
        for key, value in found.items():
            name = key.partition("{")[0]
            if not re.search(r"_(total|count|sum|bucket)$", name) or name in self.without:
                continue
            if value < self.last.get(key, value):
                self.back.add(name)
            self.last[key] = value

    def row(self, table, of=""):
        back = ", ".join(sorted(self.back))
        kept = " of the agent and its account" if self.without else ""
        table.row(f"{len(self.last)} counters{kept}{of}, of which any went back", "none", back or "none", not back)


def of_the_driver():
    """The counters that the reference says start again with the driver, which may decrease."""
    reference = (ROOT / "docs/metrics.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|.*\| driver load \|", reference, re.M))


def balanced(table, node, what="the account afterwards"):
    """The account on the page, and, once the agent has ended, whether its ledger has every nanosecond."""
    found = node.metrics()
    said = {name: sum(value for _, value in of(found, name)) for name in
            ("gpumeter_ledger_imbalance_seconds", "gpumeter_account_unsettled_windows_total",
             "gpumeter_ledger_unobserved_seconds_total")}
    settled(node)
    node.end()
    gap, gpus = node.account("SELECT sum(abs(settled_until_ns - first_seen_ns - slot_ns)), count(*) FROM gpu")
    parts, = node.account("SELECT sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns) FROM counter")
    slots, = node.account("SELECT sum(slot_ns) FROM gpu")
    wrong = [f"{name} {value:.0f}" for name, value in said.items() if value]
    wrong += [f"{gap} ns without an account"] if gap else []
    wrong += [f"{parts - slots} ns held too much"] if parts != slots else []
    table.row(f"{what}: imbalance, unsettled, missing and double time of {gpus} GPUs", "0",
              ", ".join(wrong) or "0", not wrong and gpus > 0)


def settled(node):
    """Waits until the account has reached the current time; a window is long, so time runs faster meanwhile."""
    now = node.clock.utc()
    node.clock.run(4)
    wait_for("the account", 60, lambda: node.account("SELECT min(settled_until_ns) FROM gpu")[0] > now, node.program)
    node.clock.run(1)


def within(seconds, probe, program):
    """Whether the condition became true at all; a suite's patience is longer than most targets."""
    try:
        return bool(wait_for("it", seconds, probe, program))
    except Failed:
        return False


def driver_problem(url):
    """The driver's state on a page: success, and the reasons of failures."""
    found = metrics(get(f"{url}/metrics")[0])
    success = [value for _, value in of(found, "gpumeter_collector_success", collector="driver")]
    return success, [labels["reason"] for labels, _ in of(found, "gpumeter_collector_errors_total", collector="driver")]


def last_sample(found, gpu):
    return next((value for _, value in of(found, "gpumeter_last_sample_timestamp_seconds", gpu=gpu)), None)


def ages_of_others(found, now):
    """How old the last samples of all GPUs but number 3, which hangs, are."""
    stamps = of(found, "gpumeter_last_sample_timestamp_seconds")
    return [now - value for labels, value in stamps if labels["gpu"] != "3"]


def metrics(page):
    """{(name, labels as written): value} of a page, cheaply; `samples` reads it strictly."""
    return {key: float(value) for key, value in re.findall(r"^([a-z][^ ]*(?:\{.*\})?) (\S+)$", page, re.M)}


def of(found, family, **wanted):
    """Labels and value of each series of a family."""
    for key, value in found.items():
        name, _, rest = key.partition("{")
        if name == family:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
            if all(labels.get(label) == text for label, text in wanted.items()):
                yield labels, value


def scrape(port, gzip=False, timeout=PATIENCE):
    began = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout) as stream:
        stream.settimeout(timeout)
        encoding = "Accept-Encoding: gzip\r\n" if gzip else ""
        stream.sendall(f"GET /metrics HTTP/1.1\r\nHost: a\r\n{encoding}Connection: close\r\n\r\n".encode())
        try:
            while piece := stream.recv(1 << 18):
                answer += piece
        except ConnectionResetError:
            pass  # turned away: what was said before counts
    seconds = time.monotonic() - began
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return status, body, seconds


def converse(port, request):
    """Everything that the peer sends until it closes or sends nothing more."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stream:
        try:
            stream.sendall(request)
            while piece := stream.recv(65536):
                answer += piece
                stream.settimeout(0.5)
        except OSError:
            pass
    return answer


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("inf")


def milliseconds(seconds):
    return f"{seconds * 1000:.1f} ms"
