"""Real containers of Podman, and its service, which names them by Docker's API.

The containers' processes are those that the simulated driver lists. Podman keeps everything in the suite's folder.
"""

import shutil
import subprocess

import harness
from harness import PATIENCE, Failed, wait_for
from host_node import HostNode

DEMAND = 0.5
IMAGE = "localhost/gpumeter-worker:7"


class Podman:
    """Podman with a storage of its own."""

    def __init__(self, suite):
        self.suite = suite
        self.socket = suite.folder / "podman.sock"
        # runc and cgroupfs work with and without systemd, on both versions of cgroups.
        self.command = ["podman", "--root", suite.folder / "storage", "--runroot", suite.folder / "state",
                        "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        self.service = None

    def run(self, *arguments):
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"podman {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout.strip()

    def import_image(self, worker):
        """An image that holds the worker alone."""
        root = self.suite.folder / "image"
        root.mkdir()
        shutil.copy(worker, root / "worker")
        archive = shutil.make_archive(self.suite.folder / "image", "tar", root)
        self.run("import", archive, IMAGE)

    def start(self, name, pid, seconds=3600):
        """A container with a process under that pid of the host; its id."""
        # An agent without CAP_SYS_RESOURCE around it may not raise limits.
        limits = "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"
        return self.run("run", "--detach", "--name", name, "--network", "none", "--pid", "host", *limits,
                        "--cap-add", "ALL", IMAGE, "/worker", str(pid), str(seconds))

    def serve(self):
        self.service = self.suite.start("podman", *self.command, "system", "service", "--time", "0",
                                        f"unix://{self.socket}")
        wait_for("the socket of Podman", 20, self.socket.exists, self.service)

    def stop(self):
        self.service.stop()
        self.socket.unlink(missing_ok=True)

    def remove_all(self):
        subprocess.run([*self.command, "rm", "--all", "--force", "--time", "0"], capture_output=True, timeout=PATIENCE)


def containers(suite):
    if not shutil.which("podman"):
        raise Failed("podman is not installed; .ci/tools podman installs it")
    podman = Podman(suite)
    node = HostNode(suite, [DEMAND] * 2, f"""node: {{name: gpunode}}
sampling: {{level: full}}
limits: {{birth_delay: 0s}}
attribution: {{presence: true, containers: {{socket: {podman.socket}}}}}
prices: {{currency: EUR, rates: [{{gpu_hour: 3.6}}]}}
""")
    try:
        whole(suite, podman, node)
    finally:
        podman.remove_all()


def whole(suite, podman, node):
    podman.import_image(node.worker)
    podman.serve()
    holder = f"container:podman/{podman.start('trainer', node.pids[0])}"
    labels = {"workload": holder, "container_name": "trainer", "container_image": IMAGE}
    named = lambda: node.sample("gpu_workload_info", **labels)
    wait_for("the name of a container", 30, named, node.program)
    succeeded = lambda: (node.sample("gpumeter_resolver_success", resolver="containers") or (None, None))[1]
    wait_for("the resolver's success", 30, lambda: succeeded() == 1, node.program)
    doctor = node.command("doctor", "--config", node.config, "--nvml-library", node.library)
    suite.expect("names 1 running containers" in doctor, f"doctor does not say who is named: {doctor}")

    podman.stop()
    wait_for("the failure", 30, lambda: succeeded() == 0, node.program)
    other = f"container:podman/{podman.start('late', node.pids[1])}"
    wait_for("a container that nobody names", 40, lambda: node.sample("gpu_workload_info", workload=other), node.program)
    suite.expect(named(), "the container lost its name with the service")
    podman.serve()
    wait_for("the service's return", 90, lambda: succeeded() == 1, node.program)
    late = {"workload": other, "container_name": "late"}
    wait_for("its name", 30, lambda: node.sample("gpu_workload_info", **late), node.program)

    lines = lambda: {line["holder"]: line for line in node.bill()["lines"]}
    wait_for("both lines of the bill", 400, lambda: {holder, other} <= lines().keys(), node.program, 2)
    for line in (lines()[holder], lines()[other]):
        suite.expect(line["used_ns"] > 0, f"a container used nothing: {line}")


if __name__ == "__main__":
    harness.run(containers)
