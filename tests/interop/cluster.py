"""A whole cluster on one machine (etcd, API server, controller manager, scheduler, kubelet, containerd), to which the Helm chart
and the kustomize base are applied. The DaemonSet runs our own image over the simulated driver; pods get GPUs from a device
plugin. It has to roll out, be scraped, name the pods that hold and use GPUs, and keep its ledger whatever happens to it.

Runs as root in mount and network namespaces of its own. GPUMETER_SMOKE=1 installs the base, looks at one pod, and ends.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

import harness
from harness import GPUMETER, PATIENCE, ROOT, Failed, Prometheus, get, wait_for
from image import BUILD, PACKAGES
from kubernetes import PROCESSES, WHOLE, Node, Page, command

NAMESPACES = "GPUMETER_CLUSTER_NAMESPACES"
PROGRAMS = ("openssl", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "ctr", "runc",
            "kubectl", "helm", "ptp", "device-plugin", "pod-idle", "prometheus", "unshare", "ip")
NODE, ADDRESS, SERVICE, PODS = "node-a", "10.99.0.1", "10.96.0.1", "10.98.0.0/24"
CHART, BASE = ROOT / "packaging/helm/gpumeter", ROOT / "packaging/kubernetes/base"
VERSION, NEXT = "first", "second"
ADMIN_CAPABILITY = 1 << 21
# What the simulated driver takes the place of: devices and library of the NVIDIA container runtime.
DRIVER = "/driver"


def main():
    if os.geteuid() != 0:
        sys.exit("cluster: a cluster needs root")
    for program in PROGRAMS:
        if not shutil.which(program):
            sys.exit(f"cluster: {program} is missing; .ci/cluster installs it")
    if other := next(Path("/sys/fs/cgroup").glob("**/kubepods"), None):
        sys.exit(f"cluster: another kubelet runs here, and each ends the other's pods: stop it, or remove {other} where it has ended")
    if NAMESPACES not in os.environ:
        # Before there is no network any more: the packages of the image come from a mirror.
        os.environ[NAMESPACES] = tempfile.mkdtemp(prefix="gpumeter-image-")
        built = subprocess.run([BUILD, "--binary", GPUMETER, "--output", image(), "--name", f"localhost/gpumeter:{VERSION}",
                                "--packages", PACKAGES])
        if built.returncode:
            sys.exit(1)
        os.execvp("unshare", ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, *sys.argv])
    try:
        harness.run(cluster, "cluster")
    finally:
        shutil.rmtree(image().parent)


def image():
    return Path(os.environ[NAMESPACES]) / "image.tar"


def cluster(suite):
    # All kubelets of a machine have the same cgroups.
    harness.alone_with("kubelet")
    node = ClusterNode(suite)
    try:
        if harness.SMOKE:
            smoke(suite, node)
        else:
            whole(suite, node)
    finally:
        node.end()


def smoke(suite, node):
    agent = Agent(suite, node)
    agent.apply_base()
    agent.is_scraped()
    attributed(suite, node, agent)
    suite.expect("rights of variant usage" in agent.doctor("deployment"), f"doctor: {agent.doctor('deployment')}")
    on_the_host(suite, agent)


def whole(suite, node):
    agent = Agent(suite, node)
    agent.install()
    agent.is_scraped()
    agent.is_found_by_annotations()
    on_the_host(suite, agent)
    attributed(suite, node, agent)
    kubelet_restart(suite, node, agent)
    variants(suite, node, agent)
    labels(suite, node, agent)
    upgrade_and_rollback(suite, node, agent)
    drain(suite, node, agent)
    gpu_operator(suite, node, agent)
    base_after_chart(suite, node, agent)


def attributed(suite, node, agent):
    """A pod that the scheduler placed holds its GPU, and its process's use counts for its namespace."""
    node.apply("train", "ml", {"main": {WHOLE: 1}})
    main = node.container("train", "main")
    node.run({main.scripted("ml"): main})
    holder = node.holder("train", "main")
    agent.until("the pod's holding", lambda page: page.ratio(holder) == 1)
    agent.until("use by the pod", lambda page: page.seconds("used", "ml") >= 5)
    info = agent.page().labels("gpu_workload_info", workload=holder)
    expected = {"tenant": "ml", "k8s_pod_name": "train", "k8s_namespace_name": "ml", "k8s_pod_label_team": "vision"}
    suite.expect(expected.items() <= info.items(), f"gpu_workload_info of the pod is {info}")
    outside = agent.page().seconds("outside_holding", "ml")
    suite.expect(outside == 0, f"{outside} s of use by the pod are outside of its holding")
    named = agent.page().labels("gpumeter_node_info")
    suite.expect(named.get("node_name") == NODE, f"the agent calls its node {named}")
    bill = wait_for("a line of the bill", 60, lambda: agent.bill("ml"), node.containerd, 1)
    suite.expect(f"Bill of {NODE}" in bill, f"gpumeter bill: {bill}")


def on_the_host(suite, agent):
    """The lock is on the host and trusted by the agent; ledger and local socket are on the host too."""
    for what in ("node lock", "ledger"):
        suite.expect(agent.doctor(what).startswith("ok "), f"doctor: {agent.doctor(what)}")
    for path in ("/run/gpumeter.lock", "/run/gpumeter/control.sock", "/var/lib/gpumeter/ledger.db"):
        suite.expect(Path(path).exists(), f"{path} is not on the host")


def kubelet_restart(suite, node, agent):
    """While the kubelet is down the agent continues, and holdings of pods stay."""
    holder, pod = node.holder("train", "main"), agent.pod()
    node.kubelet.stop()
    agent.until("the failure of the resolver", lambda page: page.one("gpumeter_resolver_success", resolver="pods") == 0)
    suite.expect(agent.page().ratio(holder) == 1, "the pod holds nothing while the kubelet is away")
    node.start_kubelet()
    agent.until("the resolver's return", lambda page: page.one("gpumeter_resolver_success", resolver="pods") == 1)
    agent.ready()
    suite.expect(agent.page().ratio(holder) == 1, "the pod holds nothing after the kubelet's restart")
    suite.expect(agent.pod()["metadata"]["uid"] == pod["metadata"]["uid"], "the kubelet's restart replaced the agent")


def variants(suite, node, agent):
    """Each variant has the documented rights, and the doctor names the variant that has what it lacks."""
    cases = {
        "devices": ("rights of variant devices; the holders of GPUs are not visible: use variant allocation or usage", 0),
        "allocation": ("rights of variant allocation; the users of GPUs are not visible: use variant usage", 0),
        "mig-legacy": ("rights of variant usage", ADMIN_CAPABILITY),
        "usage": ("rights of variant usage", 0),
    }
    holder = node.holder("train", "main")
    for variant, (told, capabilities) in cases.items():
        agent.upgrade({"variant": variant})
        finding = agent.doctor("deployment")
        suite.expect(told in finding, f"{variant}: doctor says {finding}")
        effective = agent.capabilities()
        suite.expect(effective == capabilities, f"{variant}: the agent has the capabilities {effective:x}")
        if variant == "devices":
            suite.expect(agent.page().ratio(holder) is None, "the variant devices knows who holds a GPU")
            suite.expect("FAILED  processes" in agent.exec("doctor"), "the variant devices sees the host's processes")
            suite.expect("there is a kubelet" in agent.doctor("holding"), f"the variant devices: {agent.doctor('holding')}")
        else:
            agent.until(f"the holding in variant {variant}", lambda page: page.ratio(holder) == 1)
        used = agent.page().seconds("used", "ml")
        if variant == "usage":
            agent.until("use in variant usage", lambda page: page.seconds("used", "ml") >= used + 3)


def labels(suite, node, agent):
    """Without the kubelet's Pods API labels need the service account's rights."""
    node.kubelet.stop()
    node.start_kubelet(pods_api=False)
    agent.upgrade({"labels": True})
    told = "labels and owners of"
    wait_for("a source of labels", 90, lambda: told in agent.doctor("pods"), node.kubelet, 1)
    finding = agent.doctor("pods")
    suite.expect("from nodes/pods of the kubelet" in finding, f"labels by the service account: {finding}")
    agent.upgrade({"labels": False})
    suite.expect("no source provides them" in agent.doctor("pods"), f"labels without a service account: {agent.doctor('pods')}")
    node.kubelet.stop()
    node.start_kubelet()


def upgrade_and_rollback(suite, node, agent):
    """The ledger continues under another image and back."""
    agent.ready()
    before, start = agent.held(), agent.ledger_file()
    agent.upgrade({"image": {"repository": "localhost/gpumeter", "tag": NEXT}})
    suite.expect(agent.image().endswith(f":{NEXT}"), f"after the upgrade the image is {agent.image()}")
    agent.until("the account after the upgrade", lambda page: page.seconds("held", "ml") >= before)
    between = agent.held()
    agent.helm("rollback", "gpumeter", "--wait", "--timeout", "120s")
    agent.ready()
    suite.expect(agent.image().endswith(f":{VERSION}"), f"after the rollback the image is {agent.image()}")
    agent.until("the account after the rollback", lambda page: page.seconds("held", "ml") >= between)
    suite.expect(agent.ledger_file() == start, "the ledger is another file")


def drain(suite, node, agent):
    """The agent stays on a drained node, and evicted pods hold nothing."""
    holder, pod = node.holder("train", "main"), agent.pod()["metadata"]["uid"]
    used = agent.page().seconds("used", "ml")
    node.run({1: None, 2: None})
    node.kubectl("drain", NODE, "--ignore-daemonsets", "--force", "--timeout=90s")
    agent.until("the end of the drained pod's holding", lambda page: page.ratio(holder) is None)
    suite.expect(agent.pod()["metadata"]["uid"] == pod, "the drain replaced the agent")
    suite.expect(agent.page().seconds("used", "ml") >= used, "the drain took from the account")
    node.kubectl("uncordon", NODE)


def gpu_operator(suite, node, agent):
    """With the operator's label the agent runs; without it, as during a driver upgrade, it closes the driver."""
    node.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "runc"})
    label = "nvidia.com/gpu.deploy.dcgm-exporter"
    node.kubectl("label", "node", NODE, f"{label}=true")
    agent.upgrade({"gpuOperator": True})
    held = agent.held()
    node.kubectl("label", "node", NODE, f"{label}=paused-for-driver-upgrade", "--overwrite")
    wait_for("the end of the agent", 60, lambda: not agent.pods(), node.kubelet)
    node.kubectl("label", "node", NODE, f"{label}=true", "--overwrite")
    wait_for("the agent's return", 60, agent.pods, node.kubelet)
    agent.ready()
    agent.until("the account after the driver's upgrade", lambda page: page.seconds("held", "ml") >= held)


def base_after_chart(suite, node, agent):
    """The ledger survives the chart, and the kustomize base continues it."""
    held = agent.held()
    agent.helm("uninstall", "gpumeter", "--wait", "--timeout", "60s")
    wait_for("the end of the agent", 60, lambda: not agent.pods(), node.kubelet)
    agent.apply_base()
    agent.until("the account of the chart", lambda page: page.seconds("held", "ml") >= held)


class Agent:
    """The DaemonSet, and its pod on the one node."""

    def __init__(self, suite, node):
        self.suite, self.node = suite, node
        self.values = {
            "image": {"repository": "localhost/gpumeter", "tag": VERSION},
            "args": [f"--nvml-library={DRIVER}/libnvidia-ml.so.1"],
            "volumes": [{"name": "driver", "hostPath": {"path": str(node.driver), "type": "Directory"}}],
            "volumeMounts": [{"name": "driver", "mountPath": DRIVER}],
            "monitoring": {"annotations": True},
            "config": {"sampling": {"level": "full"}, "limits": {"birth_delay": "0s"}, "prices": {"book": "example"},
                       "attribution": {"kubernetes": {"labels": ["team"]}}},
        }

    def install(self):
        """Installs the chart in a new namespace, as docs/kubernetes.md describes."""
        self.node.kubectl("create", "namespace", "gpumeter")
        levels = [f"pod-security.kubernetes.io/{mode}=privileged" for mode in ("enforce", "warn", "audit")]
        self.node.kubectl("label", "namespace", "gpumeter", *levels)
        self.helm("install", "gpumeter", CHART, "--values", self.file(self.values), "--wait", "--timeout", "120s")
        self.offer()

    def apply_base(self):
        """Installs the base under an overlay that adds the driver, as a user would add local settings."""
        folder = self.suite.folder / "overlay"
        folder.mkdir()
        patch = {
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "gpumeter"},
            "spec": {"template": {"spec": {
                "containers": [{"name": "gpumeter", "volumeMounts": self.values["volumeMounts"]}], "volumes": self.values["volumes"]}}}}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpumeter"},
                  "data": {"config.yaml": json.dumps(self.values["config"])}}
        argument = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": self.values["args"][0]}]
        target = {"kind": "DaemonSet", "name": "gpumeter"}
        (folder / "kustomization.yaml").write_text(json.dumps({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [os.path.relpath(BASE, folder)], "images": [{"name": "localhost/gpumeter", "newTag": VERSION}],
            "patches": [{"patch": json.dumps(patch)}, {"patch": json.dumps(config)}, {"patch": json.dumps(argument), "target": target}]}))
        self.node.kubectl("apply", "--server-side", "--force-conflicts", "--kustomize", folder)
        self.ready()
        self.offer()

    def offer(self):
        """Has the device plugin offer the GPUs that the agent reports, once."""
        if Node.gpus:
            return
        up = sorted(self.page().of("gpu_up"), key=lambda one: one.labels["gpu"])
        self.node.offer([sample.labels["uuid"] for sample in up], self.page().labels("gpu_mig_info")["mig_uuid"])

    def file(self, values):
        path = self.suite.folder / "values.yaml"
        path.write_text(json.dumps(values))
        return path

    def helm(self, *arguments):
        return self.node.tool("helm", *arguments, "--namespace", "gpumeter")

    def upgrade(self, values):
        self.helm("upgrade", "gpumeter", CHART, "--values", self.file(self.values | values), "--wait", "--timeout", "120s")
        self.ready()

    def ready(self):
        """Waits until the only pod is of the newest revision and ready."""
        self.node.kubectl("--namespace", "gpumeter", "rollout", "status", "daemonset/gpumeter", "--timeout=120s")
        wait_for("one agent", 60, lambda: len(self.pods()) == 1, self.node.kubelet)
        wait_for("the agent's page", 60, lambda: "gpu_up{" in self.text(), self.node.kubelet)

    def pods(self):
        listed = self.node.kubectl("--namespace", "gpumeter", "get", "pods", "--selector", "app.kubernetes.io/name=gpumeter",
                                   "--output", "json")
        return json.loads(listed)["items"]

    def pod(self):
        return self.pods()[0]

    def image(self):
        return self.pod()["spec"]["containers"][0]["image"]

    def text(self):
        return get(f"http://{self.pod()['status'].get('podIP')}:9855/metrics")[0]

    def page(self):
        return Page(self.text())

    def until(self, what, holds, seconds=PATIENCE):
        wait_for(what, seconds, lambda: holds(self.page()), self.node.containerd, 0.5)

    def held(self):
        return self.page().seconds("held", "ml")

    def ledger_file(self):
        return Path("/var/lib/gpumeter/ledger.db").stat().st_ino

    def exec(self, *arguments):
        """A command in the agent's container; a status of 1 is a finding and no failure."""
        ran = subprocess.run(["kubectl", "--namespace", "gpumeter", "exec", "daemonset/gpumeter", "--", "gpumeter", *arguments],
                             capture_output=True, text=True, timeout=PATIENCE)
        if not ran.stdout:
            raise Failed(f"gpumeter {' '.join(arguments)} in the pod: {ran.stderr}")
        return ran.stdout

    def bill(self, tenant):
        """The printed bill, once it has that tenant: a window settles within 15 s."""
        bill = self.exec("bill")
        return bill if re.search(rf"(?m)^{tenant}\b", bill) else None

    def doctor(self, what):
        library = self.values["args"][0].replace("=", " ").split()
        lines = self.exec("doctor", "--config", "/etc/gpumeter/config.yaml", *library).splitlines()
        return next((line for line in lines if re.match(rf"\w+ +{what}:", line)), "")

    def capabilities(self):
        """The effective capabilities of the agent's process in /proc."""
        id = self.pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        tasks = dict(line.split()[:2] for line in self.node.ctr("tasks", "list").splitlines()[1:])
        status = Path(f"/proc/{tasks[id]}/status").read_text()
        return int(re.search(r"(?m)^CapEff:\s*(\w+)", status)[1], 16)

    def is_scraped(self):
        """A real Prometheus finds the pod as the PodMonitor configures it, and names the target after its node."""
        monitor = ROOT / "packaging/kubernetes/components/monitoring/podmonitor.yaml"
        [endpoint] = yaml.safe_load(monitor.read_text())["spec"]["podMetricsEndpoints"]
        relabel = [{{"sourceLabels": "source_labels", "targetLabel": "target_label"}.get(key, key): value for key, value in one.items()}
                   for one in endpoint["relabelings"]]
        port = {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"], "action": "keep"}
        self.scrape({
            "job_name": "gpumeter/gpumeter", "honor_labels": endpoint["honorLabels"], "metrics_path": endpoint["path"],
            "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": ["gpumeter"]}}],
            "relabel_configs": [port, *relabel]})

    def is_found_by_annotations(self):
        """So does one without the operator, with the scrape configuration of docs/monitoring.md."""
        blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```", (ROOT / "docs/monitoring.md").read_text())
        [text] = [block for block in blocks if "prometheus_io_scrape" in block]
        [scrape] = yaml.safe_load(text)["scrape_configs"]
        self.scrape(scrape)

    def scrape(self, config):
        """Scrapes the agents' pods; `config` is an entry of scrape_configs for a Prometheus in the cluster."""
        for discovery in config["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = os.environ["KUBECONFIG"]
        prometheus = Prometheus(self.suite, config={"scrape_configs": [config]})
        query = f'up{{instance="{NODE}", job="{config["job_name"]}"}} == 1'
        wait_for("a scrape", 120, lambda: prometheus.query(query), prometheus.program, 1)
        present = prometheus.query(f'count(gpu_present{{instance="{NODE}", job="{config["job_name"]}"}} == 1)')
        self.suite.expect(present and present[0]["value"][1] == str(len(Node.gpus)), f"Prometheus has the GPUs {present}")
        prometheus.program.stop()


class ClusterNode(Node):
    """The machine: a control plane, and one node with containerd, a kubelet, device plugins and the simulated driver."""

    def __init__(self, suite):
        self.suite, self.folder = suite, suite.folder
        self.hostname = NODE
        self.pids, self.mounts = dict.fromkeys(PROCESSES), []
        self.network()
        self.driver = self.simulate()
        command("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.mount("kubelet", "/var/lib/kubelet", shared=True)
        for name, target in (("log", "/var/log"), ("ledger", "/var/lib/gpumeter"), ("cni", "/etc/cni/net.d"), ("plugins", "/opt/cni/bin")):
            self.mount(name, target)
        self.secure_port = 10250
        self.sign()
        self.start_control_plane()
        self.suite.start("kube-scheduler", "kube-scheduler", f"--kubeconfig={os.environ['KUBECONFIG']}", "--leader-elect=false")
        self.start_containerd()
        self.images()
        self.start_kubelet()
        for namespace in ("ml", "batch", "web"):
            self.kubectl("create", "namespace", namespace)
        account = lambda: "default" in self.kubectl("--namespace", "ml", "get", "serviceaccounts")
        wait_for("the service account of a namespace", 60, account, self.controllers)

    def network(self):
        """The namespace's own interfaces: the node's address, and that of the API server's service, without a kube-proxy."""
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "node", "type", "veth", "peer", "name", "wire")
        for link in ("node", "wire"):
            command("ip", "link", "set", link, "up")
        command("ip", "address", "add", f"{ADDRESS}/24", "dev", "node")
        command("ip", "address", "add", f"{SERVICE}/32", "dev", "node")

    def sign(self):
        """An authority and what it signs."""
        self.certificates = self.folder / "pki"
        self.certificates.mkdir()
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
        self.openssl("genrsa", "-out", "accounts.key", "2048")
        self.certificate("apiserver", "/CN=apiserver", f"IP:127.0.0.1,IP:{ADDRESS},IP:{SERVICE},DNS:kubernetes.default.svc")
        self.certificate("admin", "/O=system:masters/CN=admin")
        self.certificate("node", f"/O=system:nodes/CN=system:node:{NODE}", f"IP:{ADDRESS},DNS:{NODE}")
        os.environ["KUBECONFIG"] = str(self.kubeconfig("admin"))
        self.of_node = self.kubeconfig("node")

    def openssl(self, *arguments):
        ran = subprocess.run(["openssl", *arguments], cwd=self.certificates, capture_output=True, text=True, timeout=PATIENCE)
        if ran.returncode:
            raise Failed(f"openssl {' '.join(arguments)}: {ran.stderr}")

    def certificate(self, name, subject, names=None):
        extensions = "extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={names}\n" if names else "")
        (self.certificates / f"{name}.ext").write_text(extensions)
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
                     "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                     "-extfile", f"{name}.ext", "-out", f"{name}.crt")

    def kubeconfig(self, name):
        path, pki = self.folder / f"{name}.kubeconfig", self.certificates
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {"server": f"https://{ADDRESS}", "certificate-authority": str(pki / "ca.crt")}}],
            "users": [{"name": name, "user": {"client-certificate": str(pki / f"{name}.crt"), "client-key": str(pki / f"{name}.key")}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}]}))
        return path

    def start_control_plane(self, of_server=(), of_controllers=()):
        pki = self.certificates
        etcd = self.suite.start("etcd", "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync")
        wait_for("etcd", 60, lambda: get("http://127.0.0.1:2379/health"), etcd)
        server = self.suite.start(
            "kube-apiserver", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443", f"--advertise-address={ADDRESS}",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key", f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/accounts.key",
            f"--service-account-signing-key-file={pki}/accounts.key", "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key",
            f"--kubelet-certificate-authority={pki}/ca.crt", "--kubelet-preferred-address-types=InternalIP", *of_server)
        wait_for("the API server", 120, lambda: self.try_kubectl("get", "--raw", "/readyz"), server)
        config = os.environ["KUBECONFIG"]
        self.controllers = self.suite.start(
            "kube-controller-manager", "kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
            f"--service-account-private-key-file={pki}/accounts.key", f"--root-ca-file={pki}/ca.crt", *of_controllers)

    def start_containerd(self):
        for plugin in ("ptp", "host-local", "loopback"):
            shutil.copy(shutil.which(plugin), self.folder / "plugins")
        (self.folder / "cni/10-pods.conflist").write_text(json.dumps({
            "cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": {
                "type": "host-local", "subnet": PODS, "dataDir": str(self.folder / "addresses"), "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        super().start_containerd()

    def images(self):
        """Our own image under two tags."""
        self.ctr("images", "import", "--local", "--snapshotter", "native", "--platform", "linux/amd64", image())
        self.ctr("images", "tag", f"localhost/gpumeter:{VERSION}", f"localhost/gpumeter:{NEXT}")

    def start_kubelet(self, pods_api=True):
        self.port, pki = 10255, self.certificates
        config = self.folder / "kubelet.yaml"
        config.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "syncFrequency": "5s",
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock", "resolvConf": "",
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "localStorageCapacityIsolation": False, "makeIPTablesUtilChains": False, "nodeStatusUpdateFrequency": "2s",
            "readOnlyPort": self.port, "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": f"{pki}/ca.crt"}},
            "authorization": {"mode": "Webhook"}, "tlsCertFile": f"{pki}/node.crt", "tlsPrivateKeyFile": f"{pki}/node.key",
            "featureGates": {"PodsAPI": pods_api}}))
        self.kubelet = self.suite.start("kubelet", "kubelet", "--config", config, "--kubeconfig", self.of_node, "--hostname-override", NODE,
                                        "--node-ip", ADDRESS, "--node-labels", "nvidia.com/gpu.present=true", "--v=1")
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        wait_for("the kubelet", 60, self.listed, self.kubelet)
        wait_for("a ready node", 60, lambda: self.kubectl("get", "nodes", "--output", f"jsonpath={ready}") == "True", self.kubelet)

    def tool(self, program, *arguments):
        ran = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=180)
        if ran.returncode:
            state = "" if program == "kubectl" else self.try_kubectl("--namespace", "gpumeter", "describe", "pods") or ""
            raise Failed(f"{program} {' '.join(map(str, arguments))}: {ran.stderr}{state[-3000:]}")
        return ran.stdout

    def kubectl(self, *arguments):
        return self.tool("kubectl", *arguments)

    def try_kubectl(self, *arguments):
        ran = subprocess.run(["kubectl", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)
        return ran.stdout if ran.returncode == 0 else None

    def create(self, item):
        path = self.folder / "object.json"
        path.write_text(json.dumps(item))
        self.kubectl("create", "--filename", path)

    def offer(self, gpus, instance):
        super().offer(gpus, instance)
        capacity = f"{{.items[0].status.allocatable.{WHOLE.replace('.', chr(92) + '.')}}}"
        wait_for("the node's GPUs", 60, lambda: self.kubectl("get", "nodes", "--output", f"jsonpath={capacity}") == "2", self.kubelet)

    def apply(self, name, namespace, containers):
        self.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"team": "vision"}},
            "spec": {"terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists", "effect": "NoExecute"}], "containers": [
                {"name": container, "image": "localhost/idle:1", "imagePullPolicy": "Never", "command": ["/pod-idle"],
                 "resources": {"limits": {resource: str(count) for resource, count in limits.items()}}}
                for container, limits in containers.items()]}})

    def pod(self, name):
        pods = [pod for pod in self.listed()["items"] or [] if pod["metadata"]["name"] == name]
        return pods[-1] if pods else None

    def end(self):
        """Stops every pod, so that none stays on the machine, then the programs."""
        self.manifests = self.folder / "none"
        if self.kubelet.alive():
            self.try_kubectl("delete", "namespaces", "gpumeter", "ml", "batch", "web", "--timeout=50s")
            self.kubelet.stop()
        for line in self.ctr("tasks", "list").splitlines()[1:]:
            try:
                self.ctr("tasks", "delete", "--force", line.split()[0])
            except Failed:
                pass  # it ended by itself meanwhile
        super().end()


if __name__ == "__main__":
    main()
