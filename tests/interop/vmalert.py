"""The tests of the rules by vmalert's own test tool: what VictoriaMetrics evaluates otherwise stands in `DIFFERENT`.

vmalert-tool has another name for tests of expressions, and needs no group's name if alerts get no label of their group.
"""

import re
import shutil
import subprocess

import harness
from harness import ROOT

# What differs, by the file of tests, and why.
DIFFERENT = {
    "tests.yaml": {
        "a first XID fires at once, names its code, is kept for a while and ends": "a template's query sees no sample of the test",
        'ALERTS{alertname="GpuXidError", gpu="0"}': "a series of ALERTS that ended is seen for some minutes longer",
        'count(ALERTS{alertname="GpumeterLedgerFailing", alertstate="firing"})': "time() is not that of the test, which begins in 1970",
        'count(ALERTS{alertname="GpumeterLedgerFailing", instance="n3", alertstate="firing"})': "the same",
        'ALERTS{alertname="GpumeterLedgerFailing"}': "the same",
        "series that are left out fire while that goes on": "a counter that appears counts as an increase from 0",
    },
    "tests-months.yaml": {
        "round(tenant_month:gpu_tenant_held_seconds:sum / 3600)": "time() is not that of the test, so the month is another",
        "round(tenant_month:gpu_tenant_used_seconds:sum / 3600, 0.5)": "the same",
        "round(tenant_month:gpu_tenant_idle_seconds:sum / 3600, 0.5)": "the same",
    },
    "budgets_tests.yaml": {
        "tenant_month:gpu_tenant_cost:sum": "a range includes the sample at its beginning, so a node's first hour counts less",
        'tenant_month:gpu_tenant_cost:sum{tenant="ml"}': "the same, for a node that is gone",
        "tenant_month:gpu_tenant_budget:spent_ratio": "time() is not that of the test, so the month is over",
        'round(1000 * tenant_month:gpu_tenant_budget:projected_ratio{tenant="ml"})': "the same",
        "a tenant is warned of its pace and of a budget that is used up, and a node that is gone stays counted": "the same",
    },
}


def vmalert(suite):
    shutil.copytree(ROOT / "alerts", suite.folder / "alerts")
    for name, expected in DIFFERENT.items():
        path = suite.folder / "alerts" / name
        path.write_text(path.read_text().replace("promql_expr_test:", "metricsql_expr_test:"))
        done = subprocess.run(["vmalert-tool", "unittest", "--disableAlertgroupLabel", "--files", path], capture_output=True, text=True)
        told = done.stdout + done.stderr
        found = {found.rstrip(",") for found in re.findall(r"^testGroupName: (.*)$", told, re.M) if "groupname: " in told}
        found |= {found.replace('\\"', '"') for found in re.findall(r'^\s+expr: "(.*)", time: ', told, re.M)}
        # A group is named although only its expressions differ.
        found = {one for one in found if one in expected or not re.search(rf"^testGroupName: {re.escape(one)},?\n\s+expr: ", told, re.M)}
        suite.expect(found == expected.keys(), f"{name}: {found ^ expected.keys()}:\n{told[-3000:]}")
        tests = path.read_text().count("_test:")
        print(f"vmalert: {name}: {tests} tests, {len(found)} of which VictoriaMetrics evaluates otherwise")


harness.run(vmalert)
