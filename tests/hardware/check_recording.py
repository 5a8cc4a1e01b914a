"""2: a recording of a minute, and whether its replay has the device families of the running agent."""

import time

import node
import pages
from report import NotPossible

CHECK = 2
# What happens at some time only, and may have been before the recording.
EVENTS = ("gpu_xid", "gpu_absence_info")
SPEED = 10


class Recording:
    """`gpumeter record`, running beside everything else."""

    def __init__(self, session):
        self.session, self.file = session, session.folder / "recording.jsonl"
        self.seconds = session.seconds["record"]
        command = [session.node.binary, "record", "--for", f"{self.seconds}s", self.file, *session.node.library_arguments()]
        self.began = time.monotonic()
        self.program = session.programs.start("record", command)

    def check(self):
        session = self.session
        while self.program.alive():
            if time.monotonic() > self.began + self.seconds + 30:
                raise NotPossible("gpumeter record does not end")
            session.watch.wait(0.5)
        if self.program.process.returncode:
            raise NotPossible(f"gpumeter record ends with {self.program.process.returncode}: {self.program.tail()}")
        live = union(page for _, page in session.watch.pages)
        played = union(replay(session, self.file, self.seconds))
        size = self.file.stat().st_size
        families, series = (differences(*pair) for pair in ((live.keys(), played.keys()), (names(live), names(played, live))))
        session.report.judge(CHECK, f"device families of a replay of {self.seconds} s ({size / 1e6:.1f} MB)",
                             f"{len(live)} families{families}", "the same", not families)
        session.report.judge(CHECK, "their series", f"{len(names(live))} series{series}", "the same", not series)


def replay(session, file, seconds):
    """Pages of a replay of the recording, to its end and a little beyond."""
    session.need(seconds / SPEED + 15)
    folder = session.node.work / "replay"
    config = session.node.work / "replay.yaml"
    config.write_text("sampling: {level: full}\n")
    port = node.free_port()
    command = [session.node.binary, "replay", file, "--speed", str(SPEED), "--listen", f"127.0.0.1:{port}", "--state-dir", folder,
               "--config", config]
    program = session.programs.start("replay", command)
    look = lambda: pages.get(f"http://127.0.0.1:{port}/metrics")
    node.wait_for("the replay's page", lambda: look().find("gpu_up"), program)
    found, end = [], time.monotonic() + seconds / SPEED + 3
    while time.monotonic() < end:
        found.append(look())
        session.watch.poll()
        time.sleep(0.3)
    session.programs.end(program)
    return found


def union(found):
    """The device families of all pages, with the labels of their series."""
    families = {}
    for page in found:
        for family, series in page.device().items():
            if not family.startswith(EVENTS):
                families.setdefault(family, set()).update(tuple(sorted(labels.items())) for labels, _ in series)
    return families


def names(families, like=None):
    """The series of the families; those of states and reasons may come and go, and count once each."""
    return {(family, one) for family, series in families.items() if like is None or family in like
            for one in series if not any(label in ("state", "reason", "action") for label, _ in one)}


def differences(live, played):
    """What only one of them has, at most three of each, as text; nothing where they are the same."""
    text = ""
    for what, only in (("only live", live - played), ("only in the replay", played - live)):
        if only:
            text += f"; {len(only)} {what}: {', '.join(str(one) for one in sorted(only, key=str)[:3])}"
    return text
