//! Exports of ledgers, and bills over them: the same as the ledgers say, whatever became of nodes, GPUs and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use gpumeter::accounting::batches::{GpuRegistration, LedgerBatch};
use gpumeter::accounting::billing::{
    Bill, BillRequest, DayAccount, ExactMoney, PriceBook, TenantBudget, bills_from_json, only_bill,
};
use gpumeter::accounting::day_files::{
    DayFile, ExpectedNode, ExportDirectory, ExportError, ExportSource, make_bills, write_day, write_days,
};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader};
use gpumeter::accounting::tenants::TenantRules;
use gpumeter::config::Config;
use gpumeter::model::{GpuId, Money, NodeIdentity, Parts, Utc};

use super::month::{self, HOURS, MONTH, at};
use super::world::{SECOND, World, after, between, book, closed, opening, row, uuid, whole};

/// Writes the exports of a ledger into a directory; returns how many files were written.
pub(super) fn export(ledger: &Path, directory: &Path) -> usize {
    let mut reader = Reader::open(ledger).unwrap();
    write_days(&mut reader, ExportDirectory(directory), || false).unwrap()
}

/// The file of a directory with one.
pub(super) fn only_file(directory: &Path) -> PathBuf {
    ExportDirectory(directory).days().unwrap().remove(0).path
}

pub(super) fn source(directory: &Path) -> ExportSource<'_> {
    ExportSource::of(directory)
}

pub(super) fn fleet_bill(source: &ExportSource<'_>, request: &BillRequest) -> Result<Bill, ExportError> {
    make_bills(source, request, |_, _| {}).map(|made| only_bill(made).unwrap())
}

/// The bill over all files of a directory, at the recorded prices.
pub(super) fn whole_bill(directory: &Path) -> Result<Bill, ExportError> {
    fleet_bill(&source(directory), &BillRequest::default())
}

/// A request for the bill of all that is exported, at the prices of a book.
fn at_prices(book: Option<&PriceBook>) -> BillRequest {
    BillRequest { book: book.cloned(), ..BillRequest::default() }
}

pub(super) fn exact(bill: &Bill) -> ExactMoney {
    ExactMoney::sum(bill.lines.iter().map(|line| line.exact)).unwrap()
}

/// Held seconds and thousandths of the currency of each tenant, as they are.
pub(super) fn by_tenant(bill: &Bill) -> Vec<(String, u64, i128)> {
    let tenants: BTreeSet<&str> = bill.lines.iter().map(|line| &*line.tenant).collect();
    let of = |tenant: &str| {
        let own = || bill.lines.iter().filter(|line| line.tenant == tenant);
        let held: u64 = own().map(|line| line.amounts.parts.held()).sum();
        let money = ExactMoney::sum(own().map(|line| line.exact)).unwrap();
        (tenant.to_owned(), held / SECOND, money.floor().0 / 1_000_000)
    };
    tenants.into_iter().map(of).collect()
}

pub(super) fn tenants(expected: &[(&str, u64, i128)]) -> Vec<(String, u64, i128)> {
    expected.iter().map(|(tenant, held, money)| ((*tenant).to_owned(), *held, *money)).collect()
}

/// The standard output of a bill of the command line.
fn bill_page(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gpumeter")).arg("bill").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_bill_over_exports_is_that_of_the_ledger_in_every_grouping_and_zone() {
    let directory = tempfile::tempdir().unwrap();
    // The month begins and ends inside a day of UTC.
    assert_eq!(export(&MONTH.path(), directory.path()), 32);
    assert_eq!(export(&MONTH.path(), directory.path()), 0, "nothing changed");
    let (ledger, exports) = (MONTH.path(), directory.path().to_str().unwrap().to_owned());
    let ledger = ledger.to_str().unwrap();
    let all = ["tenant", "workload", "model", "day", "account", "node", "tenant,class", "gpu,tenant"];
    for (zone, groupings) in
        [("Europe/Zurich", &all[..]), ("Asia/Kolkata", &all[3..4]), ("Asia/Kathmandu", &all[3..4])]
    {
        for by in groupings {
            let rest = ["--csv", "--by", by, "--time-zone", zone, "--month", "2025-10"];
            let of_ledger = bill_page(&[&["--ledger", ledger][..], &rest].concat());
            let of_exports = bill_page(&[&["--exports", &exports][..], &rest].concat());
            // A fleet names no node in its lines, and numbers rates anew.
            let numbers = |page: &str| -> Vec<Vec<String>> {
                let heads: Vec<&str> = page.lines().next().unwrap().split(',').collect();
                let is_same = |head: &str| !["node", "cluster", "rate"].contains(&head);
                let kept = |line: &str| {
                    let cells = line.split(',').zip(&heads).filter(|(_, head)| is_same(head));
                    cells.map(|(cell, _)| cell.to_owned()).collect()
                };
                // The last column is the id of the line, which depends on the node.
                let lines = page.lines().map(|line| line.rsplit_once(',').unwrap().0);
                let mut lines: Vec<Vec<String>> = lines.map(kept).collect();
                lines.sort();
                lines
            };
            assert_eq!(numbers(&of_exports), numbers(&of_ledger), "{by} {zone}");
        }
    }
    let page = bill_page(&["--exports", &exports, "--time-zone", "Europe/Zurich", "--month", "2025-10"]);
    assert!(page.starts_with("Bill of 1 node\n"), "{page}");
    assert!(page.contains(" 1490.0000 794.1875 "), "{page}");
    assert!(page.contains("money 3224.500000000 of 3224.500000000 EUR"), "{page}");
}

#[test]
fn exact_money_of_exports_is_that_of_the_ledger_also_at_other_prices() {
    let directory = tempfile::tempdir().unwrap();
    export(&MONTH.path(), directory.path());
    let period = [Some(at(0)), Some(at(HOURS))];
    let text = "prices: {currency: EUR, rates: [{gpu_hour: 1}, {model: \"*A100*\", gpu_hour: 2, \
                from: 2025-10-20T00:00:00Z}, {mig_profile: 1g.5gb, instance_hour: 0.07}], energy: {kwh: 0.3}}\n\
                terms: [{tenant: ml, basis: used, discount: 25}]";
    let other = Config::parse(text, "other.yaml").unwrap().prices;
    for book in [None, Some(&other)] {
        let request = BillRequest { book: book.cloned(), ..between(period[0], period[1]) };
        let ledger = Reader::open(&MONTH.path()).unwrap().bill(&request).unwrap();
        let exports = fleet_bill(&source(directory.path()), &request).unwrap();
        assert_eq!((exact(&exports), exports.lines.len()), (exact(&ledger), ledger.lines.len()));
        assert_eq!(by_tenant(&exports), by_tenant(&ledger));
        assert!(exports.is_balanced());
        assert_eq!(exports.reconciliation, ledger.reconciliation);
        assert_eq!(exports.gpus, ledger.gpus.iter().map(|gpu| gpu_of(gpu, &exports)).collect::<Vec<_>>());
    }
}

/// The GPU of a ledger's bill with the rates of the other bill's.
fn gpu_of(
    gpu: &gpumeter::accounting::billing::BillGpu,
    exports: &Bill,
) -> gpumeter::accounting::billing::BillGpu {
    let other = exports.gpus.iter().find(|other| other.gpu == gpu.gpu).unwrap();
    gpumeter::accounting::billing::BillGpu { intervals: other.intervals.clone(), ..gpu.clone() }
}

#[test]
fn the_same_day_makes_the_same_bytes_and_a_file_is_read_as_it_was_written() {
    let mut reader = Reader::open(&MONTH.path()).unwrap();
    let (day, revision) = reader.days().unwrap()[10];
    let account = reader.day(day).unwrap();
    let bytes = write_day(&account).unwrap();
    assert_eq!(write_day(&reader.day(day).unwrap()).unwrap(), bytes);
    let mut shuffled = account.clone();
    shuffled.rows.reverse();
    assert_eq!(write_day(&shuffled).unwrap(), bytes, "the order of rows changes nothing");
    let file = DayFile::of_bytes(bytes).unwrap();
    assert_eq!((file.header(), file.header().revision), (&account.header, revision));
}

/// How the agent of a node opens its ledger, at a price of 1 per second.
pub(super) fn opened(name: &str, seconds: u64) -> Opening {
    let node = NodeIdentity { name: name.into(), ..NodeIdentity::default() };
    Opening { node, ..opening(seconds, book(&[(0, 3_600_000_000_000)])) }
}

/// A node whose GPU `gpu` is held by `user:NAME` for `quarters` quarter hours from the start.
pub(super) fn node(name: &str, gpu: u32, quarters: u64) -> World {
    let world = World::new();
    let (mut ledger, _) = Ledger::open(&world.path(), &opened(name, 0)).unwrap();
    register(&mut ledger, gpu, 0);
    hold(&mut ledger, gpu, 0..quarters, &format!("user:{name}"));
    world
}

fn register(ledger: &mut Ledger, gpu: u32, seconds: u64) {
    let gpu = GpuId { index: gpu, uuid: uuid(gpu) };
    let registrations =
        vec![GpuRegistration { gpu, model: "NVIDIA H100".into(), memory: None, at: after(seconds) }];
    let batch = LedgerBatch { now: after(seconds), registrations, ..LedgerBatch::default() };
    ledger.commit(&batch).unwrap();
}

/// Settles quarter hours of a GPU with one holder.
fn hold(ledger: &mut Ledger, gpu: u32, quarters: std::ops::Range<u64>, holder: &str) {
    for quarter in quarters {
        let span = (after(quarter * 900), after(quarter * 900 + 900));
        let window = match holder {
            "__unavailable__" | "__unobserved__" => {
                let mut row = row(holder, Default::default(), Default::default());
                let parts = &mut row.amounts.parts;
                *if holder == "__unavailable__" { &mut parts.unavailable } else { &mut parts.unmeasured } =
                    900 * SECOND;
                closed(gpu, span, vec![row])
            }
            _ => whole(gpu, span, holder, 60 * SECOND),
        };
        let batch = LedgerBatch { now: span.1, closed: vec![window], ..LedgerBatch::default() };
        ledger.commit(&batch).unwrap();
    }
}

#[test]
fn many_nodes_add_up_and_a_bill_may_group_by_node() {
    let directory = tempfile::tempdir().unwrap();
    for (name, gpu) in [("a", 0), ("b", 1), ("c", 2)] {
        export(&node(name, gpu, 8).path(), directory.path());
    }
    let bill = whole_bill(directory.path()).unwrap();
    // 7,200 s at 1 per second.
    assert_eq!(
        by_tenant(&bill),
        tenants(&[("a", 7200, 7_200_000), ("b", 7200, 7_200_000), ("c", 7200, 7_200_000)])
    );
    assert_eq!(bill.fleet.as_ref().map(|fleet| fleet.nodes), Some(3));
    let page =
        bill_page(&["--exports", directory.path().to_str().unwrap(), "--by", "node", "--time-zone", "UTC"]);
    assert!(
        page.starts_with("Bill of 3 nodes\n") && page.lines().any(|line| line.starts_with("b  ")),
        "{page}"
    );
}

#[test]
fn budgets_that_differ_between_nodes_are_named_and_the_lowest_counts() {
    let directory = tempfile::tempdir().unwrap();
    let budget =
        |amount: i128| TenantBudget { amount: Money(amount * 1_000_000_000), currency: "EUR".into() };
    for (name, gpu, amount) in [("a", 0, 9_000), ("b", 1, 20_000), ("c", 2, 20_000)] {
        let world = World::new();
        let budgets = [("ml".to_owned(), budget(amount))].into();
        let rules = TenantRules { budgets, ..TenantRules::default() };
        let opening = Opening { tenant_rules: Arc::new(rules), ..opened(name, 0) };
        let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
        register(&mut ledger, gpu, 0);
        hold(&mut ledger, gpu, 0..8, "user:ml");
        drop(ledger);
        export(&world.path(), directory.path());
    }
    let bill = whole_bill(directory.path()).unwrap();
    let differing: Vec<String> =
        bill.fleet.as_ref().unwrap().differing_budgets.iter().map(ToString::to_string).collect();
    let told =
        "the budget of ml differs between nodes, and the first counts: 9000 EUR on a; 20000 EUR on b, c";
    assert_eq!(differing, [told]);
    assert_eq!(bill.tenant_budgets["ml"], budget(9_000));
    let exports = directory.path().to_str().unwrap();
    let arguments =
        ["bill", "--exports", exports, "--over-budget", "--time-zone", "UTC", "--month", "2025-11"];
    let ended = Command::new(env!("CARGO_BIN_EXE_gpumeter")).args(arguments).output().unwrap();
    let page = String::from_utf8(ended.stdout).unwrap();
    // 3 GPUs for 7,200 s at 1 per second.
    for words in
        [told, "over their monthly budget, on all these nodes together", "21600.000000000", "12600.000000000"]
    {
        assert!(page.contains(words), "{words}: {page} {:?}", ended.stderr);
    }
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn a_renamed_node_keeps_its_name_in_the_past_and_its_id() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("old", 0, 4);
    export(&world.path(), directory.path());
    let mut renamed = opening(3_700, book(&[(0, 3_600_000_000_000)]));
    renamed.node = NodeIdentity { name: "new".into(), cluster: Some("b".into()), ..NodeIdentity::default() };
    let (mut ledger, _) = Ledger::open(&world.path(), &renamed).unwrap();
    hold(&mut ledger, 0, 4..8, "user:x");
    drop(ledger);
    export(&world.path(), directory.path());
    let files = ExportDirectory(directory.path()).days().unwrap();
    let ledgers: BTreeSet<&str> = files.iter().map(|day| &*day.ledger).collect();
    assert_eq!(ledgers.len(), 1, "{files:?}");
    assert!(files.iter().all(|day| day.path.starts_with(directory.path().join("cluster=b"))), "{files:?}");
    let bill = whole_bill(directory.path()).unwrap();
    let held = |name: &str| -> u64 {
        let own = bill.lines.iter().filter(|line| line.node.as_ref().is_some_and(|node| node.name == name));
        own.map(|line| line.amounts.parts.held() / SECOND).sum()
    };
    assert_eq!((held("old"), held("new")), (3_600, 3_600));
}

#[test]
fn a_copied_ledger_exports_only_what_it_added() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let opened = |machine: &str, seconds| Opening {
        machine_id: machine.into(),
        node: NodeIdentity { name: machine.into(), ..NodeIdentity::default() },
        ..opening(seconds, PriceBook::default())
    };
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("one", 0)).unwrap();
    register(&mut ledger, 0, 0);
    hold(&mut ledger, 0, 0..4, "user:a");
    drop(ledger);
    let copy = world.copy_as_killed();
    let (mut ledger, _) =
        Ledger::open(&copy.path(), &Opening { boot_id: "second".into(), ..opened("two", 3_700) }).unwrap();
    register(&mut ledger, 1, 3_700);
    drop(ledger);
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("one", 3_700)).unwrap();
    hold(&mut ledger, 0, 4..6, "user:a");
    drop(ledger);
    for world in [&world, &copy] {
        export(&world.path(), directory.path());
    }
    let bill = whole_bill(directory.path()).unwrap();
    assert_eq!(by_tenant(&bill), tenants(&[("a", 5_400, 0)]));
    let id: String = world.sql("SELECT uid FROM ledger");
    assert_ne!(copy.sql::<String>("SELECT uid FROM ledger"), id);
    // Without a new machine the id stays.
    drop(Ledger::open(&world.path(), &opened("one", 6_000)).unwrap());
    assert_eq!(world.sql::<String>("SELECT uid FROM ledger"), id);
}

#[test]
fn a_gpu_that_moved_is_billed_once() {
    let directory = tempfile::tempdir().unwrap();
    // Node a has the GPU for four quarter hours, and misses it in the next four, in which node b has it.
    let a = node("a", 0, 4);
    let again = opened("a", 3_600);
    let (mut ledger, _) = Ledger::open(&a.path(), &again).unwrap();
    hold(&mut ledger, 0, 4..6, "__unavailable__");
    hold(&mut ledger, 0, 6..8, "__unobserved__");
    drop(ledger);
    let b = World::new();
    let (mut ledger, _) = Ledger::open(&b.path(), &opened("b", 0)).unwrap();
    register(&mut ledger, 0, 3_600);
    hold(&mut ledger, 0, 4..8, "user:b");
    drop(ledger);
    for world in [&a, &b] {
        export(&world.path(), directory.path());
    }
    let other = book(&[(0, 7_200_000_000_000)]);
    for (book, factor) in [(None, 1), (Some(&other), 2)] {
        let bill = fleet_bill(&source(directory.path()), &at_prices(book)).unwrap();
        let of = |held: u64| held as i128 * 1_000 * factor;
        let billed = by_tenant(&bill).into_iter().filter(|(_, held, _)| *held > 0).collect::<Vec<_>>();
        assert_eq!(billed, tenants(&[("a", 3_600, of(3_600)), ("b", 3_600, of(3_600))]));
        assert!(bill.is_balanced(), "{:?}", bill.reconciliation);
    }
}

#[test]
fn a_gpu_that_two_ledgers_hold_at_one_time_is_set_aside_with_its_day_and_the_rest_is_billed() {
    let directory = tempfile::tempdir().unwrap();
    // The second day of `a` is in no conflict; `c` says that it has the GPU of `a` too, from the second quarter hour on.
    export(&node("a", 0, TO_MIDNIGHT + 4).path(), directory.path());
    export(&node("b", 1, TO_MIDNIGHT + 4).path(), directory.path());
    let c = World::new();
    let (mut ledger, _) = Ledger::open(&c.path(), &opened("c", 0)).unwrap();
    register(&mut ledger, 0, 900);
    hold(&mut ledger, 0, 1..3, "user:c");
    register(&mut ledger, 2, 900);
    hold(&mut ledger, 2, 1..3, "user:c");
    drop(ledger);
    export(&c.path(), directory.path());
    let (day, next) = (TO_MIDNIGHT * 900, 3_600);
    let other = book(&[(0, 3_600_000_000_000)]);
    let expect = |node: &str| ExpectedNode {
        node: node.into(),
        from: after(0),
        to: after(day + next),
        gpus: None,
        model: None,
    };
    let expected = [expect("a"), expect("b")];
    for (book, expected) in [(None, &[][..]), (Some(&other), &[]), (None, &expected[..])] {
        let source = ExportSource { expected: expected.to_vec(), ..source(directory.path()) };
        let made = only_bill(make_bills(&source, &at_prices(book), |_, _| {}).unwrap()).unwrap();
        let gaps = &made.fleet.as_ref().unwrap().gaps;
        let all = day + next;
        assert_eq!(
            by_tenant(&made),
            tenants(&[
                ("a", next, i128::from(next) * 1_000),
                ("b", all, i128::from(all) * 1_000),
                ("c", 1_800, 1_800_000)
            ]),
            "what is set aside is not missing"
        );
        assert!(made.is_balanced(), "{:?}", made.reconciliation);
        let conflicts = &made.fleet.as_ref().unwrap().conflicts;
        assert_eq!(conflicts.len(), 1);
        assert_eq!((&*conflicts[0].gpu, &*conflicts[0].date), (&*uuid(0), "2025-11-14"));
        let held: BTreeSet<(&str, u128)> = conflicts[0]
            .ledgers
            .iter()
            .map(|one| (one.ledger.rsplit_once(' ').unwrap().1, one.held.0 / u128::from(SECOND)))
            .collect();
        assert_eq!(held, BTreeSet::from([("a", day.into()), ("c", 1_800)]));
        assert!(gaps.iter().any(|gap| gap.contains("is held in the ledgers")), "{:?}", gaps);
    }
    // A bill of the time after the conflict sets the rest of the day aside too, so that both parts add up.
    let part = fleet_bill(&source(directory.path()), &between(Some(after(4 * 900)), None)).unwrap();
    assert_eq!(by_tenant(&part)[0], ("a".to_owned(), next, i128::from(next) * 1_000));
    let held = part.fleet.unwrap().conflicts[0]
        .ledgers
        .iter()
        .map(|one| one.held.0 / u128::from(SECOND))
        .collect::<BTreeSet<_>>();
    assert_eq!(held, BTreeSet::from([0, u128::from(day - 3_600)]));
    let exports = directory.path().to_str().unwrap();
    let (status, page, error) = run(&["bill", "--exports", exports, "--time-zone", "UTC"]);
    assert_eq!(status, Some(1), "{page}{error}");
    assert!(page.contains("\nin conflict, and in no line above: GPUs that two ledgers hold"), "{page}");
    assert!(
        page.contains(&format!("{} on 2025-11-14: ", uuid(0))) && page.contains(" 0.5000 h in "),
        "{page}"
    );
    assert!(error.contains("two ledgers hold a GPU at one time") && error.contains(" of c"), "{error}");
}

#[test]
fn a_late_rate_changes_the_days_that_it_concerns_and_only_these() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("a", 0, 200);
    assert_eq!(export(&world.path(), directory.path()), 4);
    let late = book(&[(0, 3_600_000_000_000), (150 * 900, 7_200_000_000_000)]);
    drop(Ledger::open(&world.path(), &opening(200 * 900, late)).unwrap());
    // The late rate is of the last two of the four days.
    assert_eq!(export(&world.path(), directory.path()), 2);
    let bill = whole_bill(directory.path()).unwrap();
    assert_eq!(by_tenant(&bill), tenants(&[("a", 180_000, (150 * 900 + 50 * 900 * 2) * 1_000)]));
    assert_eq!(
        exact(&bill),
        exact(&Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap())
    );
}

/// The quarter hours from the begin of the account to the next midnight.
const TO_MIDNIGHT: u64 = 7;

#[test]
fn where_prices_change_their_currency_each_has_a_table_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("a", 0, 2 * TO_MIDNIGHT);
    let mut dollars = book(&[(TO_MIDNIGHT * 900, 7_200_000_000_000)]);
    dollars.rates[0].tariff.currency = "USD".into();
    drop(Ledger::open(&world.path(), &opening(2 * TO_MIDNIGHT * 900, dollars)).unwrap());
    assert_eq!(export(&world.path(), directory.path()), 2);
    let (ledger, exports) = (world.path(), directory.path());
    for source in [["--ledger", ledger.to_str().unwrap()], ["--exports", exports.to_str().unwrap()]] {
        let source = [&source[..], &["--time-zone", "UTC"]].concat();
        let page = |rest: &[&str]| bill_page(&[&source[..], rest].concat());
        let text = page(&[]);
        let tables: Vec<&str> = text.lines().filter(|line| line.contains(" to 2025-11-15 ")).collect();
        let [first, second] = tables.as_slice() else { panic!("{text}") };
        assert!(first.ends_with(" to 2025-11-15 00:00 +00:00, time zone UTC"), "{text}");
        assert!(second.starts_with("2025-11-15 00:00 +00:00 to 2025-11-15 01:45 "), "{text}");
        let totals = text.lines().filter(|line| line.starts_with("total ")).collect::<Vec<_>>();
        assert!(totals.len() == 2 && totals[0].ends_with(" 6300.0000"), "{text}");
        assert!(totals[1].ends_with(" 12600.0000"), "{text}");
        let csv = page(&["--csv"]);
        assert_eq!(csv.lines().filter(|line| line.contains("currency")).count(), 1, "one heading: {csv}");
        for (currency, amount) in [("EUR", "6300.0000"), ("USD", "12600.0000")] {
            let is_of = |line: &&str| line.contains(&format!(",{amount},,,{currency},"));
            assert_eq!(csv.lines().filter(is_of).count(), 1, "{csv}");
        }
        assert_eq!(page(&["--html"]).matches("<table>").count(), 2);
        let bills = bills_from_json(&page(&["--json"])).unwrap();
        assert_eq!(
            bills.iter().map(|bill| bill.currency.as_deref().unwrap()).collect::<Vec<_>>(),
            ["EUR", "USD"]
        );
        // One line of the second table, by the id that its CSV has.
        let id = csv.lines().last().unwrap().rsplit(',').next().unwrap();
        let since = ["--from", "2025-11-15T00:00:00Z"];
        let explained = [&["explain", id], &since[..], &source[..]].concat();
        let told = Command::new(env!("CARGO_BIN_EXE_gpumeter")).args(explained).output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        assert!(String::from_utf8_lossy(&told.stdout).contains("USD"));
        let files = exports.join("files");
        let split = ["--split-by", "tenant", files.to_str().unwrap()];
        for one in [&["--focus", "-"][..], &["--over-budget"], &["--compare", "2025-10"], &split] {
            let arguments = [&["bill"], &source[..], one].concat();
            let refused = Command::new(env!("CARGO_BIN_EXE_gpumeter")).args(arguments).output().unwrap();
            let error = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{error}");
            assert!(error.contains("in EUR and, since 2025-11-15T00:00:00Z, in USD"), "{error}");
        }
        assert!(!files.exists());
    }
    // In another cluster the euro stays.
    export(&node("b", 1, 2 * TO_MIDNIGHT).path(), directory.path());
    let error = whole_bill(directory.path()).unwrap_err().to_string();
    assert!(error.contains("choose a shorter period or exports of fewer clusters"), "{error}");
}

#[test]
fn a_book_in_another_currency_than_the_account_is_refused() {
    let (directory, world) = (tempfile::tempdir().unwrap(), node("a", 0, 4));
    export(&world.path(), directory.path());
    let book = |currency: &str| {
        let text = format!("prices: {{currency: {currency}, rates: [{{gpu_hour: 1}}]}}");
        Config::parse(&text, "other.yaml").unwrap().prices
    };
    let of_ledger = |book: PriceBook| {
        let mut reader = Reader::open(&world.path()).unwrap();
        reader.bill(&at_prices(Some(&book))).map_err(|error| error.to_string())
    };
    let of_exports = |book: PriceBook| {
        fleet_bill(&source(directory.path()), &at_prices(Some(&book))).map_err(|error| error.to_string())
    };
    for refused in [of_ledger(book("USD")), of_exports(book("USD"))] {
        let error = refused.unwrap_err();
        let told = "the book has prices in USD, and the account in EUR; give the book in EUR";
        assert!(error.contains(told), "{error}");
    }
    for made in [of_ledger(book("EUR")), of_exports(book("EUR"))] {
        assert_eq!(made.unwrap().reconciliation.line_money.0, 1_000_000_000);
    }
    // Nothing was priced there, so any book will do.
    let (directory, world) = (tempfile::tempdir().unwrap(), World::new());
    let (mut ledger, _) = Ledger::open(&world.path(), &opening(0, PriceBook::default())).unwrap();
    register(&mut ledger, 0, 0);
    hold(&mut ledger, 0, 0..4, "user:a");
    drop(ledger);
    export(&world.path(), directory.path());
    let usd = book("USD");
    let bill = fleet_bill(&source(directory.path()), &at_prices(Some(&usd))).unwrap();
    assert_eq!(bill.currency.as_deref(), Some("USD"));
}

#[test]
fn what_an_expected_node_did_not_report_is_unobserved() {
    let directory = tempfile::tempdir().unwrap();
    // It was killed before the last two quarter hours were exported.
    export(&node("a", 0, 6).path(), directory.path());
    export(&node("b", 1, 8).path(), directory.path());
    let expect = |node: &str, gpus: Option<u32>| ExpectedNode {
        node: node.into(),
        from: after(0),
        to: after(8 * 900),
        gpus,
        model: Some("NVIDIA A100".into()),
    };
    let expected = vec![expect("a", None), expect("b", None), expect("gone", Some(2))];
    let made = ExportSource { expected, ..source(directory.path()) };
    let bill = fleet_bill(&made, &BillRequest::default()).unwrap();
    assert_eq!(
        by_tenant(&bill),
        tenants(&[
            // Of two GPUs nothing is known, so that they have no price.
            ("__unobserved__", 1_800 + 2 * 7_200, 1_800 * 1_000),
            ("a", 5_400, 5_400_000),
            ("b", 7_200, 7_200_000),
        ])
    );
    assert!(bill.is_balanced());
    let notes = &bill.fleet.as_ref().unwrap().notes;
    assert_eq!(notes[0], "exports end before the bill: a (up to 2025-11-14T23:45:00Z)");
    assert!(notes.len() == 2 && notes[1].starts_with("not reported by expected nodes"), "{notes:?}");
    let flat = book(&[(0, 3_600_000_000_000)]);
    let priced = fleet_bill(&made, &at_prices(Some(&flat))).unwrap();
    assert_eq!(by_tenant(&priced)[0], ("__unobserved__".to_owned(), 16_200, 16_200_000));
    let unknown = ExportSource { expected: vec![expect("gone", None)], ..made };
    let error = fleet_bill(&unknown, &BillRequest::default()).unwrap_err().to_string();
    assert!(error.contains("gone is expected and has no export"), "{error}");
}

#[test]
fn missing_time_has_the_rate_of_the_latest_time_before_it() {
    const HOUR: u64 = 3_600_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    // From 22:15 to the end of the third day after; the price is 1, then 2, then 1 again.
    let world = World::new();
    let noon = |day: u64| TO_MIDNIGHT * 900 + day * 86_400 + 43_200;
    let unit = 1_000_000_000;
    let prices = book(&[(0, unit), (noon(0), 2 * unit), (noon(1), unit)]);
    let node = NodeIdentity { name: "a".into(), ..NodeIdentity::default() };
    let (mut ledger, _) = Ledger::open(&world.path(), &Opening { node, ..opening(0, prices) }).unwrap();
    register(&mut ledger, 0, 0);
    hold(&mut ledger, 0, 0..TO_MIDNIGHT + 3 * 96, "user:a");
    drop(ledger);
    export(&world.path(), directory.path());
    // Another node reports on, so that the bill goes on.
    let later = World::new();
    let begin = TO_MIDNIGHT + 3 * 96;
    let (mut ledger, _) = Ledger::open(&later.path(), &opened("b", begin * 900)).unwrap();
    register(&mut ledger, 1, begin * 900);
    hold(&mut ledger, 1, begin..begin + 8, "user:b");
    drop(ledger);
    export(&later.path(), directory.path());
    let days = ExportDirectory(directory.path()).days().unwrap();
    // The day in the middle of which the price is 1 again.
    fs::remove_file(&days.iter().find(|day| day.date == "2025-11-16").unwrap().path).unwrap();
    let from = Utc(after(0).0 - 8 * 900 * SECOND);
    let expect = |node: &str, from: Utc| ExpectedNode {
        node: node.into(),
        from,
        to: after((begin + 8) * 900),
        gpus: None,
        model: None,
    };
    let expected = vec![expect("a", from), expect("b", after(begin * 900))];
    let source = ExportSource { expected, ..source(directory.path()) };
    let unobserved = |request: &BillRequest| {
        let bill = fleet_bill(&source, request).unwrap();
        assert!(bill.is_balanced());
        let lines = bill.lines.iter().filter(|line| line.tenant == "__unobserved__");
        let held: u64 = lines.clone().map(|line| line.amounts.parts.held()).sum();
        let money = ExactMoney::sum(lines.map(|line| line.exact)).unwrap();
        (held / HOUR, money.floor().0)
    };
    // Two hours before its first time at 1, the day at 2, and two hours after its last time at 1.
    assert_eq!(unobserved(&between(Some(from), None)), (28, (2 + 24 * 2 + 2) * unit));
    // With a book, at the book's price of that time.
    let dated = book(&[(0, unit), (noon(1), 3 * unit)]);
    let before = BillRequest { from: Some(after(0)), ..at_prices(Some(&dated)) };
    assert_eq!(unobserved(&before), (26, (12 + 12 * 3 + 2 * 3) * unit));
}

#[test]
fn a_fleet_of_more_than_64_bits_of_nanoseconds_is_summed_and_read_again() {
    // 8,000 GPUs for the 720 hours of November 2025, of which one reported the last three.
    const HOURS: u128 = 8_000 * 720;
    const HOUR: u128 = 3_600_000_000_000;
    const { assert!(HOURS * HOUR > u64::MAX as u128) };
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let exports = place("exports");
    fs::create_dir(&exports).unwrap();
    let world = World::new();
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("a", 1_531 * 900)).unwrap();
    register(&mut ledger, 0, 1_531 * 900);
    hold(&mut ledger, 0, 1_531..1_544, "user:a");
    drop(ledger);
    export(&world.path(), Path::new(&exports));
    let (nodes, prices) = (place("nodes.csv"), place("book.yaml"));
    fs::write(&nodes, "a,2025-11-01T00:00:00Z,2025-12-01T00:00:00Z,8000,NVIDIA H100\n").unwrap();
    fs::write(&prices, "prices: {currency: EUR, rates: [{gpu_hour: 1}]}\n").unwrap();
    let month = ["--exports", &exports, "--expect", &nodes, "--month", "2025-11", "--time-zone", "UTC"];
    let page = |more: &[&str]| bill_page(&[&month[..], more].concat());
    let sums = |bill: &Bill| {
        let bill = bills_from_json(&serde_json::to_string(bill).unwrap()).unwrap().remove(0);
        let proof = bill.reconciliation;
        assert!(bill.is_balanced());
        let rate = bill.rates.iter().map(|rate| rate.slot.0).sum::<u128>();
        (proof.slot.0, proof.held.0, rate, bill.unpriced.unwrap_or_default().0)
    };
    // What was never seen has no rate: all of the other GPUs.
    let recorded = bills_from_json(&page(&["--json"])).unwrap().remove(0);
    assert_eq!(sums(&recorded), (HOURS * HOUR, HOURS * HOUR, 720 * HOUR, 7_999 * 720 * HOUR));
    let text = page(&[]);
    for told in [
        "or the book's: 5759997 GPU-hours\n",
        "no price in force: 5759280.0000 h\n",
        "reconciles: held 20736000000.000000000 s of 20736000000.000000000 s GPU time, money",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    let priced = page(&["--book", &prices]);
    assert!(priced.contains(": 5760000.0000 h, 5760000.0000 EUR\n"), "{priced}");
    let priced = bills_from_json(&page(&["--book", &prices, "--json"])).unwrap().remove(0);
    assert_eq!(sums(&priced), (HOURS * HOUR, HOURS * HOUR, HOURS * HOUR, 0));
    assert_eq!(priced.reconciliation.line_money.0, HOURS.cast_signed() * 1_000_000_000);
    let statements = place("st");
    let close = ["statement", "close", "--statements", &statements, "--closed-by", "ada", "--accept-gaps"];
    let (status, _, error) = run(&[&close[..], &month].concat());
    assert_eq!(status, Some(0), "{error}");
    let document = place("st/statement-0001.json");
    let (status, told, error) = run(&["statement", "verify", &document]);
    assert_eq!(status, Some(0), "{told}{error}");
    let (_, shown, _) = run(&["statement", "show", &document, "--by", "tenant"]);
    assert!(shown.contains("no price in force: 5759280.0000 h\n"), "{shown}");
    assert!(shown.contains("held 20736000000.000000000 s of 20736000000.000000000 s"), "{shown}");
    let (_, excerpt, error) = run(&["statement", "show", &document, "--tenant", "a"]);
    assert!(excerpt.contains("\nMAY BE INCOMPLETE: time of some nodes is missing, "), "{excerpt}{error}");
    assert!(!excerpt.contains("5759280.0000"), "{excerpt}");
}

#[test]
fn two_agents_with_one_name_are_both_counted_and_named() {
    let directory = tempfile::tempdir().unwrap();
    for gpu in [0, 1] {
        export(&node("a", gpu, 4).path(), directory.path());
    }
    let bill = whole_bill(directory.path()).unwrap();
    assert_eq!(by_tenant(&bill), tenants(&[("a", 7_200, 7_200_000)]));
    let notes = &bill.fleet.as_ref().unwrap().notes;
    assert_eq!(
        notes,
        &["several ledgers have the same node name, and all are counted: a (2 ledgers)".to_owned()]
    );
}

#[test]
fn exports_of_a_month_are_small() {
    let directory = tempfile::tempdir().unwrap();
    export(&MONTH.path(), directory.path());
    let bytes: u64 = ExportDirectory(directory.path())
        .days()
        .unwrap()
        .iter()
        .map(|day| day.path.metadata().unwrap().len())
        .sum();
    assert!((200_000..1_500_000).contains(&bytes), "the month takes {bytes} bytes");
    // The book of the month is in its files.
    let first = DayFile::open(&only_file(directory.path())).unwrap();
    assert_eq!(first.header().currency.as_deref(), month::book(false).currency().map(|currency| &**currency));
}

/// Runs a command of gpumeter; returns its status, output and errors.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpumeter")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn jobs_and_lines_are_explained_over_exports_too() {
    let directory = tempfile::tempdir().unwrap();
    export(&MONTH.path(), directory.path());
    let exports = directory.path().to_str().unwrap();
    let period = ["--exports", exports, "--month", "2025-10", "--time-zone", "Europe/Zurich"];
    let (status, page, error) = run(&[&["explain", "8"][..], &period].concat());
    assert_eq!(status, Some(0), "{error}");
    assert!(page.contains("600.0000") || page.contains("600.00"), "{page}");
    let from = ["--from", "2025-10-01", "--to", "2025-11-01"];
    let (status, page, error) =
        run(&[&["job", "8", "--exports", exports, "--time-zone", "Europe/Zurich"][..], &from].concat());
    assert_eq!(status, Some(0), "{error}");
    assert!(page.contains("600.00"), "{page}");
}

#[test]
fn a_job_over_exports_has_its_nodes_activity_and_peak_in_the_days_that_the_account_has() {
    let directory = tempfile::tempdir().unwrap();
    let worlds = [("a", 0), ("b", 1)].map(|(name, gpu)| {
        let world = World::new();
        let (mut ledger, _) = Ledger::open(&world.path(), &opened(name, 0)).unwrap();
        register(&mut ledger, gpu, 0);
        // From one day of UTC into the next.
        hold(&mut ledger, gpu, 2..TO_MIDNIGHT + 3, "slurm:alpha/1");
        hold(&mut ledger, gpu, TO_MIDNIGHT + 3..TO_MIDNIGHT + 4, "user:x");
        drop(ledger);
        export(&world.path(), directory.path());
        world
    });
    let (exports, ledger) = (directory.path().to_str().unwrap(), worlds[0].path());
    // Nobody says when it ran, and the account ends long before the clock of this machine.
    let json = |source: &[&str]| -> serde_json::Value {
        let (status, page, error) = run(&[&["job", "1", "--json", "--time-zone", "UTC"], source].concat());
        assert_eq!(status, Some(0), "{error}");
        serde_json::from_str(&page).unwrap()
    };
    let (of_fleet, of_node) = (json(&["--exports", exports]), json(&["--ledger", ledger.to_str().unwrap()]));
    assert_eq!(of_fleet["nodes"], serde_json::json!(["a", "b"]));
    assert_eq!(of_node["nodes"], serde_json::json!(["a"]));
    let [fleet, node] = [&of_fleet["gpus"][0], &of_node["gpus"][0]];
    for key in ["node", "gpu", "start", "end", "held_ns", "used_ns", "activity"] {
        assert_eq!(fleet[key], node[key], "{key}");
    }
    // 60 s of each quarter hour, without the first and the last one.
    assert_eq!(
        (&fleet["busy_ns"], &fleet["measured_slot_ns"]),
        (&"360000000000".into(), &"5400000000000".into())
    );
    assert_eq!(fleet["memory_peak_bytes"], (80_u64 << 30).to_string());
    let (_, page, _) = run(&["job", "1", "--exports", exports, "--time-zone", "UTC"]);
    assert!(
        page.starts_with("Job 1 on a, b\n") && page.contains("b gpu 1") && page.contains(" 6.7 %"),
        "{page}"
    );
    let (status, _, error) = run(&["job", "2", "--exports", exports, "--time-zone", "UTC"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("from 2025-10-16 01:00 Z to 2025-11-15 01:00 Z"), "{error}");
}

#[test]
fn a_fleet_is_closed_by_a_statement_that_names_its_files_and_gaps() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let exports = place("exports");
    fs::create_dir(&exports).unwrap();
    // From the middle of November to the begin of December.
    let worlds = [("a", 0), ("b", 1)].map(|(name, gpu)| node(name, gpu, 1_600));
    for world in &worlds {
        export(&world.path(), Path::new(&exports));
    }
    let statements = place("st");
    let close = |more: &[&str]| {
        let month = ["--month", "2025-11", "--time-zone", "UTC", "--closed-by", "ada"];
        let fixed = ["statement", "close", "--exports", &exports, "--statements", &statements];
        run(&[&fixed[..], &month, more].concat())
    };
    let (status, _, error) = close(&[]);
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("no list of the nodes that should have reported (--expect)"), "{error}");
    let list = place("nodes.csv");
    let nodes = |last: &str| {
        let lines =
            ["a", "b", last].map(|node| format!("{node},2025-11-14T22:15:00Z,2025-12-01T00:00:00Z,1\n"));
        fs::write(&list, lines[..if last.is_empty() { 2 } else { 3 }].concat()).unwrap();
    };
    nodes("gone");
    let (status, _, error) = close(&["--expect", &list]);
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("gone did not report 1388700 s of gone/0"), "{error}");
    nodes("");
    let (status, told, error) = close(&["--expect", &list]);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        told.contains("statement 0001, 2 nodes, 2025-11-01 00:00 +00:00 to 2025-12-01 00:00 +00:00"),
        "{told}"
    );
    assert!(told.contains("2777400.000000000 EUR"), "{told}");
    let document = place("st/statement-0001.json");
    let text = fs::read_to_string(&document).unwrap();
    let digests = text.matches("sha256:").count();
    assert_eq!(digests, 2 * 17 + 2 + 1, "of each file, of the excerpt of each tenant, and of the document");
    for view in [&[][..], &["--csv"], &["--by", "node"], &["--html"]] {
        let (status, page, error) = run(&[&["statement", "show", &document], view].concat());
        assert!(status == Some(0) && page.len() > 100, "{view:?}: {error}");
    }
    assert_eq!(run(&["statement", "verify", &document]).0, Some(0));
    let (status, _, error) = close(&["--expect", &list]);
    assert!(status == Some(1) && error.contains("0001"), "the month is closed once: {error}");
    let credit =
        ["--tenant", "a", "--amount", "5", "--reason", "The GPU was slow.", "--statements", &statements];
    let (status, told, error) = run(&[&["statement", "credit"][..], &credit, &[&document]].concat());
    assert!(status == Some(0) && told.contains("5.000000000 EUR to a of statement 0001"), "{told}{error}");
    // A node of the fleet is billed already.
    let ledger = worlds[0].path().to_str().unwrap().to_owned();
    let own = ["--month", "2025-11", "--time-zone", "UTC", "--statements", &statements];
    let own = [&["statement", "close", "--ledger", &ledger][..], &own].concat();
    let (status, _, error) = run(&own);
    assert!(
        status == Some(1) && error.contains("statement 0001 covers a from 2025-11-01T00:00:00Z"),
        "{error}"
    );
    assert_eq!(worlds[0].sql::<i64>("SELECT count(*) FROM statement"), 0, "nothing was closed");
    // The statement is what the exports add up to, until a row of them is another one, or a file is gone.
    let verify = || run(&["statement", "verify", &statements, "--exports", &exports]);
    let (status, told, error) = verify();
    assert!(
        status == Some(0) && told.contains("0001.json: the same account in the exports\n"),
        "{told}{error}"
    );
    let first_day = || {
        let days = ExportDirectory(Path::new(&exports)).days().unwrap();
        days.into_iter().filter(|day| day.date == "2025-11-14").map(|day| day.path).collect::<Vec<_>>()
    };
    first_day().iter().for_each(|path| fs::remove_file(path).unwrap());
    let (status, told, error) = verify();
    assert!(
        status == Some(0) && told.contains("no longer kept in the exports: 2 of 34 files"),
        "{told}{error}"
    );
    let sql = "UPDATE account SET within_ns = within_ns - 1000000000, idle_ns = idle_ns + 1000000000
               WHERE minute_ns = (SELECT min(minute_ns) FROM account WHERE within_ns >= 1000000000)";
    rusqlite::Connection::open(worlds[1].path()).unwrap().execute_batch(sql).unwrap();
    for world in &worlds {
        export(&world.path(), Path::new(&exports));
    }
    let (status, told, _) = verify();
    assert!(status == Some(1) && told.contains("0001.json: changed in the exports: "), "{told}");
    assert!(told.contains("; 1 files were written anew since, or are new"), "{told}");
    fs::write(&list, "a,2025-11-14T22:15:00Z,2025-11-14T22:15:00Z\n").unwrap();
    let (status, _, error) = close(&["--expect", &list]);
    assert!(status == Some(2) && error.contains("nodes.csv:1: it ends before it begins"), "{error}");
}

#[test]
fn time_that_is_settled_late_is_in_the_files_of_its_days() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("a", 0, 4);
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("a", 3_600)).unwrap();
    register(&mut ledger, 1, 0);
    hold(&mut ledger, 1, 0..4, "user:b");
    hold(&mut ledger, 0, 4..300, "user:a");
    assert_eq!(export(&world.path(), directory.path()), 5);
    // GPU 1 was away for three days.
    hold(&mut ledger, 1, 4..200, "user:b");
    drop(ledger);
    assert_eq!(export(&world.path(), directory.path()), 4);
    let bill = whole_bill(directory.path()).unwrap();
    assert_eq!(by_tenant(&bill), tenants(&[("a", 270_000, 270_000_000), ("b", 180_000, 180_000_000)]));
    assert_eq!(
        exact(&bill),
        exact(&Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap())
    );
}

#[test]
fn a_gpu_that_was_replaced_is_not_expected_before_or_after_its_account() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("a", 0, 4);
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("a", 3_600)).unwrap();
    register(&mut ledger, 1, 3_600);
    hold(&mut ledger, 1, 4..12, "user:b");
    drop(ledger);
    export(&world.path(), directory.path());
    let expected =
        ExpectedNode { node: "a".into(), from: after(0), to: after(12 * 900), gpus: Some(1), model: None };
    let source = ExportSource { expected: vec![expected], ..source(directory.path()) };
    let made = only_bill(make_bills(&source, &BillRequest::default(), |_, _| {}).unwrap()).unwrap();
    let gaps = &made.fleet.as_ref().unwrap().gaps;
    assert_eq!(*gaps, [""; 0]);
    assert_eq!(by_tenant(&made), tenants(&[("a", 3_600, 3_600_000), ("b", 7_200, 7_200_000)]));
}

#[test]
fn a_gpu_that_was_lost_under_its_holder_and_works_elsewhere_is_billed_once() {
    let directory = tempfile::tempdir().unwrap();
    let a = node("a", 0, 4);
    let (mut ledger, _) = Ledger::open(&a.path(), &opened("a", 3_600)).unwrap();
    let mut lost = row("user:a", Default::default(), Default::default());
    lost.amounts.parts.unavailable = 900 * SECOND;
    for quarter in 4..6 {
        let span = (after(quarter * 900), after(quarter * 900 + 900));
        let window = closed(0, span, vec![lost.clone()]);
        ledger.commit(&LedgerBatch { now: span.1, closed: vec![window], ..LedgerBatch::default() }).unwrap();
    }
    drop(ledger);
    let b = World::new();
    let (mut ledger, _) = Ledger::open(&b.path(), &opened("b", 0)).unwrap();
    register(&mut ledger, 0, 3_600);
    hold(&mut ledger, 0, 4..6, "user:b");
    drop(ledger);
    for world in [&a, &b] {
        export(&world.path(), directory.path());
    }
    let bill = whole_bill(directory.path()).unwrap();
    let billed = by_tenant(&bill).into_iter().filter(|(_, held, money)| *held > 0 || *money > 0);
    assert_eq!(billed.collect::<Vec<_>>(), tenants(&[("a", 3_600, 3_600_000), ("b", 1_800, 1_800_000)]));
    assert!(bill.is_balanced(), "{:?}", bill.reconciliation);
}

#[test]
fn reasons_of_a_day_with_thousands_of_jobs_are_bounded_and_say_what_they_lack() {
    const JOBS: u64 = 60;
    let world = World::new();
    let (mut ledger, _) = Ledger::open(&world.path(), &opened("a", 0)).unwrap();
    register(&mut ledger, 0, 0);
    // From midnight on, so that all are on one day.
    let begin = TO_MIDNIGHT * 900;
    hold(&mut ledger, 0, 0..TO_MIDNIGHT, "user:x");
    for quarter in 0..96 {
        let span = (after(begin + quarter * 900), after(begin + quarter * 900 + 900));
        let part = Parts { idle: 900 * SECOND / JOBS, ..Parts::default() };
        let job = |number: u64| row(&format!("slurm:alpha/{}", 100_000 + number), part, Default::default());
        let rows = (quarter * JOBS..(quarter + 1) * JOBS).map(job).collect();
        let closed = vec![closed(0, span, rows)];
        ledger.commit(&LedgerBatch { now: span.1, closed, ..LedgerBatch::default() }).unwrap();
    }
    drop(ledger);
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    export(&world.path(), directory.path());
    let account = Reader::open(&world.path()).unwrap().day(after(begin)).unwrap();
    let reasons = account.header.reasons.as_ref().unwrap();
    assert_eq!(reasons.holders_left_out, 96 * JOBS as usize - 4_096);
    let size = |account: &DayAccount| {
        (serde_json::to_string(&account.header).unwrap().len(), write_day(account).unwrap().len())
    };
    let mut without = account.clone();
    without.header.reasons = None;
    let [(header, file), (old_header, old_file)] = [size(&account), size(&without)];
    println!("header {old_header} -> {header} bytes, file {old_file} -> {file} bytes");
    assert!(header - old_header < 100_000, "{header}");
    // Written again, the day is the same to the byte.
    export(&world.path(), other.path());
    let file =
        |directory: &Path| fs::read(ExportDirectory(directory).days().unwrap()[1].path.clone()).unwrap();
    assert_eq!(file(directory.path()), file(other.path()));
    let exports = directory.path().to_str().unwrap();
    for (job, is_known) in [("100007", true), ("105700", false)] {
        let from = after(begin).to_string();
        let (status, page, error) =
            run(&["explain", job, "--exports", exports, "--from", &from, "--time-zone", "UTC"]);
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(status, Some(0), "{error}");
        assert_eq!(page.contains("by its workload id"), is_known, "{page}");
        assert_eq!(
            page.contains(&format!("on a: gpumeter explain slurm:alpha/{job} --from ")),
            !is_known,
            "{page}"
        );
    }
}
