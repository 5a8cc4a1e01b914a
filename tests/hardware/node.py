"""The node that is checked: its driver, real or simulated, the agents on it, and loads on one of its GPUs."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pages
from programs import Worker
from report import NotPossible

HERE = Path(__file__).resolve().parent
# Seconds within which an agent serves its GPUs.
PATIENCE = 30
# The simulated loads by name: pid in the scenario, and what the process does. The real ones are in worker.py.
LOADS = {
    "low": (900_001, {"demand": 0.3, "sm": 0.8, "tensor": 0.6, "dram": 0.3}),
    "high": (900_002, {"demand": 0.6, "sm": 0.8, "tensor": 0.6, "dram": 0.3}),
    "hold": (900_003, {"demand": 0.0}),
    "short": (900_004, {"demand": 1.0, "sm": 0.9, "tensor": 0.7}),
    "tensor": (900_005, {"demand": 1.0, "sm": 0.95, "tensor": 0.8, "dram": 0.3}),
    "copy": (900_006, {"demand": 1.0, "sm": 0.9, "tensor": 0.0, "dram": 0.9}),
    "fp32": (900_007, {"demand": 1.0, "sm": 0.95, "tensor": 0.0, "dram": 0.2, "fp32": 0.8}),
}
SCENARIO = {
    "seed": 1, "cycle_seconds": 600,
    "gpus": [{"profile": "h100"}, {"profile": "l4"},
             {"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}, {"profile": "2g.20gb", "start": 0}]}],
    "processes": [{"pid": pid, "name": "/usr/bin/python3", "gpu": 0, "phases": [{"from": 0, "to": 600, "memory_bytes": 1 << 30, **does}]}
                  for pid, does in LOADS.values()],
}


def has_driver():
    """Whether this machine has an NVIDIA driver or its device files."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


class Node:
    """A real driver. `work` is a folder for what is not kept."""

    simulated = False
    library = None

    def __init__(self, binary, programs, work):
        self.binary, self.programs, self.work = binary, programs, work
        self.environment = {}
        self.prefix = None
        # When a simulated driver was told of other processes.
        self.changes = []

    def agent(self, name, **config):
        return Agent(self, name, config)

    def library_arguments(self):
        return ["--nvml-library", self.library] if self.library else []

    def wrapped(self):
        """What an agent is started with where a user may not create the lock of the node, /run/gpumeter.lock: a /run of its own."""
        if self.prefix is None:
            self.prefix = []
            if not self.simulated and not os.access("/run/gpumeter.lock", os.R_OK) and not os.access("/run", os.W_OK):
                private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
                self.prefix = private if works([*private, "true"]) else []
        return self.prefix

    def worker(self, name, gpu):
        """A load program for the GPU, in a systemd scope of its own where that can be had, so that it has a holder of its own."""
        if not importlib.util.find_spec("torch"):
            raise NotPossible(f"{sys.executable} has no PyTorch (PYTHON=... .ci/hardware uses another Python)")
        scope = ["systemd-run", "--scope", "--quiet", "--collect"] + ([] if os.geteuid() == 0 else ["--user"])
        scope = [*scope, f"--unit=gpumeter-hardware-{name}-{os.getpid()}", "--"] if works([*scope, "--", "true"]) else []
        command = [*scope, sys.executable, "-B", HERE / "worker.py"]
        program = self.programs.start(f"load-{name}", command, {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, reads=True)
        worker = Worker(program)
        worker.answer(60)
        return worker

    def begin(self, load, worker):
        """The worker now is that load; a real one does what it is told."""

    def finish(self, load):
        """It no longer is."""

    def busy(self):
        """What the driver itself knows of loads: seconds that each was busy since some time, by name; a real one knows nothing."""
        return {}


class SimulatedNode(Node):
    """The simulated driver that the binary carries, over the host's own clock and real processes."""

    simulated = True

    def __init__(self, binary, programs, work):
        super().__init__(binary, programs, work)
        self.driver = work / "simulated/driver"
        self.library = self.driver / "libnvidia-ml.so.1"
        self.environment = {"LD_LIBRARY_PATH": str(self.driver)}
        self.pids = {}
        scenario = work / "scenario.json"
        scenario.write_text(json.dumps(SCENARIO))
        port = free_port()
        # The demo alone writes the library out.
        command = [binary, "demo", "--scenario", scenario, "--state-dir", work / "simulated", "--listen", f"127.0.0.1:{port}"]
        demo = programs.start("demo", command)
        wait_for("the simulated driver", lambda: pages.get(f"http://127.0.0.1:{port}/metrics").find("gpu_up"), demo)
        programs.end(demo)
        (self.driver / "clock").unlink()
        self.write_pids()

    def worker(self, name, gpu):
        worker = Worker(self.programs.start(f"load-{name}", [sys.executable, "-B", HERE / "worker.py", "--stand-in"], reads=True))
        worker.answer(60)
        return worker

    def begin(self, load, worker):
        self.pids[load] = worker.pid
        self.write_pids()

    def finish(self, load):
        # What a GPU did between an agent's reading and a change of processes is lost to GPM in this simulator, unlike in a real
        # one; so changes follow the reading, which is at whole seconds of the boot clock.
        if load in self.pids:
            time.sleep((0.15 - time.clock_gettime(time.CLOCK_BOOTTIME)) % 1)
            self.changes.append(time.time())
        self.pids.pop(load, None)
        self.write_pids()

    def write_pids(self):
        state = {"pids": {str(pid): self.pids.get(load) for load, (pid, _) in LOADS.items()}}
        aside = self.driver / "state.new"
        aside.write_text(json.dumps(state))
        aside.rename(self.driver / "state")

    def busy(self):
        try:
            truth = json.loads((self.driver / "truth").read_text())
        except (OSError, ValueError):
            return {}
        # Elapsed time is the host's boot clock.
        at = truth["elapsed_ns"] / 1e9 + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        # In the order of the scenario; their pids are those of the workers for a while.
        return {load: (at, one["busy_ns"] / 1e9) for load, one in zip(LOADS, (one for one in truth["processes"] if one["gpu"] == 0))}


class Agent:
    """`gpumeter run` with a ledger and a port of its own."""

    def __init__(self, node, name, config):
        self.node, self.name = node, name
        self.folder = node.work / name
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.ledger = self.folder / "ledger.db"
        self.path = self.folder / "config.yaml"
        own = {"node": {"name": "hardware"}, "ledger": {"path": str(self.ledger)},
               "web": {"listen": f"127.0.0.1:{self.port}", "control": str(self.folder / "control.sock")}}
        self.path.write_text(json.dumps({**own, **config}))
        self.start()

    def start(self):
        """Starts it, also again after a kill."""
        command = [*self.node.wrapped(), self.node.binary, "run", "--config", self.path, *self.node.library_arguments()]
        self.program = self.node.programs.start(f"agent-{self.name}", command)
        try:
            wait_for("the agent's page with GPUs", lambda: self.page().find("gpu_up"), self.program)
        except NotPossible as late:
            self.stop()
            problems = [line for line in self.program.log.read_text(errors="replace").splitlines() if " ERROR " in line or " WARN " in line]
            raise NotPossible(f"{late}{': ' if problems else ''}{problems[-1][28:300] if problems else ''}") from late

    def page(self):
        return pages.get(f"http://127.0.0.1:{self.port}/metrics")

    def stop(self):
        self.node.programs.end(self.program, 30)

    def gpumeter(self, *arguments, seconds=30):
        return self.node.programs.run(f"{self.name}-{arguments[0]}", [self.node.binary, *arguments], seconds)


def wait_for(what, probe, program, seconds=PATIENCE):
    """The result of a probe as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := probe():
                return found
        except OSError:
            pass
        if not program.alive():
            raise NotPossible(f"{program.name} ended while waiting for {what}: {program.tail()}")
        if time.monotonic() > deadline:
            raise NotPossible(f"{what}: not within {seconds} s")
        time.sleep(0.2)


def works(command, seconds=10):
    """Whether a command can be run here and succeeds."""
    if not shutil.which(str(command[0])):
        return False
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
