"""Plays the scenarios in the order of the table: `.ci/faults [--write FILE] [--only ID[,ID]...] [ID]...`"""

import argparse
import resource
import traceback
from pathlib import Path

import harness
from harness import Failed

from . import SMOKE, table
# In the order of the table.
from . import hangs, hung, starts, hardware, storm, mig, crowds, configurations, requests, limits, garbage, tick_loop  # noqa: F401
from .table import SCENARIOS, Table


def wanted():
    """The file to be written, if any, and the ids of the scenarios."""
    known = [scenario.id for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog=".ci/faults", description=__doc__)
    parser.add_argument("--write", metavar="FILE", type=Path, help="writes what was found there, as parts of a page")
    parser.add_argument("--only", metavar="ID,...", default="", help="these scenarios alone")
    parser.add_argument("ids", metavar="ID", nargs="*", help="the same, each as a word")
    given = parser.parse_args()
    ids = [id for id in given.only.split(",") if id] + given.ids
    if unknown := sorted(set(ids) - set(known)):
        parser.error(f"there is no {', '.join(unknown)}; known: {' '.join(known)}")
    if given.write and SMOKE:
        parser.error("--write FILE: a page is written of full runs")
    keeps = given.write and given.write.exists() and set(known) - set(ids or known)
    if keeps and not given.write.read_text().startswith(table.head()):
        parser.error(f"--write {given.write}: its other parts were measured on another machine; play all of them")
    return given.write, ids or known


def faults(suite):
    page, ids = wanted()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8_192), hard), hard))
    found = Table()
    for scenario in SCENARIOS:
        if scenario.id not in ids:
            continue
        found.begin(scenario.id)
        try:
            scenario.play(suite, found)
        except Failed as failed:
            found.row(scenario.play.__name__.replace("_", " "), "comes to its end", str(failed).splitlines()[0], False)
        except Exception as error:
            # One failed scenario must not lose the results of the others.
            traceback.print_exc()
            found.row(scenario.play.__name__.replace("_", " "), "comes to its end", repr(error), False)
        finally:
            suite.end()
    if page:
        former = page.read_text() if page.exists() else ""
        page.write_text(table.page(found, former).replace(str(suite.folder), "..."))
    for row in found.rows:
        suite.expect(not row.fails, f"{row.fault}: {row.what}: {row.measured}, not {row.target}")


if __name__ == "__main__":
    harness.run(faults, "faults")
