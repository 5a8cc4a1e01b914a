//! Writes the exports of a fleet for a month: NODES nodes of 8 GPUs, three rows per GPU and quarter hour, with how busy each pod was.
//!
//! `cargo run --release --features examples --example fleet_exports -- DIRECTORY NODES [DAYS]`, then `gpumeter bill --exports DIRECTORY`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gpumeter::accounting::billing::{
    BillLine, BillRate, DayAccount, DayEvidence, DayGpu, DayHeader, DayRevision, DayRow, DayShape,
    EvidenceHeader, EvidenceOwner, ExactMoney, LineRates, RateKind, RateSelector,
};
use gpumeter::accounting::day_files::{ExportDirectory, write_day, write_evidence, write_file};
use gpumeter::model::{
    ActivitySource, Bytes, EDGES, EnergySum, GpuId, HolderId, Microjoules, Money, Nanoseconds, NodeIdentity,
    Parts, QUARTER_HOUR, Series, Shape, TimeSum, Use, Utc,
};

/// 2026-10-01T00:00:00Z.
const BEGIN: Utc = Utc(1_790_812_800_000_000_000);
const DAY: u64 = 86_400_000_000_000;
const GPUS: u32 = 8;
/// 2.40 per GPU-hour.
const PRICE: i64 = 2_400_000_000;
const TENANTS: [&str; 12] = [
    "ml", "bio", "physics", "chem", "vision", "speech", "robotics", "infra", "search", "ads", "climate",
    "astro",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, nodes, rest @ ..] = arguments.as_slice() else {
        return Err("give DIRECTORY NODES [DAYS]".into());
    };
    let (nodes, days): (u64, u64) = (nodes.parse()?, rest.first().map_or(Ok(30), |days| days.parse())?);
    std::fs::create_dir_all(directory)?;
    for day in 0..days {
        for node in 0..nodes {
            let account = account(node, day);
            let directory = ExportDirectory(Path::new(directory));
            write_file(directory, &account.header, &write_day(&account)?)?;
            let DayHeader { cluster, day, ledger, .. } = &account.header;
            let beside =
                ExportDirectory::evidence_beside(&directory.path_of(cluster.as_deref(), *day, ledger));
            std::fs::write(beside, write_evidence(&evidence(&account))?)?;
        }
    }
    Ok(())
}

/// A number that looks random, from what it depends on.
fn hash(parts: [u64; 4]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, part| {
        let sum = (sum ^ part).wrapping_mul(0xff51_afd7_ed55_8ccd);
        sum ^ (sum >> 29)
    })
}

fn account(node: u64, day: u64) -> DayAccount {
    let begin = Utc(BEGIN.0 + day * DAY);
    let end = Utc(begin.0 + DAY);
    let identity = Arc::new(NodeIdentity {
        name: format!("gpu-{node:04}"),
        cluster: Some("zurich-1".into()),
        pool: Some(if node.is_multiple_of(4) { "spot" } else { "reserved" }.into()),
        ..NodeIdentity::default()
    });
    let gpu = |index: u32| GpuId { index, uuid: format!("GPU-{node:08}-{index:04}").into() };
    let model = if node.is_multiple_of(3) { "NVIDIA A100-SXM4-80GB" } else { "NVIDIA H100 80GB HBM3" };
    let mut rows = Vec::new();
    for index in 0..GPUS {
        for quarter in 0..96 {
            let at = Utc(begin.0 + quarter * QUARTER_HOUR.0);
            // A pod holds its part for six hours.
            let run = hash([node, u64::from(index), day, quarter / 24]);
            let first = 300_000_000_000 + run % 300_000_000_000;
            for (part, time) in [first, 200_000_000_000, 700_000_000_000 - first].into_iter().enumerate() {
                let seed = hash([run, part as u64, quarter, 1]);
                let line = if part == 1 {
                    line(gpu(index), HolderId::new(HolderId::UNALLOCATED), "__unallocated__", (time, 0))
                } else {
                    let tenant = TENANTS[(hash([run, part as u64, 0, 2]) % 12) as usize];
                    let pod = HolderId::new(format!("k8s:{:016x}/main", hash([run, part as u64, 0, 3])));
                    line(gpu(index), pod, tenant, (time, seed % time))
                };
                let to = at.plus(QUARTER_HOUR);
                rows.push(DayRow { from: at, to, node: Arc::clone(&identity), gpu_rate: Some(1), line });
            }
        }
    }
    let gpus = (0..GPUS).map(|index| DayGpu {
        gpu: gpu(index),
        model: model.into(),
        accounted_since: BEGIN,
        settled_until: end,
        memory: Some(Bytes(80 << 30)),
    });
    let header = DayHeader {
        ledger: format!("{:016x}{:016x}", hash([node, 0, 0, 4]), hash([node, 0, 0, 5])),
        cluster: identity.cluster.clone(),
        node: identity.name.clone(),
        day: begin,
        revision: DayRevision {
            settled_until: end,
            slot: Nanoseconds(u64::from(GPUS) * DAY).into(),
            rate: BEGIN,
            ..DayRevision::default()
        },
        simulated: true,
        priced: true,
        currency: Some("EUR".into()),
        rates: vec![rate()],
        gpus: gpus.collect(),
        ..DayHeader::default()
    };
    DayAccount { header, rows }
}

/// Shares of each pod within 20 % of each other, as if it had been alone on its GPU.
fn evidence(account: &DayAccount) -> DayEvidence {
    let mut held = BTreeMap::<EvidenceOwner, u64>::new();
    for line in account.rows.iter().map(|row| &row.line).filter(|line| !line.holder.is_remainder()) {
        let (gpu, tenant, holder) = (line.gpu.clone(), line.tenant.clone(), line.holder.clone());
        *held.entry(EvidenceOwner { gpu, gpu_instance: None, tenant, holder }).or_default() +=
            line.amounts.parts.held();
    }
    let mut shapes = Vec::new();
    for (place, (owner, time)) in (0..).zip(held) {
        for series in Series::ALL {
            let mut shape = Shape::default();
            let bin = hash([place, series as u64, time, 6]) % (EDGES.len() as u64 - 1);
            for part in 0..2 {
                shape.0[bin as usize + part] = time / 2;
            }
            shapes.push(DayShape { owner: owner.clone(), series, shape });
        }
    }
    let DayHeader { cluster, node, ledger, day, revision, .. } = &account.header;
    let header = EvidenceHeader {
        ledger: ledger.clone(),
        cluster: cluster.clone(),
        node: node.clone(),
        day: *day,
        revision: *revision,
    };
    DayEvidence { header, shapes, runs: Vec::new() }
}

fn rate() -> BillRate {
    BillRate {
        id: 1,
        unit: RateKind::GpuHour,
        price: Money(PRICE.into()),
        class: "on_demand".into(),
        selector: RateSelector::default(),
        since: None,
        given_since: None,
        until: None,
        recorded: Some(BEGIN),
        derivation: None,
        slot: TimeSum(0),
        energy: EnergySum(0),
        money: Money(0),
    }
}

fn line(gpu: GpuId, holder: HolderId, tenant: &str, (held, used): (u64, u64)) -> BillLine {
    let mut line = BillLine { tenant: tenant.into(), has_energy: true, ..BillLine::empty(gpu, holder) };
    line.amounts.parts = Parts { within: used, idle: held - used, ..Parts::default() };
    line.amounts.used = Use { within: used, ..Use::default() };
    line.amounts.energy_static = Microjoules(held / 8_000);
    line.amounts.energy_dynamic = Microjoules(used / 2_000);
    line.amounts.memory_byte_seconds = (held / 1_000_000_000) << 34;
    line.amounts.measured = used;
    line.amounts.memory_peak = 20 << 30;
    line.sources = vec![ActivitySource::Gpm];
    line.charged = Nanoseconds(held);
    line.exact = ExactMoney::of_time(PRICE, held);
    line.rates = LineRates { time: Some(1), ..LineRates::default() };
    if !line.holder.is_remainder() {
        let pod = line.holder.name().replace(['/', ':'], "-");
        // Each is of one of sixteen jobs of its tenant.
        let job = format!("job-{}", &pod[4..5]);
        line.labels = BTreeMap::from([
            ("k8s_owner_kind".to_owned(), "Job".to_owned()),
            ("k8s_owner_name".to_owned(), job),
            ("k8s_namespace_name".to_owned(), format!("{tenant}-prod")),
            ("k8s_pod_name".to_owned(), pod),
        ]);
    }
    line
}
