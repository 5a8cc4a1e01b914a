//! Generates the ledger of a node with 8 GPUs, each shared by four jobs, and shows how large it is while retention works, how
//! long its steps take, and how long the bill of a month takes before and after its minutes are summed up, and advice.
//!
//! `cargo run --release --features examples --example ledger_size -- --days 400` writes 18 million minutes of jobs, as settled by the minute.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program, not the agent")]

use std::path::Path;
use std::time::Duration;

use gpumeter::accounting::advice::AdviceRequest;
use gpumeter::accounting::batches::{ClosedWindow, GpuRegistration, LedgerBatch};
use gpumeter::accounting::billing::{BillRequest, PriceBook, Rate, RateKind, RateSelector};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader, Retention};
use gpumeter::model::{
    ActivitySource, Amounts, Bytes, Evidence, Fact, Facts, GpuId, Grade, HOUR, Holder, HolderId, HolderKind,
    HoldingSource, Method, Microjoules, Nanoseconds, Parts, Row, Run, RunKey, Settlement, ShapeKey, SlotId,
    Stamp, Tariff, Use, Utc,
};
use gpumeter::runtime::clock::processor_time;
use rusqlite::Connection;

const GPUS: u32 = 8;
const SHARES: u64 = 4;
const MINUTE: u64 = 60_000_000_000;
const QUARTER: u64 = 15;
const DAY: u64 = 1_440;
/// How long a job runs, in minutes.
const JOB: u64 = 12 * 60;
/// 2025-10-01T00:00:00Z.
const BEGIN: Utc = Utc(1_759_276_800_000_000_000);
/// Those of the default configuration.
const RETENTION: Retention =
    Retention { minutes: Nanoseconds(35 * DAY * MINUTE), quarter_hours: Nanoseconds(400 * DAY * MINUTE) };

fn main() {
    let Some((days, is_backlog)) = options() else {
        println!("usage: ledger_size [--days N] [--backlog], N from 70 on");
        std::process::exit(2)
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let mut ledger = open(&path, 0);
    register(&mut ledger);
    let (mut random, mut steps) = (Random(1), Steps::default());
    for minute in (0..days * DAY).step_by(QUARTER as usize) {
        commit_quarter(&mut ledger, minute, &mut random);
        if !is_backlog {
            steps.take_all(&mut ledger);
        }
        if minute + QUARTER == 35 * DAY {
            print_size("35 days", &path, 35);
            print_bill("of October, from minutes", &path);
        }
    }
    print_size(&format!("{days} days"), &path, days);
    if is_backlog {
        steps.take_all(&mut ledger);
        print_size("after the backlog", &path, days);
    }
    print_bill("of October, from quarter hours", &path);
    print_advice(&path);
    println!(
        "{} steps of retention: {:?} of a processor, the longest {:?}",
        steps.number, steps.sum, steps.longest
    );
    drop(ledger);
    println!("{}", gpumeter::accounting::ledger::compact(&path).unwrap());
}

fn options() -> Option<(u64, bool)> {
    let mut arguments = std::env::args().skip(1);
    let (mut days, mut is_backlog) = (400, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--days" => days = arguments.next()?.parse().ok().filter(|days| *days >= 70)?,
            "--backlog" => is_backlog = true,
            _ => return None,
        }
    }
    Some((days, is_backlog))
}

/// What the steps of retention took.
#[derive(Default)]
struct Steps {
    number: u64,
    sum: Duration,
    longest: Duration,
}

impl Steps {
    fn take_all(&mut self, ledger: &mut Ledger) {
        loop {
            let begun = processor_time();
            let is_more = ledger.retain(RETENTION).unwrap();
            let time = Duration::from_nanos(processor_time().0 - begun.0);
            if !is_more {
                return;
            }
            self.number += 1;
            self.sum += time;
            self.longest = self.longest.max(time);
        }
    }
}

/// A generator of numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn at(minute: u64) -> Utc {
    BEGIN.plus(Nanoseconds(minute * MINUTE))
}

fn open(path: &Path, minute: u64) -> Ledger {
    let rate = |kind, nano, selector| Rate {
        kind,
        selector,
        from: None,
        nano,
        tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
        derivation: None,
    };
    // Makes advice add up what was held. No job fits on it: each shares its GPU.
    let smaller = RateSelector {
        model: Some("*H100*".to_owned()),
        mig_profile: Some("1g.10gb".to_owned()),
        ..RateSelector::default()
    };
    let rates = vec![
        rate(RateKind::GpuHour, 2_500_000_000, RateSelector::default()),
        rate(RateKind::InstanceHour, 400_000_000, smaller),
    ];
    let boottime = Nanoseconds((minute + 60) * MINUTE);
    let opening = Opening {
        boot_id: "size".into(),
        now: Stamp { boottime, utc: at(minute) },
        book: PriceBook { rates, ..PriceBook::default() },
        ..Opening::default()
    };
    Ledger::open(path, &opening).unwrap().0
}

fn uuid(gpu: u32) -> String {
    format!("GPU-{gpu:08x}-1234-5678-9abc-def012345678")
}

fn register(ledger: &mut Ledger) {
    let registrations = (0..GPUS).map(|index| GpuRegistration {
        gpu: GpuId { index, uuid: uuid(index).into() },
        model: "NVIDIA H100 80GB HBM3".into(),
        memory: Some(Bytes(80 << 30)),
        at: BEGIN,
    });
    let registrations = registrations.collect();
    ledger.commit(&LedgerBatch { now: BEGIN, registrations, ..LedgerBatch::default() }).unwrap();
}

/// The job on a share of a GPU; they change one after the other.
fn job(gpu: u32, share: u64, minute: u64) -> Holder {
    let number = (minute + share * JOB / SHARES) / JOB * 100 + u64::from(gpu) * SHARES + share;
    let number = number.to_string();
    let facts = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, &*number), (Fact::SlurmAccount, "physics")];
    Holder::new(HolderKind::Slurm, Facts::new(facts))
}

/// Commits a quarter hour, a window for each minute and GPU.
fn commit_quarter(ledger: &mut Ledger, begin: u64, random: &mut Random) {
    let shares = || (0..GPUS).flat_map(|gpu| (0..SHARES).map(move |share| (gpu, share)));
    let holders = shares().map(|(gpu, share)| job(gpu, share, begin)).collect();
    let mut closed = Vec::new();
    for minute in begin..begin + QUARTER {
        for gpu in 0..GPUS {
            let rows: Vec<Row> =
                (0..SHARES).map(|share| row(job(gpu, share, begin).id, minute, random)).collect();
            let evidence = evidence(&rows, minute, random);
            let (carry, weights, flags) = Default::default();
            let settlement =
                Settlement { from: at(minute), to: at(minute + 1), rows, carry, weights, flags, evidence };
            closed.push(ClosedWindow { gpu: uuid(gpu).into(), settlement, coarse: false });
        }
    }
    ledger
        .commit(&LedgerBatch { now: at(begin + QUARTER), holders, closed, ..LedgerBatch::default() })
        .unwrap();
}

/// A quarter of a GPU for a minute, of which some is used by its job, and some by others.
fn row(holder: HolderId, minute: u64, random: &mut Random) -> Row {
    let held = MINUTE / SHARES;
    let within = random.below(held);
    let lent = random.below(held - within + 1);
    let parts = Parts { within, lent, idle: held - within - lent, ..Parts::default() };
    let used = Use { within, beyond: lent, ..Use::default() };
    let amounts = Amounts {
        parts,
        used,
        energy_static: Microjoules(1_000_000_000 + random.below(100_000_000)),
        energy_dynamic: Microjoules(random.below(8_000_000_000)),
        memory_byte_seconds: 60 * (random.below(20 << 30)),
        energy_waiting: Microjoules(if (minute / 60).is_multiple_of(4) {
            random.below(3_000_000_000)
        } else {
            0
        }),
        measured: used.total(),
        memory_peak: 1 + random.below(80 << 30),
    };
    let (grade, method, source) = (Grade::Measured, Method::Observed, ActivitySource::Gpm);
    let granted_by = Some(HoldingSource::Slurm);
    Row { slot: SlotId::default(), holder, amounts, grade, method, source, granted_by }
}

/// Evidence as if each job had the GPU alone: shares of a job stay within 20 % of each other for an hour.
fn evidence(rows: &[Row], minute: u64, random: &mut Random) -> Evidence {
    let mut evidence = Evidence::default();
    for (place, row) in (0..).zip(rows) {
        let key = ShapeKey { hour: at(minute).floor(HOUR), gpu_instance: None, holder: row.holder.clone() };
        for (series, shape) in evidence.shapes.entry(key).or_default().iter_mut().enumerate() {
            let least = (minute / 60 + 7 * place + 13 * series as u64) % 80 * 100;
            shape.add_alone((least + random.below(2_000)) as u16, Nanoseconds(MINUTE));
        }
        let mut run = Run::new(row.holder.clone(), at(minute));
        run.add_measured(at(minute), at(minute + 1), minute % 20 > 7);
        run.end = at(minute + 1);
        run.amounts = row.amounts;
        let key = RunKey { gpu_instance: None, workload: row.holder.clone(), begin: run.begin };
        evidence.runs.insert(key, run);
    }
    evidence
}

fn print_size(when: &str, path: &Path, days: u64) {
    let connection = Connection::open(path).unwrap();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let free = number("PRAGMA freelist_count") * number("PRAGMA page_size");
    let size = number("PRAGMA page_count") * number("PRAGMA page_size");
    println!(
        "{when}: {:.1} MB, of which {:.1} MB free; {:.2} MB per day",
        size as f64 / 1e6,
        free as f64 / 1e6,
        size as f64 / 1e6 / days as f64
    );
    let sql = "SELECT name, sum(pgsize), sum(payload), sum(unused), sum(ncell) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 6";
    let mut statement = connection.prepare(sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let value = |index| row.get::<_, i64>(index).unwrap() as f64 / 1e6;
        println!(
            "  {:<28} {:>8.2} MB, payload {:>8.2} MB, unused {:>7.2} MB, {:>8.3} million rows",
            row.get::<_, String>(0).unwrap(),
            value(1),
            value(2),
            value(3),
            value(4)
        );
    }
}

fn print_bill(what: &str, path: &Path) {
    let mut reader = Reader::open(path).unwrap();
    let begun = processor_time();
    let to = Some(at(31 * DAY));
    let bill = reader.bill(&BillRequest { from: Some(BEGIN), to, ..BillRequest::default() }).unwrap();
    let time = Duration::from_nanos(processor_time().0 - begun.0);
    assert!(bill.is_balanced());
    println!("bill {what}: {time:?} of a processor, {} lines", bill.lines.len());
}

fn print_advice(path: &Path) {
    let mut reader = Reader::open(path).unwrap();
    let begun = processor_time();
    let advice = reader.advice(&AdviceRequest::default()).unwrap();
    let time = Duration::from_nanos(processor_time().0 - begun.0);
    println!("advice over the last four weeks: {time:?} of a processor, {} findings", advice.findings.len());
}
