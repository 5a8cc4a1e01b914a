"""What breaks around the agent, and what must not.

A scenario (`table.scenario`) breaks one thing around an agent of its own over the simulated driver, and adds rows to
the table: what was checked, its target, what was measured. A row that misses its target fails the run; a row about
speed fails only a full run, since the machine of a smoke run may be busy: there it fails only if nothing came at all.
`node` is the agent under test, `measure` reads pages and accounts, the other modules are the scenarios by kind.
"""

from harness import SMOKE  # noqa: F401 (used by the scenarios)

SECOND = 10**9
# Every tier is read within a second, so that a fault soon affects every call. The driver share is the whole wall time,
# since on a busy machine calls seem slower and the sampler would stretch the slower tiers.
FAST = "sampling: {interval: 500ms, medium: 500ms, slow: 1s, level: full, driver_share: 1000000}\n"
PERIOD = 0.5
