"""A bill as FOCUS: the validator of FOCUS accepts CSV and Parquet, and DuckDB multiplies and sums them exactly.

The validator knows the rules of 1.2, whose readers the columns of 1.3 leave alone. Rules that it skips are listed with its
reason: columns that gpumeter has no use for, and what it cannot compute from one file.
"""

import re
import subprocess
from collections import defaultdict
from datetime import datetime, timedelta
from fractions import Fraction

import harness
from harness import MID_MONTH, PATIENCE, Demo, Suite, bill_of, wait_for

# It demands an invoice for every row, though rows may belong to none, which the specification says itself (InvoiceId-C-004).
WRONG_RULES = {"InvoiceId-C-005-C"}
# What a biller of GPUs supports, of what the validator makes rules depend on.
SUPPORTED = (
    "ACCOUNT_NAMING", "BILLING_BASED_ON_PROVISIONED_RESOURCES", "MULTIPLE_PRICING_CATEGORIES", "MULTIPLE_SUB_ACCOUNT_TYPES",
    "NEGOTIATED_PRICING", "PUBLIC_PRICE_LIST", "RESOURCE_TYPE_ASSIGNMENT", "SUB_ACCOUNT", "TAGGING", "UNIT_PRICING", "USAGE_MEASUREMENT",
)
BILLING = """carbon: {grams_per_kwh: 380, source: test}
billing: {time_zone: Asia/Kathmandu, account: gpu-platform, invoice_issuer: Example Research Computing}
terms:
  - {tenant: research, basis: used, discount: 10}
  - {tenant: dave, discount: 33.3, outside_use: charge}
"""
PRICES = """prices:
  currency: EUR
  energy: {kwh: 0.20, pue: 1.25}
  rates:
    - {gpu_hour: 2.345}
    - {model: "*L40S*", gpu_hour: 1.1, class: spot}
    - {mig_profile: "1g.*", instance_hour: 0.35}
"""


def focus(suite: Suite):
    config = re.sub(r"(?m)^prices:\n(?:  .*\n)+", PRICES, Demo.CONFIG.read_text()) + BILLING
    config = config.replace("research: {cost_center", "alice: {cost_center")
    demo = Demo(suite, config=config, began=MID_MONTH.timestamp())
    demo.clock.run(120)
    later, closed_until = MID_MONTH + timedelta(hours=1), lambda: demo.api("bill")["closed_until"]
    wait_for("an hour of the demo", 60, lambda: datetime.fromisoformat(closed_until()) >= later, demo.program, 1)
    demo.clock.run(1)
    until = closed_until()
    exact = bill_of(command(suite, demo, until, "--json"))
    for form in ("csv", "parquet"):
        path = suite.folder / f"rows.{form}"
        command(suite, demo, until, "--focus", str(path))
        validate(suite, path)
    sums(suite, suite.folder / "rows.parquet", exact)


def command(suite, demo, until, *form):
    ran = subprocess.run([harness.GPUMETER, "bill", "--url", demo.url, "--to", until, *form],
                         capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 0, f"gpumeter bill {' '.join(form)} ends with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def focus_python(*arguments, **options):
    return subprocess.run(["focus-python", *arguments], capture_output=True, text=True, timeout=PATIENCE * 2, **options)


def validate(suite, path):
    # It opens its list of currencies by a path below its own folder.
    home = focus_python("-c", "import focus_validator, pathlib; print(pathlib.Path(focus_validator.__file__).parents[1])").stdout.strip()
    criteria = ",".join(f"{name}_SUPPORTED" for name in SUPPORTED)
    ran = focus_python("-m", "focus_validator.main", "--data-file", str(path), "--validate-version", "1.2", "--block-download",
                       "--applicability-criteria", criteria, cwd=home)
    total = re.search(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)", ran.stdout)
    if not suite.expect(total, f"the validator does not finish: {ran.stdout[-2000:]} {ran.stderr[-2000:]}"):
        return
    failed = dict(re.findall(r"^\S+ (\S+): FAIL +\((.*)\)$", ran.stdout, re.M))
    for rule in failed.keys() - WRONG_RULES:
        suite.expect(False, f"{path.name}: {rule} fails: {failed[rule]}")
    suite.expect(int(total[2]) >= 270, f"{path.name}: only {total[2]} rules pass")
    skipped = defaultdict(list)
    for rule, reason in re.findall(r"^\S+ (\S+): SKIPPED +\(violations=\d+, reason=(.*?), msg=", ran.stdout, re.M):
        skipped[reason].append(rule)
    print(f"focus: {path.name}: {total[2]} rules pass, {total[4]} are skipped")
    if path.suffix == ".csv":
        for reason, rules in sorted(skipped.items()):
            print(f"focus: skipped, {reason}: {' '.join(sorted(rules))}")


def sums(suite, path, exact):
    """Products and sums in a database, without floats."""
    query = f"""
        SELECT count(*) FILTER (Tags LIKE '%"cost_center":"4711"%' AND x_Tenant = 'alice'), count(*), sum(BilledCost), sum(EffectiveCost), sum(ListCost),
               count(*) FILTER (ContractedUnitPrice * PricingQuantity <> ContractedCost),
               count(*) FILTER (ListUnitPrice * PricingQuantity <> ListCost), typeof(any_value(ContractedUnitPrice * PricingQuantity)),
               count(*) FILTER (ChargeCategory = 'Adjustment'), count(*) FILTER (PricingUnit = 'kWh')
        FROM '{path}'"""
    ran = focus_python("-c", f"import duckdb; print(*duckdb.sql({query!r}).fetchone(), sep='|')")
    if not suite.expect(ran.returncode == 0, f"DuckDB does not read {path.name}: {ran.stderr[-2000:]}"):
        return
    tagged, rows, *costs, wrong, wrong_list, kind, adjustments, energy = ran.stdout.strip().split("|")
    parts = sum(int(line.get("exact_money") or 0) for line in exact["lines"])
    # Money is in 1 / 3.6e12 of a nano-unit, and costs have 22 places, rounded down.
    total = parts * 25 // 9
    for cost in costs:
        found = Fraction(cost) * 10**22
        suite.expect(found == total, f"{path.name}: costs sum to {found}, the bill to {total}")
    suite.expect((wrong, wrong_list) == ("0", "0"), f"{wrong} and {wrong_list} costs are not price x quantity")
    suite.expect(kind == "DECIMAL(38,22)", f"price x quantity is {kind}")
    suite.expect(int(tagged) > 0, "no row of a tenant with a cost center has it in Tags")
    suite.expect(int(adjustments) > 0 and int(energy) > 0, f"{adjustments} rows are adjustments, {energy} are energy")
    print(f"focus: {rows} rows sum to {costs[0]} EUR exactly")


if __name__ == "__main__":
    harness.run(focus)
