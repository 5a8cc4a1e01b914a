//! The account's path: a tick, a settlement, a commit; 8 GPUs and 200 processes of 20 units.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use gpumeter::accounting::batches::{ClosedWindow, GpuRegistration, LedgerBatch, OpenSpans};
use gpumeter::accounting::ledger::{Ledger, Opening};
use gpumeter::holders::{IdentifiedProcess, Identities};
use gpumeter::meter::attribution::settle;
use gpumeter::meter::{Inputs, Meter, SamplerNews};
use gpumeter::model::{
    ActivitySource, Carry, Fraction, Holder, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds,
    Presence, SlotState, Span, Stamp,
};
use gungraun::prelude::*;

use crate::budget::budget;
use crate::made::{EPOCH, frame, id, policy, stamp};

library_benchmark_group!(name = account_path, benchmarks = [tick, attribute, commit, commit_new_holders]);

const GPUS: u32 = 8;
const PER_GPU: u32 = 25;
const UNITS: u32 = 20;

fn identities() -> Arc<Identities> {
    let pids = 1..=GPUS * PER_GPU;
    let identified = pids.map(|pid| {
        let unit = format!("job-{}.service", pid % UNITS);
        let holder = Arc::new(Holder::unit(&unit, Some("alice"), Some(1_000)));
        (pid, IdentifiedProcess { holder, name: "python3".into(), start_time: 1 })
    });
    Arc::new(identified.collect())
}

fn inputs(seconds: u64, identities: &Arc<Identities>) -> Inputs {
    let frame = |index| {
        let pids: Vec<u32> = (index * PER_GPU + 1..=(index + 1) * PER_GPU).collect();
        SamplerNews::Frame(Box::new(frame(id(index), seconds, &pids, 4)))
    };
    Inputs { news: (0..GPUS).map(frame).collect(), identities: Arc::clone(identities), ..Inputs::default() }
}

/// A meter a few seconds old, and the next second's frames.
fn meter() -> (Meter, Stamp, Inputs) {
    let identities = identities();
    let mut meter = Meter::new(Arc::new(policy([1, 5, 60])), stamp(0), None);
    let found = (0..GPUS).map(|index| SamplerNews::Found { gpu: id(index), bus: "".into() }).collect();
    meter.tick(stamp(0), Inputs { news: found, ..Inputs::default() });
    for seconds in 1..4 {
        meter.tick(stamp(seconds), inputs(seconds, &identities));
    }
    (meter, stamp(4), inputs(4, &identities))
}

#[library_benchmark(config = budget("tick", 1))]
#[bench::node(meter())]
fn tick((mut meter, now, inputs): (Meter, Stamp, Inputs)) -> Meter {
    black_box(meter.tick(now, black_box(inputs)));
    meter
}

/// A tick of a GPU that all units share by presence; `job` distinguishes one set of units from another.
fn span(second: u64, job: &str) -> Span {
    let holders: Vec<HolderId> =
        (0..UNITS).map(|unit| HolderId::new(format!("unit:{job}-{unit:02}.service"))).collect();
    let holding = |holder: &HolderId| Holding {
        holder: holder.clone(),
        fraction: Fraction { numerator: 1, denominator: UNITS },
        source: HoldingSource::Presence,
        rank: Some(0),
    };
    let presence = |place: u64| Presence { weight: Some(1_000 + place), memory: Some(1 << 30) };
    Span {
        source: ActivitySource::Gpm,
        holdings: holders.iter().map(holding).collect(),
        busy: 700_000_000,
        present: holders.iter().cloned().zip((0..).map(presence)).collect(),
        energy: Some(Microjoules(400_000_000)),
        idle_energy: Microjoules(67_000_000),
        ..Span::empty(
            EPOCH.plus(Nanoseconds::from_seconds(second)),
            EPOCH.plus(Nanoseconds::from_seconds(second + 1)),
            SlotState::Measured,
        )
    }
}

fn window(from: u64, job: &str) -> Vec<Span> {
    (from..from + 15).map(|second| span(second, job)).collect()
}

#[library_benchmark(config = budget("attribute", 1))]
#[bench::window(window(0, "job"))]
fn attribute(spans: Vec<Span>) -> Vec<Span> {
    let end = EPOCH.plus(Nanoseconds::from_seconds(15));
    let settled = settle(EPOCH, end, black_box(&spans), &Carry::new(), &BTreeMap::new());
    assert!(black_box(settled).is_ok());
    spans
}

/// A ledger with the GPUs, and the batch that closes the first window of each with a tick after it.
fn ledger() -> (tempfile::TempDir, Ledger, LedgerBatch) {
    let directory = tempfile::tempdir().expect("a directory");
    let opening = Opening { boot_id: "bench".into(), now: stamp(0), ..Opening::default() };
    let (mut ledger, _) = Ledger::open(&directory.path().join("ledger.db"), &opening).expect("a ledger");
    let registrations = (0..GPUS)
        .map(|index| GpuRegistration { gpu: id(index), model: "bench".into(), memory: None, at: EPOCH })
        .collect();
    ledger.commit(&LedgerBatch { now: EPOCH, registrations, ..LedgerBatch::default() }).expect("a commit");
    (directory, ledger, batch(0, "job"))
}

/// As `ledger`, with an account of other holders before that window.
fn ledger_with_account() -> (tempfile::TempDir, Ledger, LedgerBatch) {
    let (directory, mut ledger, first) = ledger();
    ledger.commit(&first).expect("a commit");
    (directory, ledger, batch(15, "later"))
}

/// A closed window of each GPU, and the tick after it.
fn batch(from: u64, job: &str) -> LedgerBatch {
    let at = |second| EPOCH.plus(Nanoseconds::from_seconds(second));
    let (begin, end) = (at(from), at(from + 15));
    let spans = window(from, job);
    let settlement = settle(begin, end, &spans, &Carry::new(), &BTreeMap::new()).expect("a settlement");
    let closed = |index| ClosedWindow { gpu: id(index).uuid, settlement: settlement.clone(), coarse: false };
    let open =
        |index| OpenSpans { gpu: id(index).uuid, spans: vec![span(from + 15, job)], energy_counter: None };
    LedgerBatch {
        now: end,
        closed: (0..GPUS).map(closed).collect(),
        open: (0..GPUS).map(open).collect(),
        ..LedgerBatch::default()
    }
}

#[library_benchmark(config = budget("commit", 1))]
#[bench::window(ledger())]
fn commit(
    (directory, mut ledger, batch): (tempfile::TempDir, Ledger, LedgerBatch),
) -> (tempfile::TempDir, Ledger) {
    assert!(black_box(ledger.commit(black_box(&batch))).is_ok());
    (directory, ledger)
}

#[library_benchmark(config = budget("commit_new_holders", 1))]
#[bench::window(ledger_with_account())]
fn commit_new_holders(
    (directory, mut ledger, batch): (tempfile::TempDir, Ledger, LedgerBatch),
) -> (tempfile::TempDir, Ledger) {
    assert!(black_box(ledger.commit(black_box(&batch))).is_ok());
    (directory, ledger)
}
