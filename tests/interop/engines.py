"""The names and labels that alerts/unit_cost.yaml reads of vLLM and SGLang, looked up in their source as PyPI has it.

Of each server an old and a new version, since rules must hold for both. `docs/unit-cost.md` has the versions.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = [("vllm", "0.10.0"), ("vllm", "0.33.0"), ("sglang", "0.5.5"), ("sglang", "0.5.23")]
# What the rules match or group by, beside what Prometheus adds.
LABELS = {"vllm": {"model_name"}, "sglang": {"model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "priority"}}
# A word of the files that give series their labels.
DECLARES = {"vllm": "vllm:generation_tokens", "sglang": "SchedulerMetricsCollector("}
# Labels that came later than the older version; the rules hold without them.
LATER = {("sglang", "0.5.5"): {"priority"}}


def main():
    rules = re.sub(r"#.*", "", (ROOT / "alerts/unit_cost.yaml").read_text())
    page = (ROOT / "docs/unit-cost.md").read_text()
    missing = []
    for package, version in VERSIONS:
        names = sorted(set(re.findall(rf"\b{package}:\w+", rules)))
        if not names:
            missing.append(f"no rule reads {package}")
        if version not in page:
            missing.append(f"docs/unit-cost.md does not name {package} {version}")
        with tempfile.TemporaryDirectory(prefix="engines-") as folder:
            texts = sources(package, version, Path(folder))
        for name in names:
            # prometheus_client adds _total where the source leaves it out.
            places = found(texts, rf"""["']{name.removesuffix("_total")}(?:_total)?["']""")
            print(f"{package} {version}: {name}: {places[0] if places else 'MISSING'}")
            missing += [] if places else [f"{package} {version} has no {name}"]
        for label in sorted(LABELS[package] - LATER.get((package, version), set())):
            # In a dictionary or a list of labels, or added to one; elsewhere the word is something else.
            declared = rf"""\blabel(?:s|names)\b[^=\n]*=\s*(?:\{{[^}}]*|\[[^\]]*)["']{label}["']|\blabels\[["']{label}["']\]\s*="""
            places = found({path: text for path, text in texts.items() if DECLARES[package] in text}, declared)
            print(f"{package} {version}: label {label}: {places[0] if places else 'MISSING'}")
            missing += [] if places else [f"{package} {version} has no label {label}"]
    if missing:
        sys.exit("engines: " + "; ".join(missing))


def sources(package, version, folder):
    """Path and text of each file of Python in the wheel, or in the source package where a wheel has gigabytes of CUDA or there is none."""
    is_wheel = (package, version) == ("sglang", "0.5.23")
    command = ["pip", "download", "--no-deps", "--quiet", "--dest", folder / "files", f"{package}=={version}"]
    # pip wants to build a source package to learn its dependencies, which fails for lack of build tools. It keeps what it unpacked.
    command += ["--only-binary", ":all:"] if is_wheel else ["--no-binary", ":all:", "--no-build-isolation", "--no-clean"]
    (folder / "unpacked").mkdir()
    pip = subprocess.run([sys.executable, "-m", *command], env={**os.environ, "TMPDIR": str(folder / "unpacked")}, capture_output=True, text=True)
    for wheel in (folder / "files").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "unpacked", [name for name in archive.namelist() if name.endswith(".py")])
    files = [path for path in (folder / "unpacked").rglob("*.py") if package in path.parts]
    if not files:
        sys.exit(f"engines: {package} {version} cannot be had: {pip.stderr[-500:]}")
    return {str(path)[str(path).rindex(f"/{package}/") + 1:]: path.read_text(errors="replace") for path in files if "/tests/" not in str(path)}


def found(texts, pattern):
    """Where a pattern stands, as path:line."""
    return [f"{path}:{text[:match.start()].count(chr(10)) + 1}" for path, text in sorted(texts.items()) if (match := re.search(pattern, text))]


main()
