"""The manifests without a cluster: every variant and option renders, by kustomize, by kubectl and by Helm alike, and is valid
for the newest minors of Kubernetes and for prometheus-operator. What the schemas do not know is OpenShift's own resource.
Under other names and in another namespace everything still finds what it refers to, and Prometheus evaluates the rules.
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
    ("fleet",): {"fleet": {"enabled": True}},
    ("fleet", "fleet-rclone"): {"fleet": {"enabled": True, "rclone": {"enabled": True}}},
    ("allocation", "gpu-operator", "openshift", "labels", "monitoring", "dashboards"): {
        "variant": "allocation", "gpuOperator": True, "openshift": True, "labels": True,
        "monitoring": {"enabled": True}, "dashboards": {"enabled": True}},
}
# Each is one mistake in the values.
WRONG = (
    {"varaint": "usage"}, {"variant": "full"}, {"image": {"repo": "x"}}, {"ledger": "var/lib/gpumeter"}, {"labels": "yes"},
    {"monitoring": {"enable": True}}, {"monitoring": {"runbooks": "docs/runbooks"}}, {"tolerations": {"operator": "Exists"}},
    {"dcgm": {"portName": "GPU metrics"}}, {"exports": {"rclone": {"remote": "finops"}}}, {"nameOverride": "GPU"},
    {"exports": {"rclone": {"image": "docker.io/rclone/rclone:1.76.0"}}}, {"exports": {"rclone": {"image": {"digest": "1.76.0"}}}},
    {"fleet": {"rclone": {"remote": "finops"}}}, {"fleet": {"scheme": "http"}}, {"securityContext": {"privileged": True}}, {"serviceAccount": {"name": "default"}},
)
# Overlays of kustomize, and the namespace and the name that everything has under them.
NAMED = (
    ({"namespace": "accounting"}, "accounting", "gpumeter"),
    ({"namePrefix": "east-"}, "gpumeter", "east-gpumeter"),
    ({"nameSuffix": "-spot"}, "gpumeter", "gpumeter-spot"),
    ({"namespace": "accounting", "namePrefix": "east-", "nameSuffix": "-spot"}, "accounting", "east-gpumeter-spot"),
)
# The same of the chart: release, values, name.
RELEASES = (
    ("gpumeter", {}, "gpumeter"), ("gpumeter-spot", {}, "gpumeter-spot"), ("east", {}, "east-gpumeter"),
    ("east", {"fullnameOverride": "meters"}, "meters"), ("east", {"nameOverride": "meter"}, "east-meter"),
)
NAMED_OBJECTS = ("monitoring", "openshift", "dcgm", "dashboards", "gke-cos", "exports", "exports-rclone")
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding", "SecurityContextConstraints")


def manifests(suite):
    for program in ("kustomize", "kubectl", "helm", "kubeconform", "promtool"):
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
        levels = {mode: namespace["metadata"]["labels"].get(f"pod-security.kubernetes.io/{mode}") for mode in ("enforce", "warn", "audit")}
        suite.expect(set(levels.values()) == {"privileged"}, f"{name}: the namespace allows {levels}")
        suite.expect(ours.keys() == theirs.keys(), f"{name}: kustomize has {sorted(ours)}, Helm {sorted(theirs)}")
        for key in ours.keys() & theirs.keys():
            suite.expect(ours[key] == theirs[key], f"{name}: Helm's {key} differs:\n{difference(ours[key], theirs[key])}")
        valid(suite, name, built)
        rights(suite, name, ours)
    named(suite)
    pools(suite)
    lint(suite)
    without_priority(suite)
    options(suite)
    refusals(suite)
    secured(suite)
    exported(suite)
    fleet(suite)
    restarts(suite)
    notes(suite)
    mistakes(suite)


def without_priority(suite):
    """Without a priority class no quota can refer to one."""
    text = template(suite, {"gkeCos": True, "priorityClassName": ""})
    valid(suite, "gke-cos without a priority class", text)
    kinds = {kind for kind, _ in objects(text)}
    suite.expect("ResourceQuota" not in kinds and "DaemonSet" in kinds, f"gke-cos without a priority class: {sorted(kinds)}")


def named(suite):
    """Under other names and in another namespace."""
    for settings, namespace, name in NAMED:
        text = run("kustomize", "build", overlay(suite, NAMED_OBJECTS, settings))
        refers(suite, f"kustomize {settings}", text, namespace, name)
    every = {"monitoring": {"enabled": True}, "openshift": True, "dcgm": {"enabled": True}, "dashboards": {"enabled": True}, "gkeCos": True,
             "exports": {"enabled": True, "rclone": {"enabled": True}}}
    for release, values, name in RELEASES:
        refers(suite, f"release {release} {values}", template(suite, every | values, "accounting", release), "accounting", name)


def refers(suite, case, text, namespace, name):
    """Everything has that name and namespace, and refers to what is there; the rules hold for what the monitor scrapes."""
    valid(suite, case, text)
    found = objects(text)
    for (kind, called), one in found.items():
        there = one["metadata"].get("namespace")
        suite.expect(kind in CLUSTER_WIDE or there == namespace, f"{case}: {kind} {called} is in namespace {there}")
    expected = {("DaemonSet", name), ("ServiceAccount", name), ("ClusterRole", name), ("ConfigMap", name), ("PodMonitor", name)}
    suite.expect(expected <= found.keys(), f"{case}: it has {sorted(found)}")
    pod = found["DaemonSet", name]["spec"]["template"]
    suite.expect(pod["spec"]["serviceAccountName"] == name, f"{case}: the pods are {pod['spec']['serviceAccountName']}")
    config = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
    suite.expect(config == {name}, f"{case}: the configuration is {config}")
    selectors = [(key, selector(one)) for key, one in found.items() if selector(one)]
    suite.expect({kind for (kind, _), _ in selectors} == {"DaemonSet", "PodMonitor", "NetworkPolicy", "Service"}, f"{case}: {selectors}")
    for key, labels in selectors:
        suite.expect(labels.items() <= pod["metadata"]["labels"].items(), f"{case}: {key} selects {labels}, not {pod['metadata']}")
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        bound = found[kind, name]
        suite.expect((bound["roleRef"]["kind"], bound["roleRef"]["name"]) in found, f"{case}: {kind} is of {bound['roleRef']}")
        subjects = [(one["kind"], one["name"], one["namespace"]) for one in bound["subjects"]]
        suite.expect(subjects == [("ServiceAccount", name, namespace)], f"{case}: {kind} binds {subjects}")
    [rule] = found["ClusterRole", found["RoleBinding", name]["roleRef"]["name"]]["rules"]
    suite.expect(("SecurityContextConstraints", *rule["resourceNames"]) in found, f"{case}: the role is for {rule}")
    expressions = [rule["expr"] for group in found["PrometheusRule", name]["spec"]["groups"] for rule in group["rules"]]
    naming = [one for one in expressions if re.search(r'\b(job|namespace)\s*(=|!)', one)]
    suite.expect(len(expressions) > 40 and not naming, f"{case}: expressions name a job or a namespace: {naming}")
    evaluated(suite, case, found["PrometheusRule", name]["spec"], f"{namespace}/{name}")


def selector(one):
    """The labels by which an object selects pods."""
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        return spec["selector"]
    return spec.get("podSelector", spec.get("selector", {})).get("matchLabels")


def evaluated(suite, case, rules, job):
    """Prometheus lets the agents' own alerts fire for what the operator calls that job, and for nothing else."""
    folder = suite.folder / "rules"
    folder.mkdir(exist_ok=True)
    (folder / "rules.yaml").write_text(json.dumps(rules))

    def named_series(name, **labels):
        return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"

    def series(name, instance, values):
        return {"series": named_series(name, job=job, instance=instance), "values": values}

    # An agent that answers, one that goes away, and one that never answered.
    inputs = [series("up", "n1", "1x60"), series("gpumeter_build_info", "n1", "1x60"), series("up", "n2", "1x4 0x56"),
              series("gpumeter_build_info", "n2", "1x4 stale"), series("up", "n3", "0x60")]
    firing = 'ALERTS{alertname=~"Gpumeter(Absent|Down)", alertstate="firing"}'

    def alert(name, severity, **labels):
        alert = named_series("ALERTS", alertname=name, alertstate="firing", component="agent", severity=severity, **labels)
        return {"labels": alert, "value": 1}

    def test(inputs, *expected):
        return {"interval": "1m", "input_series": inputs,
                "promql_expr_test": [{"expr": firing, "eval_time": "40m", "exp_samples": expected}]}

    (folder / "tests.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [
        test(inputs, alert("GpumeterAbsent", "ticket", instance="n3", job=job), alert("GpumeterDown", "ticket", instance="n2", job=job)),
        test([series("up", "n1", "stale")], alert("GpumeterAbsent", "page")),
    ]}))
    ran = subprocess.run(["promtool", "test", "rules", folder / "tests.yaml"], capture_output=True, text=True, timeout=60)
    suite.expect(ran.returncode == 0, f"{case}: the rules are evaluated otherwise: {ran.stdout}{ran.stderr}")


def pools(suite):
    """Two installations of one namespace, as for two pools of nodes, share no pod and no name. One of them has the rules, since
    rules that stand twice count hours twice."""
    without = {"patches": [{"target": {"kind": "PrometheusRule"}, "patch": json.dumps({
        "$patch": "delete", "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "gpumeter"}})}]}
    built = {
        "kustomize": [run("kustomize", "build", overlay(suite, ("monitoring", "dcgm"), settings))
                      for settings in ({"nameSuffix": "-a"}, {"nameSuffix": "-b"} | without)],
        "Helm": [template(suite, {"dcgm": {"enabled": True}, "monitoring": {"enabled": True, "rules": rules}}, release=release)
                 for release, rules in (("gpumeter-a", True), ("gpumeter-b", False))],
    }
    for by, texts in built.items():
        first, second = map(objects, texts)
        shared = first.keys() & second.keys() - {("Namespace", "gpumeter")}
        suite.expect(not shared, f"{by}: both pools have {shared}")
        together = first | second
        rules = [key for key in together if key[0] == "PrometheusRule"]
        suite.expect(len(rules) == 1, f"{by}: the rules are {rules}")
        for pod in (one["spec"]["template"]["metadata"]["labels"] for one in together.values() if one["kind"] == "DaemonSet"):
            for kind in ("DaemonSet", "PodMonitor", "NetworkPolicy", "Service"):
                of = [key[1] for key, one in together.items() if key[0] == kind and selector(one).items() <= pod.items()]
                suite.expect(len(of) == 1, f"{by}: the pods {pod} are selected by the {kind}s {of}")


def options(suite):
    """What the values add to pods and accounts."""
    digest = f"sha256:{'0' * 64}"
    found = objects(template(suite, {
        "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "meter@finops"}}, "podLabels": {"team": "platform"},
        "securityContext": {"seLinuxOptions": {"type": "gpumeter_t"}},
        "exports": {"enabled": True, "rclone": {"enabled": True, "image": {"digest": digest}}}}))
    annotations = found["ServiceAccount", "gpumeter"]["metadata"]["annotations"]
    suite.expect(annotations == {"iam.gke.io/gcp-service-account": "meter@finops"}, f"the account has {annotations}")
    template_of_pods = found["DaemonSet", "gpumeter"]["spec"]["template"]
    labels, pod = template_of_pods["metadata"]["labels"], template_of_pods["spec"]
    suite.expect(labels.get("team") == "platform", f"the pods have the labels {labels}")
    suite.expect(("SecurityContextConstraints", "gpumeter") not in found, "SELinux options bring OpenShift's constraint")
    suite.expect(pod["securityContext"]["seLinuxOptions"] == {"type": "gpumeter_t"}, f"the pods have {pod['securityContext']}")
    [rclone] = pod["initContainers"]
    suite.expect(rclone["image"] == f"docker.io/rclone/rclone:1.76.0@{digest}", f"rclone is {rclone['image']}")


def refusals(suite):
    """A combination that cannot work is refused in a sentence, for every command of Helm."""
    copies = {"exports": {"enabled": True, "rclone": {"enabled": True}}}
    for values, version, sentence in (
        ({"exports": {"rclone": {"enabled": True}}}, "1.34.0",
         "exports.rclone.enabled copies the files of exports, which are off: set exports.enabled too"),
        (copies, "1.28.9", "exports.rclone.enabled needs Kubernetes 1.29 or newer, and this is v1.28.9"),
        ({"fleet": {"rclone": {"enabled": True}}}, "1.34.0",
         "fleet.rclone.enabled fills the exports of fleet, which is off: set fleet.enabled too"),
        ({"fleet": {"enabled": True, "rclone": {"enabled": True}}}, "1.28.9",
         "fleet.rclone.enabled needs Kubernetes 1.29 or newer, and this is v1.28.9"),
    ):
        try:
            template(suite, values, version=version)
        except Failed as refused:
            suite.expect(sentence in str(refused), f"{values} is refused by {refused}")
        else:
            suite.expect(False, f"Helm renders {values} for Kubernetes {version}")
    for version in ("1.29.0-gke.1", "1.34.0"):
        template(suite, copies, version=version)


def overlay(suite, components, settings=None):
    """A folder that applies these components to the base, as a user's would, with further keys of its kustomization."""
    folder = suite.folder / f"overlay-{len(list(suite.folder.glob('overlay-*')))}"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [os.path.relpath(KUSTOMIZE / "base", folder)],
        "components": [os.path.relpath(KUSTOMIZE / "components" / component, folder) for component in components],
        **(settings or {}),
    }))
    return folder


def template(suite, values, namespace="gpumeter", release="gpumeter", version=None):
    file = suite.folder / "values.yaml"
    file.write_text(json.dumps(values))
    kubernetes = ["--kube-version", version] if version else []
    return run("helm", "template", release, CHART, "--namespace", namespace, "--values", file, *kubernetes)


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
    # The agent alone has the account's token.
    has_token = TOKEN in mounts and pod["automountServiceAccountToken"] is False
    suite.expect(has_token != ("devices" in name), f"{name}: the agent's mounts are {sorted(mounts)}")
    for beside in pod.get("initContainers", []):
        places = [mount["mountPath"] for mount in beside["volumeMounts"]]
        user = beside["securityContext"].get("runAsUser")
        is_other = user and beside["securityContext"]["runAsNonRoot"] and TOKEN not in places
        suite.expect(is_other, f"{name}: {beside['name']} is user {user} with {places}")
    if "gke-cos" not in name:
        suite.expect("privileged" not in security and security["capabilities"]["drop"] == ["ALL"], f"{name}: {security}")


def fleet(suite):
    """The server of a fleet's costs: no agent's policy or monitor selects it, and it has no rights, no GPU and no root."""
    values = {"fleet": {"enabled": True, "rclone": {"enabled": True}}, "monitoring": {"enabled": True}, "dcgm": {"enabled": True}}
    charted = objects(template(suite, values, release="east"))
    for found, name in ((charted, "east-gpumeter"), (objects(run("kustomize", "build", overlay(
            suite, ("fleet", "fleet-rclone", "monitoring", "dcgm"), {"namePrefix": "east-"}))), "east-gpumeter")):
        deployment = found["Deployment", f"{name}-fleet"]
        labels, pod = deployment["spec"]["template"]["metadata"]["labels"], deployment["spec"]["template"]["spec"]
        selecting = sorted(key for key, one in found.items() if selector(one) and selector(one).items() <= labels.items())
        own = [(kind, f"{name}-fleet") for kind in ("Deployment", "NetworkPolicy", "Service")]
        suite.expect(selecting == own, f"{name}: the server is selected by {selecting}")
        suite.expect(deployment["spec"]["replicas"] == 1, f"{name}: {deployment['spec']['replicas']} replicas")
        suite.expect(pod["automountServiceAccountToken"] is False and "hostPID" not in pod, f"{name}: {pod}")
        suite.expect(pod["securityContext"]["runAsNonRoot"] is True, f"{name}: {pod['securityContext']}")
        for container in pod["containers"] + pod["initContainers"]:
            security = container["securityContext"]
            suite.expect(security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"], f"{name}: {security}")
        config = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        suite.expect(config == {f"{name}-fleet"}, f"{name}: the configuration is {config}")


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
