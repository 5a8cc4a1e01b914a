//! Hand-made snapshots: a small one with all awkward cases, and one of any size for counts.

use std::sync::Arc;

use gpumeter::model::catalogue::{
    self, Family, INTEGRALS, InstanceValue, RATED, Rows, device_points, first_point,
};
use gpumeter::model::frame::Tier;
use gpumeter::model::snapshot::*;
use gpumeter::model::*;
use gpumeter::output::render::OtlpEncoder;

/// Quotes, newlines, backslashes and non-ASCII letters, as in the name of a process.
pub const HOSTILE: &str = "a\"b\\c\nd} 1\ngpu_up{gpu=\"0\"} 0 µ✓\u{1F980}";

pub const AT: Utc = Utc(1_790_000_000_250_000_000);

pub fn stamp(utc: u64) -> Stamp {
    Stamp { boottime: Nanoseconds(utc - 1_780_000_000_000_000_000), utc: Utc(utc) }
}

/// A node of `gpus` GPUs, the last of them with a MIG instance, and `processes` processes, priced.
pub fn node(gpus: usize, processes: usize) -> Snapshot {
    let roster = roster(gpus, processes);
    values(Arc::new(roster), 1)
}

pub fn roster(gpus: usize, processes: usize) -> Roster {
    Roster {
        gpus: (0..gpus).map(|index| gpu(index, index + 1 == gpus)).collect(),
        processes: (0..processes).map(|number| process(number, gpus)).collect(),
        accounts: (0..gpus * 2)
            .map(|number| AccountEntry {
                gpu_instance: Arc::default(),
                owner: if number % 2 == 0 { "physics".into() } else { "__unallocated__".into() },
                gpu: number / 2,
            })
            .collect(),
        workload_accounts: (0..gpus)
            .map(|gpu| AccountEntry {
                owner: "unit:trainer.service".into(),
                gpu,
                gpu_instance: Arc::default(),
            })
            .collect(),
        holdings: (0..gpus)
            .map(|gpu| HoldingEntry {
                gpu_instance: Arc::default(),
                gpu,
                workload: "unit:trainer.service".into(),
                tenant: "physics".into(),
                source: HoldingSource::Standing,
                since: Utc(AT.0 - 3_600_000_000_000),
            })
            .collect(),
        unused: (0..gpus)
            .map(|gpu| UnusedEntry {
                gpu,
                gpu_instance: Arc::default(),
                workload: "unit:trainer.service".into(),
                tenant: "physics".into(),
                kind: UnusedKind::HeldWithoutProcess,
                since: Utc(AT.0 - 9_000_000_000_000),
            })
            .collect(),
        workloads: Arc::new([WorkloadEntry {
            workload: "unit:trainer.service".into(),
            kind: HolderKind::Unit,
            tenant: "physics".into(),
            class: WorkloadClass::Unknown,
            facts: Facts::new([(Fact::Unit, "trainer.service"), (Fact::User, HOSTILE)]),
        }]),
        prices: vec![
            Some(Price {
                tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
                nano_per_gpu_hour: 2_100_000_000,
            });
            gpus
        ]
        .into(),
        month_costs: ["physics", "__unallocated__"]
            .map(|tenant| MonthCostEntry {
                tenant: tenant.into(),
                month: "2026-09".into(),
                currency: "EUR".into(),
            })
            .into(),
        budgets: [BudgetEntry {
            tenant: "physics".into(),
            currency: "EUR".into(),
            amount: Money(5_000_000_000_000),
        }]
        .into(),
        agent: agent_entries(),
    }
}

fn gpu(index: usize, mig: bool) -> GpuEntry {
    let uuid = format!("GPU-{index:08x}-aaaa-bbbb-cccc-0123456789ab");
    let instance = InstanceEntry {
        identity: InstanceIdentity {
            id: InstanceId { gpu_instance: 1, compute_instance: 0 },
            uuid: "MIG-1".into(),
            profile: "3g.40gb".into(),
            placement: "4:4".into(),
            memory: Bytes(40 << 30),
        },
        gpu_instance: "1".into(),
        compute_instance: "0".into(),
    };
    let second = InstanceEntry {
        identity: InstanceIdentity {
            id: InstanceId { gpu_instance: 1, compute_instance: 1 },
            uuid: "MIG-2".into(),
            ..instance.identity.clone()
        },
        compute_instance: "1".into(),
        ..instance.clone()
    };
    GpuEntry {
        id: GpuId { index: index as u32, uuid: uuid.into() },
        index: index.to_string().into(),
        identity: Arc::new(GpuIdentity {
            memory: Some(MemoryKind::Device),
            mig_slices: None,
            model: "NVIDIA H100 80GB HBM3".into(),
            serial: "".into(),
            board_part: "692-2G520-0200-000".into(),
            pci_bus_id: "00000000:0F:00.0".into(),
            minor_number: index.to_string().into(),
            architecture: "hopper".into(),
            compute_capability: "9.0".into(),
            vbios_version: "96.00.74.00.01".into(),
            driver_version: "580.95.05".into(),
            cuda_version: "13.0".into(),
            mig,
            nvlinks: 18,
            platform: Some(Platform { module_id: "2".into(), ..Platform::default() }),
            fabric: Some(FabricPlace { cluster_uuid: "".into(), clique: "0".into() }),
            via: Arc::default(),
        }),
        instances: if mig { vec![instance, second] } else { Vec::new() },
        unsupported: vec![("gpu_power_instant_watts", Absence::NotSupported)],
        xids: vec![(13, "13".into()), (79, "79".into())],
        absence: (index == 1).then_some("guest"),
        activity_source: Some("gpm"),
    }
}

fn process(number: usize, gpus: usize) -> ProcessEntry {
    ProcessEntry {
        gpu: number % gpus,
        gpu_instance: "".into(),
        pid: (4_000 + number).to_string().into(),
        process: if number == 0 { HOSTILE.into() } else { format!("python3.{number}").into() },
        workload: "unit:trainer.service".into(),
        tenant: "physics".into(),
    }
}

/// One series of every family of the agent.
fn agent_entries() -> Arc<[AgentEntry]> {
    catalogue::families()
        .filter(|family| matches!(family.rows, Rows::Agent))
        .map(|family| AgentEntry {
            family: family.name,
            labels: family.labels.iter().map(|name| (*name, format!("some {name}").into())).collect(),
        })
        .collect()
}

pub fn histogram(scale: u64) -> Histogram {
    Histogram {
        bounds: vec![0.00001, 0.001, 0.0025, 1.0, 10.0],
        cumulative: vec![0, 3 * scale, 5 * scale, 9 * scale, 9 * scale],
        count: 10 * scale,
        sum: 12.5 * scale as f64,
    }
}

/// A value for every series, each different, multiplied by `scale`.
pub fn values(roster: Arc<Roster>, scale: i64) -> Snapshot {
    let account = |number: usize| AccountState {
        values: std::array::from_fn(|value| {
            Some(i128::from(scale) * (number as i128 * 15_000_000_000 + value as i128))
        }),
    };
    Snapshot {
        sequence: 7,
        at: stamp(AT.0),
        started: Utc(1_789_999_000_000_000_000),
        ledger_started: Some(Utc(1_750_000_000_500_000_000)),
        gpus: roster.gpus.iter().map(|gpu| state(gpu, scale)).collect(),
        how_held: HowHeld::Grants,
        last_hour: HourlyUse::default(),
        conflicts: Vec::new(),
        sxids: Vec::new(),
        processes_listed: true,
        processes: (0..roster.processes.len() as i64)
            .map(|number| ProcessState {
                values: std::array::from_fn(|value| match value {
                    0 => Ok(scale * (1_000_000_000 + number)),
                    engine => Ok(10_000_000 * ((number + engine as i64 - 1) % 100)),
                }),
            })
            .collect(),
        accounts: (0..roster.accounts.len()).map(account).collect(),
        workload_accounts: (0..roster.workload_accounts.len()).map(account).collect(),
        unattributed: (1..=roster.gpus.len() as u64)
            .map(|gpu| [1, 0, 3, 0, 5].map(|part| (part > 0).then_some(scale.unsigned_abs() * gpu * part)))
            .collect(),
        holdings: vec![
            HoldingState { fraction: Fraction { numerator: 1, denominator: 3 } };
            roster.holdings.len()
        ],
        month_costs: (1..).take(roster.month_costs.len()).map(|cost| i128::from(scale) * cost).collect(),
        agent: roster
            .agent
            .iter()
            .zip(1..)
            .map(|(entry, number)| agent_number(entry, scale * number))
            .collect(),
        roster,
    }
}

fn agent_number(entry: &AgentEntry, number: i64) -> AgentNumber {
    match catalogue::family(entry.family) {
        Some(Family { kind: catalogue::Kind::Histogram, .. }) => {
            AgentNumber::Histogram(Arc::new(histogram(number.unsigned_abs())))
        }
        _ if entry.family == "gpumeter_simulated" => AgentNumber::Integer(1),
        _ => AgentNumber::Integer(number),
    }
}

fn seen_xid(code: u64) -> SeenXid {
    SeenXid { count: code, last: Utc(AT.0 - code), gpu_instance: None }
}

fn state(gpu: &GpuEntry, scale: i64) -> GpuState {
    let base = scale * (1 + i64::from(gpu.id.index));
    let mut readings: Vec<Reading> =
        (0..device_points().count() as i64).map(|point| Ok(base * (1_234_567 + point))).collect();
    // Below zero, absent, and zero are three different things.
    readings[first_point("gpu_temperature_margin_celsius")] = Ok(-2_500);
    readings[first_point("gpu_power_instant_watts")] = Err(Absence::NotSupported);
    readings[first_point("gpu_pcie_replays_total")] = Ok(0);
    // The second action is the current one.
    for (place, value) in (first_point("gpu_recovery_action")..).zip([0, 1, 0, 0, 0]) {
        readings[place] = Ok(value);
    }
    let frame = Frame {
        gpu: gpu.id.clone(),
        identity: Arc::clone(&gpu.identity),
        generation: 1,
        begun: stamp(AT.0 - 300_000_000),
        ended: stamp(AT.0 - 200_000_000),
        tiers: [1, 2, 3].map(|age| Some(stamp(AT.0 - age * 100_000_000))),
        readings: readings.into(),
        counters: Box::default(),
        instances: gpu
            .instances
            .iter()
            .map(|instance| InstanceFrame {
                identity: instance.identity.clone(),
                readings: std::array::from_fn::<_, { InstanceValue::ALL.len() }, _>(|value| {
                    if value == 3 { Err(Absence::NotYet) } else { Ok(base * (1_000 + value as i64)) }
                })
                .into(),
                counters: Box::default(),
            })
            .collect(),
        sampled: None,
        processes: Ok(Arc::from([])),
        listed: Some(stamp(AT.0 - 100_000_000)),
        list_read: None,
        known_empty: false,
        samples: Ok(Vec::new()),
        stretch: Stretch::default(),
        rejected: Vec::new(),
        calls: Vec::new(),
    };
    GpuState {
        instance_slots: Arc::default(),
        present: gpu.absence.is_none(),
        frame: Some(Arc::new(frame)),
        fresh: [true; Tier::ALL.len()],
        instances: gpu
            .instances
            .iter()
            .map(|instance| {
                let kept =
                    (0..InstanceValue::ALL.len() as i64).map(|value| Ok(base * (2_500_000_000 + value)));
                let counters = InstanceCounters {
                    instance: instance.identity.clone(),
                    since: None,
                    values: kept.collect(),
                };
                (instance.identity.id.gpu_instance, counters)
            })
            .collect(),
        integrals: (0..INTEGRALS as i64).map(|number| Ok(base * (1_500_000_000 + number))).collect(),
        busy: Ok(base * 3_000_000_001),
        activity: Ok(250_000_000),
        layout: None,
        slot: Ok(base * 15_000_000_000),
        in_flight: None,
        xids: gpu.xids.iter().map(|(code, _)| seen_xid(u64::from(*code))).collect(),
        memory_left_since: None,
        health: Arc::new(Verdict { state: HealthState::Degraded, ..Verdict::default() }),
        xid_actions: (0..catalogue::xid::Action::ALL.len() as u64).collect(),
        xids_since: None,
        dcgm: Some(DcgmState {
            rates: (0..RATED.len() as i64).map(|number| Ok(base * (7_000_000 + number))).collect(),
            last_xid: gpu.xids.first().map(|(code, _)| *code),
            recent_xids: gpu.xids.iter().map(|(code, _)| u64::from(*code) % 2).collect(),
            recent_clock_events: std::array::from_fn(|bit| bit as u64),
            clock_events: std::array::from_fn(|bit| bit as u64 * 100),
        }),
    }
}

/// Encodes a snapshot as one request into `out`, as if each before were acknowledged; returns how many data points it holds.
pub fn encode(otlp: &mut OtlpEncoder, snapshot: &Snapshot, out: &mut Vec<u8>) -> usize {
    otlp.acknowledge(Utc(u64::MAX));
    let (body, points) = otlp.encode_requests(snapshot, usize::MAX).remove(0);
    *out = body;
    points
}
