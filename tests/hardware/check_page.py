"""1: every series of the page that nvidia-ml-py or nvidia-smi reads too, by the table of tolerances."""

import json
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import readers
import tolerances
from report import NotPossible

HERE = Path(__file__).resolve().parent
CHECK = 1
# All tiers every second, so that the page's values are as old as a tick; driver_share is in millionths.
CONFIG = {"sampling": {"level": "full", "interval": "1s", "medium": "1s", "slow": "1s", "driver_share": 50_000},
          "attribution": {"presence": True}}


def check(session):
    agent = session.node.agent("page", **CONFIG)
    try:
        time.sleep(2)
        session.choose_gpu(agent.page())
        hold_memory(session)
        nvml, smi, page = look_often(session, agent)
    finally:
        session.node.finish("hold")
        agent.stop()
    (session.folder / "page.txt").write_text(page.text)
    compared = set()
    for name, looks in (("nvidia-ml-py", nvml), ("nvidia-smi -q -x", smi)):
        what = f"page against {name}"
        if isinstance(looks, NotPossible):
            session.report.impossible(CHECK, what, looks)
            continue
        result = compare(looks)
        compared |= {family for family, _ in result.agreed}
        (session.folder / f"page-against-{name.split()[0]}.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
        session.report.judge(CHECK, what, result.summary(), "docs/hardware.md", not result.wrong and result.agreed)
    alone = sorted(page.device().keys() - compared)
    (session.folder / "page-alone.txt").write_text("".join(f"{family}\n" for family in alone))


def hold_memory(session):
    """A process that holds memory, where PyTorch can be had, so that there is one to compare."""
    try:
        worker = session.worker("a")
        session.node.begin("hold", worker)
        worker.do(30, do="hold", bytes=1 << 30)
    except NotPossible:
        pass  # check 3 says why


def look_often(session, agent):
    """Looks [(readings, page), ...] by nvidia-ml-py and by nvidia-smi, or why there are none, and the last page."""
    nvml, smi, page = [], [], None
    if not has_nvml(session):
        nvml = NotPossible(f"{sys.executable} has no nvidia-ml-py (pip install nvidia-ml-py)")
    if session.node.simulated or not shutil.which("nvidia-smi"):
        smi = NotPossible("nvidia-smi reads a real driver" if session.node.simulated else "there is no nvidia-smi")
    before = read_smi(session) if isinstance(smi, list) else None
    began = time.monotonic()
    for look in range(session.seconds["looks"]):
        # On nodes with many GPUs nvidia-smi takes seconds.
        if look >= 3 and time.monotonic() - began > 30:
            break
        session.need(15)
        reader = NvmlReader(session) if isinstance(nvml, list) else None
        page = page_since(session, agent, time.time())
        if reader:
            nvml.append((reader.end(), page))
        if isinstance(smi, list):
            after = read_smi(session)
            smi.append(([before, after], page))
            before = after
    return nvml, smi, page


def has_nvml(session):
    code, _ = session.programs.run("nvidia-ml-py", [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"], 20, session.node.environment)
    return code == 0


class NvmlReader:
    """Readings of nvidia-ml-py that have begun, and go on until the end."""

    def __init__(self, session):
        self.session = session
        command = [sys.executable, "-B", HERE / "readers.py", "nvml"]
        self.program = session.programs.start("nvidia-ml-py", command, session.node.environment, reads=True)
        stream = self.program.process.stdout
        self.first = stream.readline() if select.select([stream], [], [], 20)[0] else b""

    def end(self):
        """The values of all readings, of which one begins now."""
        try:
            rest, _ = self.program.process.communicate(timeout=20)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotPossible(f"nvidia-ml-py: {error}") from error
        finally:
            self.session.programs.end(self.program)
        if self.program.process.returncode or not self.first:
            raise NotPossible(f"nvidia-ml-py ends with {self.program.process.returncode}: {self.program.tail()}")
        return [json.loads(line)["values"] for line in (self.first + rest).splitlines()]


def page_since(session, agent, begin):
    """A page on which every tier of every GPU was read after a time."""
    end = time.monotonic() + 20
    while True:
        time.sleep(0.3)
        page = agent.page()
        stamps = [value for _, value in page.find("gpumeter_last_sample_timestamp_seconds")]
        if stamps and min(stamps) > begin + session.seconds["look"]:
            return page
        if time.monotonic() > end:
            raise NotPossible("the agent does not read every GPU within 20 s")


def read_smi(session):
    code, output = session.programs.run("nvidia-smi", ["nvidia-smi", "-q", "-x"], 30)
    if code:
        raise NotPossible(f"nvidia-smi -q -x ends with {code}")
    (session.folder / "nvidia-smi.xml").write_text(output)
    return readers.of_smi(output)


class Comparison:
    """Series that agree, and what is wrong with the others: text by (family, labels)."""

    def __init__(self):
        self.agreed, self.wrong = {}, {}

    def summary(self):
        families = len({family for family, _ in self.agreed})
        text = f"{len(self.agreed)} series of {families} families agree"
        if self.wrong:
            text += f"; {len(self.wrong)} differ: " + "; ".join(self.wrong.values())
        return text

    def as_json(self):
        show = lambda key: f"{key[0]}{dict(key[1])}"
        return {"wrong": list(self.wrong.values()), "agreed": {show(key): value for key, value in self.agreed.items()}}


def compare(looks):
    """Compares looks [(readings, page), ...]; of readings that follow each other, the least and the greatest value count."""
    outcomes = {}
    for readings, page in looks:
        for (family, labels), (low, high) in ranges(readings).items():
            outcomes.setdefault((family, labels), []).append(judge(page, family, dict(labels), low, high))
    result = Comparison()
    for key, verdicts in outcomes.items():
        known = [verdict for verdict in verdicts if verdict is not None]
        wrong = [verdict for verdict in known if verdict]
        if not known:
            continue  # the page says why it leaves it out
        if len(known) - len(wrong) < tolerances.LIMITS["looks"].bound * len(known):
            result.wrong[key] = wrong[-1]
        else:
            result.agreed[key] = f"{len(known) - len(wrong)} of {len(known)} looks"
    return result


def ranges(readings):
    """The least and the greatest value of each series that all of the readings have."""
    values = {}
    for reading in readings:
        for family, labels, value in reading:
            values.setdefault((family, tuple(sorted(labels.items()))), []).append(value)
    return {key: (min(found), max(found)) for key, found in values.items() if len(found) >= len(readings)}


def judge(page, family, labels, low, high):
    """Nothing where the page leaves the series out and may; an empty text where it agrees; else what is wrong."""
    found = page.find(family, **labels)
    name = f"{family}{{{', '.join(f'{label}={value}' for label, value in labels.items())}}}"
    if not found:
        may = family in readers.OPTIONAL or page.find("gpu_unsupported", uuid=labels["uuid"], family=family)
        return None if may else f"{name} is not on the page, read as {low:g}"
    value = found[0][1]
    if tolerances.of_family(family).allows(low, high, value):
        return ""
    return f"{name} is {value:g} on the page, read as {low:g} to {high:g}"
