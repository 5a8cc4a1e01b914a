"""Arithmetic of loads and measurements, without a clock, a process or a GPU. Times are seconds since 1970, spans are pairs."""

import math
import statistics

# Seconds of an accounting window; the windows begin at multiples of it.
WINDOW = 15


def next_burst(now, period, offset):
    """When the next period's burst begins: at a multiple of the period and the offset, so that processes can take turns."""
    return math.ceil((now - offset) / period) * period + offset


def iterations(seconds, each):
    """How many kernels of `each` seconds fill a burst of so many seconds; at least one."""
    return max(1, round(seconds / each))


def busy_within(bursts, begin, end):
    """Seconds of the bursts [[begin, end], ...] that lie within the span."""
    return sum(max(0.0, min(end, burst[1]) - max(begin, burst[0])) for burst in bursts)


def at(samples, time):
    """The value of a growing counter at a time, between its samples [(time, value), ...]; that of the nearest outside of them."""
    if time <= samples[0][0]:
        return samples[0][1]
    for (before, low), (after, high) in zip(samples, samples[1:]):
        if before <= time <= after:
            return low + (high - low) * ((time - before) / (after - before) if after > before else 1)
    return samples[-1][1]


def window_after(time):
    """When the first accounting window begins that is not before a time."""
    return math.ceil(time / WINDOW) * WINDOW


def settled_until(first_sample, slot_seconds):
    """The time up to which an account is settled that began with a sample and has so many seconds of a GPU.

    Only whole windows are settled, so the sample may be some seconds off.
    """
    return round((first_sample + slot_seconds) / WINDOW) * WINDOW if slot_seconds else first_sample


def around(history, begin, end):
    """The last entry of a history in order that is not after `begin`, and the first that is not before `end`, or None.

    A history that begins within the span has its first entry instead of the former.
    """
    before = [entry for entry in history if entry[0] <= begin] or [entry for entry in history if entry[0] < end]
    after = [entry for entry in history if entry[0] >= end]
    if not before or not after:
        return None
    return (before[-1] if before[-1][0] <= begin else before[0]), after[0]


def slowdown(alone, beside):
    """Medians over pairs of rates (work per second): the share of the work that is lost, and the scatter of the rates alone."""
    lost = statistics.median(1 - rate / free for free, rate in zip(alone, beside))
    return lost, (max(alone) - min(alone)) / statistics.median(alone)
