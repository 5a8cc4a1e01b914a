"""F15: configurations that are wrong, at the start and while the agent runs."""

import os
import random
import re
import subprocess

from harness import GPUMETER, PATIENCE, Failed, wait_for

from . import SMOKE
from .measure import of
from .node import Node, written
from .table import scenario


HOSTILE = [
    ("an unknown key", "sampling: {intervall: 1s}", r":1:12: .*did you mean `interval`"),
    ("a wrong unit", "\nsampling:\n  interval: 5 parsecs\n", r":3:13: sampling\.interval: "),
    ("a tab", "sampling:\n\tinterval: 1s\n", r":2:2: "),
    ("a key twice", "web: {created: true}\nweb: {created: false}\n", r":2:1: web: is given twice"),
    ("a negative price", "prices: {currency: USD, rates: [{gpu_hour: -1}]}", r"is negative"),
    ("more than a GPU", "attribution: {standing: [{gpu: 0, fraction: 1, user: a}, {gpu: 0, fraction: 1, user: b}]}",
     r":1:\d+: attribution\.standing"),
    ("a bomb", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh")), r"too long, too deep"),
    ("a deep one", "[" * 100_000, r"too long, too deep"),
    ("a binary", "\x00\x01\x02\x7fELF", r":1"),
    ("two mistakes", "web: {listen: nowhere}\nlimits: {processes: -1}\n", r"(?s):1:15: web\.listen.*:2:21: limits\.processes"),
]


@scenario(
    "F15", "malformed and hostile configurations",
    "status 2 with file, line, column, key and the nearest valid key; a reload keeps the old one and says so in a gauge",
    "hand-made files at the start and as reloads, and the default configuration with random damage")
def bad_configurations(suite, table):
    missed = []
    for number, (what, text, expected) in enumerate(HOSTILE):
        path = written(suite, f"F15-{number}.yaml", text)
        for command in (["check-config", path], ["run", "--config", path, "--listen", "127.0.0.1:0"]):
            done = subprocess.run([GPUMETER, *command], capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode != 2 or not re.search(expected, done.stderr):
                missed.append(f"{what} ({command[0]}): {done.returncode} {done.stderr.strip()[:200]}")
    table.row(f"{len(HOSTILE)} hostile files: status 2, and file:line:column, key and fix", "each",
              "; ".join(missed) or "each", not missed)
    node = Node(suite, "F15", config="sampling: {interval: 500ms}\n")
    config = suite.folder / "demo.yaml"
    success = lambda: [value for _, value in of(node.metrics(), "gpumeter_config_reload_success")]
    interval = lambda: [value for _, value in of(node.metrics(), "gpumeter_sampling_interval_seconds", tier="fast")]
    lost = []
    for number, (what, text, _) in enumerate(HOSTILE):
        config.write_text(text)
        os.kill(node.pid, 1)
        try:
            wait_for("the refusal", 10, lambda: success() == [0.0], node.program)
            if interval() != [0.5]:
                lost.append(f"{what}: interval {interval()}")
        except Failed:
            lost.append(f"{what}: success {success()}")
        config.write_text("sampling: {interval: 500ms}\n")
        os.kill(node.pid, 1)
        wait_for("the good one", 10, lambda: success() == [1.0], node.program)
    table.row(f"{len(HOSTILE)} hostile reloads: the old one stays, success 0, then 1 again", "each",
              "; ".join(lost) or "each", not lost)
    node.end()
    damaged(suite, table)


def damaged(suite, table, count=60 if SMOKE else 600):
    """The default configuration with random damage: accepted, or refused with the line of every error."""
    default = subprocess.run([GPUMETER, "run", "--print-default-config"], capture_output=True, timeout=PATIENCE).stdout
    dice, odd, refused = random.Random(9855), [], 0
    path = suite.folder / "F15-damaged.yaml"
    for number in range(count):
        path.write_bytes(damage(dice, default))
        done = subprocess.run([GPUMETER, "check-config", path], capture_output=True, timeout=PATIENCE)
        said = done.stderr.decode(errors="replace")
        refused += done.returncode == 2
        if done.returncode not in (0, 2) or done.returncode == 2 and not re.search(rf"{re.escape(str(path))}(:\d+){{1,2}}: ", said):
            odd.append(f"{number}: {done.returncode} {said.strip()[:100]}")
    table.row(f"{count} times random damage to the default file: taken, or status 2 with file and line "
              f"({refused} refused)", "each", "; ".join(odd[:5]) or "each", not odd and refused > 0)


def damage(dice, text):
    """Drops, doubles, indents or uncomments some lines and changes some bytes."""
    lines = text.splitlines(keepends=True)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(lines))
        line = lines[at]
        lines[at] = dice.choice([b"", line * 2, b"  " + line, line.replace(b"# ", b"", 1), line.replace(b":", b"", 1),
                                 line.replace(b": ", b": -", 1), line[:dice.randrange(len(line) + 1)]])
    changed = bytearray(b"".join(lines))
    for _ in range(dice.randrange(3)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)
