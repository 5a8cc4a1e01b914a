"""Samples of a page in one form: {(name, ((label, value), ...)): value}, whatever page they came from."""

import math

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics


def of_text(page):
    return _samples(parser.text_string_to_metric_families(page))


def of_openmetrics(page):
    return _samples(openmetrics.text_string_to_metric_families(page))


def of_prometheus(result, *without):
    """The samples of an instant query's result, without the target's labels."""
    found = {}
    for series in result:
        labels = {key: value for key, value in series["metric"].items() if key != "__name__" and key not in without}
        _put(found, series["metric"]["__name__"], labels, float(series["value"][1]))
    return found


def _samples(families):
    found = {}
    for family in families:
        for sample in family.samples:
            _put(found, sample.name, sample.labels, sample.value)
    return found


def _put(found, name, labels, value):
    # Text may say le="1" where OpenMetrics says le="1.0": the same bound. An empty label is no label.
    labels = {key: repr(float(text)) if key == "le" else text for key, text in labels.items() if text != ""}
    key = name, tuple(sorted(labels.items()))
    if key in found:
        raise ValueError(f"the sample {show(key)} stands there twice")
    found[key] = value


def show(key):
    name, labels = key
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels) + "}"


def same(left, right, rounding=0.0):
    return math.isclose(left, right, rel_tol=rounding) or left != left and right != right


def differences(left, right, limit=10, rounding=0.0):
    """Lines that describe where two sets of samples differ by more than the relative `rounding`, at most `limit`, then a count."""
    lines = [f"{show(key)} stands only on the first" for key in left.keys() - right.keys()]
    lines += [f"{show(key)} stands only on the second" for key in right.keys() - left.keys()]
    lines += [f"{show(key)}: {left[key]!r} and {right[key]!r}"
              for key in left.keys() & right.keys() if not same(left[key], right[key], rounding)]
    lines.sort()
    return lines[:limit] + ([f"and {len(lines) - limit} more"] if len(lines) > limit else [])
