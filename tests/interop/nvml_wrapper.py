"""nvml-wrapper's own unit tests, which need a GPU, over the simulated driver.

They say what a widely used client takes for a right answer. What fails over an H100 stands with its reason in
nvml-wrapper-failures.txt, and the list is held in both directions: a failure that is not listed and a listed
test that passes are findings. A line that ends in `[passes over BOARD]` names a simulated node that has what
the H100 lacks, and there the test must pass.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("nvml-wrapper-failures.txt")
VERSION = "0.13"
CACHE = Path(os.environ.get("GPUMETER_TOOLS", Path.home() / ".cache/gpumeter-tools"))

WORK = [{"pid": os.getpid(), "name": "/usr/bin/python3", "gpu": 0, "phases": [
    {"from": 0, "to": 600, "demand": 0.5, "memory_bytes": 2**30, "encoder": 0.2}]}]
NODES = {
    "h100": {"gpus": [{"profile": "h100", "count": 2}], "processes": WORK},
    "rtx-6000-ada": {"gpus": [{"profile": "rtx-6000-ada"}], "processes": [{**WORK[0], "type": "G"}]},
    "gb200": {"gpus": [{"profile": "gb200", "count": 4}], "processes": WORK},
    "mig": {"gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}]},
}
# As they were when this was written: fewer means that they were not run.
LEAST = 160


def main():
    explained, elsewhere = read_list()
    with tempfile.TemporaryDirectory(prefix="gpumeter-nvml-wrapper-") as folder:
        folder = Path(folder)
        crate = folder / "crate"
        copy_crate(crate)
        passed, failed = tests(crate, node(folder, "h100"))
        findings = [] if len(passed | failed) >= LEAST else [f"only {len(passed | failed)} tests were run"]
        findings += [f"{test} fails over h100 and is not listed" for test in sorted(failed - explained.keys())]
        findings += [f"{test} is listed and passes over h100" for test in sorted(explained.keys() & passed)]
        findings += [f"{test} is listed and does not exist" for test in sorted(explained.keys() - passed - failed)]
        for board, names in sorted(elsewhere.items()):
            ours, theirs = tests(crate, node(folder, board), sorted(names))
            findings += [f"{test} should pass over {board}" for test in sorted(names - ours)]
            passed |= ours & names
    for finding in findings:
        print(f"nvml-wrapper: FAILED: {finding}", file=sys.stderr)
    print(f"nvml-wrapper: {len(passed)} of {len(passed | failed)} tests pass, {len(failed - passed)} are refused as listed")
    return 1 if findings else 0


def read_list():
    """The reason of each listed test, and for each other board the tests that pass there."""
    explained, elsewhere = {}, {}
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+): (.*?\S)(?: \[passes over (\S+)\])?", line)
        if not match or match[1] in explained or match[3] not in {None, *NODES}:
            sys.exit(f"{LIST.name}:{number}: not a new `test: reason`: {line}")
        explained[match[1]] = match[2]
        if match[3]:
            elsewhere.setdefault(match[3], set()).add(match[1])
    return explained, elsewhere


def copy_crate(target):
    """The crate's source as cargo has it, to be built by itself with our own lock file."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    found = [package for package in metadata["packages"] if package["name"] == "nvml-wrapper"]
    if len(found) != 1 or not found[0]["version"].startswith(VERSION + "."):
        sys.exit(f"nvml-wrapper: the lock file has {[one['version'] for one in found]}, not one {VERSION}: look at {LIST.name} again")
    shutil.copytree(Path(found[0]["manifest_path"]).parent, target)
    manifest = target / "Cargo.toml"
    # What only its examples need is not in our lock file.
    text = re.sub(r"(?ms)^\[(?:dev-dependencies|\[example).*?(?=^\[|\Z)", "", manifest.read_text())
    manifest.write_text(text)
    shutil.rmtree(target / "examples", ignore_errors=True)
    shutil.copy(ROOT / "Cargo.lock", target / "Cargo.lock")


def node(folder, name):
    """A folder with the library under both names that are searched for, and a scenario."""
    place = folder / name
    place.mkdir()
    shutil.copy(os.environ["SIMULATOR"], place / "libnvidia-ml.so.1")
    (place / "libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    (place / "scenario").write_text(json.dumps(NODES[name]))
    return place


def tests(crate, driver, names=()):
    """The tests that pass and those that fail over a driver; all of them if no names are given."""
    paths = [str(driver), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
                   "CARGO_TARGET_DIR": str(CACHE / "nvml-wrapper-target"), "RUST_BACKTRACE": "0"}
    command = ["cargo", "test", "--lib", "--", *(["--exact", *names] if names else [])]
    answer = subprocess.run(command, cwd=crate, env=environment, capture_output=True, text=True, timeout=900)
    results = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)$", answer.stdout, re.M))
    if not results:
        sys.exit(f"nvml-wrapper: no test was run:\n{answer.stdout}{answer.stderr}")
    return {test for test, how in results.items() if how == "ok"}, {test for test, how in results.items() if how != "ok"}


if __name__ == "__main__":
    sys.exit(main())
