"""The manifests of examples/autoscaling on a real control plane (etcd, API server, controller manager) with a real Prometheus: what
the HorizontalPodAutoscaler and then KEDA do with the recorded series. They look fifteen times as often as usual, and wait a hundred
and twenty times shorter before they scale in.

Stand-ins: the servers, kube-state-metrics and the gateway are one page of ours, made of the pods that the API server has; a
loop of ours makes pods ready, since there is no kubelet. prometheus-adapter answers until KEDA does. KEDA is its own source without
the scalers of other services.

Runs as root in a network namespace of its own.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import yaml

import harness
from cluster import ADDRESS, ClusterNode
from harness import ROOT, Prometheus, free_port, wait_for

NAMESPACE = "GPUMETER_AUTOSCALING_NAMESPACE"
PROGRAMS = ("openssl", "etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "prometheus", "prometheus-adapter", "keda-operator", "keda-adapter", "unshare", "ip")
EXAMPLES = ROOT / "examples/autoscaling"
SYNC, DIVISOR = 1, 120  # seconds from one look to the next; how many times shorter the stabilisation is
GROUP = "external.metrics.k8s.io"


def main():
    if os.geteuid() != 0:
        sys.exit("autoscaling: a control plane needs root")
    for program in PROGRAMS:
        if not shutil.which(program):
            sys.exit(f"autoscaling: {program} is missing; .ci/cluster installs it")
    if NAMESPACE not in os.environ:
        os.environ[NAMESPACE] = "own"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    harness.run(autoscaling, "autoscaling")


def autoscaling(suite):
    plane = ControlPlane(suite)
    service = Service(plane)
    suite.end_first(service.end)
    port = serve(service.page)
    rules = yaml.safe_load((EXAMPLES / "rules.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
    (suite.folder / "rules.yaml").write_text(json.dumps(rules))
    prometheus = Prometheus(suite, config={
        "rule_files": [str(suite.folder / "rules.yaml")],
        "scrape_configs": [{"job_name": "all", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]})
    metrics = Adapter(plane, prometheus)
    plane.serve_external_metrics("metrics", metrics.port)
    requests(suite, Scaling(suite, plane, service, metrics))
    keda(suite, Keda(plane, prometheus), service)


def requests(suite, scaling):
    """By requests: what must not grow does not, what is unknown moves nothing, and none to one needs no server's series."""
    service = scaling.service
    service.requests = 42
    scaling.begin(replicas=10)
    # How many looks fit into the stabilisation depends on the machine: it may scale in meanwhile.
    scaling.looks(20, "three busy replicas and seven idle ones", set(range(11)))
    scaling.reaches(3, "the replicas that 42 requests need, after the stabilisation")

    service.lost = 1
    scaling.without_number()
    # The known replicas alone would need two.
    scaling.looks(45, "one of three targets is lost for longer than the stabilisation", {3})

    service.lost, service.requests = 0, 1
    scaling.reaches(1, "one request")
    scaling.looks(15, "one request on one replica", {1})

    service.requests = 0
    scaling.reaches(0, "no request")
    scaling.looks(5, "nothing waits in front of no replica", {0})
    service.waiting_outside = 2
    scaling.reaches(1, "two requests wait in front of no replica")
    service.requests, service.waiting_outside = 2, 0
    scaling.looks(10, "the first replica has them", {1})
    service.requests = 80
    scaling.reaches(6, "80 requests")
    scaling.looks(5, "80 requests on six replicas", {6})
    suite.expect(max(replicas for _, replicas in service.seen) == 10, f"more than ten replicas: {service.told()}")
    print(f"autoscaling: the replicas of the Deployment: {service.told()}")


def keda(suite, keda, service):
    """The ScaledObject by requests: from none to one, held while a target is lost, then at least what the fallback says, and to none."""
    service.requests, service.seen = 0, []
    keda.begin()
    keda.reaches(service, 0, "no request")
    service.waiting_outside = 2
    keda.reaches(service, 1, "two requests wait in front of no replica")
    service.requests, service.waiting_outside = 20, 0
    keda.reaches(service, 2, "20 requests")

    service.lost, samples = 1, []
    threshold = keda.manifest["spec"]["fallback"]["failureThreshold"]

    def reached():
        # The replicas first: failures are counted up, so there were no more of them when the replicas were read.
        replicas = service.wanted
        samples.append((keda.failures(), replicas))
        return samples[-1][0] >= threshold

    wait_for("failures", harness.PATIENCE, reached, keda.operator, 0.25)
    before = [(failures, replicas) for failures, replicas in samples if failures < threshold]
    held = {replicas for _, replicas in before}
    if suite.expect(held == {2}, f"KEDA: {held} replicas while a target is lost; {service.told()}"):
        print(f"keda: one of two targets is lost: 2 up to {max(failures for failures, _ in before)} failures")
    keda.reaches(service, keda.manifest["spec"]["fallback"]["replicas"], "the fallback")

    service.lost, service.requests = 0, 1
    keda.reaches(service, 1, "one request")
    service.requests = 0
    keda.reaches(service, 0, "no request, after the cooldown")
    print(f"keda: the replicas of the Deployment: {service.told()}")


class ControlPlane(ClusterNode):
    """Without a node: pods stay where the API server has them."""

    def __init__(self, suite):
        self.suite, self.folder = suite, suite.folder
        self.network()
        self.sign()
        self.certificate("aggregator", "/CN=aggregator")
        self.certificate("metrics", "/CN=metrics", f"IP:{ADDRESS}")
        pki = self.certificates
        self.start_control_plane(
            ["--enable-aggregator-routing", f"--proxy-client-cert-file={pki}/aggregator.crt", f"--proxy-client-key-file={pki}/aggregator.key",
             f"--requestheader-client-ca-file={pki}/ca.crt", "--requestheader-allowed-names=aggregator",
             "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
             "--requestheader-extra-headers-prefix=X-Remote-Extra-"],
            [f"--horizontal-pod-autoscaler-sync-period={SYNC}s"])
        self.context = ssl.create_default_context(cafile=pki / "ca.crt")
        self.context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.kubectl("create", "namespace", "ml")
        account = lambda: "default" in self.kubectl("--namespace", "ml", "get", "serviceaccounts")
        wait_for("the service account of a namespace", 60, account, self.controllers)

    def serve_external_metrics(self, name, port):
        """Makes a server at the node's address the one that the API server asks for external metrics."""
        ports = [{"name": "https", "port": port}]
        self.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ml"}, "spec": {"ports": ports}})
        self.create({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports,
            "metadata": {"name": name, "namespace": "ml", "labels": {"kubernetes.io/service-name": name}},
            "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}]})
        self.create({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1beta1.{GROUP}"},
            "spec": {"group": GROUP, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                     "insecureSkipTLSVerify": True, "service": {"name": name, "namespace": "ml", "port": port}}})
        wait_for("the external metrics", 60, lambda: self.try_kubectl("get", "--raw", f"/apis/{GROUP}/v1beta1"), self.controllers)

    def ask(self, path, method="GET", body=None, kind="application/merge-patch+json"):
        """What the API server answers, as JSON."""
        request = urllib.request.Request(f"https://{ADDRESS}{path}", method=method, headers={"Content-Type": kind},
                                         data=json.dumps(body).encode() if body else None)
        with urllib.request.urlopen(request, timeout=harness.PATIENCE, context=self.context) as answer:
            return json.load(answer)


class Service:
    """The Deployment `chat`: its pods, made ready by a loop of ours, and what they and the gateway have to do."""

    PODS = "/api/v1/namespaces/ml/pods"
    REPLICA_SETS = "/apis/apps/v1/namespaces/ml/replicasets"
    DEPLOYMENT = "/apis/apps/v1/namespaces/ml/deployments/chat"

    def __init__(self, plane):
        self.plane = plane
        # All requests, given to as few replicas as serve them at their threshold; of how many replicas the target is lost.
        self.requests, self.lost, self.waiting_outside = 0, 0, 0
        self.replica_sets, self.pods, self.wanted, self.seen = [], [], None, []
        self.began, self.ended = time.monotonic(), Event()
        self.loop = Thread(target=self.watch)

    def begin(self, replicas):
        self.plane.create({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat", "namespace": "ml"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "chat"}}, "template": {
                "metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [{"name": "main", "image": "localhost/idle:1"}]}}}})
        self.loop.start()
        wait_for("the replicas", harness.PATIENCE, lambda: sum(ready for _, _, ready in self.pods) == replicas, self.plane.controllers)

    def watch(self):
        while not self.ended.wait(0.25):
            pods = [pod for pod in self.plane.ask(self.PODS)["items"] if "deletionTimestamp" not in pod["metadata"]]
            pods.sort(key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
            # In this order, so that a pod that is shown has the Deployment of its ReplicaSet.
            self.replica_sets = [(one["metadata"]["name"], self.owner(one)) for one in self.plane.ask(self.REPLICA_SETS)["items"]]
            self.pods = [(pod["metadata"]["name"], self.owner(pod), self.is_ready(pod)) for pod in pods]
            for name, _, ready in self.pods:
                if not ready:
                    self.plane.ask(f"{self.PODS}/{name}/status", "PATCH", {"status": {"phase": "Running", "conditions": [
                        {"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]}})
            self.wanted = self.plane.ask(self.DEPLOYMENT)["spec"]["replicas"]
            if not self.seen or self.seen[-1][1] != self.wanted:
                self.seen.append((round(time.monotonic() - self.began), self.wanted))

    @staticmethod
    def owner(one):
        return one["metadata"]["ownerReferences"][0]["name"]

    @staticmethod
    def is_ready(pod):
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))

    def told(self):
        return ", ".join(f"{second} s: {replicas}" for second, replicas in self.seen)

    def page(self):
        """What Prometheus reads: the servers, kube-state-metrics and the gateway."""
        lines = [f'inference_extension_flow_control_queue_size{{namespace="ml",inference_pool="chat"}} {self.waiting_outside}']
        if self.wanted is not None:
            lines.append(f'kube_deployment_spec_replicas{{namespace="ml",deployment="chat"}} {self.wanted}')
        for owned, deployment in self.replica_sets:
            lines.append(f'kube_replicaset_owner{{namespace="ml",replicaset="{owned}",owner_kind="Deployment",owner_name="{deployment}"}} 1')
        ready = [name for name, _, ready in self.pods if ready]
        lines.append(f'kube_deployment_status_replicas_ready{{namespace="ml",deployment="chat"}} {len(ready)}')
        for name, owner, is_ready in self.pods:
            lines.append(f'kube_pod_owner{{namespace="ml",pod="{name}",owner_kind="ReplicaSet",owner_name="{owner}"}} 1')
            lines.append(f'kube_pod_status_ready{{namespace="ml",pod="{name}",condition="true"}} {int(is_ready)}')
        left = self.requests
        for place, name in enumerate(ready):
            running = left if place == len(ready) - 1 else min(left, 14)
            left -= running
            if place >= self.lost:
                labels = f'namespace="ml",pod="{name}",model_name="m",engine="0"'
                lines += [f"vllm:num_requests_running{{{labels}}} {running}", f"vllm:num_requests_waiting{{{labels}}} 0"]
        return "\n".join(lines) + "\n"

    def end(self):
        self.ended.set()
        self.loop.join()


def serve(page):
    """Serves what a function returns; returns the port."""
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class Adapter:
    """prometheus-adapter with the rules of examples/autoscaling; it looks for new series every second instead of every ten minutes."""

    def __init__(self, plane, prometheus):
        self.prometheus, pki, config = prometheus, plane.certificates, os.environ["KUBECONFIG"]
        self.port = free_port()
        plane.suite.start(
            "prometheus-adapter", "prometheus-adapter", f"--config={EXAMPLES}/prometheus-adapter.yaml", f"--prometheus-url={prometheus.url}",
            "--metrics-relist-interval=1s", "--metrics-max-age=10m", f"--secure-port={self.port}", f"--tls-cert-file={pki}/metrics.crt",
            f"--tls-private-key-file={pki}/metrics.key", f"--lister-kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}")

    @property
    def asked(self):
        """How often the autoscaler looked: nobody else queries Prometheus, and each look asks for both of its metrics."""
        with urllib.request.urlopen(f"{self.prometheus.url}/metrics", timeout=harness.PATIENCE) as answer:
            page = answer.read().decode()
        counts = re.findall(r'(?m)^prometheus_http_requests_total{.*handler="/api/v1/query"} (\S+)$', page)
        return sum(map(float, counts)) / 2


class Keda:
    """KEDA's operator and its server of external metrics, which take the place of prometheus-adapter, and its ScaledObject of the Deployment."""

    OBJECT = "/apis/keda.sh/v1alpha1/namespaces/ml/scaledobjects/chat"

    def __init__(self, plane, prometheus):
        self.plane = plane
        self.manifest = yaml.safe_load((EXAMPLES / "scaledobject-requests.yaml").read_text())
        spec = self.manifest["spec"]
        spec["pollingInterval"], spec["cooldownPeriod"] = SYNC, spec["cooldownPeriod"] // DIVISOR
        spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] //= DIVISOR
        for trigger in spec["triggers"]:
            trigger["metadata"]["serverAddress"] = prometheus.url
        crds = Path(shutil.which("keda-operator")).resolve().parents[1] / "crds"
        plane.kubectl("create", "--filename", crds)
        kinds = "scaledobjects,scaledjobs,triggerauthentications,clustertriggerauthentications,cloudeventsources,clustercloudeventsources"
        wait_for("KEDA's kinds", 60, lambda: plane.try_kubectl("get", kinds) is not None, plane.controllers, 0.5)
        pki = plane.folder / "keda"
        pki.mkdir()
        for name, source in (("tls.crt", "metrics.crt"), ("tls.key", "metrics.key"), ("ca.crt", "ca.crt")):
            shutil.copy(plane.certificates / source, pki / name)
        config = os.environ["KUBECONFIG"]
        environment = ("env", "WATCH_NAMESPACE=", "KEDA_CLUSTER_OBJECT_NAMESPACE=ml", "POD_NAMESPACE=ml")
        self.operator = plane.suite.start("keda-operator", *environment, "keda-operator", f"--metrics-service-bind-address={ADDRESS}:9666",
                                          f"--cert-dir={pki}", "--metrics-bind-address=0", f"--kubeconfig={config}")
        self.adapter = plane.suite.start(
            "keda-adapter", *environment, "keda-adapter", f"--metrics-service-address={ADDRESS}:9666", f"--cert-dir={pki}", "--port=8082",
            "--secure-port=6443", f"--tls-cert-file={pki}/tls.crt", f"--tls-private-key-file={pki}/tls.key", f"--kubeconfig={config}",
            f"--lister-kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}")

    def begin(self):
        """Without the other autoscaler, and without a replica."""
        self.plane.kubectl("--namespace", "ml", "delete", "hpa", "chat")
        self.plane.kubectl("--namespace", "ml", "scale", "deployment", "chat", "--replicas=0")
        self.plane.kubectl("delete", "apiservice", f"v1beta1.{GROUP}")
        self.plane.serve_external_metrics("keda-metrics-apiserver", 6443)
        self.plane.create(self.manifest)

    def failures(self):
        """How often KEDA had no number of the requests since it had one."""
        return self.plane.ask(self.OBJECT).get("status", {}).get("health", {}).get("s0-prometheus", {}).get("numberOfFailures", 0)

    def reaches(self, service, replicas, what):
        wait_for(f"KEDA's {replicas} replicas for {what}", harness.PATIENCE, lambda: service.wanted == replicas, self.operator)
        print(f"keda: {what}: {replicas}")


class Scaling:
    """The autoscaler of hpa-requests.yaml, and what it did since it was asked last."""

    HPA = "/apis/autoscaling/v2/namespaces/ml/horizontalpodautoscalers/chat"

    def __init__(self, suite, plane, service, metrics):
        self.suite, self.plane, self.service, self.metrics = suite, plane, service, metrics

    def begin(self, replicas):
        self.service.begin(replicas)
        manifest = yaml.safe_load((EXAMPLES / "hpa-requests.yaml").read_text())
        manifest["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] //= DIVISOR
        self.plane.create(manifest)

    def condition(self):
        conditions = self.plane.ask(self.HPA).get("status", {}).get("conditions", [])
        return next(((one["status"], one["reason"]) for one in conditions if one["type"] == "ScalingActive"), None)

    def without_number(self):
        wait_for("an autoscaler without a number", 60, lambda: self.condition() == ("False", "FailedGetExternalMetric"),
                 self.plane.controllers, 0.25)

    def looks(self, times, what, allowed):
        """The autoscaler looks so often, a second or more apart, and the replicas are among these all the time."""
        before, since = self.metrics.asked, len(self.service.seen)
        wait_for(f"{times} looks", 20 * times, lambda: self.metrics.asked - before >= times, self.plane.controllers)
        seen = {self.service.wanted} | {replicas for _, replicas in self.service.seen[since:]}
        if self.suite.expect(seen <= allowed, f"{what}: {seen} replicas, not {allowed}; {self.service.told()}"):
            print(f"autoscaling: {what}: {', '.join(map(str, sorted(seen)))} at {times} looks")

    def reaches(self, replicas, what):
        wait_for(f"{replicas} replicas for {what}", harness.PATIENCE, lambda: self.service.wanted == replicas, self.plane.controllers)
        print(f"autoscaling: {what}: {replicas}")


if __name__ == "__main__":
    main()
