//! The account's path: a pulse, a settlement, a commit; 8 GPUs and 200 processes of 20 units.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use gpumeter::attribution::settle;
use gpumeter::catalogue::{Level, device_points, first_point};
use gpumeter::holders::{Identified, Identities};
use gpumeter::ledger::{Batch, Closed, Ledger, Open, Opening, Sight};
use gpumeter::meter::{Inputs, Meter, News, Policy};
use gpumeter::model::{
    ActivitySource, Bytes, Carry, Fraction, Frame, GpuId, GpuIdentity, GpuProcess, Holder, HolderId, Holding,
    HoldingSource, Method, Microjoules, Nanoseconds, Presence, ProcessSample, SlotState, Span, Stamp,
    Stretch, Utc,
};
use gungraun::prelude::*;

use crate::budget::budget;

library_benchmark_group!(name = account_path, benchmarks = [tick, attribute, commit]);

const SECOND: u64 = 1_000_000_000;
const GPUS: u32 = 8;
const PER_GPU: u32 = 25;
const UNITS: u32 = 20;
const EPOCH: Utc = Utc(1_800_000_000 * SECOND);

fn id(index: u32) -> GpuId {
    GpuId { index, uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}").into() }
}

fn stamp(seconds: u64) -> Stamp {
    Stamp {
        boottime: Nanoseconds((1_000 + seconds) * SECOND),
        utc: EPOCH.plus(Nanoseconds::from_seconds(seconds)),
    }
}

fn identities() -> Arc<Identities> {
    let pids = 1..=GPUS * PER_GPU;
    let identified = pids.map(|pid| {
        let unit = format!("job-{}.service", pid % UNITS);
        let holder = Arc::new(Holder::unit(&unit, Some("alice"), Some(1_000)));
        (pid, Identified { holder, name: "python3".into(), start_time: 1 })
    });
    Arc::new(identified.collect())
}

fn frame(index: u32, seconds: u64) -> Frame {
    const ENERGY: usize = first_point("gpu_energy_joules_total");
    let mut readings: Vec<_> = device_points().map(|_| Ok(500_000_000)).collect();
    readings[ENERGY] = Ok(i64::try_from(seconds * 400_000_000).unwrap_or(0));
    let pids = index * PER_GPU + 1..=(index + 1) * PER_GPU;
    let process = |pid| GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(1 << 30)) };
    let sample = |pid| ProcessSample { pid, window: 1_000_000, sm: 4, memory: None, encoder: 0, decoder: 0 };
    Frame {
        gpu: id(index),
        identity: Arc::new(GpuIdentity { model: "bench".into(), ..GpuIdentity::default() }),
        generation: 1,
        begun: stamp(seconds),
        ended: stamp(seconds),
        tiers: [Some(stamp(seconds)); 3],
        readings: readings.into(),
        counters: Box::default(),
        instances: Arc::default(),
        sampled: None,
        processes: Ok(pids.clone().map(process).collect()),
        list_read: None,
        listed: Some(stamp(seconds)),
        deserted: false,
        samples: Ok(pids.map(sample).collect()),
        stretch: Stretch::default(),
        rejected: Vec::new(),
        calls: Vec::new(),
    }
}

fn inputs(seconds: u64, identities: &Arc<Identities>) -> Inputs {
    let frames = (0..GPUS).map(|index| News::Frame(Box::new(frame(index, seconds))));
    Inputs { news: frames.collect(), identities: Arc::clone(identities), ..Inputs::default() }
}

/// A meter a few seconds old, and the next second's frames.
fn meter() -> (Meter, Stamp, Inputs) {
    let policy = Policy {
        level: Level::Full,
        intervals: [Nanoseconds::SECOND, Nanoseconds::from_seconds(5), Nanoseconds::from_seconds(60)],
        standing: Vec::new(),
        presence: true,
        birth_delay: Nanoseconds::from_seconds(60),
        processes: 200,
        series: 20_000,
        prices: Vec::new(),
    };
    let identities = identities();
    let mut meter = Meter::new(Arc::new(policy), stamp(0), None);
    let found = (0..GPUS).map(|index| News::Found { gpu: id(index), bus: "".into() }).collect();
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

/// A tick of a GPU that all units share by presence.
fn span(second: u64) -> Span {
    let holders: Vec<HolderId> =
        (0..UNITS).map(|unit| HolderId::new(format!("unit:job-{unit:02}.service"))).collect();
    let holding = |holder: &HolderId| Holding {
        holder: holder.clone(),
        fraction: Fraction { numerator: 1, denominator: UNITS },
        source: HoldingSource::Presence,
        rank: Some(0),
    };
    let presence = |place: u64| Presence { weight: Some(1_000 + place), memory: Some(1 << 30) };
    Span {
        from: EPOCH.plus(Nanoseconds::from_seconds(second)),
        to: EPOCH.plus(Nanoseconds::from_seconds(second + 1)),
        state: SlotState::Measured,
        source: ActivitySource::Gpm,
        method: Method::Observed,
        holdings: holders.iter().map(holding).collect(),
        covered_by: BTreeMap::new(),
        busy: 700_000_000,
        present: holders.iter().cloned().zip((0..).map(presence)).collect(),
        blind: false,
        energy: Some(Microjoules(400_000_000)),
        idle_energy: Microjoules(67_000_000),
    }
}

fn window() -> Vec<Span> {
    (0..15).map(span).collect()
}

#[library_benchmark(config = budget("attribute", 1))]
#[bench::window(window())]
fn attribute(spans: Vec<Span>) -> Vec<Span> {
    let end = EPOCH.plus(Nanoseconds::from_seconds(15));
    let settled = settle(EPOCH, end, black_box(&spans), &Carry::new(), &BTreeMap::new());
    assert!(black_box(settled).is_ok());
    spans
}

/// A ledger that knows the GPUs, and the batch that closes a window of each with a tick after it.
fn ledger() -> (tempfile::TempDir, Ledger, Batch) {
    let directory = tempfile::tempdir().expect("a directory");
    let opening = Opening { boot_id: "bench".into(), now: stamp(0), ..Opening::default() };
    let (mut ledger, _) = Ledger::open(&directory.path().join("ledger.db"), &opening).expect("a ledger");
    let sights = (0..GPUS).map(|index| Sight { gpu: id(index), model: "bench".into(), at: EPOCH }).collect();
    ledger.commit(&Batch { now: EPOCH, sights, ..Batch::default() }).expect("a commit");
    let end = EPOCH.plus(Nanoseconds::from_seconds(15));
    let settlement = settle(EPOCH, end, &window(), &Carry::new(), &BTreeMap::new()).expect("a settlement");
    let closed = |index| Closed { gpu: id(index).uuid, settlement: settlement.clone(), coarse: false };
    let open = |index| Open { gpu: id(index).uuid, spans: vec![span(15)], energy_counter: None };
    let batch = Batch {
        now: end,
        closed: (0..GPUS).map(closed).collect(),
        open: (0..GPUS).map(open).collect(),
        ..Batch::default()
    };
    (directory, ledger, batch)
}

#[library_benchmark(config = budget("commit", 1))]
#[bench::window(ledger())]
fn commit((directory, mut ledger, batch): (tempfile::TempDir, Ledger, Batch)) -> (tempfile::TempDir, Ledger) {
    assert!(black_box(ledger.commit(black_box(&batch))).is_ok());
    (directory, ledger)
}
