"""An agent on this machine's own processes: the driver is simulated, and the processes that it lists are real.

The scenario of the driver names its pids in advance; `process-with-pid` runs a process under one of them, wherever it
is started: in a job of Slurm, in a container.
"""

import json
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

from harness import GPUMETER, PATIENCE, Demo, Failed, free_port, get, get_json, reserve, wait_for

CAP_CHECKPOINT_RESTORE = 40
CYCLE = 4  # seconds of the scenario, which repeats


class HostNode:
    """One H100 for each demand, with a process that wants it for that share of the time, or none. A further node has a folder, and none
    of this machine's processes."""

    def __init__(self, suite, demands, config, folder=None):
        if os.geteuid() != 0:
            raise Failed("only root may look at the processes of others and choose pids: run the suite as root")
        self.suite = suite
        self.folder = folder or suite.folder
        self.folder.chmod(0o755)
        self.pids = free_pids(len(demands))
        self.worker = build_worker(self.folder)
        self.driver = self.folder / "driver"
        self.driver.mkdir()
        (self.folder / "ledger").mkdir()
        lend_library(suite, self.driver)
        # The simulated driver lists a pid even without such a process.
        processes = [{"pid": pid, "name": "work", "gpu": gpu, "phases": phases(demand)}
                     for gpu, (pid, demand) in enumerate(zip(self.pids, demands)) if demand is not None]
        # Boards of their own.
        scenario = {"driver_version": "590.48.01", "cycle_seconds": CYCLE, "seed": self.pids[0],
                    "gpus": [{"profile": "h100", "count": len(demands)}], "processes": processes}
        (self.driver / "scenario").write_text(json.dumps(scenario))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        path = self.folder / "agent.yaml"
        path.write_text(config + f"ledger: {{path: {self.folder}/ledger/ledger.db}}\n"
                        f"web: {{control: {self.folder}/control.sock}}\n")
        self.config = path
        # Another node does not see this machine's processes.
        apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child") if folder else ()
        self.program = suite.start(f"agent-{folder.name}" if folder else "agent", *apart, GPUMETER, "run", "--config", path, "--nvml-library", self.library,
                                   "--listen", f"127.0.0.1:{self.port}")
        wait_for("all GPUs", 30, lambda: self.page().count("\ngpu_up{") == len(demands), self.program)

    @property
    def library(self):
        return self.driver / "libnvidia-ml.so.1"

    def page(self):
        return get(f"{self.url}/metrics")[0]

    def samples(self, family, **labels):
        """The samples of a family with these labels: the labels of each as text, and its value."""
        for line in self.page().splitlines():
            if line.startswith(family + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                name, value = line.rsplit(" ", 1)
                yield name, float(value)

    def sample(self, family, **labels):
        """The first sample of a family with these labels, or nothing."""
        return next(self.samples(family, **labels), None)

    def bill(self):
        return get_json(f"{self.url}/api/v1/bill")

    def command(self, *arguments):
        """The output of a gpumeter command."""
        done = subprocess.run([GPUMETER, *arguments], capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr


def phases(demand):
    """The phases of a process that works for that share of each second, then waits. A demand between 0 and 1 would be met by
    chance in each slice of the short cycle, so that a process would want several hundredths more or less for ever. It changes
    its memory all the time, as one that starts would, since the agent reads a new list at each change."""
    moves = []
    for at in range(CYCLE):
        memory = {"memory_bytes": (1 << 33) + (at << 21)}
        moves.append({"from": at, "to": at + demand, "demand": 1} | memory)
        moves.append({"from": at + demand, "to": at + 1, "demand": 0} | memory)
    return moves


def free_pids(count):
    """Unused pids. The kernel assigns those below 300 only once after a boot, so no other process gets one."""
    candidates = random.sample(range(10, 300), 290)
    return sorted(reserve("pid", candidates, lambda pid: not Path(f"/proc/{pid}").exists()) for _ in range(count))


def build_worker(folder):
    """Compiles `process-with-pid`; a file capability lets any user run it."""
    source = Path(__file__).with_name("process_with_pid.c")
    worker = folder / "process-with-pid"
    try:
        subprocess.run(["cc", "-static", "-O1", "-o", worker, source], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"{source.name} cannot be compiled: {getattr(error, 'stderr', None) or error}") from error
    # struct vfs_cap_data, version 2: permitted and inheritable sets, low words first; the bit makes them effective.
    high = 1 << (CAP_CHECKPOINT_RESTORE - 32)
    os.setxattr(worker, "security.capability", struct.pack("<5I", 0x0200_0001, 0, 0, high, 0))
    return worker


def lend_library(suite, folder):
    """Copies the simulated driver library, which the binary carries for its demo."""
    demo = Demo(suite)
    demo.program.stop()
    shutil.copy(demo.driver / "libnvidia-ml.so.1", folder)
