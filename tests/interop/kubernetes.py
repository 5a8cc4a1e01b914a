"""A real kubelet with real pods: a device plugin offers simulated GPUs, and the processes of the pods are the processes on
those GPUs. Which device a container was given is read from its environment, and its processes from the runtime, so
what the agent says is compared with what it never reads.

Runs as root in a mount namespace of its own: the kubelet's and the logs' directories are the suite's folder there.
GPUMETER_SMOKE=1 leaves out what takes long: the end of the kubelet, and a pod that is made anew.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Event, Thread

from prometheus_client import parser

import harness
from harness import GPUMETER, PATIENCE, Demo, Failed, free_port, get, get_json, wait_for

NAMESPACE = "GPUMETER_MOUNT_NAMESPACE"
TICKS = 2_000_000_000  # nanoseconds: a tick for each of the few times that a process starts or ends
WHOLE, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
# By the scenario's pid: the GPU and the demand of a process. Those of a namespace, by GPU.
PROCESSES = {1: (0, 0.6), 2: (1, 0.5), 3: (0, 0.7), 4: (1, 0.4), 5: (2, 0.3), 6: (2, 0.2), 7: (3, 0.5)}
SCRIPTED = {"ml": (1, 2), "batch": (3, 4), "web": (5, 6)}
# The instances of the last GPU, which is in MIG mode, and the process on the first of them.
INSTANCES, ON_INSTANCE = [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}], 7
SLICES = 4 / 8  # of the GPU's memory slices that this instance has


def main():
    if os.geteuid() != 0:
        sys.exit("kubernetes: a kubelet needs root")
    for program in ("openssl", "kubelet", "containerd", "ctr", "runc", "device-plugin", "pod-idle", "unshare"):
        if not shutil.which(program):
            sys.exit(f"kubernetes: {program} is missing; .ci/kubernetes installs it")
    if NAMESPACE not in os.environ:
        os.environ[NAMESPACE] = "own"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    harness.run(kubernetes, "kubernetes")


def kubernetes(suite):
    # All kubelets of a machine have the same cgroups.
    harness.alone_with("kubelet")
    node = Node(suite)
    try:
        agent = Agent(suite, node)
        whole_gpu(suite, node, agent)
        init_container(suite, node, agent)
        two_containers(suite, node, agent)
        container_restart(suite, node, agent)
        if not harness.SMOKE:
            mig_instance(suite, node, agent)
            nodes_pods(suite, node, agent)
            kubelet_restart(suite, node, agent)
            another_pod_of_the_same_name(suite, node, agent)
        deletion(suite, node, agent)
        to_the_bill(suite, node, agent)
    finally:
        node.end()


def whole_gpu(suite, node, agent):
    """A container with a GPU holds it whole, and what its process uses is its namespace's."""
    node.apply("train", "ml", {"main": {WHOLE: 1}})
    main = node.container("train", "main")
    node.run({main.scripted("ml"): main})
    holder = node.holder("train", "main")
    agent.until("the pod's holding", lambda page: page.ratio(holder) == 1)
    agent.until("use by the pod", lambda page: page.seconds("used", "ml") >= 5)
    info = agent.page().labels("gpu_workload_info", workload=holder)
    expected = {"kind": "k8s", "tenant": "ml", "k8s_pod_label_kueue_x_k8s_io_queue_name": "research", "k8s_namespace_name": "ml", "k8s_container_name": "main",
                "k8s_pod_name": f"train-{node.hostname}", "k8s_pod_uid": node.uid("train")}
    suite.expect(expected.items() <= info.items(), f"gpu_workload_info of the pod is {info}")


def init_container(suite, node, agent):
    """A pod holds its GPU from its init container on, and each of its containers uses within that; deleted, it holds nothing."""
    node.apply("batch", "batch", {"main": {WHOLE: 1}}, init={"prepare": ("20s", {WHOLE: 1})})
    prepare = node.container("batch", "prepare")
    node.run({prepare.scripted("batch"): prepare})
    holder = node.holder("batch", "main")
    agent.until("the pod's holding while its init container runs", lambda page: page.ratio(holder) == 1)
    main = node.container("batch", "main")
    suite.expect(main.gpu == prepare.gpu, "the kubelet gave the container another GPU than the init container")
    node.run({main.scripted("batch"): main})
    agent.until("use by the pod", lambda page: page.seconds("used", "batch") >= 15)
    outside = agent.page().seconds("outside_holding", "batch")
    suite.expect(outside == 0, f"{outside} s of use by the pod are outside of its holding")
    node.run({main.scripted("batch"): None})
    node.delete("batch")
    agent.until("the end of the deleted pod's holding", lambda page: page.ratio(holder) is None)


def two_containers(suite, node, agent):
    """Two containers of one pod, with one and two of four replicas."""
    node.apply("pair", "web", {"a": {SHARED: 1}, "b": {SHARED: 2}})
    containers = [node.container("pair", name) for name in ("a", "b")]
    suite.expect({one.gpu for one in containers} == {agent.gpus[2]}, "the replicas are not of the shared GPU")
    node.run(dict(zip(SCRIPTED["web"], containers)))
    for name, ratio in (("a", 0.25), ("b", 0.5)):
        agent.until(f"the share of container {name}", lambda page: page.ratio(node.holder("pair", name)) == ratio)
    agent.until("use by both", lambda page: page.seconds("used", "web") >= 7)


def mig_instance(suite, node, agent):
    """A container with a MIG instance holds that, and what its process uses there is its namespace's."""
    node.apply("infer", "infer", {"main": {MIG: 1}})
    main = node.container("infer", "main")
    suite.expect(main.gpu == agent.instance["mig_uuid"], f"the container was given {main.gpu}, not the MIG instance")
    node.run({ON_INSTANCE: main})
    holder = node.holder("infer", "main")
    agent.until("the holding of the MIG instance", lambda page: page.ratio(holder) == 1)
    agent.until("use on the MIG instance", lambda page: page.seconds("used", "infer") >= 5)
    slot = agent.instance["gpu"], agent.instance["gpu_instance"]
    held = agent.page().labels("gpu_holding_ratio", workload=holder)
    suite.expect((held["gpu"], held.get("gpu_instance")) == slot, f"the pod holds {held}, not GPU instance {slot}")


def container_restart(suite, node, agent):
    """A container whose process is killed comes back under the same holder, and the holding has no gap."""
    before, holder = node.container("train", "main"), node.holder("train", "main")
    with agent.watching(lambda page: page.ratio(holder) == 1, "the holding of the pod whose container restarts"):
        os.kill(before.pid, signal.SIGKILL)
        node.run({before.scripted("ml"): None})
        after = wait_for("the restarted container", 60, lambda: other(node.find("train", "main"), before))
        node.run({after.scripted("ml"): after})
        used = agent.page().seconds("used", "ml")
        agent.until("use by the restarted container", lambda page: page.seconds("used", "ml") >= used + 5)
    page = agent.page()
    holders = page.values("gpu_workload_info", "workload", k8s_container_name="main", tenant="ml")
    suite.expect(holders == {holder}, f"the pod has the holders {holders}")


def nodes_pods(suite, node, agent):
    """Without the Pods API, labels come from nodes/pods of the kubelet, over TLS with a service account."""
    suite.expect("the kubelet's Pods API" in agent.log(), "the kubelet's Pods API did not describe the pods")
    node.kubelet.stop()
    # It may have been the source before, while the kubelet started.
    before = agent.log().count("nodes/pods of the kubelet")
    node.start_kubelet(pods_api=False)
    wait_for("another source", 120, lambda: agent.log().count("nodes/pods of the kubelet") > before, agent.program)
    labels = agent.page().labels("gpu_workload_info", workload=node.holder("train", "main"))
    suite.expect(labels.get("k8s_pod_label_kueue_x_k8s_io_queue_name") == "research", f"the pod's labels are {labels}")


def kubelet_restart(suite, node, agent):
    """While the kubelet is away, and when it is back, every holding is as it was."""
    holders = [node.holder(*of) for of in (("train", "main"), ("pair", "a"), ("pair", "b"))]
    pids = {name: node.container(*name).pid for name in (("train", "main"), ("pair", "a"))}

    def held(page):
        return [page.ratio(holder) for holder in holders] == [1, 0.25, 0.5]

    with agent.watching(held, "the holdings while the kubelet restarts") as watch:
        node.kubelet.stop()
        agent.until("the failure of the resolver", lambda page: page.one("gpumeter_resolver_success", resolver="pods") == 0)
        node.start_kubelet()
        agent.until("the resolver's return", lambda page: page.one("gpumeter_resolver_success", resolver="pods") == 1)
        looks = watch.looks
        wait_for("more than one round", 60, lambda: watch.looks >= looks + 30, agent.program)
    suite.expect(pids == {name: node.container(*name).pid for name in pids}, "the kubelet restarted containers")


def another_pod_of_the_same_name(suite, node, agent):
    """A pod that is created again under the same name is another holder, and the first one's holding ends."""
    before = node.holder("train", "main")
    node.run({1: None, 2: None})
    node.apply("train", "ml", {"main": {WHOLE: 1}}, annotations={"made": "anew"})
    wait_for("another UID", 60, lambda: node.holder("train", "main") != before)
    main = node.container("train", "main", 60)
    node.run({main.scripted("ml"): main})
    agent.until("the holding of the new pod", lambda page: page.ratio(node.holder("train", "main")) == 1)
    agent.until("the end of the holding of the former pod", lambda page: page.ratio(before) is None)
    used = agent.page().seconds("used", "ml")
    agent.until("use by the new pod", lambda page: page.seconds("used", "ml") >= used + 5)


def deletion(suite, node, agent):
    """A deleted pod holds nothing, and its GPU has no holder."""
    holder, gpu = node.holder("train", "main"), node.container("train", "main").gpu
    node.run(dict.fromkeys(PROCESSES))
    agent.idle_since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    node.delete("train")
    agent.until("the end of the deleted pod's holding", lambda page: page.ratio(holder) is None)
    held = agent.page().seconds("held", "ml")
    free = agent.page().seconds("held", "__unallocated__", uuid=gpu)
    # The account is behind by 25 s at most where the machine is idle, so it is then past the end of all processes.
    agent.until("unallocated time", lambda page: page.seconds("held", "__unallocated__", uuid=gpu) >= free + 30)
    page = agent.page()
    more, free = page.seconds("held", "ml") - held, page.seconds("held", "__unallocated__", uuid=gpu)
    print(f"the deleted pod held {more} s more")
    agent.until("more unallocated time", lambda page: page.seconds("held", "__unallocated__", uuid=gpu) >= free + 30)
    later = agent.page().seconds("held", "ml") - held - more
    suite.expect(later == 0, f"long after its end the deleted pod held {later} s more")


def to_the_bill(suite, node, agent):
    """Nothing is unattributed, every use is the tenant's whose process it was, and the bill adds up."""
    page = agent.page()
    suite.expect(page.seconds("used", "__unattributed__") == 0, "use that nobody is known for")
    # A bill ends with the last complete minute.
    wait_for("a bill of all that was used", 300, lambda: agent.bill()["to"] >= agent.idle_since, agent.program)
    bill, ledger = agent.bill(), agent.ledger()
    truth = {pid: busy - agent.before[pid] for pid, busy in node.truth().items()}
    for tenant, scripted in SCRIPTED.items():
        lines = [line for line in bill["lines"] if line["tenant"] == tenant]
        used, ran = sum(line["used_ns"] for line in lines), sum(truth[pid] for pid in scripted)
        suite.expect(abs(ran - used) <= TICKS + ran // 50, f"{tenant} is billed {used / 1e9:.1f} s of the {ran / 1e9:.1f} s that it used")
        # In the tick in which a container starts, its holding has not begun.
        without = sum(line["outside_holding_ns"] + line["unheld_ns"] for line in lines)
        suite.expect(without <= TICKS, f"{tenant} is billed {without / 1e9:.1f} s of use without a holding: {lines}")
    if truth[ON_INSTANCE]:
        lines = [line for line in bill["lines"] if line["tenant"] == "infer"]
        slots = {(str(line["gpu"]), str(line["gpu_instance"])) for line in lines}
        suite.expect(slots == {(agent.instance["gpu"], agent.instance["gpu_instance"])}, f"infer is billed on {slots}")
        used, ran = sum(line["used_ns"] for line in lines), truth[ON_INSTANCE] * SLICES
        suite.expect(abs(ran - used) <= TICKS + ran // 50, f"infer is billed {used / 1e9:.1f} s of the {ran / 1e9:.1f} s of its instance")
        without = sum(line["outside_holding_ns"] + line["unheld_ns"] for line in lines)
        suite.expect(without <= TICKS, f"infer is billed {without / 1e9:.1f} s of use without a holding: {lines}")
    for name, pid in zip(("a", "b"), SCRIPTED["web"]):
        used, ran = ledger[node.holder("pair", name)], truth[pid]
        suite.expect(abs(ran - used) <= TICKS + ran // 50, f"container {name} has {used / 1e9:.1f} s of the {ran / 1e9:.1f} s that it used")
    ran = subprocess.run([GPUMETER, "bill", "--url", agent.url], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 0 and re.search(r"(?m)^ *ml\b", ran.stdout), f"gpumeter bill: {ran.stdout}{ran.stderr}")
    print(ran.stdout)


def other(container, before):
    return container if container and container.id != before.id else None


class Page:
    """The agent's page as samples."""

    def __init__(self, text):
        self.samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]

    def of(self, family, **labels):
        return [sample for sample in self.samples if sample.name == family and labels.items() <= sample.labels.items()]

    def one(self, family, **labels):
        found = self.of(family, **labels)
        return found[0].value if found else None

    def labels(self, family, **labels):
        found = self.of(family, **labels)
        return found[0].labels if found else {}

    def values(self, family, label, **labels):
        return {sample.labels[label] for sample in self.of(family, **labels)}

    def ratio(self, workload):
        return self.one("gpu_holding_ratio", workload=workload)

    def seconds(self, what, tenant, **labels):
        return sum(sample.value for sample in self.of(f"gpu_tenant_{what}_seconds_total", tenant=tenant, **labels))



class Agent:
    """`gpumeter run` over the simulated driver, with the default paths of a node."""

    def __init__(self, suite, node):
        self.suite = suite
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = suite.folder / "config.yaml"
        config.write_text(
            "sampling: { level: full }\nlimits: { birth_delay: 0s }\nprices: { book: example }\n"
            "attribution: { kubernetes: { labels: [kueue.x-k8s.io/queue-name], kubelet_port: %d } }\n"
            "ledger: { path: %s/ledger.db }\n" % (node.secure_port, suite.folder))
        os.environ["NODE_IP"] = "127.0.0.1"
        self.program = suite.start("gpumeter", GPUMETER, "run", "--config", config, "--listen", f"127.0.0.1:{port}",
                                   "--nvml-library", node.driver / "libnvidia-ml.so.1")
        wait_for("the agent's first page", 30, lambda: "gpu_up{" in get(f"{self.url}/metrics")[0], self.program)
        self.gpus = [sample.labels["uuid"] for sample in sorted(self.page().of("gpu_up"), key=lambda one: one.labels["gpu"])]
        self.instance = self.page().labels("gpu_mig_info", profile=INSTANCES[0]["profile"])
        # The simulated GPUs have worked since the machine started.
        self.before = node.truth()
        node.offer(self.gpus, self.instance["mig_uuid"])

    def page(self):
        return Page(get(f"{self.url}/metrics")[0])

    def log(self):
        return self.program.log.read_text()

    def ledger(self):
        """What each holder has used, in nanoseconds."""
        with closing(sqlite3.connect(f"file:{self.suite.folder}/ledger.db?mode=ro", uri=True)) as ledger:
            return dict(ledger.execute(
                "SELECT name, sum(used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns) FROM account "
                "JOIN holder ON holder = id GROUP BY name"))

    def bill(self):
        return get_json(f"{self.url}/api/v1/bill")

    def until(self, what, holds, seconds=PATIENCE):
        wait_for(what, seconds, lambda: holds(self.page()), self.program, 0.5)

    def watching(self, holds, what):
        return Watch(self, holds, what)


class Watch:
    """Looks at every tick whether something holds all the time."""

    def __init__(self, agent, holds, what):
        self.agent, self.holds, self.what = agent, holds, what

    def __enter__(self):
        self.stop, self.missed, self.looks = Event(), 0, 0
        self.thread = Thread(target=self.look, daemon=True)
        self.thread.start()
        return self

    def look(self):
        while not self.stop.wait(0.5):
            self.missed += not self.holds(self.agent.page())
            self.looks += 1

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.agent.suite.expect(self.looks > 3 and not self.missed, f"{self.what}: missing {self.missed} times of {self.looks}")


class Container:
    """A running container as the runtime knows it, with the GPU that it was given, by its environment."""

    def __init__(self, id, pid):
        self.id, self.pid = id, pid
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        devices = next((variable for variable in variables if variable.startswith("NVIDIA_VISIBLE_DEVICES=")), None)
        # Before the runtime has executed its program it has no environment.
        self.gpu = devices and devices.split("=")[1].split(",")[0].split("::")[0]

    def scripted(self, namespace):
        """The scenario's process of that namespace on the GPU that it was given."""
        return SCRIPTED[namespace][Node.gpus.index(self.gpu)]


class Node:
    """containerd, a kubelet without an API server, device plugins and the simulated driver."""

    gpus = []

    def __init__(self, suite):
        self.suite, self.folder = suite, suite.folder
        self.hostname = os.uname().nodename.lower()
        self.pids, self.mounts = {pid: None for pid in PROCESSES}, []
        self.driver = self.simulate()
        self.mount("kubelet", "/var/lib/kubelet", shared=True)
        self.mount("log", "/var/log")
        self.sign_in()
        self.secure_port = free_port()
        self.manifests = self.folder / "manifests"
        self.manifests.mkdir()
        self.start_containerd()
        self.start_kubelet()

    def simulate(self):
        """The simulated driver's library, which carries its scenario beside it."""
        demo = Demo(self.suite)
        demo.program.stop()
        driver = self.folder / "driver"
        driver.mkdir()
        shutil.copy(demo.driver / "libnvidia-ml.so.1", driver)
        processes = [
            {"pid": pid, "name": "/pod-idle", "gpu": gpu,
             "phases": [{"from": 0, "to": 600, "demand": demand, "memory_bytes": 8 << 30}]}
            | ({"instance": 0} if pid == ON_INSTANCE else {})
            for pid, (gpu, demand) in PROCESSES.items()
        ]
        gpus = [{"profile": "h100", "count": 3}, {"profile": "h100", "mig": INSTANCES}]
        scenario = {"driver_version": "590.48.01", "cycle_seconds": 600, "gpus": gpus, "processes": processes}
        (driver / "scenario").write_text(json.dumps(scenario))
        (driver / "state").write_text(json.dumps({"pids": self.pids}))
        return driver

    def run(self, containers):
        """From now on these processes of the scenario are the first processes of these containers; None: they do not run."""
        self.pids |= {pid: container and container.pid for pid, container in containers.items()}
        aside = self.driver / "state.new"
        aside.write_text(json.dumps({"pids": self.pids}))
        aside.rename(self.driver / "state")

    def truth(self):
        """For how long each process of the scenario had its GPU since the machine started, in nanoseconds."""
        truth = json.loads((self.driver / "truth").read_text())
        scripted = {now or pid: pid for pid, now in self.pids.items()}
        return {scripted[process["pid"]]: process["busy_ns"] for process in truth["processes"]}

    def mount(self, name, target, shared=False):
        source = self.folder / name
        source.mkdir()
        Path(target).mkdir(parents=True, exist_ok=True)
        command("mount", "--bind", source, target)
        if shared:
            command("mount", "--make-rshared", target)
        self.mounts.append(target)
        return source

    def sign_in(self):
        """A service account, and a certificate of the kubelet that its authority has signed."""
        account = self.mount("account", "/var/run/secrets/kubernetes.io/serviceaccount")
        (account / "token").write_text("nobody looks at it: the kubelet lets everybody in")
        self.certificate, self.key = self.folder / "kubelet.crt", self.folder / "kubelet.key"
        command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=authority", "-keyout", self.folder / "ca.key", "-out", account / "ca.crt")
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
        request = self.folder / "kubelet.csr"
        command("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=kubelet",
                "-keyout", self.key, "-out", request)
        command("openssl", "x509", "-req", "-in", request, "-CA", account / "ca.crt", "-CAkey", self.folder / "ca.key",
                "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", self.certificate)

    def start_containerd(self):
        config = self.folder / "containerd.toml"
        config.write_text(f"""version = 3
root = "{self.folder}/containerd"
state = "{self.folder}/run"
[grpc]
  address = "{self.folder}/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/idle:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
  BinaryName = "{shutil.which('runc')}"
""")
        self.containerd = self.suite.start("containerd", "containerd", "--config", config)
        wait_for("containerd", 30, lambda: self.ctr("version"), self.containerd)
        image = self.folder / "image.tar"
        write_image(image, Path(shutil.which("pod-idle")).resolve())
        self.ctr("images", "import", "--local", "--snapshotter", "native", "--platform", "linux/amd64", image)

    def ctr(self, *arguments):
        ran = subprocess.run(["ctr", "--address", self.folder / "containerd.sock", "--namespace", "k8s.io", *arguments],
                             capture_output=True, text=True, timeout=PATIENCE)
        if ran.returncode != 0:
            if self.containerd.alive() and arguments[0] == "version":
                return None
            raise Failed(f"ctr {' '.join(map(str, arguments))}: {ran.stderr}")
        return ran.stdout

    def start_kubelet(self, pods_api=True):
        self.port = getattr(self, "port", None) or free_port()
        config = self.folder / "kubelet.yaml"
        config.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests), "fileCheckFrequency": "1s", "syncFrequency": "5s",
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "localStorageCapacityIsolation": False, "makeIPTablesUtilChains": False,
            "address": "127.0.0.1", "port": self.secure_port, "readOnlyPort": self.port, "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(self.certificate), "tlsPrivateKeyFile": str(self.key),
            "featureGates": {"PodsAPI": pods_api},
        }))
        self.kubelet = self.suite.start("kubelet", "kubelet", "--config", config, "--v=1")
        wait_for("the kubelet", 60, self.listed, self.kubelet)

    def listed(self):
        return get_json(f"http://127.0.0.1:{self.port}/pods")

    def offer(self, gpus, instance):
        """Starts the device plugins: two whole GPUs, four replicas of the third, a MIG instance of the last."""
        Node.gpus = gpus
        for resource, devices in ((WHOLE, gpus[:2]), (SHARED, [f"{gpus[2]}::{at}" for at in range(4)]), (MIG, [instance])):
            name = resource.replace("/", "-")
            file = self.folder / f"{name}.devices"
            file.write_text("\n".join(devices))
            plugin = self.suite.start(name, "device-plugin", "/var/lib/kubelet/device-plugins", resource, file)
            wait_for(f"the plugin of {resource}", 30, lambda: "registered" in plugin.log.read_text(), plugin)
        # A pod that the kubelet admits before it has the devices fails for good.
        wait_for("the devices", 30, self.capacity, self.kubelet)

    def capacity(self):
        """Whether the kubelet has the devices of all plugins."""
        checkpoint = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
        registered = json.loads(checkpoint.read_text())["Data"]["RegisteredDevices"] if checkpoint.exists() else {}
        return {resource: len(devices) for resource, devices in registered.items()} == {WHOLE: 2, SHARED: 4, MIG: 1}

    def apply(self, name, namespace, containers, init=None, annotations=None):
        """Writes the manifest of a static pod."""
        def container(name, limits, *arguments):
            limits = {resource: str(count) for resource, count in limits.items()}
            return {"name": name, "image": "localhost/idle:1", "imagePullPolicy": "Never", "command": ["/pod-idle", *arguments],
                    "resources": {"limits": limits}}
        pod = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {},
                         "labels": {"kueue.x-k8s.io/queue-name": "research"}},
            "spec": {
                "hostNetwork": True, "terminationGracePeriodSeconds": 1,
                "containers": [container(of, limits) for of, limits in containers.items()],
                "initContainers": [container(of, limits, lifetime) for of, (lifetime, limits) in (init or {}).items()],
            },
        }
        aside = self.folder / f"{name}.json"
        aside.write_text(json.dumps(pod))
        aside.rename(self.manifests / f"{name}.json")

    def delete(self, name):
        (self.manifests / f"{name}.json").unlink()
        wait_for(f"the end of pod {name}", 60, lambda: not self.pod(name))

    def pod(self, name):
        pods = [pod for pod in self.listed()["items"] or [] if pod["metadata"]["name"] == f"{name}-{self.hostname}"]
        return pods[-1] if pods else None

    def uid(self, name):
        pod = self.pod(name)
        return pod and pod["metadata"]["uid"]

    def holder(self, name, container):
        return f"k8s:{self.uid(name)}/{container}"

    def find(self, pod, container):
        """The running container, or nothing yet."""
        status = (self.pod(pod) or {}).get("status", {})
        for one in status.get("containerStatuses", []) + status.get("initContainerStatuses", []):
            if one["name"] == container and "running" in one["state"]:
                id = one["containerID"].removeprefix("containerd://")
                tasks = dict(line.split()[:2] for line in self.ctr("tasks", "list").splitlines()[1:])
                found = Container(id, int(tasks[id])) if id in tasks and Path(f"/proc/{tasks[id]}").exists() else None
                return found if found and found.gpu else None
            if one["name"] == container and status.get("phase") == "Failed":
                raise Failed(f"pod {pod} failed: {status}")
        return None

    def container(self, pod, container, seconds=60):
        return wait_for(f"container {container} of pod {pod}", seconds, lambda: self.find(pod, container), self.kubelet)

    def end(self):
        """Ends the pods, so that nothing of them stays on the machine, then the programs."""
        for manifest in self.manifests.glob("*.json"):
            manifest.unlink()
        try:
            wait_for("the end of all pods", 60, lambda: self.ctr("tasks", "list").count("\n") <= 1)
        except Failed as failed:
            self.suite.expect(False, str(failed))
        self.suite.end()
        for root in Path("/sys/fs/cgroup").glob("**/kubepods"):
            for group, _, _ in os.walk(root, topdown=False):
                Path(group).rmdir()
        for target in reversed(self.mounts):
            subprocess.run(["umount", "--recursive", target], check=False)


def command(*arguments):
    ran = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=PATIENCE)
    if ran.returncode != 0:
        raise Failed(f"{' '.join(map(str, arguments))}: {ran.stderr}")


def write_image(path, program):
    """An OCI image of one layer with one static program, which containers and sandboxes run."""
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, "pod-idle")
    blobs = {}

    def blob(content, media):
        digest = sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(content)}

    layer = blob(layer.getvalue(), "layer.v1.tar")
    config = blob(json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/pod-idle"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }).encode(), "config.v1+json")
    manifest = blob(json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [layer],
    }).encode(), "manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": "localhost/idle:1"}
    manifest["platform"] = {"architecture": "amd64", "os": "linux"}
    blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))


if __name__ == "__main__":
    main()
