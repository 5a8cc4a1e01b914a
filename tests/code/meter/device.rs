//! What the agent counts itself of a GPU: integrals, flows, MIG instances; and the sources it names.

use std::sync::Arc;

use gpumeter::meter::{Inputs, Meter, Policy, SamplerNews};
use gpumeter::model::catalogue::{
    Counter, InstanceValue, Level, device_points, first_integral, first_point, point,
};
use gpumeter::model::snapshot::{AgentNumber, Snapshot};
use gpumeter::model::{
    Absence, Bytes, Frame, GpuId, GpuIdentity, HowHeld, InstanceFrame, InstanceId, InstanceIdentity,
    Nanoseconds, Reading, Stamp, Stretch, Utc, Via,
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_790_000_000 * SECOND;
const SENT: usize = first_point("gpu_pcie_bytes_total");
const SENT_TOTAL: usize = first_integral("gpu_pcie_bytes_total");

struct Device {
    meter: Meter,
    now: Stamp,
    generation: u32,
    via: Via,
    /// The readings of its instances.
    profile: &'static str,
    /// The values of GPM's counters of the GPU and of its instance.
    counters: [[Reading; Counter::ALL.len()]; 2],
}

impl Device {
    fn new(via: Via) -> Self {
        let now = Stamp { boottime: Nanoseconds(1_000 * SECOND), utc: Utc(START) };
        let policy = Policy {
            level: Level::Full,
            dcgm: false,
            workload_counters: false,
            intervals: [Nanoseconds::SECOND, Nanoseconds::from_seconds(5), Nanoseconds::from_seconds(60)],
            standing: Vec::new(),
            allocations: std::sync::Arc::default(),
            how_held: HowHeld::Presence,
            birth_delay: Nanoseconds::from_seconds(60),
            processes: 100,
            series: 20_000,
            rates: Default::default(),
            tenant_rules: Default::default(),
        };
        let meter = Meter::new(Arc::new(policy), now, None);
        let counters = [[Err(Absence::NotSupported); Counter::ALL.len()]; 2];
        let mut device = Self { meter, now, generation: 1, via, profile: "1g.10gb", counters };
        device.tick(vec![SamplerNews::Found { gpu: Self::id(), bus: "".into() }]);
        device
    }

    fn id() -> GpuId {
        GpuId { index: 0, uuid: "GPU-test".into() }
    }

    fn tick(&mut self, news: Vec<SamplerNews>) -> Arc<Snapshot> {
        self.meter.tick(self.now, Inputs { news, ..Inputs::default() }).snapshot
    }

    /// A frame after some seconds with these points and this instance.
    fn frame(
        &mut self,
        seconds: u64,
        readings: &[(usize, Reading)],
        instance: Option<(u32, Reading)>,
    ) -> Arc<Snapshot> {
        self.now.boottime.0 += seconds * SECOND;
        self.now.utc.0 += seconds * SECOND;
        let mut all: Box<[Reading]> = device_points().map(|_| Err(Absence::NotSupported)).collect();
        for (point, reading) in readings {
            all[*point] = *reading;
        }
        let via = device_points().map(|_| Some(self.via)).collect();
        let frame = Frame {
            gpu: Self::id(),
            identity: Arc::new(GpuIdentity { via, ..GpuIdentity::default() }),
            generation: self.generation,
            begun: self.now,
            ended: self.now,
            tiers: [Some(self.now); 3],
            readings: all,
            counters: self.counters[0].into(),
            instances: instance
                .into_iter()
                .flat_map(|(id, ratio)| compute_instances(id, self.profile, ratio, &self.counters[1]))
                .collect(),
            processes: Ok(Arc::from([])),
            samples: Ok(Vec::new()),
            sampled: None,
            listed: None,
            list_read: None,
            known_empty: true,
            stretch: Stretch::default(),
            rejected: Vec::new(),
            calls: Vec::new(),
        };
        self.tick(vec![SamplerNews::Frame(Box::new(frame))])
    }

    fn sent(&mut self, seconds: u64, reading: Reading) -> Reading {
        self.frame(seconds, &[(SENT, reading)], None).gpus[0].integrals[SENT_TOTAL]
    }
}

/// Two compute instances of one GPU instance.
fn compute_instances(
    gpu_instance: u32,
    profile: &str,
    ratio: Reading,
    counters: &[Reading],
) -> [InstanceFrame; 2] {
    [0, 1].map(|compute_instance| {
        let mut readings = [Err(Absence::NotYet); InstanceValue::ALL.len()];
        readings[InstanceValue::SmActive as usize] = ratio;
        // Half of the time of an active multiprocessor; the pipes before it are absent.
        readings[InstanceValue::Integer as usize..InstanceValue::Fp64 as usize]
            .fill(Err(Absence::NotSupported));
        readings[InstanceValue::Fp64 as usize] = ratio.map(|ratio| ratio / 2);
        readings[InstanceValue::MemoryUsed as usize] = Ok(7 << 30);
        InstanceFrame {
            identity: InstanceIdentity {
                id: InstanceId { gpu_instance, compute_instance },
                uuid: format!("MIG-{gpu_instance}-{compute_instance}").into(),
                profile: profile.into(),
                placement: "0:1".into(),
                memory: Bytes(10 << 30),
            },
            readings: readings.into(),
            counters: counters.into(),
        }
    })
}

#[test]
fn a_rate_is_integrated_over_its_interval() {
    let mut device = Device::new(Via::Gpm);
    assert_eq!(device.sent(1, Err(Absence::NotYet)), Err(Absence::NotYet), "one sample is not a pair");
    assert_eq!(device.sent(2, Ok(500)), Ok(1_000));
    assert_eq!(device.sent(3, Ok(0)), Ok(1_000));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(1_000), "unknown time adds nothing");
    assert_eq!(device.sent(1, Ok(7)), Ok(1_007));
}

#[test]
fn memory_activity_is_integrated_over_a_medium_interval_at_most() {
    const ACTIVITY: usize = first_point("gpu_memory_activity_ratio");
    const TOTAL: usize = first_integral("gpu_memory_activity_seconds_total");
    let mut device = Device::new(Via::Call);
    let whole = [(ACTIVITY, Ok(1_000_000_000))];
    let totals = [1, 3, 60].map(|after| device.frame(after, &whole, None).gpus[0].integrals[TOTAL]);
    assert_eq!(totals, [Ok(0), Ok(3_000_000_000), Ok(8_000_000_000)]);
}

#[test]
fn a_source_counter_that_wraps_or_restarts_never_decreases_the_counter() {
    let mut device = Device::new(Via::Field);
    assert_eq!(device.sent(1, Ok(4_000_000_000)), Ok(0), "since the agent's start");
    assert_eq!(device.sent(1, Ok(4_000_000_100)), Ok(100));
    assert_eq!(device.sent(1, Ok(50)), Ok(100));
    assert_eq!(device.sent(1, Ok(60)), Ok(110));
    device.generation += 1;
    assert_eq!(
        device.sent(1, Ok(1_000_000)),
        Ok(110),
        "a new plan's frames are not subtracted from old ones"
    );
    assert_eq!(device.sent(1, Ok(1_000_001)), Ok(111));
}

#[test]
fn each_engine_has_an_integral_of_its_own() {
    let mut device = Device::new(Via::Call);
    let engines = [("encoder", 100_000_000), ("decoder", 0), ("jpeg", 500_000_000)];
    let readings: Vec<_> = engines
        .iter()
        .map(|(engine, ratio)| {
            let engine = match *engine {
                "encoder" => const { point("gpu_engine_utilization_ratio", "encoder") },
                "decoder" => const { point("gpu_engine_utilization_ratio", "decoder") },
                _ => const { point("gpu_engine_utilization_ratio", "jpeg") },
            };
            (engine, Ok(*ratio))
        })
        .collect();
    device.frame(1, &readings, None);
    let snapshot = device.frame(10, &readings, None);
    const FIRST: usize = first_integral("gpu_engine_busy_seconds_total");
    assert_eq!(
        snapshot.gpus[0].integrals[FIRST..FIRST + 4],
        [Ok(1_000_000_000), Ok(0), Ok(5_000_000_000), Err(Absence::NotSupported)]
    );
}

#[test]
fn an_instance_counts_once_for_all_its_compute_instances_and_continues_when_its_id_returns() {
    let mut device = Device::new(Via::Gpm);
    let busy =
        |snapshot: &Snapshot, id| snapshot.gpus[0].instances[&id].values[InstanceValue::SmActive as usize];
    device.frame(1, &[], Some((3, Ok(500_000_000))));
    let snapshot = device.frame(4, &[], Some((3, Ok(500_000_000))));
    assert_eq!(busy(&snapshot, 3), Ok(2_000_000_000));
    assert!(
        snapshot.gpus[0].instances[&3].values[InstanceValue::MemoryUsed as usize].is_err(),
        "memory activity is not a time"
    );
    // Another layout, and the first one again.
    device.generation += 1;
    device.frame(1, &[], Some((5, Ok(1_000_000_000))));
    device.generation += 1;
    device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    let snapshot = device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    assert_eq!(busy(&snapshot, 3), Ok(3_000_000_000));
    assert_eq!(busy(&snapshot, 5), Ok(0));
}

#[test]
fn an_instance_with_a_reused_id_has_new_counters_with_a_new_start_time() {
    let mut device = Device::new(Via::Gpm);
    device.frame(1, &[], Some((3, Ok(500_000_000))));
    let snapshot = device.frame(4, &[], Some((3, Ok(500_000_000))));
    let counters = |snapshot: &Snapshot| snapshot.gpus[0].instances[&3].clone();
    assert_eq!(
        (counters(&snapshot).since, counters(&snapshot).values[InstanceValue::SmActive as usize]),
        (None, Ok(2_000_000_000))
    );
    device.generation += 1;
    device.profile = "2g.20gb";
    device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    let snapshot = device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    assert_eq!(counters(&snapshot).values[InstanceValue::SmActive as usize], Ok(1_000_000_000));
    assert!(counters(&snapshot).since.is_some());
}

#[test]
fn metrics_whose_exactness_depends_on_it_name_their_source() {
    let mut device = Device::new(Via::Gpm);
    let snapshot = device.frame(1, &[(SENT, Ok(1))], None);
    let sources = sources(&snapshot);
    assert!(sources.contains(&vec!["gpu_pcie_bytes_total", "gpm"]), "{sources:?}");
}

#[test]
fn counts_missed_while_a_counter_was_unreadable_are_added_later() {
    let mut device = Device::new(Via::Field);
    assert_eq!(device.sent(1, Ok(1_000)), Ok(0));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(0));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(0));
    assert_eq!(device.sent(1, Ok(1_500)), Ok(500));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(500));
    device.generation += 1;
    assert_eq!(device.sent(1, Ok(9_000)), Ok(500), "but not over a new plan");
}

/// The labels of `gpumeter_source_info`: metric and source.
fn sources(snapshot: &Snapshot) -> Vec<Vec<&str>> {
    let own = snapshot.roster.agent.iter().filter(|entry| entry.family == "gpumeter_source_info");
    own.map(|entry| entry.labels[2..].iter().map(|(_, value)| &**value).collect()).collect()
}

const SM: usize = first_point("gpu_sm_active_ratio");
const SM_TOTAL: usize = first_integral("gpu_sm_active_seconds_total");
const CYCLES: i64 = 2_000_000_000;
const ELAPSED: usize = Counter::Elapsed as usize;
const ACTIVE: usize = Counter::SmActive as usize;

/// A GPU or an instance whose multiprocessors have a counter and a rate.
struct Multiprocessors {
    device: Device,
    elapsed: i64,
    active: i64,
    of_instance: bool,
    /// The reason of an absent reading.
    absence: Absence,
}

impl Multiprocessors {
    fn new(of_instance: bool) -> Self {
        Self {
            device: Device::new(Via::Gpm),
            elapsed: 70 * CYCLES,
            active: 9 * CYCLES,
            of_instance,
            absence: Absence::Failed,
        }
    }

    /// This many seconds with that activity in percent, then a frame with or without the sample.
    fn frame(&mut self, seconds: u64, percent: i64, is_read: bool) -> Arc<Snapshot> {
        self.elapsed += i64::try_from(seconds).unwrap() * CYCLES;
        self.active += i64::try_from(seconds).unwrap() * CYCLES / 100 * percent;
        let counters = &mut self.device.counters[usize::from(self.of_instance)];
        let absence = self.absence;
        let reading = |value| if is_read { Ok(value) } else { Err(absence) };
        (counters[ELAPSED], counters[ACTIVE]) = (reading(self.elapsed), reading(self.active));
        let ratio = reading(percent * 10_000_000);
        if self.of_instance {
            self.device.frame(seconds, &[], Some((3, ratio)))
        } else {
            self.device.frame(seconds, &[(SM, ratio)], None)
        }
    }

    fn total(&self, snapshot: &Snapshot) -> Reading {
        let gpu = &snapshot.gpus[0];
        if self.of_instance {
            gpu.instances[&3].values[InstanceValue::SmActive as usize]
        } else {
            gpu.integrals[SM_TOTAL]
        }
    }

    fn seconds(&mut self, seconds: u64, percent: i64, is_read: bool) -> i64 {
        let snapshot = self.frame(seconds, percent, is_read);
        self.total(&snapshot).unwrap() / 10_000_000
    }
}

#[test]
fn a_missed_sample_loses_nothing_with_gpm_counters() {
    for of_instance in [false, true] {
        let mut gpu = Multiprocessors::new(of_instance);
        assert_eq!(gpu.seconds(1, 30, true), 0, "since the agent's start");
        assert_eq!(gpu.seconds(1, 30, true), 30);
        // The next sample fails, and the one after it has no former one for a pair.
        assert_eq!(gpu.seconds(1, 90, false), 30);
        assert_eq!(gpu.seconds(1, 80, false), 30);
        assert_eq!(gpu.seconds(1, 10, true), 210);
        let snapshot = gpu.frame(1, 0, true);
        let family =
            if of_instance { "gpu_mig_sm_active_seconds_total" } else { "gpu_sm_active_seconds_total" };
        assert!(sources(&snapshot).contains(&vec![family, "gpm_counter"]), "{:?}", sources(&snapshot));
    }
}

#[test]
fn a_pipe_of_an_instance_uses_its_counter_or_else_its_rate() {
    for counts in [true, false] {
        let mut gpu = Multiprocessors::new(true);
        let mut pipe = |percent: i64| {
            let active = gpu.active + CYCLES / 100 * percent;
            gpu.device.counters[1][Counter::Fp64 as usize] =
                if counts { Ok(active / 2) } else { Err(Absence::NotSupported) };
            let snapshot = gpu.frame(1, percent, true);
            let instance = &snapshot.gpus[0].instances[&3];
            assert!(instance.values[InstanceValue::Fp32 as usize].is_err(), "it was never read");
            let source = if counts { "gpm_counter" } else { "gpm" };
            let names = sources(&snapshot);
            assert!(names.contains(&vec!["gpu_mig_pipe_active_seconds_total", source]), "{names:?}");
            instance.values[InstanceValue::Fp64 as usize].unwrap() / 10_000_000
        };
        assert_eq!(pipe(40), 0, "since the agent's start");
        assert_eq!(pipe(40), 20);
        assert_eq!(pipe(60), 50);
    }
}

#[test]
fn counts_from_before_a_level_shows_a_metric_are_not_added() {
    for of_instance in [false, true] {
        let mut gpu = Multiprocessors::new(of_instance);
        gpu.seconds(1, 50, true);
        assert_eq!(gpu.seconds(1, 50, true), 50);
        gpu.absence = Absence::NotSupported;
        for _ in 0..60 {
            assert_eq!(gpu.seconds(1, 100, false), 50);
        }
        assert_eq!(gpu.seconds(1, 50, true), 100, "only of one tick, by the rate");
        assert_eq!(gpu.seconds(1, 50, true), 150);
        // What it has shown before still holds.
        gpu.absence = Absence::Failed;
        assert_eq!(gpu.seconds(1, 90, false), 150);
        assert_eq!(gpu.seconds(1, 10, true), 250);
    }
}

#[test]
fn a_missed_frame_loses_no_counts() {
    let mut gpu = Multiprocessors::new(false);
    gpu.seconds(1, 50, true);
    gpu.seconds(1, 50, true);
    // Ten seconds later; the last rate covers only its own interval.
    gpu.elapsed += 9 * CYCLES;
    gpu.active += 9 * CYCLES;
    gpu.device.now.boottime.0 += 9 * SECOND;
    assert_eq!(gpu.seconds(1, 20, true), 50 + 900 + 20);
}

#[test]
fn a_new_plan_of_the_gpu_loses_nothing_and_a_reset_or_a_new_layout_is_not_subtracted() {
    let mut gpu = Multiprocessors::new(false);
    gpu.seconds(1, 50, true);
    gpu.seconds(1, 50, true);
    gpu.device.generation += 1;
    assert_eq!(gpu.seconds(4, 100, true), 450, "the plan changed, not the GPU");
    gpu.device.tick(vec![
        SamplerNews::Opened { anew: true, module: None },
        SamplerNews::Found { gpu: Device::id(), bus: "".into() },
    ]);
    assert_eq!(gpu.seconds(4, 100, true), 450, "the driver may count from 0");
    assert_eq!(gpu.seconds(1, 100, true), 550);
    gpu.device.tick(vec![SamplerNews::Lost(Device::id())]);
    gpu.device.generation += 1;
    // Reset a while ago, it has since worked for longer than before.
    assert_eq!(gpu.seconds(40, 100, true), 550, "a lost GPU may count from 0");
    assert_eq!(gpu.seconds(1, 100, true), 650);
    let mut gpu = Multiprocessors::new(true);
    gpu.seconds(1, 50, true);
    gpu.seconds(1, 50, true);
    gpu.device.generation += 1;
    assert_eq!(gpu.seconds(4, 100, true), 50, "the id may be another instance's now");
}

#[test]
fn an_implausible_counter_is_counted_and_the_rate_is_used() {
    let mut gpu = Multiprocessors::new(false);
    gpu.seconds(1, 50, true);
    gpu.seconds(1, 50, true);
    gpu.active += 10 * CYCLES;
    let snapshot = gpu.frame(1, 50, true);
    assert_eq!(gpu.total(&snapshot), Ok(1_000_000_000));
    let refused = snapshot.roster.agent.iter().zip(&snapshot.agent).find_map(|(entry, number)| {
        let is = entry.family == "gpumeter_samples_rejected_total" && &*entry.labels[0].1 == "out_of_range";
        is.then(|| number.clone())
    });
    assert!(matches!(refused, Some(AgentNumber::Integer(1))), "{refused:?}");
    assert_eq!(gpu.seconds(1, 50, true), 150);
}

#[test]
fn without_a_counter_the_rate_is_integrated_and_named() {
    let mut device = Device::new(Via::Gpm);
    device.frame(1, &[(SM, Ok(500_000_000))], None);
    let snapshot = device.frame(2, &[(SM, Ok(500_000_000))], None);
    assert_eq!(snapshot.gpus[0].integrals[SM_TOTAL], Ok(1_000_000_000));
    assert!(sources(&snapshot).contains(&vec!["gpu_sm_active_seconds_total", "gpm"]));
}

#[test]
fn pcie_bytes_come_from_the_counter_if_there_is_one() {
    let mut device = Device::new(Via::Gpm);
    let mut sent = |seconds, counted, rate| {
        device.counters[0][Counter::PcieTransmit as usize] = counted;
        device.sent(seconds, rate)
    };
    let gib = 1_i64 << 30;
    assert_eq!(sent(1, Ok(77 * gib), Err(Absence::NotYet)), Err(Absence::NotYet));
    assert_eq!(sent(1, Ok(78 * gib), Ok(gib + 5)), Ok(gib));
    assert_eq!(sent(1, Err(Absence::Failed), Err(Absence::Failed)), Ok(gib));
    assert_eq!(sent(1, Ok(90 * gib), Err(Absence::NotYet)), Ok(13 * gib));
}
