"""What the binary is made of: its crates and the script that its page carries, as an SBOM and as their licence texts.

    python3 packaging/dependencies.py [--sbom FILE] [--licences FILE]

Reads `cargo metadata`, so that crates that only tests and other platforms need are left out. The same tree gives the same bytes.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The one library of the live page, as its npm package has it.
PLOTS = {"name": "uplot", "version": "1.6.32", "license": "MIT", "folder": ROOT / "src/output/serve/page/vendor"}
LICENCE_NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def crates():
    """The package itself and everything that is linked into it, by name and version."""
    host = next(line.split(": ")[1] for line in cargo("-vV").splitlines() if line.startswith("host: "))
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    own = [package for package in metadata["packages"] if package["source"] is None]
    waiting, found = [package["id"] for package in own], set()
    while waiting:
        name = waiting.pop()
        # A macro runs in the compiler; nothing of it is in the binary.
        if name in found or any("proc-macro" in target["kind"] for target in packages[name]["targets"]):
            continue
        found.add(name)
        waiting += [
            dependency["pkg"] for dependency in nodes[name]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
    return sorted((packages[name] for name in found), key=lambda package: (package["name"], package["version"]))


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package):
    entry = {
        "type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"],
        "purl": purl(package),
    }
    if package.get("description"):
        entry["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # The older form `MIT/Apache-2.0` is no SPDX expression.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return entry


def checksums():
    """SHA-256 of each crate's archive, from Cargo.lock."""
    found, name, version = {}, None, None
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        value = value.strip('"')
        if key == "name":
            name = value
        elif key == "version":
            version = value
        elif key == "checksum":
            found[name, version] = value
    return found


def sbom(packages):
    """CycloneDX 1.6. Without a serial number and a time, so that it can be reproduced."""
    main = next(package for package in packages if package["name"] == "gpumeter")
    sums = checksums()
    components = []
    for package in packages:
        if package is main:
            continue
        entry = component(package)
        if digest := sums.get((package["name"], package["version"])):
            entry["hashes"] = [{"alg": "SHA-256", "content": digest}]
        components.append(entry)
    plots = f"pkg:npm/{PLOTS['name']}@{PLOTS['version']}"
    components.append({
        "type": "library", "bom-ref": plots, "name": PLOTS["name"], "version": PLOTS["version"], "purl": plots,
        "licenses": [{"expression": PLOTS["license"]}],
    })
    application = component(main) | {"type": "application"}
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": application}, "components": components,
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def licence_texts(package):
    """The licence files that lie in the crate."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(LICENCE_NAMES)]
    return [path.read_text(errors="replace").strip() for path in sorted(files)]


def licences(packages):
    """Each text once, with the crates that have it."""
    foreign = [package for package in packages if package["source"]]
    owners = {}
    for package in foreign:
        for text in licence_texts(package):
            owners.setdefault(text, []).append(f"{package['name']} {package['version']}")
    plots = f"{PLOTS['name']} {PLOTS['version']}"
    owners.setdefault((PLOTS["folder"] / "uPlot.LICENSE").read_text().strip(), []).append(plots)
    page = ["gpumeter contains these libraries, each under its licence:", ""]
    page += [f"  {package['name']} {package['version']}: {package.get('license') or 'see below'}" for package in foreign]
    page.append(f"  {plots}: {PLOTS['license']}")
    for text, names in owners.items():
        page += ["", "=" * 100, "of " + ", ".join(names), "", text]
    return "\n".join(page) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sbom", type=Path, metavar="FILE")
    arguments.add_argument("--licences", type=Path, metavar="FILE")
    asked = arguments.parse_args()
    if not asked.sbom and not asked.licences:
        arguments.error("nothing to write; give --sbom FILE or --licences FILE")
    try:
        packages = crates()
    except subprocess.CalledProcessError as error:
        sys.exit(f"cargo metadata failed:\n{error.stderr}")
    if asked.sbom:
        asked.sbom.write_text(sbom(packages))
    if asked.licences:
        asked.licences.write_text(licences(packages))


if __name__ == "__main__":
    main()
