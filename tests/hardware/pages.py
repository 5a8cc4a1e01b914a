"""Series of a page: their labels and values, and what is the device's."""

import re
import urllib.request

# Families of processes and of the account begin so; they are not the device's.
NOT_OF_DEVICE = ("gpu_process", "gpu_tenant_", "gpu_workload_", "gpu_slot_", "gpu_unattributed_", "gpu_holding_", "gpu_cost_")


class Page:
    def __init__(self, text):
        self.text = text
        self.families = {}
        for name, labels, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", text, re.M):
            pairs = {key: unescape(content) for key, content in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)}
            self.families.setdefault(name, []).append((pairs, float(value)))

    def find(self, family, /, **labels):
        """The series [(labels, value), ...] of a family that have these labels, perhaps beside others."""
        return [(own, value) for own, value in self.families.get(family, ())
                if all(own.get(name, "") == content for name, content in labels.items())]

    def value(self, family, /, **labels):
        """The value of the only such series, or None."""
        found = self.find(family, **labels)
        return found[0][1] if len(found) == 1 else None

    def sum(self, family, /, **labels):
        return sum(value for _, value in self.find(family, **labels))

    def device(self):
        """The families of devices."""
        return {name: series for name, series in self.families.items()
                if name.startswith("gpu_") and not name.startswith(NOT_OF_DEVICE)}


def unescape(content):
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), content)


def get(url):
    """The page at a URL of this machine; no proxy is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return Page(answer.read().decode())
