"""Writes the schemas that kubeconform reads: of the three newest minors of Kubernetes, from the package kubernetes-validate,
and of prometheus-operator's resources, from its CRDs.

    schemas.py WHEEL CRDS OUT
"""

import json
import sys
import zipfile
from pathlib import Path

import yaml

MINORS = 3
CRDS = ("podmonitors", "prometheusrules")


def main():
    wheel, crds, out = map(Path, sys.argv[1:])
    kubernetes(wheel, out)
    for kind in CRDS:
        crd = crds / f"monitoring.coreos.com_{kind}.yaml"
        definition = yaml.safe_load(crd.read_text())["spec"]
        for version in definition["versions"]:
            name = f"{definition['names']['kind'].lower()}-monitoring-{version['name']}.json"
            target = out / "crds" / name
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(strict(version["schema"]["openAPIV3Schema"], top=True)))


def kubernetes(wheel, out):
    with zipfile.ZipFile(wheel) as archive:
        files = [name.split("/") for name in archive.namelist() if name.endswith(".json")]
        versions = {parts[2] for parts in files if parts[2].endswith("-local-strict")}
        newest = sorted(versions, key=lambda name: [int(part) for part in name[1:].split("-")[0].split(".")])[-MINORS:]
        for parts in files:
            if parts[2] in newest:
                target = out / parts[2].removesuffix("-local-strict") / parts[3]
                target.parent.mkdir(parents=True, exist_ok=True)
                schema = json.loads(archive.read("/".join(parts)).decode().replace("/api/_definitions.json#", "_definitions.json#"))
                # References are to the file beside it, not to the address that the schema gives itself.
                schema.pop("$id", None)
                target.write_text(json.dumps(schema))
    (out / "versions").write_text("".join(f"{version.removesuffix('-local-strict').removeprefix('v')}\n" for version in newest))


def strict(schema, top=False):
    """Refuses unknown fields, as the API server's strict validation does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and "type" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    if top and "metadata" in found["properties"]:
        found["properties"]["metadata"] = {"type": "object"}
    return found


if __name__ == "__main__":
    main()
