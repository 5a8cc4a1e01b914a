"""Bills and statements on paper: Chromium prints them on A4 in portrait, and a PDF tool reads back every column and the last
digit of every amount, between the margins.
"""

import html
import json
import re
import subprocess
from collections import Counter
from datetime import timedelta

import harness
from browser import Browser
from harness import GPUMETER, MID_MONTH, PATIENCE, Demo, wait_for

A4 = (595, 842)  # points
MARGIN = 15 / 25.4 * 72
# Amounts of more digits than any fleet of a year has.
PRICES = """prices:
  currency: EUR
  energy: {kwh: 900000, pue: 1.25}
  rates:
    - {gpu_hour: 900000000}
"""
TENANTS = """  attributes:
    research: {cost_center: "4711"}
    alice: {cost_center: a cost center of many words that goes on and on, owner: alice@example.org}
"""
EVERY = ("spread,unpriced,amount,energy_amount,held,within,lent,idle,unmeasured,unavailable,used,beyond,outside,unheld,charged,"
         "energy_kwh,co2e_kg,cost_center,owner")
# The cells of all tables: the names of columns, and amounts.
CELLS = """[...document.querySelectorAll('table')].map((table) => ({
  heads: [...table.querySelectorAll('thead th')].map((one) => one.textContent),
  amounts: [...table.querySelectorAll('td')].map((one) => one.textContent).filter((text) => text !== ''),
  names: [...table.querySelectorAll('tbody th')].map((one) => one.textContent),
}))"""


def paper(suite):
    config = re.sub(r"(?m)^prices:\n(?:  .*\n)+", PRICES, Demo.CONFIG.read_text())
    config = re.sub(r"(?m)^  attributes:\n(?:    .*\n)+", TENANTS, config) + "carbon: {grams_per_kwh: 380, source: test}\n"
    demo = Demo(suite, config=config, began=MID_MONTH.timestamp())
    demo.clock.run(60)
    later = (MID_MONTH + timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    wait_for("twenty minutes of the demo", 120, lambda: demo.api("bill")["closed_until"] >= later, demo.program, 1)
    demo.clock.run(1)
    browser = Browser(suite)
    bills = {"by tenant": (), "by tenant and model": ("--by", "tenant,model"), "by workload": ("--by", "workload"),
             "with spread": ("--spread",), "of every column": ("--spread", "--columns", EVERY)}
    for name, options in bills.items():
        tables = printed_whole(suite, browser, name, bill(suite, demo, "--html", *options))
        columns = [head for table in tables for head in table["heads"]]
        most = max(len(table["heads"]) for table in tables)
        suite.expect(most <= 8, f"{name}: a table has {most} columns")
        if name == "of every column":
            for column in ("EUR", "energy_amount", "spread", "held", "lent", "kgCO2e", "owner"):
                suite.expect(column in columns, f"{name}: there is no column {column}: {columns}")
        if name == "by tenant":
            suite.expect(columns[:3] == ["tenant", "cost_center", "EUR"], f"{name}: the columns are {columns}")
    folder = suite.folder / "split"
    bill(suite, demo, "--split-by", "tenant", folder)
    printed_whole(suite, browser, "of one tenant", (folder / "alice.html").read_text())


def bill(suite, demo, *options):
    ran = subprocess.run([GPUMETER, "bill", "--url", demo.url, *options], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(ran.returncode == 0, f"gpumeter bill {options} ends with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def printed_whole(suite, browser, name, text):
    """Prints an HTML text, and finds every cell of its tables on the paper. Returns its tables."""
    file, pdf = suite.folder / "paper.html", suite.folder / "paper.pdf"
    file.write_text(text)
    page = browser.page(file.as_uri(), scheme="dark")
    page.wait(f"the bill {name}", "document.readyState === 'complete' && document.querySelector('table') !== null")
    tables = page.run(CELLS)
    page.pdf(pdf)
    page.close()
    whole_on_paper(suite, name, pdf, tables)
    return tables


def whole_on_paper(suite, name, pdf, tables):
    """Whether the words of the tables are between the margins of a PDF of A4 in portrait."""
    read = subprocess.run(["pdftotext", "-bbox", pdf, "-"], capture_output=True, text=True, timeout=PATIENCE)
    suite.expect(read.returncode == 0, f"{name}: pdftotext: {read.stderr}")
    sizes = {(round(float(width)), round(float(height))) for width, height in re.findall(r'<page width="(\S+)" height="(\S+)"', read.stdout)}
    suite.expect(sizes == {A4}, f"{name}: the paper is {sizes}")
    words = re.findall(r'<word xMin="(\S+)" yMin="(\S+)" xMax="(\S+)" yMax="(\S+)">(.*?)</word>', read.stdout)
    for left, _, right, _, word in words:
        inside = MARGIN - 1 <= float(left) and float(right) <= A4[0] - MARGIN + 1
        suite.expect(inside, f"{name}: {word} is from {left} to {right} points, beyond the margin")
    found = Counter(html.unescape(word) for *_, word in words)
    cells = [cell for table in tables for cell in table["heads"] + table["amounts"]]
    wanted = Counter(word for cell in cells for word in cell.split())
    missing = wanted - found
    suite.expect(not missing, f"{name}: not on the paper: {json.dumps(missing)[:500]}")
    # Names may be broken after some letters.
    begun = {html.unescape(word) for *_, word in words}
    for each in {name.split()[0] for table in tables for name in table["names"]}:
        suite.expect(any(each.startswith(word) and len(word) >= min(len(each), 4) for word in begun), f"{name}: {each} is not on the paper")
    size = max((float(bottom) - float(top) for _, top, _, bottom, word in words if word in wanted), default=0)
    least = min((float(bottom) - float(top) for _, top, _, bottom, word in words if word in wanted), default=0)
    suite.expect(least >= 6, f"{name}: figures are {least:.1f} points high")
    print(f"paper: {name}: {len(tables)} tables, {sum(wanted.values())} words of {len(cells)} cells, {least:.1f} to {size:.1f} points high")


if __name__ == "__main__":
    harness.run(paper)
