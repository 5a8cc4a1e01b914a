"""Windows of rules, dashboards and Alertmanager's configuration, divided so that minutes pass in seconds.

Only this file divides. Windows above 30 minutes stay as they are, and with them the alerts that need them: they are tested by
`promtool test rules alerts/*.yaml` alone. What is summed up once an hour is evaluated so much more often instead.
"""

import math
import re

from harness import SMOKE

# How many times shorter the windows of a group are. Account counters move every 15 s, so what reads them cannot be
# as short as the rest.
DIVISORS = {"gpumeter-tenants": 12, "gpumeter-sums": 5, "gpumeter-hourly": 120, "gpumeter-budgets": 120,
            "gpumeter-availability": 5, "gpumeter-availability-hourly": 120}
OTHERS = 60 if SMOKE else 30
# These read hours on purpose, so all their windows up to an hour are divided.
HOURLY = {"gpumeter-hourly", "gpumeter-budgets", "gpumeter-availability-hourly"}
LONGEST = 30 * 60
# Whose alerts look hours back by recorded series: they are left out, and tested by promtool alone.
OVER_HOURS = {"gpumeter-availability"}
# Two scrapes that are late on a busy machine let nothing fire.
LEAST = 4
# How far an instant query looks back for a sample, in place of five minutes: as long as two evaluations of what is evaluated
# most rarely.
LOOKBACK = "60s"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(?<![\w.])(\d+)([smhd])\b")


def seconds(text):
    """Seconds of a duration such as 5m or 23h30m."""
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))


def shortened(text, divisor=OTHERS, longest=LONGEST):
    """A duration, divided; one that is too long stays."""
    whole = seconds(text)
    return text if whole > longest else f"{max(LEAST, math.ceil(whole / divisor))}s"


def expression(text, divisor=OTHERS, longest=LONGEST):
    """An expression with the durations of its ranges and offsets divided, and the seconds of such a range that it divides by."""
    text = re.sub(r"(\[|offset )(\d+[smh])\b", lambda found: found[1] + shortened(found[2], divisor, longest), text)
    return re.sub(r"/ 1800\b", f"/ {seconds(shortened('30m', divisor, longest))}", text)


def rules(document):
    """The rules of a file, divided in place."""
    for group in document["groups"]:
        divisor = DIVISORS.get(group["name"], OTHERS)
        longest = 3600 if group["name"] in HOURLY else LONGEST
        group["rules"] = [rule for rule in group["rules"] if "alert" not in rule or group["name"] not in OVER_HOURS]
        if "interval" in group:
            group["interval"] = shortened(group["interval"], divisor, longest)
        for rule in group["rules"]:
            rule["expr"] = expression(rule["expr"], divisor, longest)
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = shortened(rule[key], divisor, 7200)
    return document


def windows(document):
    """The longest window in seconds of each alert of a file of divided rules: what it looks back, waits and goes on for."""
    found = {}
    for group in document["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                ranges = [seconds(one) for one in re.findall(r"\[(\d+[smh])", rule["expr"])]
                waits = [seconds(rule.get(key, "0s")) for key in ("for", "keep_firing_for")]
                span = max([one for one in ranges if one < LONGEST], default=0) + sum(waits)
                found[rule["alert"]] = max(found.get(rule["alert"], 0), span)
    return found


def routes(configuration, never):
    """Alertmanager's configuration with waits divided; hours in which notices are muted are replaced by times that never come."""
    route = configuration["route"] | {"group_interval": shortened("5m")}
    for one in [route, *route["routes"]]:
        one["group_wait"] = shortened(one.get("group_wait", "30s"))
    configuration["route"] = route
    configuration["time_intervals"] = [interval | {"time_intervals": never} for interval in configuration["time_intervals"]]
    return configuration


def panel(text):
    """A panel's query, whose ranges over the account are divided like those of the rules for tenants; hours are as in those rules."""
    idle = shortened("30m", DIVISORS["gpumeter-tenants"])
    return text.replace("[30m]", f"[{idle}]").replace("/ 1800", f"/ {seconds(idle)}").replace(
        "[31d:1h]", "[6h:30s]").replace("[24h:5m]", "[1h:30s]")
