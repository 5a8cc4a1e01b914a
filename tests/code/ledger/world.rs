//! A node with a ledger in a temporary directory, and windows to settle on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumeter::accounting::batches::{
    ClosedWindow, CounterKey, GpuRegistration, LedgerBatch, OpenSpans, Recovered,
};
use gpumeter::accounting::billing::{BillRequest, LineDetail, PriceBook, Rate, RateKind, RateSelector};
use gpumeter::accounting::ledger::{Error, Ledger, Opening};
use gpumeter::accounting::tenants::{Decision, TenantRules};
use gpumeter::model::{
    ActivitySource, Amounts, Fraction, GpuId, Grade, HolderId, HolderKind, Holding, HoldingSource, Method,
    Microjoules, Nanoseconds, Parts, Row, Settlement, SlotId, SlotState, Span, Stamp, Tariff, Use, Utc,
};

/// 2025-11-14T22:15:00Z, a quarter hour.
pub(crate) const START: Utc = Utc(1_763_158_500_000_000_000);
pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn after(seconds: u64) -> Utc {
    START.plus(Nanoseconds::from_seconds(seconds))
}

/// Time since boot at that account time.
pub(crate) const fn boottime(seconds: u64) -> Nanoseconds {
    Nanoseconds::from_seconds(1000 + seconds)
}

pub(crate) fn uuid(gpu: u32) -> Arc<str> {
    format!("GPU-{gpu:08}").into()
}

pub(crate) fn holder(name: &str) -> HolderId {
    HolderId::new(name)
}

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("ledger.db")
    }

    pub(crate) fn open(&self, seconds: u64, book: PriceBook) -> (Ledger, Recovered) {
        Ledger::open(&self.path(), &opening(seconds, book)).unwrap()
    }

    /// A copy of the files, as a kill at this time would leave them.
    pub(crate) fn copy_as_killed(&self) -> Self {
        let copy = Self::new();
        for name in ["ledger.db", "ledger.db-wal"] {
            let _ = std::fs::copy(self.directory.path().join(name), copy.directory.path().join(name));
        }
        copy
    }

    /// A ledger with these rows, one of `tests/fixtures/ledger`.
    pub(crate) fn of_rows(rows: &str) -> Self {
        let world = Self::new();
        fill(&rusqlite::Connection::open(world.path()).unwrap(), rows);
        world
    }

    pub(crate) fn sql<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        rusqlite::Connection::open(self.path()).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

/// Makes the tables of a ledger, with these rows.
pub(crate) fn fill(connection: &rusqlite::Connection, rows: &str) {
    let schema = include_str!("../../../src/accounting/ledger/schema.sql");
    let marks = "PRAGMA application_id = 0x47504D54; PRAGMA user_version = 13;";
    connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF").unwrap();
    connection.execute_batch(&format!("BEGIN; {schema} {rows} COMMIT; {marks}")).unwrap();
}

pub(crate) fn opening(seconds: u64, book: PriceBook) -> Opening {
    Opening {
        boot_id: "first".into(),
        now: Stamp { boottime: boottime(seconds), utc: after(seconds) },
        book,
        ..Opening::default()
    }
}

pub(crate) fn book(prices: &[(u64, i128)]) -> PriceBook {
    let rates = prices
        .iter()
        .map(|(from, nano_per_gpu_hour)| Rate {
            kind: RateKind::GpuHour,
            selector: RateSelector::default(),
            from: Some(after(*from)).filter(|_| *from > 0),
            nano: (*nano_per_gpu_hour).try_into().unwrap(),
            tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
            derivation: None,
        })
        .collect();
    PriceBook { rates, ..PriceBook::default() }
}

pub(crate) fn registration(gpu: u32, seconds: u64) -> GpuRegistration {
    let gpu = GpuId { index: gpu, uuid: uuid(gpu) };
    GpuRegistration { gpu, model: "NVIDIA H100".into(), memory: None, at: after(seconds) }
}

/// A holder on a whole GPU.
pub(crate) fn counter_key(gpu: u32, name: &str) -> CounterKey {
    CounterKey::of_gpu(uuid(gpu), holder(name))
}

pub(crate) fn row(name: &str, parts: Parts, used: Use) -> Row {
    Row {
        slot: SlotId::default(),
        holder: holder(name),
        amounts: Amounts {
            parts,
            used,
            energy_static: Microjoules(parts.held() / 1000),
            energy_dynamic: Microjoules(used.total() / 500),
            memory_byte_seconds: 80 << 30,
            energy_waiting: Microjoules(parts.idle / 4000),
            measured: used.total(),
            memory_peak: 80 << 30,
        },
        grade: Grade::Measured,
        method: Method::Observed,
        source: ActivitySource::Gpm,
        granted_by: grant_of(&holder(name), &parts),
    }
}

/// By whom what a holder held was granted; nobody grants a remainder.
pub(crate) fn grant_of(holder: &HolderId, parts: &Parts) -> Option<HoldingSource> {
    match holder.kind() {
        _ if parts.held() == 0 => None,
        HolderKind::Remainder => None,
        HolderKind::Pod => Some(HoldingSource::Kubernetes),
        HolderKind::Slurm => Some(HoldingSource::Slurm),
        _ => Some(HoldingSource::Presence),
    }
}

/// A window in which `name` holds the whole GPU and uses `used` nanoseconds of it.
pub(crate) fn whole(gpu: u32, (from, to): (Utc, Utc), name: &str, used: u64) -> ClosedWindow {
    let parts = Parts { within: used, idle: to.since(from).0 - used, ..Parts::default() };
    let rows = vec![row(name, parts, Use { within: used, ..Use::default() })];
    closed(gpu, (from, to), rows)
}

pub(crate) fn closed(gpu: u32, (from, to): (Utc, Utc), rows: Vec<Row>) -> ClosedWindow {
    let carry = BTreeMap::from([("gpu/held".to_owned(), BTreeMap::from([(holder("user:a"), 7)]))]);
    let weights = BTreeMap::from([(holder("user:a"), 3)]);
    let settlement =
        Settlement { from, to, rows, carry, weights, flags: Vec::new(), ..Settlement::default() };
    ClosedWindow { gpu: uuid(gpu), settlement, coarse: false }
}

pub(crate) fn span(from: u64, to: u64) -> Span {
    let holding = Holding {
        holder: holder("user:a"),
        fraction: Fraction::WHOLE,
        source: HoldingSource::Presence,
        rank: Some(0),
    };
    Span {
        source: ActivitySource::Gpm,
        holdings: [holding].into(),
        busy: (to - from) * SECOND / 2,
        energy: Some(Microjoules(1)),
        idle_energy: Microjoules(1),
        ..Span::empty(after(from), after(to), SlotState::Measured)
    }
}

pub(crate) fn open(gpu: u32, spans: Vec<Span>) -> OpenSpans {
    OpenSpans { gpu: uuid(gpu), spans, energy_counter: Some(Microjoules(42)) }
}

/// Registers GPU 0 at the start.
pub(crate) fn register_gpus(ledger: &mut Ledger, gpus: u32) {
    let registrations = (0..gpus).map(|gpu| registration(gpu, 0)).collect();
    ledger.commit(&LedgerBatch { now: START, registrations, ..LedgerBatch::default() }).unwrap();
}

/// Settles whole windows of 15 s with one holder, half used.
pub(crate) fn settle(ledger: &mut Ledger, gpu: u32, seconds: std::ops::Range<u64>, name: &str) {
    for from in seconds.step_by(15) {
        let window = (after(from), after(from + 15));
        let closed = vec![whole(gpu, window, name, 7 * SECOND + from)];
        ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
    }
}

/// Decides on prices or tenant rules alone.
pub(crate) trait Decides {
    fn reprice(&mut self, book: &PriceBook, decided: Nanoseconds) -> Result<(), Error>;
    fn replace_tenant_rules(&mut self, rules: &Arc<TenantRules>, decided: Nanoseconds) -> Result<(), Error>;
}

impl Decides for Ledger {
    fn reprice(&mut self, book: &PriceBook, decided: Nanoseconds) -> Result<(), Error> {
        self.decide(&Decision { book: Some(book.clone()), rules: None, decided })
    }

    fn replace_tenant_rules(&mut self, rules: &Arc<TenantRules>, decided: Nanoseconds) -> Result<(), Error> {
        self.decide(&Decision { book: None, rules: Some(Arc::clone(rules)), decided })
    }
}

/// A request for the bill of a period.
pub(crate) fn between(from: Option<Utc>, to: Option<Utc>) -> BillRequest {
    BillRequest { from, to, ..BillRequest::default() }
}

/// How finely lines are told apart in a bill by day.
pub(crate) fn by_day() -> LineDetail {
    LineDetail { day: true, ..LineDetail::whole() }
}

pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
