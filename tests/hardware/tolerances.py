"""What each comparison allows: the one source. docs/hardware.md has these tables; a unit check compares them.

    python3 tests/hardware/tolerances.py --write      writes them into docs/hardware.md
"""

import sys
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs/hardware.md"
BEGIN, END = "<!-- tolerances: begin -->\n", "<!-- tolerances: end -->\n"
MIB = 2**20


class Series(NamedTuple):
    """What a series of these families may be beyond the least and the greatest value that another reader saw meanwhile."""

    families: tuple
    absolute: float
    relative: float
    allowed: str
    why: str

    def allows(self, low, high, value):
        slack = self.absolute + self.relative * max(abs(low), abs(high))
        return low - slack <= value <= high + slack


SERIES = (
    Series(("gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_memory_reserved_bytes", "gpu_bar1_total_bytes",
            "gpu_bar1_used_bytes", "gpu_mig_memory_total_bytes", "gpu_mig_memory_used_bytes", "gpu_mig_memory_free_bytes",
            "gpu_process_memory_bytes"), 2 * MIB, 0, "2 MiB", "nvidia-smi rounds to MiB"),
    Series(("gpu_utilization_ratio", "gpu_memory_activity_ratio", "gpu_engine_utilization_ratio"), 0.15, 0, "0.15",
           "other windows of time"),
    Series(("gpu_power_watts", "gpu_power_instant_watts", "gpu_memory_power_watts"), 5, 0.05, "5 W and 5 %",
           "it moves between two readings"),
    Series(("gpu_energy_joules_total",), 1, 0, "1 J", "the counter at the moment of the page lies between two readings"),
    Series(("gpu_temperature_celsius",), 2, 0, "2 degrees", "it moves between two readings"),
    Series(("gpu_fan_speed_ratio",), 0.03, 0, "0.03", "it moves between two readings"),
    Series(("gpu_clock_hertz",), 15e6, 0.05, "15 MHz and 5 %", "it moves between two readings"),
    Series(("gpu_power_limit_watts",), 0.01, 0, "0.01 W", "nvidia-smi rounds"),
)
EXACT = Series(("any other",), 0, 0, "nothing", "what does not move is equal")


def of_family(family):
    return next((row for row in SERIES if family in row.families), EXACT)


class Limit(NamedTuple):
    """A bound of a measurement: the check, what is measured, the bound, and how it is written."""

    check: int
    what: str
    bound: float
    allowed: str


LIMITS = {
    # The share of all looks in which a series must agree: a value that moves may be elsewhere once.
    "looks": Limit(1, "looks (five, or three on a node where nvidia-smi is slow) in which a series agrees", 0.6, "60 %"),
    "used": Limit(3, "used time of the GPU, off the loads' own clocks", 0.02, "0.5 s and 2 % of the time"),
    "process": Limit(3, "a process's mean utilization, off its own clock", 0.08, "0.08"),
    "tenant": Limit(3, "a tenant's used time, where the loads are different tenants, off its own clock", 0.04, "0.5 s and 4 % of the time"),
    "idle": Limit(3, "used time while a process only holds memory, off the clocks of the others", 0.01, "0.5 s and 1 % of the time"),
    "short": Limit(3, "used time around a process that works for 2 s, off its own clock", 1.0, "1 s"),
    "energy": Limit(3, "energy of the account, off the driver's counter", 0.02, "2 %"),
    "tensor": Limit(3, "tensor load (FP16 matrix product): SM; tensor", (0.7, 0.3), "at least 0.7; at least 0.3"),
    "copy": Limit(3, "copy load (memory to memory): DRAM; tensor", (0.5, 0.05), "at least 0.5; at most 0.05"),
    "fp32": Limit(3, "FP32 load (matrix product without TF32): SM; tensor", (0.7, 0.05), "at least 0.7; at most 0.05"),
    "slowdown": Limit(4, "work lost beside the agent at 1 s, median of five pairs", 0.01, "1 %, or the scatter alone"),
    "driver": Limit(4, "of the time inside the driver", 0.006, "0.6 % (sampling.driver_share aims at 0.5 %)"),
    "processor": Limit(4, "of a processor", 0.02, "2 %"),
    "memory": Limit(4, "resident memory", 64 * MIB, "64 MiB"),
    "lost": Limit(5, "time of the account that a kill loses", 1.5, "1.5 s"),
}


def page():
    """The tables of docs/hardware.md."""
    text = "| series of check 1 | allowed beyond the readings | because |\n|---|---|---|\n"
    for row in (*SERIES, EXACT):
        names = ", ".join(f"`{family}`" if "_" in family else family for family in row.families)
        text += f"| {names} | {row.allowed} | {row.why} |\n"
    text += "\n| check | what is measured | allowed |\n|---|---|---|\n"
    for limit in LIMITS.values():
        text += f"| {limit.check} | {limit.what} | {limit.allowed} |\n"
    return text


def written():
    """The same as it stands in the document."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main():
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + page() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
