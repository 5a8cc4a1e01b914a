"""The demo's clock page: reads, holds, moves and releases the clock.

The page is 64 bytes, eight little-endian words under a sequence lock (odd while a writer is at work):
[0] "GPUMCLK1"  [1] sequence  [2] held  [3] origin, host CLOCK_BOOTTIME ns  [4] elapsed ns at the origin
[5] speed, parts per million  [6] UTC ns at elapsed 0  [7] simulated boottime ns at elapsed 0
It is mapped by the demo, so it is written in place, never replaced or truncated.
"""

import mmap
import struct
import time
from contextlib import contextmanager

SEQUENCE, HELD, ORIGIN, ELAPSED, SPEED, UTC, BOOT = 1, 2, 3, 4, 5, 6, 7


def boottime():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SimClock:
    """The only writer while a test runs; the demo writes its page once, at its start."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 64)
        if self._map[:8] != b"GPUMCLK1":
            raise ValueError(f"{path}: does not begin with GPUMCLK1")
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create(path, utc):
        """A page of a node that was booted 1,000 s before `utc`, in nanoseconds, for a demo that has not been started yet."""
        path.write_bytes(struct.pack("<8s7Q", b"GPUMCLK1", 0, 0, boottime(), 0, 1_000_000, utc, 1_000 * 10**9))

    def close(self):
        self._words.release()
        self._map.close()

    def elapsed(self):
        """Nanoseconds since the scenario began."""
        word = self._words
        if word[HELD]:
            return word[ELAPSED]
        return word[ELAPSED] + (boottime() - word[ORIGIN]) * word[SPEED] // 1_000_000

    def utc(self):
        """Simulated UTC in nanoseconds."""
        return self._words[UTC] + self.elapsed()

    def boot(self):
        """Simulated boot time in nanoseconds: the agent ticks at its multiples of the interval."""
        return self._words[BOOT] + self.elapsed()

    def hold_between_ticks(self, interval=10**9):
        """Stops the clock when the last tick is over: samplers read at its start, the tick loop a fifth later."""
        while not 0.5 < self.boot() % interval / interval < 0.8:
            time.sleep(interval / 1e9 / 50)
        self.hold()

    def hold(self):
        """Stops the clock where it stands."""
        with self._writing() as word:
            word[ELAPSED] = self.elapsed()
            word[HELD] = 1

    def advance(self, nanoseconds):
        """Moves a held clock on, at once."""
        if not self._words[HELD]:
            raise ValueError("only a held clock can be moved")
        with self._writing() as word:
            word[ELAPSED] += nanoseconds

    def release(self):
        """Lets the clock run on from where it stands."""
        with self._writing() as word:
            word[ORIGIN] = boottime()
            word[HELD] = 0

    def run(self, speed):
        """Lets the clock run on so many times as fast as the host's."""
        with self._writing() as word:
            word[ELAPSED] = self.elapsed()
            word[ORIGIN] = boottime()
            word[SPEED] = round(speed * 1_000_000)

    @contextmanager
    def _writing(self):
        self._words[SEQUENCE] += 1
        try:
            yield self._words
        finally:
            self._words[SEQUENCE] += 1
