"""What breaks around the agent, and what must not.

A scenario (`table.scenario`) breaks one thing around an agent of its own over the simulated driver, and adds rows to
the table: what was looked at, its target, what was measured. A row that misses its target fails the run; one that
tells how fast something was only a full run, since the machine of a smoke run may be busy with something else.
`node` is the agent that suffers, `measure` reads pages and accounts, the other modules are the scenarios by kind.
"""

import os

# Keeps to a few minutes: fewer calls, shorter storms, one seed instead of eight.
SMOKE = os.environ.get("GPUMETER_FAULTS") == "smoke"
SECOND = 10**9
# Every tier is read within a second, so that no call waits long to be hit; on a busy machine, too, where the governor
# would take the processor's time for the driver's and stretch the slower tiers, and what they have read is shown longer.
FAST = "sampling: {interval: 500ms, medium: 500ms, slow: 1s, level: full, driver_share: 1000000}\n"
PERIOD = 0.5
