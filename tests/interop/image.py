"""The container image: the same inputs give the same digest, it holds no shell, and unpacked it runs with the flags of the
DaemonSet: no capability, nothing to write but the ledger and the lock. runc runs it, so no container daemon is needed.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import harness
from harness import GPUMETER, PATIENCE, ROOT, Demo, Failed, free_port, get, wait_for

BUILD = ROOT / "packaging/image/build"
PACKAGES = Path(os.environ.get("GPUMETER_TOOLS", Path.home() / ".cache/gpumeter-tools")) / "debian-packages"
LABELS = ("title", "description", "version", "revision", "created", "licenses", "documentation")


def image(suite):
    if os.geteuid() != 0 or not shutil.which("runc"):
        raise Failed("runc as root is needed; .ci/tools kubernetes installs it")
    first, second = (build(suite, name) for name in ("first", "second"))
    suite.expect(first.read_bytes() == second.read_bytes(), "the same inputs give two images")
    layout = Layout(suite, first)
    contents(suite, layout)
    software(suite, first)
    refusals(suite)
    bundle = Bundle(suite, layout)
    version = bundle.run("--version")
    suite.expect(version.returncode == 0 and layout.labels()["version"] in version.stdout, f"--version: {version}")
    doctor(suite, bundle)
    another_user(suite, bundle)
    demo(suite, bundle)
    recipe_for_arm64(suite)


def build(suite, name, binary=GPUMETER, arch="amd64"):
    path = suite.folder / f"{name}.tar"
    ran = subprocess.run([BUILD, "--binary", binary, "--arch", arch, "--output", path, "--packages", PACKAGES],
                         capture_output=True, text=True, timeout=300)
    if ran.returncode:
        raise Failed(f"packaging/image/build: {ran.stderr}")
    print(ran.stdout.splitlines()[0])
    return path


def contents(suite, layout):
    labels = layout.labels()
    suite.expect(labels.keys() == set(LABELS), f"the labels are {labels}")
    files = [path.relative_to(layout.root) for path in layout.root.rglob("*")]
    shells = [path for path in files if re.search(r"(^|/)(sh|bash|dash|busybox|perl|python[0-9.]*)$", str(path))]
    programs = [path for path in files if (layout.root / path).is_file() and "bin" in path.parts]
    suite.expect(not shells and programs == [Path("usr/bin/gpumeter")], f"the image has the programs {programs}, shells {shells}")
    setuid = [path for path in files if (layout.root / path).lstat().st_mode & 0o6000]
    suite.expect(not setuid, f"these files change whoever runs them: {setuid}")


def software(suite, archive):
    """The SBOM names the packages of the lock and the crates."""
    bill = json.loads(archive.with_suffix(".cdx.json").read_text())
    names = {component["name"] for component in bill["components"]}
    suite.expect({"libc6", "libgcc-s1", "tokio", "rusqlite"} <= names, f"the SBOM has {sorted(names)}")


def refusals(suite):
    """The builder's errors for a file that is not a binary, and for packages other than the pinned ones."""
    wrong = suite.folder / "script"
    wrong.write_text("#!/bin/sh\n")
    ran = subprocess.run([BUILD, "--binary", wrong, "--output", suite.folder / "no.tar"], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 1 and "is not a program for amd64" in ran.stderr, f"a script as binary: {ran}")
    newer = suite.folder / "newer"
    # The name of the interface in the program is followed by one that is newer than any glibc's.
    newer.write_bytes(GPUMETER.read_bytes() + b"\0GLIBC_2.99\0")
    ran = subprocess.run([BUILD, "--binary", newer, "--output", suite.folder / "no.tar"], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 1 and "needs glibc 2.99" in ran.stderr and "packaging/release" in ran.stderr, f"a newer glibc: {ran}")
    folder = suite.folder / "packages"
    folder.mkdir()
    for line in (ROOT / "packaging/image/packages.lock").read_text().splitlines():
        if line.startswith("amd64"):
            _, name, version, _ = line.split()
            (folder / f"{name}_{version}_amd64.deb").write_text("something else")
    ran = subprocess.run([BUILD, "--binary", GPUMETER, "--packages", folder, "--output", suite.folder / "no.tar"], capture_output=True,
                         text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 1 and "checksum" in ran.stderr, f"other packages: {ran}")


def doctor(suite, bundle):
    """On a simulated driver on the host: everything that a pod of the device-plugin variants has."""
    driver = Demo(suite)
    bundle.mounts = [mount(driver.driver, "/driver")]
    ran = bundle.run("doctor", "--nvml-library", "/driver/libnvidia-ml.so.1")
    suite.expect(ran.returncode == 1 and "ok      driver" in ran.stdout, f"doctor: {ran.stdout}{ran.stderr}")
    suite.expect("FAILED  processes" in ran.stdout and "hostPID" in ran.stdout, f"doctor on the host's processes: {ran.stdout}")
    suite.expect("ok      ledger" in ran.stdout, f"doctor on the ledger: {ran.stdout}")
    bundle.mounts = []
    driver.program.stop()


def another_user(suite, bundle):
    """Without root the ledger needs a prepared directory."""
    for owner, told in ((0, "FAILED  ledger"), (65532, "ok      ledger")):
        os.chown(suite.folder / "ledger", owner, owner)
        ran = bundle.run("doctor", user=65532)
        suite.expect(told in ran.stdout, f"as user 65532 in a directory of {owner}: {ran.stdout}{ran.stderr}")
    os.chown(suite.folder / "ledger", 0, 0)


def recipe_for_arm64(suite):
    """What can be tested without such a machine: the right packages under the right names. The program is a placeholder."""
    program = suite.folder / "arm64"
    program.write_bytes(b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little"))
    layout = Layout(suite, build(suite, "third", program, "arm64"), "arm64-layout")
    suite.expect(layout.config["architecture"] == "arm64", f"the image is for {layout.config['architecture']}")
    loader = layout.root / "usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"
    suite.expect(loader.read_bytes()[18:20] == b"\xb7\x00", "the loader is for another machine")
    found = layout.root / "lib/ld-linux-aarch64.so.1"
    suite.expect(found.exists() and found.samefile(loader), "programs do not find the loader")


def demo(suite, bundle):
    port = free_port()
    program = bundle.start("demo", "--listen", f"127.0.0.1:{port}", "--state-dir", "/var/lib/gpumeter/demo")
    wait_for("the demo in the container", 60, lambda: "gpu_up{" in get(f"http://127.0.0.1:{port}/metrics")[0], program)
    status = bundle.status()
    suite.expect(re.search(r"(?m)^CapEff:\s*0+$", status), f"the agent has capabilities: {status}")
    suite.expect(re.search(r"(?m)^NoNewPrivs:\s*1$", status), f"it may gain privileges: {status}")


def mount(source, target, *options):
    return {"source": str(source), "destination": target, "type": "bind", "options": ["rbind", *options]}


class Layout:
    """An OCI layout, unpacked as a runtime would."""

    def __init__(self, suite, archive, name="layout"):
        folder = suite.folder / name
        self.root = suite.folder / f"{name}-root"
        self.root.mkdir()
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        self.folder = folder
        index = json.loads((folder / "index.json").read_text())
        self.manifest = self.blob(index["manifests"][0])
        self.config = self.blob(self.manifest["config"])
        for layer in self.manifest["layers"]:
            # Python's extraction filters refuse absolute links, which point into the container here.
            subprocess.run(["tar", "--extract", "--gzip", "--file", self.path(layer), "--directory", self.root], check=True)

    def path(self, descriptor):
        return self.folder / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")

    def blob(self, descriptor):
        return json.loads(self.path(descriptor).read_text())

    def labels(self):
        return {key.removeprefix("org.opencontainers.image."): value for key, value in self.config["config"]["Labels"].items()}


class Bundle:
    """A container of runc with the restrictions of the DaemonSet."""

    def __init__(self, suite, layout):
        self.suite, self.mounts, self.count = suite, [], 0
        self.folder = suite.folder / "bundle"
        self.folder.mkdir()
        (suite.folder / "ledger").mkdir()
        self.config = layout.config["config"]
        self.root = layout.root

    def specify(self, *arguments, user=0):
        if self.count == 0:
            subprocess.run(["runc", "spec", "--bundle", self.folder], check=True, capture_output=True)
        self.count += 1
        self.name = f"gpumeter-image-{os.getpid()}-{self.count}"
        path = self.folder / "config.json"
        spec = json.loads(path.read_text())
        none = {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")}
        spec["root"] = {"path": str(self.root), "readonly": True}
        spec["process"] |= {"terminal": False, "args": [*self.config["Entrypoint"], *arguments], "env": self.config["Env"], "cwd": "/",
                            "user": {"uid": user, "gid": user}, "capabilities": none, "noNewPrivileges": True, "rlimits": []}
        spec["mounts"] = [one for one in spec["mounts"] if one["destination"] in ("/proc", "/dev", "/sys", "/dev/shm", "/dev/mqueue")]
        spec["mounts"] += [mount(self.suite.folder / "ledger", "/var/lib/gpumeter"), *self.mounts]
        # The host's network, so that the test reaches it without another.
        spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] not in ("network", "cgroup")]
        path.write_text(json.dumps(spec))
        return ["runc", "run", "--bundle", self.folder, self.name]

    def run(self, *arguments, user=0):
        return subprocess.run(self.specify(*arguments, user=user), capture_output=True, text=True, timeout=PATIENCE)

    def start(self, *arguments):
        return self.suite.start("runc", *self.specify(*arguments))

    def status(self):
        state = json.loads(subprocess.run(["runc", "state", self.name], check=True, capture_output=True, text=True).stdout)
        return Path(f"/proc/{state['pid']}/status").read_text()


if __name__ == "__main__":
    harness.run(image)
