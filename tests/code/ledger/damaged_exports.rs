//! Files of exports that are damaged, in the place of others, or that say what cannot be.

use std::collections::BTreeSet;
use std::fs;

use gpumeter::accounting::billing::{
    Bill, BillLine, BillRequest, BillTerms, DayAccount, DayRow, ExactMoney, LineDetail,
};
use gpumeter::accounting::day_files::{ExportDirectory, ExportSource, write_day, write_days, write_file};
use gpumeter::accounting::ledger::{Ledger, Reader};
use gpumeter::model::{Amounts, DAY, HolderId, Nanoseconds, Parts};
use proptest::prelude::*;

use super::exports::{by_tenant, export, fleet_bill, node, only_file, opened, source, tenants, whole_bill};
use super::month::MONTH;
use super::world::{SECOND, after, between};

#[test]
fn times_of_a_file_that_no_gpu_can_have_are_refused() {
    let (directory, world) = (tempfile::tempdir().unwrap(), node("a", 0, 6));
    export(&world.path(), directory.path());
    let path = only_file(directory.path());
    let mut reader = Reader::open(&world.path()).unwrap();
    let (first, _) = reader.days().unwrap()[0];
    let mut day = reader.day(first).unwrap();
    for row in &mut day.rows {
        row.line.amounts.parts.idle = i64::MAX.cast_unsigned();
    }
    let held: i128 = day.rows.iter().map(|row| i128::from(row.line.amounts.parts.held())).sum();
    day.header.imbalance = day.header.revision.slot.0.cast_signed() - held;
    fs::write(&path, write_day(&day).unwrap()).unwrap();
    let error = whole_bill(directory.path()).unwrap_err().to_string();
    assert!(error.contains("idle_ns is 9223372036854775807 in a row"), "{error}");
}

#[test]
fn a_damaged_file_is_named_and_left_out_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    export(&node("a", 0, 4).path(), directory.path());
    export(&node("b", 1, 4).path(), directory.path());
    let path = only_file(directory.path());
    for bytes in [&b""[..], b"PAR1 and no more", &fs::read(&path).unwrap()[..500]] {
        fs::write(&path, bytes).unwrap();
        let error = whole_bill(directory.path()).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--skip-damaged"), "{error}");
    }
    let skipping = ExportSource { skip_damaged: true, ..source(directory.path()) };
    let bill = fleet_bill(&skipping, &BillRequest::default()).unwrap();
    assert_eq!(by_tenant(&bill).len(), 1);
    assert_eq!(bill.fleet.as_ref().unwrap().notes, [format!("LEFT OUT, damaged: {}", path.display())]);
    let empty = tempfile::tempdir().unwrap();
    let error = whole_bill(empty.path()).unwrap_err().to_string();
    assert!(error.contains("there is no file cluster=*/date=*/ledger=*/day.parquet below it"), "{error}");
    let error = fleet_bill(&skipping, &between(Some(after(60)), None)).unwrap_err().to_string();
    assert!(error.contains("2025-11-14T22:16:00Z is not on a quarter hour"), "{error}");
}

/// The account of a day of the month, with MIG instances, terms, energy and lost time.
fn day_of_month() -> DayAccount {
    let mut reader = Reader::open(&MONTH.path()).unwrap();
    let (day, _) = reader.days().unwrap()[10];
    reader.day(day).unwrap()
}

/// What is said about a directory with only that day.
fn bill_of(account: &DayAccount) -> Result<Bill, String> {
    let directory = tempfile::tempdir().unwrap();
    let exports = ExportDirectory(directory.path());
    write_file(exports, &account.header, &write_day(account).unwrap()).unwrap();
    whole_bill(directory.path()).map_err(|error| error.to_string())
}

#[test]
fn money_and_charged_time_that_are_moved_from_one_row_to_another_are_noticed() {
    let whole = day_of_month();
    bill_of(&whole).unwrap();
    let part = ExactMoney::of_parts(1);
    let is_priced = |row: &&DayRow| row.line.rates.time.is_some();
    let mut tried = BTreeSet::new();
    for (place, row) in whole.rows.iter().enumerate().filter(|(_, row)| is_priced(row)) {
        // Each kind of row once, as the one that gains from another of its GPU.
        let line = &row.line;
        let kind = (line.tenant.clone(), line.slot.profile.clone(), line.rates);
        let is_other = |(at, other): &(usize, &DayRow)| {
            *at != place && other.line.gpu == line.gpu && other.line.charged.0 > 0 && is_priced(other)
        };
        let Some((other, _)) = whole.rows.iter().enumerate().find(is_other) else { continue };
        if !tried.insert(kind) {
            continue;
        }
        let moved = |change: &dyn Fn(&mut BillLine, bool)| {
            let mut account = whole.clone();
            change(&mut account.rows[place].line, true);
            change(&mut account.rows[other].line, false);
            bill_of(&account).unwrap_err()
        };
        let money = moved(&|line, gains| {
            let moved = if gains { line.exact.plus(part) } else { line.exact.minus(part) };
            line.exact = moved.unwrap();
        });
        let energy = moved(&|line, gains| {
            for money in [&mut line.exact, &mut line.exact_energy] {
                *money = if gains { money.plus(part) } else { money.minus(part) }.unwrap();
            }
        });
        let time = moved(&|line, gains| {
            let time = line.charged.0;
            line.charged = Nanoseconds(if gains { time + 1 } else { time - 1 });
        });
        for error in [money, energy, time] {
            assert!(error.contains("is not what its rates and terms make of it"), "{error}");
        }
    }
    assert!(tried.len() >= 5, "{tried:?}");
    let tenants: BTreeSet<&str> = tried.iter().map(|(tenant, ..)| &**tenant).collect();
    assert!(tenants.contains("__rate_variance__") && tenants.contains("__unallocated__"), "{tenants:?}");
}

#[test]
fn a_row_whose_rate_or_terms_are_not_in_the_header_is_refused() {
    let mut account = day_of_month();
    account.header.rates.clear();
    let error = bill_of(&account).unwrap_err();
    assert!(error.contains("its header has no rate"), "{error}");
    let mut account = day_of_month();
    let terms = BillTerms { id: 1, tenant: "x".into(), terms: "free".into(), since: None, recorded: None };
    account.header.terms.push(terms);
    let error = bill_of(&account).unwrap_err();
    assert!(error.contains("its terms \"free\" are none that gpumeter has"), "{error}");
}

#[test]
fn a_damaged_file_that_is_left_out_leaves_no_row_in_the_bill() {
    let directory = tempfile::tempdir().unwrap();
    let exports = ExportDirectory(directory.path());
    export(&node("b", 1, 4).path(), directory.path());
    let account = Reader::open(&node("a", 0, 4).path()).unwrap().day(after(0).floor(DAY)).unwrap();
    let part = 4 * 900 * SECOND / 4 / 3_000;
    // 12,000 rows are read in two parts, and the last row is wrong.
    let mut rows: Vec<DayRow> = Vec::new();
    for row in account.rows.iter().filter(|row| !row.line.holder.is_remainder()) {
        for place in 0..3_000 {
            let mut row = row.clone();
            row.line.holder = HolderId::new(format!("user:{place:04}"));
            row.line.amounts =
                Amounts { parts: Parts { idle: part, ..Parts::default() }, ..Amounts::default() };
            row.line.charged = Nanoseconds(part);
            row.line.exact = ExactMoney::of_time(3_600_000_000_000, part);
            rows.push(row);
        }
    }
    let mut large = DayAccount { rows, ..account };
    write_file(exports, &large.header, &write_day(&large).unwrap()).unwrap();
    let skipping = ExportSource { skip_damaged: true, ..source(directory.path()) };
    let by_tenants = BillRequest { detail: LineDetail::default(), ..BillRequest::default() };
    let whole = fleet_bill(&skipping, &by_tenants).unwrap();
    assert_eq!(by_tenant(&whole), tenants(&[("a", 3_600, 3_600_000), ("b", 3_600, 3_600_000)]));
    let last = large.rows.last_mut().unwrap();
    last.line.exact = ExactMoney::ZERO;
    write_file(exports, &large.header, &write_day(&large).unwrap()).unwrap();
    let bill = fleet_bill(&skipping, &by_tenants).unwrap();
    assert_eq!(by_tenant(&bill), tenants(&[("b", 3_600, 3_600_000)]));
    assert_eq!(bill.gpus.len(), 1);
    let notes = &bill.fleet.as_ref().unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("LEFT OUT, damaged: ")), "{notes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_file_with_other_bytes_is_the_same_account_or_an_error(place in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let directory = tempfile::tempdir().unwrap();
        export(&node("a", 0, 3).path(), directory.path());
        let path = only_file(directory.path());
        let whole = whole_bill(directory.path()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        if let Ok(bill) = whole_bill(directory.path()) {
            prop_assert_eq!(by_tenant(&bill), by_tenant(&whole), "byte {} of {}", place, bytes.len());
        }
    }
}

#[test]
fn a_file_of_another_day_or_another_node_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let world = node("a", 0, 4);
    export(&world.path(), directory.path());
    let path = only_file(directory.path());
    let ledger = path.parent().unwrap();
    let other = ledger.parent().unwrap().with_file_name("date=2025-11-13").join(ledger.file_name().unwrap());
    fs::create_dir_all(&other).unwrap();
    fs::copy(&path, other.join("day.parquet")).unwrap();
    let error = whole_bill(directory.path()).unwrap_err().to_string();
    assert!(error.contains("it is the file of 2025-11-14 of ledger"), "{error}");
    fs::remove_dir_all(other.parent().unwrap()).unwrap();
    // An image with a ledger in it, where the machine has no id.
    let copy = world.copy_as_killed();
    drop(Ledger::open(&copy.path(), &opened("b", 3_700)).unwrap());
    rusqlite::Connection::open(copy.path()).unwrap().execute_batch("DELETE FROM past_node").unwrap();
    let mut reader = Reader::open(&copy.path()).unwrap();
    let error = write_days(&mut reader, ExportDirectory(directory.path()), || false).unwrap_err().to_string();
    assert!(
        error.contains("is of node a, which this node never was: a ledger was copied with its id"),
        "{error}"
    );
}
