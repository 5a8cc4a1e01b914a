"""What the suites share: programs that are started and ended again, pages and queries, and findings.

A suite is a function that takes a `Suite`; `run` gives it a folder, ends what it started, prints what it
found, and exits 1 when that is anything. Nothing is skipped: a program that is missing is a failure.
"""

import fcntl
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

from simclock import SimClock

ROOT = Path(__file__).resolve().parents[2]
# Fewer kills, jobs, calls and shorter waits, and figures that are only printed.
SMOKE = os.environ.get("GPUMETER_SMOKE") == "1"
GPUMETER = Path(os.environ.get("GPUMETER", ROOT / "target/release/gpumeter"))
TEXT = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
# The least time in seconds that anything may take before a suite fails: on a busy machine all of it is slow.
PATIENCE = 120
# When demos begin whose bills are of the current month, so that none ends during a suite.
MID_MONTH = datetime(2026, 11, 15, 12, tzinfo=timezone.utc)
# Suites on one machine agree there who uses what.
RESERVED = Path(tempfile.gettempdir()) / f"gpumeter-reserved-{os.getuid()}"
# Below the ports that the kernel gives to connections.
PORTS = range(20_000, 30_000)


class Failed(Exception):
    """An error after which the rest of a suite is pointless."""


def run(suite, name=None):
    """Runs a suite as the whole program, which is called so."""
    name = name or Path(sys.argv[0]).stem
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    world = Suite(Path(tempfile.mkdtemp(prefix=f"gpumeter-{name}-")))
    try:
        suite(world)
    except Failed as failed:
        world.findings.append(str(failed))
    except Exception:
        world.findings.append(traceback.format_exc())
    finally:
        world.end()
    seconds = time.monotonic() - began
    if world.findings:
        for finding in world.findings:
            print(f"{name}: FAILED: {finding}", file=sys.stderr)
        print(f"{name}: {len(world.findings)} findings in {seconds:.0f} s; logs: {world.folder}", file=sys.stderr)
        sys.exit(1)
    # A browser that has ended may leave processes that still write for a moment.
    wait_for("the end of the folder", 30, lambda: shutil.rmtree(world.folder) or True)
    print(f"{name}: ok, {world.checks} checks in {seconds:.0f} s")


class Suite:
    """A folder, the programs started in it, and the findings."""

    def __init__(self, folder):
        self.folder = folder
        self.findings = []
        self.checks = 0
        self._programs = []

    def expect(self, holds, finding):
        """Records a finding and continues."""
        self.checks += 1
        if not holds:
            self.findings.append(finding)
        return bool(holds)

    def start(self, name, *command):
        """Starts a program in a process group of its own; its output goes to a log."""
        program = Program(self.folder / f"{name}.log", command)
        self._programs.append(program)
        return program

    def end_first(self, action):
        """Registers something to do at the end, before the programs started so far are stopped."""
        self._programs.append(Ending(action))

    def end(self):
        """Stops every program, last first, and records one that does not stop."""
        while self._programs:
            self._programs.pop().stop()


class Ending:
    def __init__(self, action):
        self.action = action

    def stop(self):
        try:
            self.action()
        except Failed as failed:
            print(f"at the end: {failed}", file=sys.stderr)


class Program:
    def __init__(self, log, command):
        self.log, self.name = log, Path(command[0]).name
        with open(log, "ab") as out:
            try:
                self.process = subprocess.Popen(
                    [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True)
            except OSError as error:
                raise Failed(f"{command[0]} does not start: {error}") from error

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """kill -9, as the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, lines=20):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_for(what, seconds, probe, program=None, every=0.1):
    """Returns the result of `probe` as soon as it is true; connection errors count as not yet.

    Gives up after so many seconds, but not before `PATIENCE`: only what takes longer on an idle machine asks for more.
    """
    seconds = max(seconds, PATIENCE)
    deadline = time.monotonic() + seconds
    last = None
    while True:
        try:
            if found := probe():
                return found
        except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
            last = error
        if program and not program.alive():
            raise Failed(f"{program.name} ended while waiting for {what}:\n{program.tail()}")
        if time.monotonic() > deadline:
            trail = f"\n{program.tail()}" if program else ""
            raise Failed(f"{what}: not within {seconds} s" + (f" (last error: {last})" if last else "") + trail)
        time.sleep(every)


def reserve(kind, candidates, is_free=lambda candidate: True):
    """The first free candidate that no other suite on this machine has reserved; this process keeps it to its end."""
    RESERVED.mkdir(exist_ok=True)
    for candidate in candidates:
        lock = os.open(RESERVED / f"{kind}-{candidate}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if is_free(candidate):
            return candidate
        os.close(lock)
    raise Failed(f"there is no free {kind}")


def alone_with(what):
    """Waits until no other suite on this machine uses what there is only once, and keeps it to the end of this process."""
    RESERVED.mkdir(exist_ok=True)
    fcntl.flock(os.open(RESERVED / what, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)


def free_port():
    """A port of loopback that no other suite and no connection is given."""
    return reserve("port", random.sample(PORTS, len(PORTS)), is_free_port)


def is_free_port(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def get(url, accept=None, encoding=None):
    """A page's body and its headers."""
    headers = {key: value for key, value in (("Accept", accept), ("Accept-Encoding", encoding)) if value}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
        body = answer.read()
        if answer.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return body.decode(), answer.headers


def bill_of(text):
    """A bill from its JSON, in which integers are texts."""
    def numbers(fields):
        return {name: int(value) if isinstance(value, str) and name.endswith(("_ns", "_uj")) else value
                for name, value in fields.items()}
    return json.loads(text, object_hook=numbers)


def get_json(url, **parameters):
    query = "?" + urllib.parse.urlencode(parameters, doseq=True) if parameters else ""
    return bill_of(get(url + query)[0])


class Demo:
    """`gpumeter demo`, and the channel to its simulated driver."""

    # What `config` is added to: YAML of one file, so a top-level key may stand there only once.
    CONFIG = ROOT / "src/cli/demo/config.yaml"

    def __init__(self, suite, *arguments, scenario=None, config=None, state=None, host="127.0.0.1", port=None, name="demo", awaited="gpu_up{", began=None, environment=()):
        self.suite, self.name = suite, name
        self.awaited = awaited  # what must be on the first page
        self.state = state or suite.folder / name
        self.port = port or free_port()
        self.instance = f"{host}:{self.port}"
        self.url = f"http://{self.instance}"
        self.command = ["env", *environment] if environment else []  # variables as NAME=VALUE
        self.command += [GPUMETER, "demo", "--listen", self.instance, "--state-dir", self.state]
        self.command += ["--scenario", scenario or "node"]
        if config:
            self.config = suite.folder / f"{name}.yaml"
            self.config.write_text(config)
            self.command += ["--config", self.config]
        self.command += arguments
        self.clock = None
        if began:  # a time of its own, in seconds
            self.driver.mkdir(parents=True)
            (self.state / ".gpumeter-demo").touch()
            SimClock.create(self.driver / "clock", int(began * 1e9))
        self.start()

    def start(self):
        """Starts it, also again after a kill: same port, same state."""
        if not GPUMETER.exists():
            raise Failed(f"{GPUMETER} does not exist; .ci/interop builds it")
        self.program = self.suite.start(self.name, *self.command)
        wait_for("the demo's first page", 30, lambda: self.awaited in self.page(), self.program)
        self.clock = self.clock or SimClock(self.driver / "clock")

    @property
    def driver(self):
        return self.state / "driver"

    def page(self, accept=TEXT):
        return get(f"{self.url}/metrics", accept)[0]

    def api(self, name, **parameters):
        """The answer of an endpoint, asked for once more where a busy agent has not given it within its own limit."""
        ask = lambda: get_json(f"{self.url}/api/v1/{name}", **parameters)
        try:
            return ask()
        except urllib.error.HTTPError as refused:
            if refused.code != http.HTTPStatus.GATEWAY_TIMEOUT:
                raise
            print(f"{name}: asked again after {refused}")
            return ask()

    def hold_between_ticks(self, interval=10**9):
        """Holds the clock when the last tick is over; where a busy machine is late with it, a moment later."""
        for _ in range(30):
            self.clock.hold_between_ticks(interval)
            # Ticks follow multiples of the interval by a fifth of it; the first of an agent comes at its start.
            due = (self.clock.boot() - interval // 5) // interval * interval
            for _ in range(50):
                at = datetime.fromisoformat(self.api("health")["at"]).timestamp() * 1e9
                if at >= due - self.clock.boot() + self.clock.utc():
                    return
                time.sleep(0.1)
            self.clock.release()
            time.sleep(0.5)
        raise Failed("while the clock is held, no tick is the last")

    def scenario(self):
        return json.loads((self.driver / "scenario").read_text())

    def faults(self, *faults):
        """Sets the driver's faults, for instance {"function": "*", "gpu": 2, "hang": True}; none lifts all."""
        self._replace("faults", faults)

    def condition(self, state):
        """Sets the state of hardware and driver, for instance {"gpus": {"3": {"state": "lost"}}}."""
        self._replace("state", state)

    def _replace(self, name, content):
        aside = self.driver / f"{name}.new"
        aside.write_text(json.dumps(content))
        aside.rename(self.driver / name)


class Prometheus:
    """A Prometheus that scrapes every second, or takes OTLP; `config` adds keys to its configuration."""

    def __init__(self, suite, *arguments, scrape=None, config=None, otlp=False, port=None, name="prometheus"):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = dict(config or {})
        if scrape:
            config["scrape_configs"] = [{"job_name": "gpumeter", "static_configs": [{"targets": [scrape]}]}]
        self.path = suite.folder / f"{name}.yaml"
        self._write(config)
        extra = ["--web.enable-otlp-receiver"] if otlp else []
        self.program = suite.start(
            name, "prometheus", f"--config.file={self.path}", f"--web.listen-address=127.0.0.1:{self.port}",
            f"--storage.tsdb.path={suite.folder / f'{name}-tsdb'}", *extra, *arguments)
        wait_for("Prometheus", 30, lambda: get(f"{self.url}/-/ready"), self.program)

    def _write(self, config):
        # JSON is YAML.
        fast = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}}
        self.path.write_text(json.dumps(config | fast, indent=2))

    def configure(self, config):
        """Another configuration, which it loads."""
        self._write(config)
        self.program.process.send_signal(signal.SIGHUP)

    def query_range(self, expression, start, end, step):
        """The series of a range query: a list of {metric, values}."""
        try:
            return get_json(f"{self.url}/api/v1/query_range", query=expression, start=start, end=end, step=step)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise Failed(f"Prometheus refuses {expression}: {error.read().decode()}") from error

    def query(self, expression, at=None):
        """The result of an instant query: a list of {metric, value} or, for a range selector, {metric, values}."""
        parameters = {"query": expression} | ({"time": at} if at else {})
        try:
            return get_json(f"{self.url}/api/v1/query", **parameters)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise Failed(f"Prometheus refuses {expression}: {error.read().decode()}") from error

    def alerts(self):
        """The alerting rules that it has loaded."""
        groups = get_json(f"{self.url}/api/v1/rules", type="alert")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def label_values(self, label, match):
        return get_json(f"{self.url}/api/v1/label/{label}/values", **{"match[]": match})["data"]


class VictoriaMetrics:
    """A VictoriaMetrics that takes OTLP by its own parser, and names things as Prometheus does."""

    def __init__(self, suite):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.endpoint = f"{self.url}/opentelemetry"
        self.program = suite.start(
            "victoria-metrics", "victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={suite.folder / 'victoria-metrics'}",
            "-opentelemetry.usePrometheusNaming", "-opentelemetry.promoteScopeMetadata=false", "-search.latencyOffset=0s",
            "-opentelemetry.promoteAllResourceAttributes=false", "-opentelemetry.promoteResourceAttributes=host.name")
        wait_for("VictoriaMetrics", 30, lambda: get(f"{self.url}/health"), self.program)

    def query(self, expression, at):
        """The result of an instant query, not from its cache."""
        return get_json(f"{self.url}/api/v1/query", query=expression, time=at, nocache=1)["data"]["result"]


class Certificates:
    """A CA, and certificates of `localhost` and of a client by it."""

    def __init__(self, suite):
        self.folder = suite.folder / "certificates"
        self.folder.mkdir()
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self._openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        (self.folder / "names").write_text("subjectAltName = DNS:localhost, IP:127.0.0.1\n")
        for name in ("server", "client"):
            self._openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                          "-extfile", "names", "-out", f"{name}.crt")

    def path(self, name):
        return str(self.folder / name)

    def _openssl(self, *arguments):
        ran = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
        if ran.returncode != 0:
            raise Failed(f"openssl {' '.join(arguments)}: {ran.stderr}")


class Collector:
    """An OpenTelemetry Collector with a memory limiter that takes OTLP over HTTP and gRPC by TLS, from clients with a
    certificate and a token. What comes over each goes on to a Prometheus; logs are printed."""

    def __init__(self, suite, over_http, over_grpc):
        self.certificates = Certificates(suite)
        self.token = suite.folder / "token"
        self.token.write_text("Bearer a-secret-of-the-test")
        self.http, self.grpc = free_port(), free_port()
        tls = {"cert_file": self.certificates.path("server.crt"), "key_file": self.certificates.path("server.key"),
               "client_ca_file": self.certificates.path("ca.crt")}
        access = {"tls": tls, "auth": {"authenticator": "bearertokenauth"}}
        receiver = lambda protocol, port: {"protocols": {protocol: {"endpoint": f"127.0.0.1:{port}"} | access}}
        exporter = lambda server: {"metrics_endpoint": f"{server.url}/api/v1/otlp/v1/metrics"}
        pipeline = lambda name, *exporters: {
            "receivers": [f"otlp/{name}"], "processors": ["memory_limiter", "batch"], "exporters": list(exporters)}
        config = {
            "extensions": {"bearertokenauth": {"scheme": "Bearer", "token": "a-secret-of-the-test"}},
            "receivers": {"otlp/http": receiver("http", self.http), "otlp/grpc": receiver("grpc", self.grpc)},
            "processors": {"memory_limiter": {"check_interval": "1s", "limit_mib": 256}, "batch": {"timeout": "200ms"}},
            "exporters": {
                "otlp_http/http": exporter(over_http), "otlp_http/grpc": exporter(over_grpc), "debug": {"verbosity": "detailed"},
            },
            "service": {
                "extensions": ["bearertokenauth"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {
                    "metrics/http": pipeline("http", "otlp_http/http"), "metrics/grpc": pipeline("grpc", "otlp_http/grpc"),
                    "logs/http": pipeline("http", "debug"), "logs/grpc": pipeline("grpc", "debug"),
                    "traces/http": pipeline("http", "debug"), "traces/grpc": pipeline("grpc", "debug"),
                },
            },
        }
        path = suite.folder / "otelcol.yaml"
        path.write_text(json.dumps(config, indent=2))
        self.program = suite.start("otelcol", "otelcol", "--config", path)
        wait_for("the Collector", 30, lambda: "Everything is ready" in self.program.log.read_text(), self.program)

    def destinations(self):
        """Entries of `otlp.destinations` for it."""
        files = {"ca_file": "ca.crt", "cert_file": "client.crt", "key_file": "client.key"}
        files = {key: self.certificates.path(name) for key, name in files.items()}
        common = files | {"header_files": {"Authorization": str(self.token)}, "events": True, "traces": True}
        return [{"endpoint": f"https://localhost:{self.http}"} | common,
                {"endpoint": f"https://localhost:{self.grpc}", "protocol": "grpc", "compression": "zstd"} | common]
