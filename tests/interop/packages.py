"""The packages: checked by lintian and rpmlint, and the Debian one installed beside systemd as process 1 in a container.

    gpumeter-python packages.py      GPUMETER_SMOKE=1: without what takes long

The driver in the container is the simulated one without the symbol by which it says so, so that the agent takes it for real
and needs the node's lock. A container has no rules on devices of its own. /dev/kmsg, which the kernel refuses with EPERM,
therefore stands in for a device file that they close.
"""

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path

from harness import GPUMETER, ROOT, SMOKE, Failed, run, wait_for
from host_node import lend_library

# The scripts and units of the package before gpumeter.socket was enabled.
PREVIOUS = Path(__file__).with_name("previous_package")
TREE = Path(os.environ.get("GPUMETER_MACHINE", "/nonexistent"))
DRIVER = "/var/lib/gpumeter/driver"
CONFIG = "/etc/gpumeter/config.yaml"
OWN_COMMAND = "/etc/systemd/system/gpumeter.service.d/own-command.conf"
# Short, so that a suite can wait for it, and long enough for a busy machine; the packaged one is longer.
WATCHDOG = 10


class Machine:
    """A container with systemd as its process 1, whose changes are lost at its end. It has a network of its own."""

    def __init__(self, suite):
        if os.geteuid() != 0:
            raise Failed("systemd-nspawn needs root: run the suite as root")
        if not TREE.is_dir():
            raise Failed(f"GPUMETER_MACHINE={TREE} is no directory; .ci/packages makes one")
        self.program = suite.start(
            "machine", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--volatile=overlay",
            "--private-network", "--capability=CAP_SYSLOG", f"--machine=gpumeter-{os.getpid()}", f"--directory={TREE}",
            f"--bind-ro={suite.folder}/packages:/packages")
        self.leader = wait_for("process 1 of the container", 30, self._leader, self.program)
        ready = ("running", "degraded")
        wait_for("systemd", 60, lambda: self.run("systemctl", "is-system-running").stdout.strip() in ready, self.program)

    def _leader(self):
        children = Path(f"/proc/{self.program.process.pid}/task/{self.program.process.pid}/children")
        return next(iter(children.read_text().split()), None)

    def run(self, *command):
        """Runs a command inside."""
        inside = ["nsenter", "-t", self.leader, "-m", "-u", "-i", "-n", "-p", "-C", "--root", "--wd=/", "env", "-i",
                  "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *map(str, command)]
        return subprocess.run(inside, cwd="/", capture_output=True, text=True, timeout=120)

    def check(self, *command):
        """What a command inside prints; one that fails ends the suite."""
        done = self.run(*command)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def path(self, path):
        """A file inside, as the host sees it."""
        return Path(f"/proc/{self.leader}/root{path}")

    def show(self, property, unit="gpumeter.service"):
        return self.run("systemctl", "show", "-P", property, unit).stdout.strip()

    def log(self, unit="gpumeter.service"):
        return self.run("journalctl", "-o", "cat", "--no-pager", "-u", unit).stdout

    def page(self, path="/metrics", port=9855, scheme="http"):
        """A page of the agent, asked for inside; empty where nobody answers."""
        return self.ask(path, port, scheme).stdout

    def ask(self, path="/metrics", port=9855, scheme="http"):
        """A request inside: the page and the error."""
        script = ("import ssl, urllib.request as r; "
                  f"print(r.urlopen('{scheme}://127.0.0.1:{port}{path}', timeout=5, context=ssl._create_unverified_context()).read().decode())")
        return self.python(script)

    def python(self, script):
        """Runs a script in the container's network."""
        return subprocess.run(["nsenter", "-t", self.leader, "-n", sys.executable, "-c", script], capture_output=True, text=True)

    def addresses(self, port=9855):
        """The addresses on which somebody listens on a port."""
        script = f"import json; print(json.dumps([hex for kind in ('tcp', 'tcp6') for _, hex, _, state, *_ in map(str.split, open('/proc/net/' + kind)) " \
                 f"if state == '0A' and hex.endswith(':%04X' % {port})]))"
        names = {"00000000": "0.0.0.0", "0100007F": "127.0.0.1", "0" * 32: "[::]"}
        return sorted(names.get(found.split(":")[0], found) for found in json.loads(self.python(script).stdout))

    def wait_for(self, what, seconds, probe):
        try:
            return wait_for(what, seconds, probe, self.program, every=0.3)
        except Failed as failed:
            raise Failed(f"{failed}\nthe agent's log:\n{self.log()[-4000:]}") from failed

    def wait_for_gpus(self):
        self.wait_for("all GPUs", 60, lambda: self.page().count("\ngpu_up{") == 2)

    def restarts(self):
        return int(self.show("NRestarts") or 0)

    def pid(self):
        return int(self.show("MainPID"))

    def faults(self, *faults):
        aside = self.path(f"{DRIVER}/faults.new")
        aside.write_text(json.dumps(faults))
        aside.rename(self.path(f"{DRIVER}/faults"))


def packages(suite):
    folder = suite.folder / "packages"
    release = {**os.environ, "BINARY": str(GPUMETER), "GPG_KEY": "", "COSIGN_KEY": ""}
    subprocess.run([ROOT / "packaging/release", folder], check=True, stdout=subprocess.DEVNULL, env=release)
    released(suite, folder)
    lint(suite, folder)
    driver = suite.folder / "driver"
    driver.mkdir()
    lend_library(suite, driver)
    machine = Machine(suite)
    upgrade_from_previous(suite, machine)
    install(suite, machine)
    add_driver(suite, machine, driver)
    reload(suite, machine)
    second_agent(suite, machine)
    with short_watchdog(machine):
        frozen_call(suite, machine)
        frozen_tick_loop(suite, machine)
    drop_ins(suite, machine)
    socket_activation(suite, machine)
    driver_loaded_later(suite, machine)
    upgrade(suite, machine)
    purge(suite, machine)


def released(suite, folder):
    """Everything that a release has, with its checksums."""
    machine = os.uname().machine
    for pattern in ("gpumeter-*-image-*.tar", "gpumeter-*-image-*.cdx.json", "*.deb", "*.rpm", f"third-party-{machine}.txt",
                    f"gpumeter-*-{machine}.cdx.json", f"gpumeter-*-{machine}", "gpumeter-*.tgz"):
        suite.expect(any(folder.glob(pattern)), f"no {pattern} in the release: {sorted(path.name for path in folder.iterdir())}")
    [chart] = folder.glob("gpumeter-*.tgz")
    with tarfile.open(chart) as archive:
        packed = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    charts = ROOT / "packaging/helm"
    expected = {str(file.relative_to(charts)): file.read_bytes() for file in charts.rglob("*") if file.is_file()}
    suite.expect(packed == expected, f"the chart of the release differs in {sorted(packed.items() ^ expected.items())[:3]}")
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    suite.expect(done.returncode == 0, f"the release's checksums: {done.stdout}{done.stderr}")


def lint(suite, folder):
    deb, rpm = next(folder.glob("*.deb")), next(folder.glob("*.rpm"))
    for command in (
        ["lintian", "--allow-root", "--fail-on", "error,warning", deb],
        ["rpmlint", "-c", ROOT / "packaging/rpm/rpmlint.toml", rpm],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        clean = done.returncode == 0 and (command[0] == "lintian" or "0 errors, 0 warnings" in said)
        suite.expect(clean, f"{command[0]}: {said}")
    listed = subprocess.run(["rpm", "-qpl", rpm], capture_output=True, text=True).stdout
    for path in ("/usr/bin/gpumeter", "/usr/lib/systemd/system/gpumeter.socket", "/usr/lib/systemd/system/gpumeter-fleet.service",
                 "/usr/share/man/man1/gpumeter.1.gz"):
        suite.expect(f"\n{path}\n" in f"\n{listed}", f"{path} is not in the RPM: {listed}")
    for path in (GPUMETER, deb, rpm):
        print(f"packages: {path.name} has {path.stat().st_size / 1e6:.1f} MB")


def install(suite, machine):
    machine.check("sh", "-c", "dpkg -i /packages/*.deb")
    machine.wait_for("READY", 30, lambda: machine.show("ActiveState") == "active")
    suite.expect(machine.show("StatusText") == "running", f"status: {machine.show('StatusText')}")
    suite.expect("enabled" in machine.run("systemctl", "is-enabled", "gpumeter").stdout, "the unit is not enabled")
    suite.expect(socket_is_enabled(machine), "the socket is not enabled")
    suite.expect(machine.show("ActiveState", "gpumeter.socket") == "active", "systemd does not hold the port")
    status = machine.path(f"/proc/{machine.pid()}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    user = machine.check("id", "-u", "gpumeter").strip()
    suite.expect(fields["Uid"].split()[0] == user, f"it runs as user {fields['Uid']}, not as {user}")
    for field, value in (("CapEff", "0" * 16), ("CapBnd", "0" * 16), ("NoNewPrivs", "1"), ("Seccomp", "2")):
        suite.expect(fields[field].strip() == value, f"{field} is {fields[field]}")
    page = machine.wait_for("a page", 30, machine.page)
    suite.expect("gpumeter_build_info" in page and "gpu_up{" not in page, f"a page without a driver: {page[:400]}")
    alerts = [{path.name: path.read_text() for path in folder.iterdir()} for folder in (ROOT / "alerts", machine.path("/usr/share/gpumeter/alerts"))]
    rules, installed = {name: text for name, text in alerts[0].items() if re.search("^groups:", text, re.M)}, alerts[1]
    suite.expect(rules and installed == rules, f"alerts installed: {sorted(installed)}, files of rules: {sorted(rules)}")


def add_driver(suite, machine, driver):
    """Installs the simulated driver."""
    library = hide_symbol((driver / "libnvidia-ml.so.1").read_bytes(), b"gpumeter_simulated")
    inside = machine.path(DRIVER)
    inside.mkdir()
    (inside / "libnvidia-ml.so.1").write_bytes(library)
    process = {"pid": 1, "name": "init", "gpu": 0, "phases": [{"from": 0, "to": 600, "demand": 0.5, "memory_bytes": 1 << 30}]}
    scenario = {"gpus": [{"profile": "h100", "count": 2}], "cycle_seconds": 600, "processes": [process]}
    (inside / "scenario").write_text(json.dumps(scenario))
    machine.check("chown", "-R", "gpumeter:gpumeter", DRIVER)
    write_config(machine, "standard")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()
    page = machine.wait_for("a page", 30, machine.page)
    suite.expect("gpumeter_simulated 0" in page, "it does not take the driver for a real one")


def hide_symbol(library, name):
    """A shared library of 64 bits in which dlsym does not find a symbol, which the library itself still uses."""
    dynsym, hidden = 11, 2
    library = bytearray(library)
    table, = struct.unpack_from("<Q", library, 0x28)
    size, count = struct.unpack_from("<HH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + size * place) for place in range(count)]
    symbols = next(section for section in sections if section[1] == dynsym)
    strings = sections[symbols[6]][4]
    for place in range(symbols[4], symbols[4] + symbols[5], 24):
        at = strings + struct.unpack_from("<I", library, place)[0]
        if library[at:at + len(name) + 1] == name + b"\0":
            library[place + 5] = hidden
            return bytes(library)
    raise Failed(f"the library has no symbol {name.decode()}")


def write_config(machine, level):
    machine.path(CONFIG).write_text(f"nvml: {{library: {DRIVER}/libnvidia-ml.so.1}}\nsampling: {{level: {level}}}\n")


def drop_in(machine, name, text):
    folder = machine.path("/etc/systemd/system/gpumeter.service.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    machine.check("systemctl", "daemon-reload")


def reload(suite, machine):
    before = machine.pid()
    write_config(machine, "full")
    machine.check("systemctl", "reload", "gpumeter")
    machine.wait_for("the reload", 30, lambda: "configuration reloaded" in machine.show("StatusText"))
    machine.path(CONFIG).write_text("sampling: {level: loud}\n")
    machine.check("systemctl", "reload", "gpumeter")
    machine.wait_for("a refused reload", 30, lambda: "not reloaded" in machine.show("StatusText"))
    write_config(machine, "full")
    machine.check("systemctl", "reload", "gpumeter")
    machine.wait_for("the next reload", 30, lambda: "configuration reloaded" in machine.show("StatusText"))
    suite.expect(machine.pid() == before and machine.restarts() == 0, "a reload started it anew")


def second_agent(suite, machine):
    """The packaged unit under another name, with its own ledger and port."""
    unit = machine.path("/lib/systemd/system/gpumeter.service").read_text()
    unit = unit.replace(CONFIG, "/etc/gpumeter/second.yaml").replace("Directory=gpumeter", "Directory=gpumeter-second")
    machine.path("/etc/systemd/system/second.service").write_text(unit)
    machine.path("/etc/gpumeter/second.yaml").write_text(
        f"nvml: {{library: {DRIVER}/libnvidia-ml.so.1}}\nledger: {{path: /var/lib/gpumeter-second/ledger.db}}\n"
        "web: {listen: '127.0.0.1:9856', control: 'off'}\n")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "second")
    refusal = "another gpumeter (process "
    machine.wait_for("the refusal", 30, lambda: refusal in machine.log("second.service"))
    page = machine.wait_for("a page of the second agent", 30, lambda: machine.page(port=9856))
    suite.expect("gpumeter_build_info" in page and "gpu_up{" not in page, f"the second agent reads GPUs: {page[:400]}")
    machine.wait_for_gpus()
    # The ledger has a lock of its own: with the first one's ledger it does not even start.
    machine.path("/etc/gpumeter/second.yaml").write_text("web: {listen: '127.0.0.1:9856', control: 'off'}\n")
    unit = unit.replace("StateDirectory=gpumeter-second", "StateDirectory=gpumeter")
    machine.path("/etc/systemd/system/second.service").write_text(unit.replace("Restart=on-failure", "Restart=no"))
    machine.check("systemctl", "daemon-reload")
    refused = machine.run("systemctl", "restart", "second")
    suite.expect(refused.returncode != 0 and machine.show("ExecMainStatus", "second.service") == "2",
                 f"a second agent on one ledger: {refused}")
    machine.run("systemctl", "stop", "second")


@contextmanager
def short_watchdog(machine):
    """The packaged unit whose watchdog can be waited for."""
    drop_in(machine, "watchdog.conf", f"[Service]\nWatchdogSec={WATCHDOG}\n")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()
    yield
    machine.path("/etc/systemd/system/gpumeter.service.d/watchdog.conf").unlink()
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()


def frozen_call(suite, machine):
    """A driver call that hangs restarts nobody, and the agent still ends in time."""
    before = machine.restarts()
    machine.faults({"function": "*", "hang": True})
    machine.wait_for("a call in flight", 30, lambda: "gpumeter_driver_call_in_flight_seconds{" in machine.page())
    deadline = time.monotonic() + (2 if SMOKE else 4) * WATCHDOG
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if machine.restarts() != before:
            break
    suite.expect(machine.restarts() == before and machine.show("ActiveState") == "active", "a hung driver call restarted it")
    stopped = time.monotonic()
    machine.check("systemctl", "stop", "gpumeter")
    took = time.monotonic() - stopped
    print(f"packages: stopped within {took:.2f} s while every driver call hung (target: 2 s)")
    # The target holds on an idle machine; on a busy one the limit is systemd's, which kills an agent that does not end.
    result = machine.show("Result")
    suite.expect(result == "success", f"it took {took:.1f} s to stop, {result}")
    machine.faults()
    machine.check("systemctl", "start", "gpumeter")
    machine.wait_for_gpus()


def frozen_tick_loop(suite, machine):
    """Stops one thread as a debugger does: the page is served, and the watchdog still ends the agent."""
    before = machine.restarts()
    host_pid = next(pids_of(machine))
    thread = next(int(task.name) for task in Path(f"/proc/{host_pid}/task").iterdir()
                  if (task / "comm").read_text().strip() == "tick_loop")
    with Frozen(thread) as frozen:
        machine.wait_for("the watchdog", 60, lambda: frozen.reap() and machine.restarts() == before + 1)
    machine.wait_for_gpus()
    suite.expect("Watchdog timeout" in machine.log(), "systemd does not say that it was the watchdog")


def pids_of(machine):
    """The agent's pid as the host numbers it."""
    inside = machine.pid()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            numbers = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:")).split()[1:]
            same = os.readlink(status.parent / "ns/pid") == os.readlink(f"/proc/{machine.leader}/ns/pid")
        except (OSError, StopIteration):
            continue
        if same and int(numbers[-1]) == inside:
            yield status.parent.name


class Frozen:
    """A thread that does not run."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, thread):
        self.thread = thread
        self.libc = ctypes.CDLL(None, use_errno=True)

    def _ptrace(self, request):
        if self.libc.ptrace(ctypes.c_long(request), ctypes.c_long(self.thread), None, None) != 0:
            raise Failed(f"ptrace: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self._ptrace(self.SEIZE)
        self._ptrace(self.INTERRUPT)
        os.waitpid(self.thread, self.WALL)
        return self

    def reap(self):
        """Whether it has ended; the kernel keeps it until its tracer knows."""
        try:
            return os.waitpid(self.thread, self.WALL | os.WNOHANG)[0] == self.thread
        except ChildProcessError:
            return True

    def __exit__(self, *_):
        self.libc.ptrace(ctypes.c_long(self.DETACH), ctypes.c_long(self.thread), None, None)


def drop_ins(suite, machine):
    """Each drop-in is taken by systemd, and the rights that it names are the agent's."""
    wanted = {"attribution": 1 << 19, "kernel-log": 1 << 34, "kubernetes": 1 << 1, "driver-admin": 1 << 21}
    for name in [*wanted, "containers", "create-devices"]:
        machine.check("ln", "-s", f"/usr/share/gpumeter/gpumeter.service.d/{name}.conf", "/etc/systemd/system/gpumeter.service.d/")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()
    status = machine.path(f"/proc/{machine.pid()}/status").read_text()
    held = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    suite.expect(held == sum(wanted.values()), f"its capabilities are {held:x}, not {sum(wanted.values()):x}")
    machine.check("sh", "-c", "find /etc/systemd/system/gpumeter.service.d -type l -delete")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()


def socket_is_enabled(machine):
    return machine.run("systemctl", "is-enabled", "gpumeter.socket").stdout.strip() == "enabled"


def socket_activation(suite, machine):
    """systemd keeps the port, whatever the agent does; without its socket unit the agent serves on web.listen."""
    machine.check("systemctl", "stop", "gpumeter")
    suite.expect(machine.show("ActiveState") == "inactive", "the agent runs although nobody asked for a page")
    taken = "import socket; socket.create_server(('0.0.0.0', 9855))"
    suite.expect("Address already in use" in machine.python(taken).stderr, "another process takes the port of an agent that is stopped")
    machine.page()
    machine.wait_for_gpus()
    # The port stays open while the agent starts anew.
    machine.check("systemctl", "restart", "gpumeter")
    asked = machine.ask()
    # An agent that is not ready, or is busy, keeps the port open too.
    is_open = "gpumeter_build_info" in asked.stdout or re.search("timed out|HTTP Error 503", asked.stderr)
    suite.expect(is_open, f"the port was closed over a restart: {asked}")
    machine.wait_for_gpus()
    with_tls(suite, machine)
    machine.check("systemctl", "disable", "--now", "gpumeter.socket", "gpumeter.service")
    machine.path(CONFIG).write_text(machine.path(CONFIG).read_text() + "web: {listen: '127.0.0.1:9855'}\n")
    machine.check("systemctl", "enable", "--now", "gpumeter.service")
    machine.wait_for_gpus()
    suite.expect(machine.addresses() == ["127.0.0.1"], f"without its socket unit it listens on {machine.addresses()}")
    own_command(machine, "--listen 127.0.0.1:9857")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for("a page on the address of --listen", 60, lambda: "\ngpu_up{" in machine.page(port=9857))
    machine.path(OWN_COMMAND).unlink()
    write_config(machine, "full")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "stop", "gpumeter")
    machine.check("systemctl", "enable", "--now", "gpumeter.socket", "gpumeter.service")
    machine.wait_for_gpus()
    suite.expect(machine.addresses() == ["[::]"], f"with its socket unit it listens on {machine.addresses()}")


def own_command(machine, options):
    drop_in(machine, Path(OWN_COMMAND).name, f"[Service]\nExecStart=\nExecStart=/usr/bin/gpumeter run --config {CONFIG} {options}\n")


def with_tls(suite, machine):
    """The drop-in that docs/web.md has, on the port that systemd holds."""
    etc = machine.path("/etc/gpumeter")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=node", "-keyout", etc / "server.key", "-out", etc / "server.crt"], check=True, capture_output=True)
    (etc / "web.yml").write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    machine.check("sh", "-c", "chown root:gpumeter /etc/gpumeter/server.* && chmod 0640 /etc/gpumeter/server.*")
    document = (ROOT / "docs/web.md").read_text()
    [text] = [block for block in re.findall(r"^```ini\n(.*?)^```", document, re.M | re.S) if "--web.config.file" in block]
    drop_in(machine, Path(OWN_COMMAND).name, text)
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for("a page by https", 60, lambda: "\ngpu_up{" in machine.page(scheme="https"))
    suite.expect("gpu_up{" not in machine.page(), "the page is served without TLS too")
    machine.path(OWN_COMMAND).unlink()
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()


def driver_loaded_later(suite, machine):
    """A driver whose device file is refused, and whose device numbers came after the agent: it exits with 75, once."""
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        raise Failed("kernel.dmesg_restrict is 0, so no device is refused with EPERM: set it to 1")
    library = machine.path(f"{DRIVER}/libnvidia-ml.so.1")
    library.rename(library.with_name("away"))
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for("an agent without a driver", 30, lambda: "cannot open shared object file" in machine.log())
    before = machine.restarts()
    # The host has the capability to make a device, the container has not.
    inside = ["nsenter", "-t", machine.leader, "-m", "--root", "--wd=/", "sh", "-c"]
    subprocess.run([*inside, "umask 0; mknod /dev/nvidiactl c 1 11"], check=True, cwd="/", capture_output=True)
    devices = machine.path("/run/devices")
    devices.write_text(Path("/proc/devices").read_text().replace("Character devices:\n", "Character devices:\n195 nvidiactl\n"))
    agent = next(pids_of(machine))
    subprocess.run(["nsenter", "-t", agent, "-m", "--root", "--wd=/", "mount", "--bind", "/run/devices", "/proc/devices"],
                   check=True, cwd="/")
    machine.wait_for("exit status 75", 60, lambda: machine.restarts() == before + 1)
    suite.expect("status=75/TEMPFAIL" in machine.log(), "systemd does not say status 75")
    suite.expect("the driver was loaded after the agent" in machine.log(), "the agent does not say why it ended")
    # The new start finds the same /proc/devices all the time: it serves its own health instead of ending again.
    machine.wait_for("its next page", 30, lambda: "gpumeter_build_info" in machine.page())
    time.sleep(4 if SMOKE else 15)
    suite.expect(machine.restarts() == before + 1, "it goes on ending")
    machine.path("/dev/nvidiactl").unlink()
    library.with_name("away").rename(library)
    machine.wait_for_gpus()


def upgrade(suite, machine):
    """A newer package over one whose agent ran as root: the ledger and a changed configuration stay."""
    machine.wait_for("a closed window", 60, lambda: "\ngpu_slot_seconds_total{" in machine.page())
    newer = newer_package(suite)
    machine.check("chown", "-R", "root:root", "/var/lib/gpumeter/")
    ledger, config = machine.path("/var/lib/gpumeter/ledger.db"), machine.path(CONFIG)
    inode, text, before = ledger.stat().st_ino, config.read_text(), machine.pid()
    user = int(machine.check("id", "-u", "gpumeter"))
    suite.expect(ledger.stat().st_uid == 0, "the ledger is not root's before the upgrade")
    # Package and administrator both changed the configuration; dpkg asks, and its default is the administrator's file.
    with Thief(machine) as thief:
        machine.check("dpkg", "--force-confdef", "--force-confold", "-i", f"/packages/newer/{newer.name}")
    suite.expect(thief.got == "", f"during the upgrade another process could listen on the port: {thief.got}")
    version = machine.check("dpkg-query", "-W", "-f", "${Version}", "gpumeter")
    suite.expect(version.endswith("+newer"), f"version {version} is installed")
    machine.wait_for("READY", 30, lambda: machine.show("ActiveState") == "active" and machine.pid() not in (0, before))
    machine.wait_for_gpus()
    suite.expect(config.read_text() == text, f"the configuration is another one: {config.read_text()[:200]}")
    suite.expect(ledger.stat().st_ino == inode, "the ledger is another file")
    suite.expect(ledger.stat().st_uid == user, f"the ledger belongs to {ledger.stat().st_uid}, not to {user}")
    opened = [line for line in machine.log().splitlines() if "ledger opened" in line][-1]
    suite.expect("gpus=2" in opened, f"the ledger does not go on: {opened}")


class Thief:
    """Another process of the node, which tries all the time to listen on the agent's port."""

    SCRIPT = """
import socket, time
print("begun", flush=True)
while True:
    time.sleep(0.002)
    try:
        socket.create_server(("0.0.0.0", 9855)).close()
        print("taken", flush=True)
    except OSError:
        pass
"""

    def __init__(self, machine):
        command = ["nsenter", "-t", machine.leader, "-n", "nice", sys.executable, "-c", self.SCRIPT]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.got = None

    def __enter__(self):
        self.process.stdout.readline()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.got = self.process.stdout.read()
        self.process.wait()


def upgrade_from_previous(suite, machine):
    """From the release before systemd held the port: it passes to systemd, unless the administrator named another address."""
    previous = repack(suite, "previous", "~previous", with_previous_files)
    loopback, command = "web: {listen: '127.0.0.1:9855'}\n", f"/usr/bin/gpumeter run --config {CONFIG} --listen 127.0.0.1:9855"
    for name, config, drop, held in (("as installed", None, None, True), ("an address of its own", loopback, None, False),
                                     ("a command of its own", None, f"[Service]\nExecStart=\nExecStart={command}\n", False)):
        machine.check("dpkg", "-i", f"/packages/previous/{previous.name}")
        if config:
            machine.path(CONFIG).write_text(config)
        if drop:
            drop_in(machine, "command.conf", drop)
        machine.check("systemctl", "restart", "gpumeter")
        machine.wait_for("a page of the previous release", 60, machine.page)
        addresses, before = machine.addresses(), machine.pid()
        said = machine.check("sh", "-c", "dpkg --force-confold -i /packages/*.deb")
        machine.wait_for("the new release", 60, lambda: machine.show("ActiveState") == "active" and machine.pid() not in (0, before))
        machine.wait_for("its page", 60, machine.page)
        suite.expect(socket_is_enabled(machine) == held, f"{name}: the socket is{' not' if held else ''} enabled; dpkg said {said}")
        state = machine.show("ActiveState", "gpumeter.socket")
        suite.expect((state == "active") == held, f"{name}: the socket is {state}")
        suite.expect(("gpumeter.socket is not enabled" in said) != held, f"{name}: dpkg said {said}")
        suite.expect(machine.addresses() == addresses, f"{name}: it listened on {addresses}, now on {machine.addresses()}")
        machine.check("dpkg", "--purge", "gpumeter")
        machine.check("sh", "-c", "rm -rf /etc/systemd/system/gpumeter.service.d && systemctl daemon-reload")


def with_previous_files(root):
    for name in ("postinst", "postrm", "prerm"):
        # Not their modes: git keeps none, and dpkg-deb wants scripts that can be run.
        shutil.copyfile(PREVIOUS / name, root / "DEBIAN" / name)
    for name in ("gpumeter.service", "gpumeter.socket"):
        shutil.copy(PREVIOUS / name, root / "lib/systemd/system")
    shutil.copy(PREVIOUS / "socket.conf", root / "usr/share/gpumeter/gpumeter.service.d")


def newer_package(suite):
    """The Debian package with a higher version and another default configuration."""
    def change(root):
        with (root / CONFIG.lstrip("/")).open("a") as config:
            config.write("# A later release has one more line.\n")

    return repack(suite, "newer", "+newer", change)


def repack(suite, name, version, change):
    """The Debian package with something added to its version and its files changed."""
    [package] = (suite.folder / "packages").glob("*.deb")
    root, folder = suite.folder / name, suite.folder / "packages" / name
    folder.mkdir()
    subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)
    control = root / "DEBIAN/control"
    control.write_text("".join(line.rstrip() + version + "\n" if line.startswith("Version:") else line
                               for line in control.read_text().splitlines(keepends=True)))
    change(root)
    packed = folder / f"gpumeter_{name}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, packed], check=True, stdout=subprocess.DEVNULL)
    return packed


def purge(suite, machine):
    ledger = machine.path("/var/lib/gpumeter/ledger.db")
    machine.wait_for("a closed window", 60, lambda: "\ngpu_slot_seconds_total{" in machine.page())
    inode = ledger.stat().st_ino
    said = machine.check("dpkg", "--purge", "gpumeter")
    suite.expect("the ledger stays in /var/lib/gpumeter" in said, f"purge says nothing of the ledger: {said}")
    suite.expect(ledger.exists() and ledger.stat().st_ino == inode, "purge took the ledger away")
    for path in ("/usr/bin/gpumeter", CONFIG, "/usr/share/gpumeter", "/etc/systemd/system/multi-user.target.wants/gpumeter.service",
                 "/etc/systemd/system/sockets.target.wants/gpumeter.socket"):
        suite.expect(not machine.path(path).exists(), f"{path} is still there")
    machine.check("sh", "-c", "dpkg -i /packages/*.deb")
    machine.check("dpkg", "--remove", "gpumeter")
    machine.check("sh", "-c", "dpkg -i /packages/*.deb")
    fleet = machine.run("systemctl", "is-enabled", "gpumeter-fleet").stdout.strip()
    suite.expect(fleet == "disabled", f"after a removal and an installation gpumeter-fleet is {fleet}")
    write_config(machine, "standard")
    machine.check("systemctl", "restart", "gpumeter")
    machine.wait_for_gpus()
    opened = [line for line in machine.log().splitlines() if "ledger opened" in line][-1]
    suite.expect("gpus=2" in opened, f"the ledger does not go on: {opened}")


if __name__ == "__main__":
    run(packages)
