//! Closed periods: what a statement makes final, what is refused, and documents over real bills.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use gpumeter::accounting::batches::LedgerBatch;
use gpumeter::accounting::billing::chain::{ChainError, chain_problems, check_overlap};
use gpumeter::accounting::billing::statement::{
    Credit, Document, DocumentId, Issued, Statement, StatementError, StoredDocument, changed_fields,
    check_closable, check_credit, open_credits,
};
use gpumeter::accounting::billing::{Bill, BillRequest, Fleet, PriceBook};
use gpumeter::accounting::ledger::{
    Cause, ClosedPeriod, Ledger, Reader, RecordedDocument, StatementOrder, forget, record_statement,
};
use gpumeter::accounting::tenants::{TenantRule, TenantRules};
use gpumeter::model::{HolderId, Money, NodeIdentity, Parts, QUARTER_HOUR, Use, Utc};
use proptest::prelude::*;
use serde_json::Value;

use super::laws::{books, settled, worlds};
use super::month::{MONTH, play_november};
use super::world::*;

const EURO: i128 = 1_000_000_000;

/// A ledger with two settled hours of one GPU.
fn two_hours() -> (World, Ledger) {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 3 * EURO)]));
    register_gpus(&mut ledger, 1);
    let held = Parts { within: 15 * SECOND, ..Parts::default() };
    let used = Use { within: 15 * SECOND, ..Use::default() };
    for from in (0..7_200).step_by(15) {
        let closed = vec![closed(0, (after(from), after(from + 15)), vec![row("user:a", held, used)])];
        ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
    }
    (world, ledger)
}

fn period(from: u64, to: u64) -> ClosedPeriod {
    ClosedPeriod { from: after(from), to: after(to), by: "ada".into() }
}

fn document(period: ClosedPeriod, number: &str, is_credit: bool) -> StatementOrder {
    let (number, digest) = (number.to_owned(), format!("sha256:{number}"));
    StatementOrder::Record(RecordedDocument { period, is_credit, number, digest })
}

fn bill(world: &World, from: u64, to: u64) -> Bill {
    let request = BillRequest { detail: by_day(), ..between(Some(after(from)), Some(after(to))) };
    Reader::open(&world.path()).unwrap().bill(&request).unwrap()
}

#[test]
fn a_late_rate_and_late_rules_begin_after_what_is_closed() {
    let (world, mut ledger) = two_hours();
    let before = bill(&world, 0, 3_600);
    assert_eq!(ledger.record_statement(&StatementOrder::Close(period(0, 3_600))).unwrap(), after(7_201));
    let late = PriceBook { rates: book(&[(0, 3 * EURO), (900, 9 * EURO)]).rates, ..PriceBook::default() };
    ledger.reprice(&late, boottime(7_300)).unwrap();
    let patterns = [("user_name".to_owned(), "*".to_owned())].into();
    let rules =
        vec![TenantRule { patterns, tenant: "late".into(), from: Some(after(900)), ..TenantRule::default() }];
    let rules = TenantRules { rules, ..TenantRules::default() };
    ledger.replace_tenant_rules(&Arc::new(rules), boottime(7_300)).unwrap();
    assert_eq!(bill(&world, 0, 3_600).lines, before.lines);
    // After the closed period it holds, and the bill says from when on it was to hold.
    let after_it = bill(&world, 3_600, 7_200);
    let rate = after_it.rates.iter().find(|rate| rate.price == Money(9 * EURO)).unwrap();
    assert_eq!((rate.since, rate.given_since), (Some(after(3_600).ceil(QUARTER_HOUR)), Some(after(900))));
    assert_eq!(after_it.reconciliation.line_money, Money(9 * EURO));
    assert_eq!(after_it.lines[0].tenant, "late");
    // A ledger that is opened again knows what is closed.
    drop(ledger);
    let (_, recovered) = world.open(7_400, late);
    assert!(
        recovered
            .rates
            .rates
            .entries()
            .iter()
            .all(|rate| rate.entry.nano == 3_000_000_000 || rate.begin >= after(3_600))
    );
    assert_eq!(bill(&world, 0, 3_600).lines, before.lines);
}

#[test]
fn a_period_is_closed_once_when_it_is_over_and_its_document_may_be_written_later() {
    let (world, mut ledger) = two_hours();
    let mut order = |order: &StatementOrder| ledger.record_statement(order).map_err(|error| error.cause);
    let open = order(&StatementOrder::Close(period(0, 7_260))).unwrap_err();
    assert!(
        matches!(open, Cause::NotSettled { to, settled } if (to, settled) == (after(7_260), after(7_200))),
        "{open}"
    );
    let unknown = order(&document(period(0, 3_600), "0001", false)).unwrap_err();
    assert!(matches!(unknown, Cause::NotClosed { .. }), "{unknown}");
    let at = order(&StatementOrder::Close(period(0, 3_600))).unwrap();
    // The document could not be written: the same period again, and no other one that overlaps it.
    assert_eq!(order(&StatementOrder::Close(period(0, 3_600))).unwrap(), at);
    assert!(matches!(order(&StatementOrder::Close(period(60, 3_660))).unwrap_err(), Cause::Closed { .. }));
    order(&document(period(0, 3_600), "0001", false)).unwrap();
    let again = order(&StatementOrder::Close(period(0, 3_600))).unwrap_err();
    assert!(matches!(&again, Cause::Closed { number, .. } if number == "0001"), "{again}");
    order(&document(period(0, 3_600), "0002", true)).unwrap();
    order(&StatementOrder::Close(period(3_600, 7_200))).unwrap();
    let rows: String =
        world.sql("SELECT group_concat(kind || coalesce(number, '-'), ' ') FROM statement ORDER BY id");
    assert_eq!(rows, "statement0001 credit0002 statement-");
    assert_eq!(
        world.sql::<i64>("SELECT covered_until_ns FROM ledger"),
        i64::try_from(after(7_200).0).unwrap()
    );
    // Not while an agent has it; then by whoever has the file.
    let owned = record_statement(&world.path(), &StatementOrder::Close(period(3_600, 7_200))).unwrap_err();
    assert!(matches!(owned.cause, Cause::Owned { .. }), "{owned}");
    drop(ledger);
    record_statement(&world.path(), &StatementOrder::Close(period(3_600, 7_200))).unwrap();
    let missing = record_statement(&world.path().with_extension("x"), &StatementOrder::Close(period(0, 60)));
    assert!(matches!(missing.unwrap_err().cause, Cause::Missing));
}

#[test]
fn a_gpu_that_hangs_keeps_a_period_open_until_it_is_forgotten() {
    let (world, mut ledger) = two_hours();
    let second =
        LedgerBatch { now: after(7_202), registrations: vec![registration(1, 0)], ..LedgerBatch::default() };
    ledger.commit(&second).unwrap();
    let held = Parts { within: 15 * SECOND, ..Parts::default() };
    let row = || vec![row("user:b", held, Use { within: 15 * SECOND, ..Use::default() })];
    let closed =
        (0..1_800).step_by(15).map(|from| closed(1, (after(from), after(from + 15)), row())).collect();
    ledger.commit(&LedgerBatch { now: after(7_203), closed, ..LedgerBatch::default() }).unwrap();
    let close = StatementOrder::Close(period(0, 3_600));
    // Bills go on without it.
    assert_eq!(bill(&world, 0, 3_600).to, after(3_600));
    let error = ledger.record_statement(&close).unwrap_err();
    assert!(matches!(&error.cause, Cause::GpuNotSettled { gpu, .. } if *gpu == uuid(1)), "{error}");
    assert!(error.to_string().contains("`gpumeter inventory forget GPU-00000001`"), "{error}");
    drop(ledger);
    assert!(forget(&world.path(), &uuid(1), "first", boottime(7_300)).unwrap());
    record_statement(&world.path(), &close).unwrap();
}

fn statement(bill: Bill, number: &str) -> Document {
    let issued = Issued { by: "ada".into(), at: bill.to, version: "0.1.0".into() };
    Document::Statement(Box::new(Statement {
        number: number.into(),
        before: None,
        issued,
        bill,
        rules: Vec::new(),
        files: Vec::new(),
        gaps: Vec::new(),
        credits: Vec::new(),
        excerpts: BTreeMap::new(),
    }))
}

fn stored(document: Document) -> StoredDocument {
    document.with_digest().unwrap().1
}

#[test]
fn what_is_not_over_not_whole_or_not_balanced_is_not_closed() {
    let (world, _ledger) = two_hours();
    let whole = bill(&world, 0, 3_600);
    check_closable(&whole).unwrap();
    let refused = |bill: Bill| check_closable(&bill).unwrap_err();
    assert!(matches!(refused(bill(&world, 0, 7_260)), StatementError::NotOver { .. }));
    assert_eq!(refused(Bill { partial: true, ..whole.clone() }), StatementError::Partial);
    assert_eq!(refused(Bill { gpus: Vec::new(), ..whole.clone() }), StatementError::Empty);
    let mut unbalanced = whole.clone();
    unbalanced.reconciliation.imbalance = 1;
    assert!(matches!(refused(unbalanced), StatementError::Unbalanced(_)));
    let first = stored(statement(whole.clone(), "0001"));
    for (from, to, is_free) in
        [(3_600, 7_200, true), (0, 3_600, false), (3_540, 7_200, false), (60, 120, false)]
    {
        assert_eq!(check_overlap(&bill(&world, from, to), [&first]).is_ok(), is_free, "{from} {to}");
    }
    // Another node has a statement of the same time.
    check_overlap(&Bill { node: "other".into(), ..whole }, [&first]).unwrap();
}

fn credit(number: &str, statement: DocumentId, amount: i128) -> Document {
    Document::Credit(Box::new(Credit {
        number: number.into(),
        before: None,
        issued: Issued { by: "ada".into(), at: Utc(1), version: "0.1.0".into() },
        node: String::new(),
        cluster: None,
        statement,
        tenant: "a".into(),
        amount: Money(amount),
        currency: "EUR".into(),
        reason: "a fault".into(),
    }))
}

#[test]
fn credits_never_exceed_what_a_tenant_was_charged_and_stand_in_one_statement() {
    let (world, _ledger) = two_hours();
    let first = stored(statement(bill(&world, 0, 3_600), "0001"));
    let Document::Statement(closed) = &first.document else { panic!("{first:?}") };
    let check = |tenant: &str, amount: i128, documents: &[StoredDocument]| {
        check_credit(&first, closed, tenant, Money(amount), documents)
    };
    check("a", 3 * EURO, &[]).unwrap();
    assert!(matches!(check("a", 3 * EURO + 1, &[]), Err(StatementError::TooMuch { .. })));
    let one = stored(credit("0002", first.id(), EURO));
    check("a", 2 * EURO, std::slice::from_ref(&one)).unwrap();
    assert!(matches!(
        check("a", 2 * EURO + 1, std::slice::from_ref(&one)),
        Err(StatementError::TooMuch { .. })
    ));
    assert!(matches!(check("a", i128::MAX, std::slice::from_ref(&one)), Err(StatementError::TooMuch { .. })));
    for tenant in ["b", HolderId::UNALLOCATED] {
        assert!(matches!(check(tenant, 1, &[]), Err(StatementError::NoTenant { .. })), "{tenant}");
    }
    // The next statement names it, and the one after that does not.
    let next = bill(&world, 3_600, 7_200);
    let granted = open_credits(&next, &[first.clone(), one.clone()]);
    assert_eq!(granted.iter().map(|granted| granted.amount).collect::<Vec<_>>(), [Money(EURO)]);
    let Document::Statement(mut second) = statement(next.clone(), "0003") else { unreachable!() };
    second.credits = granted;
    let second = stored(Document::Statement(second));
    assert_eq!(open_credits(&next, &[first, one, second]), []);
}

/// The paths to all values that are no lists and no objects.
fn leaves(value: &Value, path: &str, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), paths))
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(place, value)| leaves(value, &format!("{path}/{place}"), paths));
        }
        _ => paths.push(path.to_owned()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_document_has_one_form_and_any_change_of_it_is_found(
        (windows, rates) in worlds(), book in books(), chosen in any::<prop::sample::Index>(),
    ) {
        let (world, _) = settled(&windows, &rates);
        let request = BillRequest { detail: by_day(), book: Some(book), ..BillRequest::default() };
        let bill = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
        let (text, stored) = statement(bill, "0001").with_digest().unwrap();
        let read = Document::read(&text).unwrap();
        prop_assert!(read.is_unchanged);
        prop_assert_eq!(read.id(), stored.id());
        prop_assert_eq!(&read.document.clone().with_digest().unwrap().0, &text);
        prop_assert_eq!(changed_fields(&text, &read.document).unwrap(), []);
        // Another form of the same content, and any other value in it.
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(!Document::read(&serde_json::to_string(&value).unwrap()).unwrap().is_unchanged);
        let mut paths = Vec::new();
        leaves(&value, "", &mut paths);
        let path = &paths[chosen.index(paths.len())];
        let mut changed = value.clone();
        let leaf = changed.pointer_mut(path).unwrap();
        *leaf = match &*leaf {
            Value::String(text) => format!("1{text}").into(),
            Value::Bool(is_so) => (!*is_so).into(),
            Value::Number(number) => (number.as_u64().unwrap() + 1).into(),
            _ => "1".into(),
        };
        // Not every text is a time, a rate or a document; what is one is not the same.
        if let Ok(read) = Document::read(&format!("{}\n", serde_json::to_string_pretty(&changed).unwrap())) {
            prop_assert!(!read.is_unchanged, "{path}");
        }
    }
}

#[test]
fn a_field_that_does_not_follow_from_the_others_is_named() {
    let (world, _ledger) = two_hours();
    let (text, _) = statement(bill(&world, 0, 3_600), "0001").with_digest().unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let named = |path: &str, new: &str| {
        let mut changed = value.clone();
        *changed.pointer_mut(path).unwrap() = new.into();
        let changed = changed.to_string();
        let read = Document::read(&changed).unwrap();
        let fields = changed_fields(&changed, &read.document).unwrap();
        fields.into_iter().map(|field| field.path).collect::<Vec<_>>()
    };
    let line = "/bill/lines/0";
    for (field, new) in [("money", "1.000000000"), ("exact_money", "1"), ("held_ns", "1")] {
        let path = format!("bill.lines[0].{field}");
        assert!(named(&format!("{line}/{field}"), new).contains(&path), "{field}");
    }
    for (path, new) in [
        ("bill.reconciliation.line_money", "1.000000000"),
        ("bill.reconciliation.gpu_money", "1.000000000"),
        ("bill.reconciliation.slot_ns", "1"),
        ("bill.reconciliation.held_ns", "1"),
    ] {
        assert_eq!(named(&format!("/{}", path.replace('.', "/")), new), [path]);
    }
    assert!(!named(&format!("{line}/charged_ns"), "9").is_empty());
    assert!(!named("/bill/rates/0/price", "9.000000000").is_empty());
    assert!(!named("/bill/gpus/0/money", "9.000000000").is_empty());
    // Names follow from nothing: of these the digest tells.
    assert_eq!(named(&format!("{line}/tenant"), "b"), [""; 0]);
}

/// Runs a command in a directory; returns its status and what it prints.
pub(super) fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    let output = command.arg("statement").args(arguments).current_dir(directory).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_closes_a_month_once_and_shows_it_in_every_form_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::copy(MONTH.path(), place.join("month.db")).unwrap();
    let of_ledger = ["--ledger", "month.db", "--statements", "st", "--closed-by", "ada"];
    let close = |month: &str| {
        run(place, &[&["close", "--month", month, "--time-zone", "Europe/Zurich"], &of_ledger[..]].concat())
    };
    let (status, _, error) = close("2025-11");
    assert_eq!(status, 1, "{error}");
    assert!(error.contains("the period ends at 2025-12-01T00:00:00+01:00"), "{error}");
    let (status, told, error) = close("2025-10");
    assert_eq!((status, &*error), (0, ""));
    assert!(
        told.starts_with("st/statement-0001.json: statement 0001, gpu-7, 2025-10-01 00:00 +02:00"),
        "{told}"
    );
    assert_eq!(close("2025-10").0, 1);
    let path = "st/statement-0001.json";
    let mode = std::fs::metadata(place.join(path)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o444);
    let show = |form: &[&str]| {
        let (status, page, error) = run(place, &[&["show", path], form].concat());
        assert_eq!(status, 0, "{error}");
        page
    };
    let text = show(&[]);
    assert!(text.contains("\ntotal             1490.0000 794.1875"), "{text}");
    assert!(text.starts_with("Statement 0001, sha256:") && !text.contains("less credits"), "{text}");
    assert_eq!(show(&["--json"]), std::fs::read_to_string(place.join(path)).unwrap());
    let csv = show(&["--csv"]);
    let html = show(&["--html"]);
    assert!(html.contains("<p>closed at 2025-10-31T23:00:00Z by ada, gpumeter "), "{html}");
    let (status, _, error) = run(
        place,
        &[&["close", "--month", "2025-09"], &of_ledger[..4], &["--closed-by", "\u{1b}[31m"]].concat(),
    );
    assert_eq!(
        (status, &*error),
        (2, "gpumeter: --closed-by: give a name of 1 to 200 printable characters\n")
    );
    // What is printed does not depend on the ledger any more.
    std::fs::remove_file(place.join("month.db")).unwrap();
    assert_eq!([show(&[]), show(&["--csv"]), show(&["--html"])], [text, csv, html]);
    assert_eq!(run(place, &["verify", path]).0, 0);
    let (status, told, error) = run(place, &["verify", path, "st/missing.json"]);
    assert_eq!((status, told.lines().count()), (1, 2), "{told}");
    assert_eq!(error, "gpumeter: 1 problem was found\n");
}

#[test]
fn a_credit_is_a_line_of_the_next_statement_in_every_form() {
    let (world, _ledger) = two_hours();
    let place = world.directory.path();
    let Document::Statement(mut closed) = statement(bill(&world, 0, 3_600), "0001") else { unreachable!() };
    let first = stored(Document::Statement(closed.clone()));
    let granted = [stored(credit("0002", first.id(), EURO / 2))];
    closed.number = "0003".into();
    closed.credits = open_credits(&closed.bill, &granted);
    let (text, _) = Document::Statement(closed).with_digest().unwrap();
    std::fs::write(place.join("x.json"), text).unwrap();
    let show = |form: &[&str]| run(place, &[&["show", "x.json"], form].concat()).1;
    let page = show(&[]);
    let tail = "credit 0002 to a, of statement 0001: -0.500000000 EUR: a fault\ntotal less credits: 2.500000000 EUR\n";
    assert!(page.ends_with(tail), "{page}");
    assert!(show(&["--html"]).contains("<p>total less credits: 2.500000000 EUR</p>"));
    let table = show(&["--csv"]);
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let heads = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    let cell = |row: &csv::StringRecord, name: &str| {
        row.get(heads.iter().position(|head| head == name).unwrap()).unwrap().to_owned()
    };
    let last = rows.last().unwrap();
    let cells = ["tenant", "amount", "currency", "line", "held_hours"].map(|name| cell(last, name));
    assert_eq!(cells, ["a", "-0.500000000", "EUR", "credit-0002", ""]);
}

#[test]
fn a_directory_with_a_document_that_was_changed_takes_no_other_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::copy(MONTH.path(), place.join("month.db")).unwrap();
    std::fs::create_dir(place.join("st")).unwrap();
    let (world, _ledger) = two_hours();
    let (text, _) = statement(bill(&world, 0, 3_600), "0001").with_digest().unwrap();
    let path = place.join("st/statement-0001.json");
    std::fs::write(&path, text.replace("\"user:a\"", "\"user:b\"")).unwrap();
    let options = ["--time-zone", "Europe/Zurich", "--ledger", "month.db", "--statements", "st"];
    let close = || run(place, &[&["close", "--month", "2025-10"], &options[..]].concat());
    let (status, _, error) = close();
    assert_eq!(status, 1);
    assert!(error.contains("statement-0001.json: it was changed after it was written"), "{error}");
    // Nothing was closed, so it can be once the document is restored; its number stays its own.
    std::fs::write(&path, text).unwrap();
    let (status, told, error) = close();
    assert_eq!(status, 0, "{error}");
    assert!(told.starts_with("st/statement-0002.json: "), "{told}");
}

#[test]
fn a_close_that_was_killed_after_it_wrote_its_document_is_completed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::copy(MONTH.path(), place.join("month.db")).unwrap();
    let close = || {
        let of_ledger = ["--ledger", "month.db", "--statements", "st", "--closed-by", "ada"];
        let month = ["close", "--month", "2025-10", "--time-zone", "Europe/Zurich"];
        run(place, &[&month[..], &of_ledger].concat())
    };
    assert_eq!(close().0, 0);
    let sql =
        |sql: &str| rusqlite::Connection::open(place.join("month.db")).unwrap().execute_batch(sql).unwrap();
    sql("UPDATE statement SET number = NULL, digest = NULL");
    let (status, told, error) = close();
    assert!(status == 0 && told.starts_with("written before: statement 0001, gpu-7"), "{told}{error}");
    let (status, _, error) = close();
    assert!(status == 1 && error.contains("0001"), "{error}");
    assert_eq!(std::fs::read_dir(place.join("st")).unwrap().count(), 1);
}

/// A document with another link to the one before it.
fn linked(document: &Document, before: Option<&StoredDocument>) -> StoredDocument {
    let mut document = document.clone();
    match &mut document {
        Document::Statement(statement) => statement.before = before.map(StoredDocument::id),
        Document::Credit(credit) => credit.before = before.map(StoredDocument::id),
    }
    stored(document)
}

#[test]
fn documents_are_one_chain_of_which_nothing_is_missing_copied_or_changed() {
    let (world, _ledger) = two_hours();
    let first = stored(statement(bill(&world, 0, 3_600), "0001"));
    let given = linked(&credit("0002", first.id(), EURO), Some(&first));
    let Document::Statement(mut next) = statement(bill(&world, 3_600, 7_200), "0003") else { unreachable!() };
    next.credits = given.granted().into_iter().collect();
    let third = linked(&Document::Statement(next.clone()), Some(&given));
    let problems = |documents: &[&StoredDocument], is_whole| {
        let found = chain_problems(documents, is_whole);
        found.into_iter().map(|(place, problem)| format!("{place}: {problem}")).collect::<Vec<_>>()
    };
    assert_eq!(problems(&[&first, &given, &third], true), [""; 0]);
    // A part of a chain refers to what is before it.
    for part in [&[&given, &third][..], &[&third]] {
        assert_eq!(problems(part, false), [""; 0]);
        assert!(problems(part, true)[0].starts_with("0: document"), "{:?}", problems(part, true));
    }
    let gap = problems(&[&first, &third], true);
    assert!(gap[0].starts_with("1: document 0002 is missing before it"), "{gap:?}");
    // Of single files none is missing.
    assert_eq!(problems(&[&first, &third], false), [""; 0]);
    let copied = problems(&[&first, &first, &third], false);
    assert!(copied[0].starts_with("1: another document has the number 0001 too"), "{copied:?}");
    let twice = problems(&[&first, &given, &given, &third], true);
    assert!(twice[0].starts_with("2: another document has the number 0002 too (sha256:"), "{twice:?}");
    // The first was changed: the documents after it have its digest.
    let mut changed = first.document.clone();
    if let Document::Statement(statement) = &mut changed {
        statement.issued.by = "eve".into();
    }
    let changed = problems(&[&stored(changed), &given, &third], true);
    assert!(changed[0].starts_with("1: it was written after 0001 with sha256:"), "{changed:?}");
    assert!(changed[1].starts_with("1: it refers to 0001 with sha256:"), "{changed:?}");
    // The same credit under another number, and in a second statement.
    let again = linked(&credit("0004", first.id(), 3 * EURO), Some(&third));
    let again = problems(&[&first, &given, &third, &again], true);
    assert!(again[0].contains("1.000000000 is credited already"), "{again:?}");
    next.number = "0004".into();
    next.bill = Bill { node: "other".into(), ..next.bill };
    let granted =
        problems(&[&first, &given, &third, &linked(&Document::Statement(next), Some(&third))], true);
    assert_eq!(granted, ["3: it has credit 0002, which statement 0003 has already"]);
    // Earlier documents name none before them; once they do, each does.
    let old = [&first, &stored(given.document.clone()), &third].map(|stored| linked(&stored.document, None));
    let old: Vec<&StoredDocument> = old.iter().collect();
    let found = chain_problems(&old[..1], true);
    assert_eq!(found, []);
    let unlinked = [&first, &given, &linked(&third.document, None)];
    let unlinked = problems(&unlinked, true);
    assert!(unlinked[0].starts_with("2: it does not name the document before it, 0002"), "{unlinked:?}");
    let odd = stored(statement(bill(&world, 0, 3_600), "1"));
    assert!(matches!(&chain_problems(&[&odd], true)[..], [(0, ChainError::Number(number))] if number == "1"));
}

#[test]
fn a_node_is_billed_by_its_own_statement_or_by_that_of_a_fleet_with_it() {
    let (world, _ledger) = two_hours();
    let own = Bill { node: "gpu-7".into(), cluster: Some("a".into()), ..bill(&world, 0, 3_600) };
    let fleet = |name: &str, cluster: Option<&str>| {
        let node =
            NodeIdentity { name: name.into(), cluster: cluster.map(Into::into), ..NodeIdentity::default() };
        let mut fleet = Bill { fleet: Some(Fleet::default()), ..bill(&world, 0, 7_200) };
        fleet.lines.iter_mut().for_each(|line| line.node = Some(Arc::new(node.clone())));
        fleet
    };
    // Time that a node did not report has no cluster.
    for (cluster, is_free) in [(Some("a"), false), (None, false), (Some("b"), true)] {
        let fleet = fleet("gpu-7", cluster);
        let closed = [stored(statement(own.clone(), "0001")), stored(statement(fleet.clone(), "0001"))];
        assert_eq!(check_overlap(&fleet, [&closed[0]]).is_ok(), is_free);
        let refused = check_overlap(&own, [&closed[1]]);
        assert_eq!(refused.is_ok(), is_free);
        if let Err(error) = refused {
            assert!(
                error.to_string().starts_with("statement 0001 covers gpu-7 from 2025-11-14T22:15:00Z"),
                "{error}"
            );
        }
    }
    let other = stored(statement(fleet("gpu-8", Some("a")), "0001"));
    check_overlap(&own, [&other]).unwrap();
    let both = [&other, &stored(statement(own, "0002"))];
    assert_eq!(chain_problems(&both, true), []);
}

/// A place with the ledger of October and November, a statement of October, and a credit for it.
static CLOSED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(MONTH.path(), directory.path().join("month.db")).unwrap();
    let done = |arguments: &[&str]| {
        let (status, told, error) = in_ledger(directory.path(), arguments);
        assert_eq!(status, 0, "{told}{error}");
    };
    done(&["close", "--month", "2025-10", "--time-zone", "Europe/Zurich"]);
    play_november(&directory.path().join("month.db"));
    done(&[&["credit", "st/statement-0001.json"][..], &CREDIT].concat());
    directory
});

/// A copy of that place.
pub(super) fn closed_months() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("st")).unwrap();
    for name in ["month.db", "st/statement-0001.json", "st/credit-0002.json"] {
        std::fs::copy(CLOSED.path().join(name), directory.path().join(name)).unwrap();
    }
    directory
}

const CREDIT: [&str; 6] = ["--tenant", "bio", "--amount", "14.35", "--reason", "a late rate"];
const OTHER_CREDIT: [&str; 6] = ["--tenant", "bio", "--amount", "1.00", "--reason", "another one"];
pub(super) const NOVEMBER: [&str; 5] = ["close", "--month", "2025-11", "--time-zone", "Europe/Zurich"];

/// Runs a command with `month.db` and `st`.
pub(super) fn in_ledger(place: &Path, arguments: &[&str]) -> (i32, String, String) {
    run(place, &[arguments, &["--ledger", "month.db", "--statements", "st", "--closed-by", "ada"]].concat())
}

/// Changes a document, and gives it and its excerpts new digests.
pub(super) fn forge(path: &Path, change: impl FnOnce(&mut Document)) {
    let mut document = Document::read(&std::fs::read_to_string(path).unwrap()).unwrap().document;
    change(&mut document);
    if let Document::Statement(statement) = &mut document {
        statement.excerpts = statement.excerpt_digests().unwrap();
    }
    let _ = std::fs::remove_file(path);
    std::fs::write(path, document.with_digest().unwrap().0).unwrap();
}

fn change_closer(document: &mut Document) {
    match document {
        Document::Statement(statement) => statement.issued.by = "eve".into(),
        Document::Credit(credit) => credit.issued.by = "eve".into(),
    }
}

#[test]
fn close_credit_and_verify_refuse_a_copy_a_gap_and_a_changed_document_by_name() {
    let refused = |change: &dyn Fn(&Path), told: &str| {
        let directory = closed_months();
        let place = directory.path();
        change(&place.join("st"));
        let credit = [&["credit", "st/statement-0001.json"][..], &OTHER_CREDIT].concat();
        for command in [&NOVEMBER[..], &credit] {
            let (status, _, error) = in_ledger(place, command);
            assert!(status == 1 && error.contains(told), "{command:?}: {error}");
        }
        let (status, page, error) = run(place, &["verify", "st", "--ledger", "month.db"]);
        assert!(status == 1 && page.contains(told), "{page}{error}");
        // Nothing was closed, and no credit was given.
        let ledger = rusqlite::Connection::open(place.join("month.db")).unwrap();
        let rows: i64 = ledger.query_row("SELECT count(*) FROM statement", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 2, "{told}");
    };
    let copy =
        |place: &Path| drop(std::fs::copy(place.join("credit-0002.json"), place.join("credit-0009.json")));
    refused(&copy, "another document has the number 0002 too");
    let gap =
        |place: &Path| std::fs::rename(place.join("statement-0001.json"), place.join("old.json")).unwrap();
    let credit_of_old = ["credit", "st/old.json"];
    let directory = closed_months();
    gap(&directory.path().join("st"));
    for command in [&NOVEMBER[..], &[&credit_of_old[..], &OTHER_CREDIT].concat(), &["verify", "st"]] {
        let (_, page, error) = match command {
            ["verify", ..] => run(directory.path(), command),
            _ => in_ledger(directory.path(), command),
        };
        assert!((page + &error).contains("credit-0002.json: document 0001 is missing before it"), "{error}");
    }
    let first = |place: &Path| forge(&place.join("statement-0001.json"), change_closer);
    refused(&first, "credit-0002.json: it was written after 0001 with sha256:");
    // The last of a chain is in no document: the ledger has its digest.
    let last = |place: &Path| forge(&place.join("credit-0002.json"), change_closer);
    refused(&last, "credit-0002.json: the ledger recorded sha256:");
    let more = |place: &Path| {
        let before =
            Document::read(&std::fs::read_to_string(place.join("credit-0002.json")).unwrap()).unwrap();
        std::fs::copy(place.join("credit-0002.json"), place.join("credit-0003.json")).unwrap();
        forge(&place.join("credit-0003.json"), |document| {
            let Document::Credit(credit) = document else { unreachable!() };
            (credit.number, credit.before) = ("0003".into(), Some(before.id()));
        });
    };
    refused(&more, "credit-0003.json: the ledger has not recorded it");
}

#[test]
fn a_chain_is_verified_against_its_ledger_and_continued() {
    let directory = closed_months();
    let place = directory.path();
    let (status, told, error) = in_ledger(place, &NOVEMBER);
    assert!(status == 0 && told.contains("statement 0003") && told.contains("1 credit"), "{told}{error}");
    let all = ["verify", "st", "--ledger", "month.db"];
    let (status, told, error) = run(place, &all);
    assert_eq!((status, &*error), (0, ""), "{told}");
    assert_eq!(told.matches(": unchanged: ").count(), 3, "{told}");
    assert_eq!(told.matches(": the same account in the ledger\n").count(), 2, "{told}");
    // Without a ledger or exports the chain alone is checked, and of single files what can be told.
    assert_eq!(run(place, &["verify", "st"]).0, 0);
    let part = ["verify", "st/credit-0002.json", "st/statement-0003.json"];
    assert_eq!(run(place, &part).0, 0);
    assert_eq!(run(place, &["verify", "st/statement-0001.json", "st/statement-0003.json"]).0, 0);
    // The statement is removed: the next would bill its credit again.
    std::fs::rename(place.join("st/statement-0003.json"), place.join("removed.json")).unwrap();
    let december = ["close", "--month", "2025-12", "--time-zone", "Europe/Zurich"];
    for command in [&december[..], &[&["credit", "st/statement-0001.json"][..], &OTHER_CREDIT].concat()] {
        let (status, _, error) = in_ledger(place, command);
        assert!(status == 1 && error.contains("--statements st: document 0003 is missing"), "{error}");
    }
}

#[test]
fn a_directory_per_year_is_closed_credited_and_verified() {
    let directory = closed_months();
    let place = directory.path();
    // The ledger has documents 0001 and 0002 in another directory.
    let new = ["--ledger", "month.db", "--statements", "new", "--closed-by", "ada"];
    let (status, told, error) = run(place, &[&NOVEMBER[..], &new].concat());
    assert!(status == 0 && told.starts_with("new/statement-0001.json"), "{told}{error}");
    let (status, told, error) =
        run(place, &[&["credit", "new/statement-0001.json"][..], &OTHER_CREDIT, &new].concat());
    assert!(status == 0 && told.starts_with("new/credit-0002.json"), "{told}{error}");
    // The old month is still corrected where it is.
    let (status, told, error) =
        in_ledger(place, &[&["credit", "st/statement-0001.json"][..], &OTHER_CREDIT].concat());
    assert!(status == 0 && told.starts_with("st/credit-0003.json"), "{told}{error}");
    let (status, told, error) = run(place, &["verify", "st", "new", "--ledger", "month.db"]);
    assert_eq!((status, &*error), (0, ""), "{told}");
    let (status, told, error) = run(place, &["verify", "new", "--ledger", "month.db"]);
    assert!(
        status == 1 && told.contains("document 0003 is missing") && told.contains("give its directory too"),
        "{told}"
    );
    assert_eq!(error, "gpumeter: 1 problem was found\n");
    // In the new directory, too, nothing is changed unseen.
    forge(&place.join("new/credit-0002.json"), change_closer);
    let (status, _, error) =
        run(place, &[&["credit", "new/statement-0001.json"][..], &OTHER_CREDIT, &new].concat());
    assert!(status == 1 && error.contains("credit-0002.json: the ledger recorded sha256:"), "{error}");
}

#[test]
fn a_credit_that_is_missing_or_not_recorded_is_given_again() {
    let directory = closed_months();
    let place = directory.path();
    let again = [&["credit", "st/statement-0001.json"][..], &CREDIT].concat();
    // A ledger from before the credit was put back.
    let ledger = rusqlite::Connection::open(place.join("month.db")).unwrap();
    ledger.execute("DELETE FROM statement WHERE number = '0002'", []).unwrap();
    drop(ledger);
    let (status, _, error) = in_ledger(place, &NOVEMBER);
    assert!(status == 1 && error.contains("give the same credit again"), "{error}");
    let (status, told, error) = in_ledger(place, &again);
    assert!(
        status == 0 && told.starts_with("written before: credit 0002, 14.350000000 EUR to bio"),
        "{told}{error}"
    );
    assert_eq!(run(place, &["verify", "st", "--ledger", "month.db"]).0, 0);
    // A credit that was recorded and never written.
    std::fs::remove_file(place.join("st/credit-0002.json")).unwrap();
    let (status, _, error) = in_ledger(place, &NOVEMBER);
    let told = "document 0002 is missing, which the ledger recorded with sha256:";
    assert!(status == 1 && error.contains(told) && error.contains("if it was never written"), "{error}");
    let (status, page, _) = run(place, &["verify", "st", "--ledger", "month.db"]);
    assert!(status == 1 && page.contains(told), "{page}");
    let (status, told, error) = in_ledger(place, &again);
    assert!(status == 0 && told.starts_with("st/credit-0002.json: credit 0002"), "{told}{error}");
    let (status, told, error) = in_ledger(place, &NOVEMBER);
    assert!(status == 0 && told.contains("statement 0003") && told.contains("1 credit"), "{told}{error}");
    assert_eq!(run(place, &["verify", "st", "--ledger", "month.db"]).0, 0);
}

#[test]
fn documents_that_already_cover_one_time_block_nothing_and_are_found_by_verify() {
    let directory = closed_months();
    let place = directory.path();
    // Another statement of the node, as that of a fleet could be.
    std::fs::copy(place.join("st/statement-0001.json"), place.join("st/statement-0003.json")).unwrap();
    let before =
        Document::read(&std::fs::read_to_string(place.join("st/credit-0002.json")).unwrap()).unwrap();
    forge(&place.join("st/statement-0003.json"), |document| {
        let Document::Statement(statement) = document else { unreachable!() };
        (statement.number, statement.before) = ("0003".into(), Some(before.id()));
        statement.bill.cluster = None;
        statement.bill.fleet = Some(Fleet::default());
        let node = Arc::new(NodeIdentity { name: statement.bill.node.clone(), ..NodeIdentity::default() });
        statement.bill.lines.iter_mut().for_each(|line| line.node = Some(Arc::clone(&node)));
    });
    let (status, told, error) =
        in_ledger(place, &[&["credit", "st/statement-0001.json"][..], &OTHER_CREDIT].concat());
    assert!(status == 0 && told.starts_with("st/credit-0004.json"), "{told}{error}");
    let (status, told, error) = in_ledger(place, &NOVEMBER);
    assert!(status == 0 && told.contains("statement 0005"), "{told}{error}");
    let (status, page, _) = run(place, &["verify", "st"]);
    assert!(status == 1 && page.contains("statement-0003.json: statement 0001 covers gpu-7"), "{page}");
}

#[test]
fn a_row_that_was_changed_after_the_close_is_found_in_the_ledger() {
    let directory = closed_months();
    let place = directory.path();
    let sql =
        |sql: &str| rusqlite::Connection::open(place.join("month.db")).unwrap().execute_batch(sql).unwrap();
    let verify = || run(place, &["verify", "st", "--ledger", "month.db"]);
    assert_eq!(verify().0, 0);
    // A second of one tenant's job becomes another's, in the same minute of the same GPU.
    let of = |name: &str, sign: &str| {
        format!(
            "UPDATE account SET idle_ns = idle_ns {sign} 1000000000 WHERE gpu = 2 AND minute_ns = 1760500800000000000
             AND holder = (SELECT id FROM holder WHERE name = '{name}');"
        )
    };
    sql(&[of("slurm:alpha/11", "-"), of("__unallocated__", "+")].concat());
    let (status, told, error) = verify();
    assert!(status == 1, "{told}{error}");
    let line = told.lines().find(|line| line.contains("changed in the ledger: ")).unwrap();
    assert!(line.contains("2025-10-15") && line.contains(" now, held "), "{line}");
    assert!(!told.contains("the same account"), "{told}");
}

#[test]
fn what_is_no_longer_kept_is_a_note() {
    let directory = closed_months();
    let place = directory.path();
    let sql =
        |sql: &str| rusqlite::Connection::open(place.join("month.db")).unwrap().execute_batch(sql).unwrap();
    sql("UPDATE ledger SET deleted_until_ns = 1760500800000000000;
         DELETE FROM account WHERE minute_ns < 1760500800000000000");
    let (status, told, error) = run(place, &["verify", "st", "--ledger", "month.db"]);
    assert_eq!(status, 0, "{told}{error}");
    assert!(
        told.contains(": no longer kept in the ledger: its rows before 2025-10-15T04:00:00Z are deleted"),
        "{told}"
    );
}

#[test]
fn documents_from_before_they_named_each_other_are_verified_and_continued() {
    let directory = closed_months();
    let place = directory.path();
    let path = place.join("st/credit-0002.json");
    forge(&path, |document| {
        let Document::Credit(credit) = document else { unreachable!() };
        credit.before = None;
    });
    let digest = Document::read(&std::fs::read_to_string(&path).unwrap()).unwrap().digest;
    let ledger = rusqlite::Connection::open(place.join("month.db")).unwrap();
    ledger.execute("UPDATE statement SET digest = ?1 WHERE number = '0002'", [digest]).unwrap();
    drop(ledger);
    let (status, told, error) = in_ledger(place, &NOVEMBER);
    assert_eq!(status, 0, "{told}{error}");
    assert_eq!(run(place, &["verify", "st", "--ledger", "month.db"]).0, 0);
}

#[test]
fn a_credit_for_a_statement_that_the_ledger_has_not_recorded_is_refused() {
    let directory = closed_months();
    let place = directory.path();
    rusqlite::Connection::open(place.join("month.db"))
        .unwrap()
        .execute_batch("DELETE FROM statement")
        .unwrap();
    let credit = [&["credit", "st/statement-0001.json"][..], &CREDIT].concat();
    let (status, _, error) = in_ledger(place, &credit);
    assert!(status == 1 && error.contains("is it the ledger of that statement?"), "{error}");
    assert_eq!(std::fs::read_dir(place.join("st")).unwrap().count(), 2);
}

#[test]
fn a_pipe_in_place_of_a_document_is_refused_and_never_waited_for() {
    let directory = closed_months();
    let place = directory.path();
    assert!(Command::new("mkfifo").arg(place.join("st/credit-0003.json")).status().unwrap().success());
    let told = "credit-0003.json: cannot be read: it is a named pipe, and must be a regular file";
    let (status, _, error) = in_ledger(place, &NOVEMBER);
    assert!(status == 2 && error.contains(told), "{error}");
    let (status, page, _) = run(place, &["verify", "st"]);
    assert!(status == 1 && page.contains(told), "{page}");
}
