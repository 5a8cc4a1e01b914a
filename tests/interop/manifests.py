"""The manifests without a cluster: every variant and option renders, by kustomize, by kubectl and by Helm alike, and is valid
for the newest minors of Kubernetes and for prometheus-operator. What the schemas do not know is OpenShift's own resource.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import yaml

import harness
from harness import ROOT, Failed

CHART, KUSTOMIZE = ROOT / "packaging/helm/gpumeter", ROOT / "packaging/kubernetes"
TOOLS = Path(os.environ.get("GPUMETER_TOOLS", Path.home() / ".cache/gpumeter-tools"))
SCHEMAS = TOOLS / "manifest-schemas/schemas"
# Components of the kustomize base, and the values of the chart that give the same.
SAME = {
    (): {},
    ("usage",): {"variant": "usage"},
    ("allocation",): {"variant": "allocation"},
    ("devices",): {"variant": "devices"},
    ("mig-legacy",): {"variant": "mig-legacy"},
    ("cdi",): {"cdi": True},
    ("gpu-operator",): {"gpuOperator": True},
    ("gke-cos",): {"gkeCos": True},
    ("openshift",): {"openshift": True},
    ("labels",): {"labels": True},
    ("monitoring",): {"monitoring": {"enabled": True}},
    ("annotations",): {"monitoring": {"annotations": True}},
    ("dashboards",): {"dashboards": {"enabled": True}},
    ("dcgm",): {"dcgm": {"enabled": True}},
    ("exports",): {"exports": {"enabled": True}},
    ("exports", "exports-rclone"): {"exports": {"enabled": True, "rclone": {"enabled": True}}},
    ("allocation", "gpu-operator", "openshift", "labels", "monitoring", "dashboards"): {
        "variant": "allocation", "gpuOperator": True, "openshift": True, "labels": True,
        "monitoring": {"enabled": True}, "dashboards": {"enabled": True}},
}
# Each is one mistake in the values.
WRONG = (
    {"varaint": "usage"}, {"variant": "full"}, {"image": {"repo": "x"}}, {"ledger": "var/lib/gpumeter"}, {"labels": "yes"},
    {"monitoring": {"enable": True}}, {"monitoring": {"runbooks": "docs/runbooks"}}, {"tolerations": {"operator": "Exists"}},
    {"dcgm": {"portName": "GPU metrics"}}, {"exports": {"rclone": {"remote": "finops"}}},
)


def manifests(suite):
    for program in ("kustomize", "kubectl", "helm", "kubeconform"):
        if not shutil.which(program):
            raise Failed(f"{program} is missing; .ci/manifests installs it")
    for components, values in SAME.items():
        name = " ".join(components) or "base"
        built = run("kustomize", "build", overlay(suite, components))
        suite.expect(built == run("kubectl", "kustomize", overlay(suite, components)), f"{name}: kubectl builds it otherwise")
        charted = template(suite, values)
        ours, theirs = objects(built), objects(charted)
        # Helm stores its release in the namespace, which must therefore exist before the chart is installed.
        namespace = ours.pop(("Namespace", "gpumeter"))
        level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        suite.expect(level == "privileged", f"{name}: the namespace allows {level}")
        suite.expect(ours.keys() == theirs.keys(), f"{name}: kustomize has {sorted(ours)}, Helm {sorted(theirs)}")
        for key in ours.keys() & theirs.keys():
            suite.expect(ours[key] == theirs[key], f"{name}: Helm's {key} differs:\n{difference(ours[key], theirs[key])}")
        valid(suite, name, built)
        rights(suite, name, ours)
    lint(suite)
    without_priority(suite)
    secured(suite)
    exported(suite)
    restarts(suite)
    notes(suite)
    mistakes(suite)


def without_priority(suite):
    """Without a priority class no quota can refer to one."""
    text = template(suite, {"gkeCos": True, "priorityClassName": ""})
    valid(suite, "gke-cos without a priority class", text)
    kinds = {kind for kind, _ in objects(text)}
    suite.expect("ResourceQuota" not in kinds and "DaemonSet" in kinds, f"gke-cos without a priority class: {sorted(kinds)}")


def overlay(suite, components):
    """A folder that applies these components to the base, as a user's would."""
    folder = suite.folder / ("-".join(components) or "base")
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [os.path.relpath(KUSTOMIZE / "base", folder)],
        "components": [os.path.relpath(KUSTOMIZE / "components" / component, folder) for component in components],
    }))
    return folder


def template(suite, values):
    file = suite.folder / "values.yaml"
    file.write_text(json.dumps(values))
    return run("helm", "template", "gpumeter", CHART, "--namespace", "gpumeter", "--values", file)


def run(*command):
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {ran.stderr.strip()}")
    return ran.stdout


def objects(text):
    """The objects by kind and name, with lists sorted where Kubernetes has no order."""
    found = {}
    for document in yaml.safe_load_all(text):
        if document is None:
            continue
        key = document["kind"], document["metadata"]["name"]
        if key in found:
            raise Failed(f"{key} is there twice")
        found[key] = unordered(document)
    return found


def unordered(value):
    if isinstance(value, dict):
        return {key: unordered(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [unordered(item) for item in value]
        named = all(isinstance(item, dict) and "name" in item for item in items)
        return sorted(items, key=lambda item: (item["name"], item.get("mountPath", ""))) if named else items
    return value


def difference(ours, theirs):
    one, other = (json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (ours, theirs))
    return "\n".join(f"  kustomize: {a.strip()}\n  Helm:      {b.strip()}" for a, b in zip(one, other) if a != b)[:800]


def valid(suite, name, text):
    for version in (SCHEMAS / "versions").read_text().split():
        ran = subprocess.run(
            ["kubeconform", "-strict", "-summary", "-skip", "SecurityContextConstraints", "-kubernetes-version", version,
             "-schema-location", f"{SCHEMAS}/{{{{.NormalizedKubernetesVersion}}}}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
             "-schema-location", f"{SCHEMAS}/crds/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"],
            input=text, capture_output=True, text=True, timeout=60)
        suite.expect(ran.returncode == 0, f"{name}: not valid for Kubernetes {version}: {ran.stdout}{ran.stderr}")


def rights(suite, name, found):
    """What holds in every variant."""
    [daemonset] = [one for (kind, _), one in found.items() if kind == "DaemonSet"]
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    security = container["securityContext"]
    suite.expect("/run/gpumeter.lock" in mounts, f"{name}: the host's lock is not mounted")
    suite.expect("/var/lib/gpumeter" in mounts, f"{name}: the ledger is not on the host")
    suite.expect(security["readOnlyRootFilesystem"], f"{name}: its root can be written")
    suite.expect(daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0, f"{name}: two agents on one node")
    suite.expect("nvidia.com/gpu" not in json.dumps(container["resources"]), f"{name}: it requests a GPU")
    if "gke-cos" not in name:
        suite.expect("privileged" not in security and security["capabilities"]["drop"] == ["ALL"], f"{name}: {security}")


def lint(suite):
    ran = subprocess.run(["helm", "lint", "--strict", CHART], capture_output=True, text=True, timeout=60)
    suite.expect(ran.returncode == 0, f"helm lint: {ran.stdout}{ran.stderr}")
    runbook = "https://wiki.example.com/gpumeter/runbooks"
    rule = objects(template(suite, {"monitoring": {"enabled": True, "runbooks": f"{runbook}/"}}))["PrometheusRule", "gpumeter"]
    urls = {one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one}
    suite.expect(len(urls) > 10 and all(url.startswith(f"{runbook}/Gp") for url in urls), f"runbooks: {urls}")
    # What docs/kubernetes.md says for kustomize.
    built = run("kustomize", "build", overlay(suite, ("monitoring",)))
    replaced = built.replace("file:///usr/share/doc/gpumeter/runbooks", runbook)
    suite.expect(set(re.findall("runbook_url: (.*)", replaced)) == urls, "kustomize has other links to runbooks")


def secured(suite):
    """Metrics with a certificate and users: the scrape configuration has both and stays valid."""
    values = {"monitoring": {"enabled": True, "endpoint": {
        "scheme": "https", "tlsConfig": {"serverName": "gpumeter", "ca": {"secret": {"name": "gpumeter-tls", "key": "ca.crt"}}},
        "basicAuth": {"username": {"name": "gpumeter-users", "key": "name"}, "password": {"name": "gpumeter-users", "key": "password"}}}}}
    text = template(suite, values)
    [endpoint] = objects(text)["PodMonitor", "gpumeter"]["spec"]["podMetricsEndpoints"]
    suite.expect(endpoint["scheme"] == "https" and endpoint["honorLabels"] is False, f"the endpoint is {endpoint}")
    valid(suite, "a secured page", text)


def exported(suite):
    """Exports change no other key of the configuration, nor one that names another directory; below the ledger of the node."""
    values = {"ledger": "/data/gpumeter", "exports": {"enabled": True}, "config": {"ledger": {"export": {"interval": "5m"}}, "node": {"pool": "a"}}}
    found = objects(template(suite, values))
    config = yaml.safe_load(found["ConfigMap", "gpumeter"]["data"]["config.yaml"])
    whole = {"ledger": {"export": {"interval": "5m", "directory": "/var/lib/gpumeter/exports"}}, "node": {"pool": "a"}}
    suite.expect(config == whole, f"with exports the configuration is {config}")
    pod = found["DaemonSet", "gpumeter"]["spec"]["template"]["spec"]
    suite.expect("initContainers" not in pod and pod["terminationGracePeriodSeconds"] == 60, f"with exports the pod is {pod}")
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "exports"]
    suite.expect(volume["hostPath"] == {"path": "/data/gpumeter/exports", "type": "DirectoryOrCreate"}, f"exports are in {volume}")


def restarts(suite):
    """A changed key that a running agent does not take makes new pods, and any other key does not."""
    def annotations(config):
        [daemonset] = [one for (kind, _), one in objects(template(suite, {"config": config})).items() if kind == "DaemonSet"]
        return daemonset["spec"]["template"]["metadata"]["annotations"]

    for key in (CHART / "files/restart-keys.txt").read_text().split():
        seen = {annotations(nested(key, value)).get("checksum/restart") for value in ("a", "b", False)}
        suite.expect(len(seen) == 3 and None not in seen, f"{key}: three values have the checksums {seen}")
    for key in ("sampling.interval", "attribution.kubernetes.labels", "web.users", "prices.currency"):
        suite.expect("checksum/restart" not in annotations(nested(key, "a")), f"{key} makes new pods")


def nested(key, value):
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def notes(suite):
    """What Helm says after the installation: how to ask the agent of one node, since every node has its own bill."""
    said = run("helm", "install", "gpumeter", CHART, "--namespace", "gpumeter", "--dry-run=client")
    said = said.partition("NOTES:")[2]
    suite.expect("spec.nodeName=$node" in said and "gpumeter bill" in said, f"the notes are: {said}")
    suite.expect("daemonset/gpumeter -- gpumeter bill" not in said, f"the notes ask any node for its bill: {said}")


def mistakes(suite):
    for values in WRONG:
        try:
            template(suite, values)
        except Failed as refused:
            suite.expect("at '" in str(refused), f"{values} is refused without its place: {refused}")
        else:
            suite.expect(False, f"the schema accepts {values}")
    built = run("kustomize", "build", KUSTOMIZE / "base").replace("readOnlyRootFilesystem", "readOnlyRootFileSystem")
    findings = len(suite.findings)
    valid(suite, "a misspelt field", built)
    suite.expect(len(suite.findings) > findings, "the schemas accept a misspelt field")
    del suite.findings[findings:]


if __name__ == "__main__":
    harness.run(manifests)
