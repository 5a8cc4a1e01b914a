"""The agent under test: a demo of its own, its process's resources, and the files that control its driver."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from harness import GPUMETER, PATIENCE, Demo, Failed, wait_for

from . import measure
from .measure import of


class Node(Demo):
    """A demo in a folder of its own; another command may run it."""

    def __init__(self, suite, name, *arguments, wrap=(), **options):
        self.wrap = list(wrap)
        super().__init__(suite, *arguments, state=suite.folder / name, **options)

    def start(self):
        self.command = self.wrap + self.command
        self.wrap = []
        super().start()

    @property
    def pid(self):
        return self.program.process.pid

    def scrape(self, gzip=False, timeout=PATIENCE):
        """Status, body and seconds of one scrape, connection included."""
        return measure.scrape(self.port, gzip, timeout)

    def metrics(self):
        return measure.metrics(self.page())

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self, what):
        """VmRSS, VmHWM or RssAnon in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB", status, re.M)[1]) / 1024

    def forget_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def threads(self, name):
        """The ids of its threads of that name."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [int(task.name) for task in tasks if (task / "comm").read_text().strip() == name]

    def all_threads(self):
        return os.listdir(f"/proc/{self.pid}/task")

    def up(self):
        return {labels["gpu"]: value for labels, value in of(self.metrics(), "gpu_up")}

    def wait_up(self, count=8, seconds=60):
        wait_for(f"{count} GPUs", seconds, lambda: sum(self.up().values()) == count, self.program)

    def end(self):
        self.program.stop()

    def condition(self, state):
        """Sets hardware and driver: the simulated driver's file `state`."""
        aside = self.driver / "state.new"
        aside.write_text(json.dumps(state))
        aside.rename(self.driver / "state")

    def truth(self, name):
        return json.loads((self.driver / "truth").read_text())[name]

    def calls(self):
        """The functions that were called so far; written once per simulated second."""
        told = json.loads((self.driver / "calls").read_text())
        return sorted(name for name in told if name.startswith("nvml"))

    def lend(self, folder, *more):
        """A folder with the same driver, for another program."""
        folder.mkdir()
        for name in ("libnvidia-ml.so.1", "scenario", *more):
            shutil.copy(self.driver / name, folder)

    def driver_files(self):
        """What it has open or mapped of the driver."""
        process = Path(f"/proc/{self.pid}")
        there = [os.readlink(link) for link in (process / "fd").iterdir() if link.is_symlink()]
        there += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines() if "/" in line]
        return {path for path in there if re.search(r"/(libnvidia-ml|nvidia)[^/]*$", path)}

    def processor(self):
        """Seconds of processor time so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def tell(self, *command):
        """Sends a command to the agent over its local socket."""
        name, *rest = command
        done = subprocess.run([GPUMETER, name, "--socket", self.state / "control.sock", *rest],
                              capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"gpumeter {name}: {done.stderr.strip()}")

    def account(self, question):
        """A row of the ledger, read beside the agent."""
        with closing(sqlite3.connect(f"file:{self.state / 'ledger.db'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(question).fetchone()


def alone(folder, script, *arguments):
    """The output words of a Python script that gets the folder of the simulated driver as its first argument."""
    done = subprocess.run([sys.executable, "-c", script, folder / "libnvidia-ml.so.1", *arguments], capture_output=True,
                          text=True, timeout=PATIENCE)
    if done.returncode:
        raise Failed(f"the simulated driver alone: {done.stderr.strip()}")
    return done.stdout.split()


def crowd(count):
    """A scenario of eight GPUs with that many processes of twenty users; a short one, or the simulator's own memory would be all."""
    phases = [{"from": 0, "to": 1, "demand": 0.5, "memory_bytes": 1 << 24}]
    host = lambda n: {"uid": 2_000 + n % 20, "cgroup": f"/user.slice/user-{2_000 + n % 20}.slice/session-{n}.scope"}
    processes = [{"pid": 10_000 + n, "name": "/usr/bin/job", "gpu": n % 8, "phases": phases, "host": host(n)}
                 for n in range(count)]
    users = [{"uid": 2_000 + n, "name": f"user{n}"} for n in range(20)]
    return {"cycle_seconds": 1, "gpus": [{"profile": "h100", "count": 8}], "users": users, "processes": processes}


def written(suite, name, value):
    path = suite.folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path
