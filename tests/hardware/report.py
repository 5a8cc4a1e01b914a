"""The table: a line for each thing that was checked, with its verdict, and the folder that keeps everything."""

import gzip
import json
import shutil
from typing import NamedTuple

OK, DIFFERS, NOT_POSSIBLE = "ok", "differs", "not possible here"
# Bytes that the folder may have, and files that are compressed from this size on.
MOST, LARGE = 10_000_000, 100_000


class Line(NamedTuple):
    """What was checked, what was found, what is allowed, and the verdict."""

    check: int
    what: str
    found: str
    allowed: str
    verdict: str
    # Whether the simulated driver answered.
    simulated: bool


class NotPossible(Exception):
    """A check, or a part of it, cannot be made on this machine; the text says why."""


class Report:
    def __init__(self, folder, simulated):
        self.folder, self.simulated = folder, simulated
        self.lines = []
        self.notes = []

    def add(self, check, what, found, allowed, verdict):
        line = Line(check, what, found, allowed, verdict, self.simulated)
        self.lines.append(line)
        print(f"  {check}  {what}: {found}: {mark(line)}", flush=True)

    def judge(self, check, what, found, allowed, holds):
        self.add(check, what, found, allowed, OK if holds else DIFFERS)

    def impossible(self, check, what, why):
        self.add(check, what, str(why), "", NOT_POSSIBLE)

    def differs(self):
        return [line for line in self.lines if line.verdict == DIFFERS]

    def write(self):
        """Writes table.txt and table.json, and returns the text."""
        text = "".join(f"{note}\n" for note in self.notes) + "\n" + table(self.lines)
        (self.folder / "table.txt").write_text(text)
        lines = [line._asdict() for line in sorted(self.lines, key=lambda line: line.check)]
        (self.folder / "table.json").write_text(json.dumps({"notes": self.notes, "lines": lines}, indent=1) + "\n")
        return text


def mark(line):
    return f"{line.verdict} (simulated)" if line.simulated and line.verdict != NOT_POSSIBLE else line.verdict


def table(lines):
    rows = [("check", "verdict", "what", "found", "allowed")]
    rows += [(str(line.check), mark(line), line.what, line.found, line.allowed) for line in sorted(lines, key=lambda line: line.check)]
    widths = [min(80, max(len(row[column]) for row in rows)) for column in range(5)]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() + "\n" for row in rows)


def tidy(folder):
    """Compresses what is large and, above the limit, removes the largest files but the table and the recording; what was removed."""
    for path in files(folder):
        if path.stat().st_size >= LARGE and path.suffix != ".gz":
            with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            path.unlink()
    removed = []
    keep = ("table", "recording")
    for path in sorted(files(folder), key=lambda path: (path.name.startswith(keep), -path.stat().st_size)):
        if sum(one.stat().st_size for one in files(folder)) <= MOST:
            break
        removed.append(path.name)
        path.unlink()
    return removed


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
