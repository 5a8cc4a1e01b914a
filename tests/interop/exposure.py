"""Exposure scores of the packaged unit, with each drop-in, and of other exporters' units, by systemd-analyze: one table.

    python3 tests/interop/exposure.py [--write FILE]      --write: into the part of a page between its marks

The peers' settings that systemd-analyze looks at stand in peer_units.json with their origin.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "packaging/systemd/gpumeter.service"
DROP_INS = sorted((ROOT / "packaging/systemd/gpumeter.service.d").glob("*.conf"))
PEERS = json.loads(Path(__file__).with_name("peer_units.json").read_text())
BASE_LIMIT, DROP_IN_LIMIT = 2.1, 3.0
MARKS = "<!-- exposure: begin -->", "<!-- exposure: end -->"


def score(text, drop_ins=()):
    """The overall exposure level of a unit, 0 (closed) to 10 (open)."""
    with tempfile.TemporaryDirectory() as root:
        units = Path(root, "etc/systemd/system")
        (units / "unit.service.d").mkdir(parents=True)
        (units / "unit.service").write_text(text)
        for drop_in in drop_ins:
            (units / "unit.service.d" / drop_in.name).write_text(drop_in.read_text())
        command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--root={root}", "unit.service"]
        done = subprocess.run(command, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if "Overall exposure level" in line), None)
    if line is None:
        sys.exit(f"systemd-analyze gives no score: {done.stdout}{done.stderr}")
    return float(line.rsplit(": ", 1)[1].split()[0])


def peer_unit(directives):
    return "[Service]\nExecStart=/usr/bin/true\n" + "\n".join(directives) + "\n"


def table():
    """Rows of name and score, and what is above its limit."""
    unit = UNIT.read_text()
    base = score(unit)
    ours = [("gpumeter", base)] + [(f"gpumeter with {path.name}", score(unit, [path])) for path in DROP_INS]
    ours.append(("gpumeter with every drop-in", score(unit, DROP_INS)))
    peers = [(name, score(peer_unit(peer["directives"]))) for name, peer in PEERS.items()]
    findings = [f"{name}: {value} is above {DROP_IN_LIMIT}" for name, value in ours[:-1] if value > DROP_IN_LIMIT]
    if base > BASE_LIMIT:
        findings.append(f"the unit: {base} is above {BASE_LIMIT}")
    findings += [f"{name} scores {value}, no more than gpumeter" for name, value in peers if value <= base]
    return ours + sorted(peers, key=lambda peer: peer[1]), findings


def markdown(rows):
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| unit | exposure |", "|---|---|", *lines])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--write", type=Path, metavar="FILE")
    page = arguments.parse_args().write
    rows, findings = table()
    text = markdown(rows)
    print(text)
    if page:
        before, rest = page.read_text().split(MARKS[0])
        page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    if findings:
        sys.exit("\n".join(findings))


if __name__ == "__main__":
    main()
