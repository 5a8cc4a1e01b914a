"""Exports by real programs: DuckDB and ClickHouse sum a fleet's money as bills do, and answer as docs/sql.md and docs/fleet.md show.

Then a running agent: a directory that is missing, read-only or full costs no account; SIGTERM writes what is closed; and
kills while it exports and sums up minutes neither lose nor double anything. rclone copies the directory to an S3 server.

UPDATE=1 writes the answers into these pages. As root, for a file system of its own.
"""

import configparser
import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

import yaml

import harness
import shortened
from harness import PATIENCE, ROOT, SMOKE, Demo, Failed, Prometheus, Suite, bill_of, free_port, wait_for

FLEET = ROOT / "packaging/fleet"
FLEET_PAGE, SQL_PAGE = ROOT / "docs/fleet.md", ROOT / "docs/sql.md"
NODES, DAYS = 20, 3
KILLS = 20 if SMOKE else 500
SEED = 2704
UPDATE = os.environ.get("UPDATE") == "1"
SPEED, SLOWLY = 120, 10
QUARTER = timedelta(minutes=15)
# In the files of SQL.
DIRECTORY = "/var/lib/gpumeter/exports"
AMOUNTS = ("held_ns", "used_ns", "idle_ns", "unmeasured_ns", "unavailable_ns", "charged_ns", "energy_static_uj", "energy_dynamic_uj")
AGE = "gpumeter_ledger_export_age_seconds"
ALERT = "GpumeterExportsStale"
FAILED, MENDED = "exports cannot be written", "exports are written again"
# Runs statements in an engine, one after another, and prints the rows of the last as JSON texts.
DUCKDB = """
import duckdb, json, sys
setup, *queries = json.load(sys.stdin)
database = duckdb.connect()
database.execute("SET enable_progress_bar = false")  # it would go to standard output
database.execute(setup)
for query in queries:
    asked = database.execute(query)
    print(json.dumps([[column[0] for column in asked.description]] + [[str(cell) for cell in row] for row in asked.fetchall()]))
"""
CLICKHOUSE = """
import json, sys
from chdb import session
setup, *queries = json.load(sys.stdin)
database = session.Session()
for statement in filter(str.strip, setup.split(";\\n")):
    database.query(statement)
for query in queries:
    asked = json.loads(database.query(query, "JSONCompactStrings").data())
    print(json.dumps([[column["name"] for column in asked["meta"]]] + asked["data"]))
"""


def exports(suite: Suite):
    directory = suite.folder / "fleet"
    ran = subprocess.run(["cargo", "run", "--quiet", "--release", "--locked", "--features", "examples", "--example", "fleet_exports", "--", directory, str(NODES), str(DAYS)],
                         cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        raise Failed(f"the fleet cannot be generated: {ran.stderr[-2000:]}")
    sums_are_the_bills(suite, directory)
    newest_counts(suite, directory)
    page_is_fresh(suite, directory)
    history_is_one_bill(suite)
    if not SMOKE:
        rclone_copies(suite, directory)
    demo = broken_directories(suite)
    kills(suite, demo)
    stop_writes(suite, demo)


def engines(directory):
    """The views over that directory in both engines, as functions from queries to rows of texts."""
    duckdb = f"SET VARIABLE exports = '{directory}';" + (FLEET / "duckdb.sql").read_text()
    clickhouse = (FLEET / "clickhouse.sql").read_text().replace(DIRECTORY, str(directory))
    return {"DuckDB": lambda *queries: ask(DUCKDB, duckdb, queries), "ClickHouse": lambda *queries: ask(CLICKHOUSE, clickhouse, queries)}


def ask(program, setup, queries):
    """The answer to each query: the names of its columns, and its rows."""
    ran = subprocess.run(["focus-python", "-c", program], input=json.dumps([setup, *queries]), capture_output=True, text=True, timeout=PATIENCE * 2)
    if ran.returncode:
        raise Failed(f"{queries}: {ran.stderr[-3000:]}")
    return [[[plain(cell) for cell in row] for row in json.loads(line)] for line in ran.stdout.splitlines()]


def plain(cell):
    """A cell as both engines would print it."""
    if cell in (None, "None", "NULL", "ᴺᵁᴸᴸ"):
        return ""
    try:
        number = Decimal(cell)
    except InvalidOperation:
        return cell
    return f"{number.normalize():f}"


def fleet_bill(directory, *arguments):
    return json_bill("--exports", directory, *arguments)


def json_bill(*arguments):
    ran = subprocess.run([harness.GPUMETER, "bill", "--json", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)
    if ran.returncode:
        raise Failed(f"gpumeter bill {' '.join(map(str, arguments))}: {ran.stderr}")
    return bill_of(ran.stdout)


def sums_are_the_bills(suite, directory):
    """128-bit sums per tenant are the bill's before rounding, every view answers, and both engines answer alike."""
    owed = defaultdict(int)
    bill = fleet_bill(directory)
    for line in bill["lines"]:
        owed[line["tenant"]] += int(line["exact_money"])
    suite.expect(len(owed) == 13 and sum(owed.values()) > 0, f"the bill has {len(owed)} tenants, who owe {sum(owed.values())}")
    answers = {}
    for engine, query in engines(directory).items():
        file = FLEET / f"{engine.lower()}.sql"
        views = re.findall(r"^CREATE OR REPLACE VIEW (\w+)", file.read_text(), re.M)
        sums, *counts = query("SELECT tenant, sum(exact_cost) AS exact FROM bill_by_tenant GROUP BY tenant",
                              *(f"SELECT count(*) FROM {view}" for view in views))
        found = {tenant: int(exact) for tenant, exact in sums[1:]}
        suite.expect(found == owed, f"{engine} sums {found}, the bill {dict(owed)}")
        for view, (_, [count]) in zip(views, counts):
            suite.expect(int(count) > 0, f"{engine}: {view} has no rows")
        answers[engine] = query("SELECT * FROM bill_by_tenant", "SELECT * FROM idle_by_team", "SELECT * FROM use_by_model_and_hour",
                                "SELECT * FROM held_but_idle", "SELECT * FROM reconciliation")
        [[_, gpu_time, tenants, gpus, difference]] = answers[engine][-1][1:]
        suite.expect(difference == "0" and tenants == gpus, f"{engine}: tenants owe {tenants}, GPUs cost {gpus}")
        total = Decimal(bill["reconciliation"]["gpu_money"])
        suite.expect(Decimal(tenants) == total and Decimal(gpu_time) == NODES * 8 * DAYS * 24, f"{engine}: {tenants} for {gpu_time} hours")
        print(f"exports: {engine}: {len(found)} tenants owe the bill's {sum(found.values())} / 3.6e21, {len(views)} views answer")
    first, second = answers.values()
    for one, other in zip(first, second):
        suite.expect(one == other, f"the engines differ: {next((pair for pair in zip(one, other) if pair[0] != pair[1]), 'in length')}")


def history_is_one_bill(suite):
    """The past of a demo, and what its agent added: ledger, exports and both engines owe each tenant the same to the last unit."""
    demo = Demo(suite, "--history", "14d", scenario="cluster", name="history")
    demo.program.stop()
    directory = demo.state / "exports"
    owed = []
    for bill in (json_bill("--ledger", demo.state / "ledger.db", "--from", "2000-01-01"), fleet_bill(directory, "--from", "2000-01-01")):
        owed.append(defaultdict(int))
        for line in bill["lines"]:
            owed[-1][line["tenant"]] += int(line["exact_money"])
    suite.expect(owed[0] == owed[1] and len(owed[0]) >= 12, f"the ledger's bill is {dict(owed[0])}, that of its exports {dict(owed[1])}")
    for engine, query in engines(directory).items():
        [sums] = query("SELECT tenant, sum(exact_cost) AS exact FROM bill_by_tenant GROUP BY tenant")
        found = {tenant: int(exact) for tenant, exact in sums[1:]}
        suite.expect(found == owed[0], f"history: {engine} sums {found}, the bill {dict(owed[0])}")
    evidence = f"SET VARIABLE exports = '{directory}';" + (FLEET / "duckdb.sql").read_text() + (FLEET / "duckdb-evidence.sql").read_text()
    [counts] = ask(DUCKDB, evidence, ["SELECT kind, count(*) FROM evidence GROUP BY kind ORDER BY kind"])
    counts = {kind: int(count) for kind, count in counts[1:]}
    suite.expect(set(counts) == {"run", "shape"} and min(counts.values()) > 0, f"history: the evidence has {counts}")
    print(f"exports: a history of 14 days: {len(owed[0])} tenants owe {sum(owed[0].values())} / 3.6e21 in ledger, exports and both engines")


def newest_counts(suite, directory):
    """An older file of a ledger's day, left in the partition of another cluster, changes no sum."""
    [file] = sorted(directory.glob("cluster=*/date=*/ledger=*/day.parquet"))[:1]
    old = directory / "cluster=basel" / file.relative_to(directory / "cluster=zurich-1")
    total = "SELECT sum(exact_cost) FROM bill_by_tenant"
    before = {engine: query(total) for engine, query in engines(directory).items()}
    old.parent.mkdir(parents=True)
    old.write_bytes(file.read_bytes())
    os.utime(old, (1, 1))
    for engine, query in engines(directory).items():
        files, after = query("SELECT count(*) FROM newest_file", total)
        suite.expect(files[1] == [str(NODES * DAYS)] and [after] == before[engine], f"{engine} counts {files[1]} files, {after} instead of {before[engine]}")
    old.unlink()
    for folder in old.relative_to(directory).parents:
        if folder.parts:
            (directory / folder).rmdir()


def page_is_fresh(suite, directory):
    """Each query of docs/sql.md has the answer below it that both engines give, and each command of docs/fleet.md what it prints."""
    text = SQL_PAGE.read_text()
    blocks = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", text, re.S)
    suite.expect(len(blocks) >= 6, f"{SQL_PAGE.name} has {len(blocks)} queries with answers")
    shown = [f"```sql\n{sql}```\n\n```text\n{answer}```" for sql, answer in blocks]
    for engine, query in engines(directory).items():
        answers = query(*(sql.strip().rstrip(";") for sql, _ in blocks))
        fresh = ["```sql\n{}```\n\n```text\n{}```".format(sql, "".join("|".join(row) + "\n" for row in rows)) for (sql, _), rows in zip(blocks, answers)]
        shows(suite, SQL_PAGE, engine, shown, fresh)
        if UPDATE:
            shown = fresh
    commands = re.findall(r"(```console\n\$ gpumeter (.*?)\n.*?```)", FLEET_PAGE.read_text(), re.S)
    suite.expect(commands, f"{FLEET_PAGE.name} has no command")
    for block, arguments in commands:
        ran = subprocess.run([harness.GPUMETER, *shlex.split(arguments)], cwd=suite.folder, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True, timeout=PATIENCE)
        shows(suite, FLEET_PAGE, "gpumeter", [block], [f"```console\n$ gpumeter {arguments}\n{ran.stdout}{ran.stderr}```"])


def shows(suite, page, program, shown, fresh):
    """The page shows these blocks as they are made now; with UPDATE they are written into it."""
    text = page.read_text()
    for block, other in zip(shown, fresh):
        suite.expect(UPDATE or block == other, f"{page.name} is to show, by {program} (UPDATE=1 writes it):\n{other}\nand shows\n{block}")
        text = text.replace(block, other)
    if UPDATE:
        page.write_text(text)


def rclone_copies(suite, directory):
    """The commands of the service and of the sidecar fill a bucket, from which the same bill can be made, but not with files that
    are being written; the sidecar copies what the agent writes last."""
    port = free_port()
    store, config = suite.folder / "store", suite.folder / "rclone.conf"
    store.mkdir()
    config.write_text(f"[finops]\ntype = s3\nprovider = Rclone\nendpoint = http://127.0.0.1:{port}\naccess_key_id = one\nsecret_access_key = two\n")
    server = suite.start("rclone-s3", "rclone", "serve", "s3", "--auth-key", "one,two", "--addr", f"127.0.0.1:{port}", store)
    environment = {"RCLONE_CONFIG": str(config), "INTERVAL": "3600"}

    def rclone(*arguments):
        return subprocess.run(["rclone", *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=PATIENCE)

    def missing(bucket):
        """How many files the bucket lacks or has in addition; none where it has the same bytes."""
        back = suite.folder / bucket
        rclone("copy", f"finops:{bucket}", str(back))
        copied, local = ({file.relative_to(root): file.read_bytes() for file in root.rglob("*.parquet*")} for root in (back, directory))
        return len(copied.items() ^ local.items())

    wait_for("the S3 server", 30, lambda: all(rclone("mkdir", f"finops:{bucket}").returncode == 0 for bucket in ("service", "sidecar")), server)
    part = next(directory.glob("cluster=*/date=*/ledger=*")) / ".day.parquet.part"
    part.write_bytes(b"half")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(FLEET / "gpumeter-exports.service")
    command = shlex.split(unit["Service"]["ExecStart"].replace("${REMOTE}", "finops:service").replace(DIRECTORY, str(directory)))
    for _ in range(2):
        ran = rclone(*command[1:])
        suite.expect(ran.returncode == 0, f"{' '.join(command)}: {ran.stderr}")
    suite.expect(missing("service") == 1, f"{missing('service')} files differ in the service's bucket, and not the one that is being written")
    part.unlink()
    suite.expect(fleet_bill(suite.folder / "service")["lines"] == fleet_bill(directory)["lines"], "the bucket's bill is another one")

    component = yaml.safe_load((ROOT / "packaging/kubernetes/components/exports-rclone/kustomization.yaml").read_text())
    [container] = yaml.safe_load(component["patches"][0]["patch"])["spec"]["template"]["spec"]["initContainers"]
    script = container["args"][0].replace("/exports ", f"{directory} ")
    sidecar = suite.start("sidecar", "env", "REMOTE=finops:sidecar", *(f"{name}={value}" for name, value in environment.items()), "sh", "-c", script)
    wait_for("the sidecar's first copy", 30, lambda: missing("sidecar") == 0, sidecar)
    [first] = sorted(directory.glob("cluster=*/date=*/ledger=*/day.parquet"))[:1]
    last = directory / "cluster=basel" / first.relative_to(directory / "cluster=zurich-1")
    last.parent.mkdir(parents=True)
    last.write_bytes(first.read_bytes())
    sidecar.stop()
    suite.expect(missing("sidecar") == 0, "the sidecar does not copy what is written last")
    server.stop()
    print(f"exports: rclone copied {NODES * DAYS} files to an S3 server for the service and the sidecar, and the bill over them is the same")


class Exporter(Demo):
    """A demo whose account is exported every second into a file system of its own, and whose minutes are summed up after a day."""

    def __init__(self, suite):
        self.directory = suite.folder / "exports"
        settings = {"export": {"directory": str(self.directory), "interval": "1s"}, "retention": {"minutes": "1d", "quarter_hours": "62d"}}
        config = f"{Demo.CONFIG.read_text()}ledger: {json.dumps(settings)}\nbilling: {{time_zone: UTC}}\n"
        self.speed = SPEED
        super().__init__(suite, "--speed", str(SPEED), config=config, name="exporter")
        self.begin = datetime.fromtimestamp(self.clock.utc() / 1e9, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    def run(self, speed):
        self.speed = speed
        self.clock.run(speed)

    def age(self):
        return float(re.search(rf"^{AGE} (\S+)", self.page(), re.M)[1])

    def log(self):
        return self.program.log.read_text()

    def exported_until(self):
        """Up to where the exports go; none where they cannot be read."""
        try:
            return datetime.fromisoformat(fleet_bill(self.directory)["closed_until"])
        except Failed:
            return None

    def agree(self, what):
        """All that is closed is exported, and the bill over the exports is that of the ledger."""
        until, now = floor(settled_until(self.api("bill"))), self.clock.boot() / 1e9
        # Much later than the page may be old: then all of the pass is after what was just asked for.
        wait_for(f"exports {what}", 60, lambda: self.clock.boot() / 1e9 - self.age() > now + 3 * self.speed, self.program, 0.5)
        period = "--from", time_of(self.begin), "--to", time_of(until)
        compare(self.suite, what, json_bill("--url", self.url, *period), fleet_bill(self.directory, *period))
        return until


def closed_until(demo):
    return datetime.fromisoformat(demo.api("bill")["closed_until"])


def settled_until(bill):
    """Up to where all GPUs are settled: one that is more than an hour behind does not keep the account from being closed."""
    gpus = [datetime.fromisoformat(gpu["settled_until"]) for gpu in bill["gpus"]]
    return min(gpus + [datetime.fromisoformat(bill["closed_until"])])


def floor(time):
    return time - (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) % QUARTER


def time_of(time):
    return time.isoformat()


def compare(suite, what, ledger, exported):
    """Both bills have the same amounts and the same exact money by tenant, holder and GPU, and miss nothing."""
    def sums(bill):
        found = defaultdict(lambda: [0] * (len(AMOUNTS) + 1))
        for line in bill["lines"]:
            for place, amount in enumerate([*(line[name] or 0 for name in AMOUNTS), int(line.get("exact_money") or 0)]):
                found[line["tenant"], line["holder"], line["uuid"]][place] += amount
        return {key: amounts for key, amounts in found.items() if any(amounts)}

    ours, theirs = sums(ledger), sums(exported)
    wrong = [(key, ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    suite.expect(not wrong and len(ours) > 10, f"{what}: of {len(ours)} lines of the ledger {len(wrong)} are others in the exports, such as {wrong[:1]}")
    for name, bill in (("ledger", ledger), ("exports", exported)):
        proof = bill["reconciliation"]
        suite.expect(proof["imbalance_ns"] == 0 and proof["slot_ns"] == proof["held_ns"] > 0, f"{what}: the bill over the {name} does not reconcile: {proof}")
    suite.expect(ledger["reconciliation"]["slot_ns"] == exported["reconciliation"]["slot_ns"], f"{what}: the GPU time differs")


def command(*arguments):
    ran = subprocess.run([str(part) for part in arguments], capture_output=True, text=True, timeout=PATIENCE)
    if ran.returncode:
        raise Failed(f"{' '.join(map(str, arguments))}: {ran.stderr}")


def watched(suite, demo):
    """A Prometheus that scrapes the agent and evaluates the alert on its exports; it waits a sixtieth of its time."""
    rules = shortened.rules(yaml.safe_load((ROOT / "alerts/lean.yaml").read_text()))
    for group in rules["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") == ALERT]
    path = suite.folder / "rules.yaml"
    path.write_text(json.dumps(rules))
    job = {"job_name": "gpumeter", "static_configs": [{"targets": [demo.instance]}]}
    server = Prometheus(suite, config={"scrape_configs": [job], "rule_files": [str(path)]})
    return lambda: [alert["state"] for rule in server.alerts() for alert in rule["alerts"]]


def broken_directories(suite):
    """Missing, read-only, full: the account goes on, the age grows, the log says why; mended: all is exported. The first lasts
    until the alert fires, which ends afterwards."""
    demo = Exporter(suite)
    alerts = watched(suite, demo)
    mounted = []
    suite.end_first(lambda: mounted and command("umount", "--lazy", demo.directory))
    filler = demo.directory / "filler"

    def mount():
        demo.directory.mkdir()
        command("mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", demo.directory)
        mounted.append(True)

    def fill():
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def read_only():
        """As soon as the agent has no file open for writing."""
        remount = ["mount", "-o", "remount,ro", demo.directory]
        wait_for("a directory that is read-only", 30, lambda: subprocess.run(remount, capture_output=True).returncode == 0)

    broken = (
        ("missing", lambda: None, mount, "No such file"),
        ("read-only", read_only, lambda: command("mount", "-o", "remount,rw", demo.directory), "Read-only file system"),
        ("full", fill, filler.unlink, "No space left"),
    )
    for what, spoil, mend, reason in broken:
        failures, mended = demo.log().count(FAILED), demo.log().count(MENDED)
        spoil()
        failures -= what == "missing"  # from its start
        wait_for(f"a log line about a directory that is {what}", 60, lambda: demo.log().count(FAILED) > failures, demo.program)
        line = [line for line in demo.log().splitlines() if FAILED in line][-1]
        suite.expect(reason in line and str(demo.directory) in line, f"a directory that is {what} is reported as: {line}")
        age, account = demo.age(), closed_until(demo)
        wait_for(f"an older age of a directory that is {what}", 60, lambda: demo.age() > age + 2 * SPEED, demo.program)
        wait_for(f"an account beside a directory that is {what}", 60, lambda: closed_until(demo) > account + QUARTER * 2, demo.program)
        if what == "missing":
            wait_for(ALERT, 180, lambda: alerts() == ["firing"], demo.program, 1)
        grown = demo.age()
        mend()
        wait_for(f"a log line about a directory that was {what}", 60, lambda: demo.log().count(MENDED) > mended, demo.program)
        wait_for(f"the age of a directory that was {what}", 60, lambda: demo.age() < grown, demo.program)
        demo.agree(f"after a directory that was {what}")
        wait_for(f"no {ALERT}", 60, lambda: not alerts(), demo.program, 1)
    errors = [line for line in demo.log().splitlines() if FAILED in line]
    print(f"exports: missing, read-only, full: {len(errors)} errors in the log, {ALERT} fired and ended, all exported afterwards")
    return demo


def kills(suite, demo):
    """Kills while files are written and minutes are summed up: what was committed before stays, and nothing is there twice."""
    pauses = random.Random(SEED)
    command("mount", "-o", "remount,size=1g", demo.directory)  # for the files of months
    # Minutes are summed up between two commits, of which there is one in each tick.
    demo.run(SLOWLY)
    for number in range(KILLS):
        demo.clock.hold()
        demo.clock.advance(int(timedelta(hours=27 if number == 0 else 2).total_seconds() * 1e9))
        demo.clock.release()
        time.sleep(pauses.uniform(0.1, 4))
        until = settled_until(demo.api("bill")).replace(second=0, microsecond=0)
        period = {"from": time_of(demo.begin), "to": time_of(until)}
        committed = demo.api("bill", **period)
        demo.program.kill()
        demo.start()
        demo.run(SLOWLY)
        kept = demo.api("bill", **period)
        for part in ("lines", "reconciliation"):
            suite.expect(kept[part] == committed[part], f"kill {number}: the bill's {part} up to {until} are others")
    until = demo.agree(f"after {KILLS} kills")
    wait_for("minutes that are summed up", 60, lambda: rolled_until(demo) > until - timedelta(hours=25), demo.program)
    demo.agree("after minutes were summed up")
    demo.run(SPEED)
    print(f"exports: {KILLS} kills: the bill over exports is the ledger's from {demo.begin:%F} to {until:%F %R}, minutes are summed up to {rolled_until(demo):%F %R}")


def rolled_until(demo):
    """Before then the ledger has quarter hours."""
    import sqlite3
    with sqlite3.connect(f"file:{demo.state / 'ledger.db'}?mode=ro", uri=True) as ledger:
        [(time,)] = ledger.execute("SELECT rolled_until_ns FROM ledger")
    return datetime.fromtimestamp((time or 0) / 1e9, timezone.utc)


def stop_writes(suite, demo):
    """SIGTERM: the last files have all that the ledger closed, with an interval in which nothing else would have written them."""
    config = demo.config.read_text().replace('"interval": "1s"', '"interval": "1h"')
    demo.program.stop()
    demo.config.write_text(config)
    # On a busy machine ledger or exports may need more than the time that they have; then the agent says so.
    late = "did not close in time", "were not written in time"
    for _ in range(3):
        told = len(demo.log())
        demo.start()
        wait_for("the first exports", 60, demo.exported_until, demo.program)
        wait_for("an account beyond the exports", 60, lambda: closed_until(demo) > demo.exported_until() + QUARTER, demo.program)
        exported = demo.exported_until()
        demo.program.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        demo.program.process.wait(30)
        seconds = time.monotonic() - began
        if not any(words in demo.log()[told:] for words in late):
            break
    else:
        suite.expect(False, "three times it did not stop in time")
    ledger = json_bill("--ledger", demo.state / "ledger.db")
    until = datetime.fromisoformat(ledger["closed_until"])
    suite.expect(until > exported, "nothing was left to export at the stop")
    suite.expect(demo.exported_until() == until, f"stopped with exports up to {demo.exported_until()} of an account up to {until}")
    period = "--from", time_of(demo.begin), "--to", time_of(floor(settled_until(ledger)))
    compare(suite, "after SIGTERM", json_bill("--ledger", demo.state / "ledger.db", *period), fleet_bill(demo.directory, *period))
    print(f"exports: SIGTERM: {until - exported} more were exported in {seconds:.1f} s")


if __name__ == "__main__":
    harness.run(exports)
