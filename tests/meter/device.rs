//! What the agent counts itself of a GPU: integrals with labels, flows, MIG instances; and what it names as sources.

use std::sync::Arc;

use gpumeter::catalogue::{InstanceValue, Level, device_points, first_integral, first_point, point};
use gpumeter::meter::{Inputs, Meter, News, Policy};
use gpumeter::model::snapshot::Snapshot;
use gpumeter::model::{
    Absence, Bytes, Frame, GpuId, GpuIdentity, InstanceFrame, InstanceId, InstanceIdentity, Nanoseconds,
    Reading, Stamp, Stretch, Utc, Via,
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
}

impl Device {
    fn new(via: Via) -> Self {
        let now = Stamp { boottime: Nanoseconds(1_000 * SECOND), utc: Utc(START) };
        let policy = Policy {
            level: Level::Full,
            intervals: [Nanoseconds::SECOND, Nanoseconds::from_seconds(5), Nanoseconds::from_seconds(60)],
            standing: Vec::new(),
            presence: true,
            birth_delay: Nanoseconds::from_seconds(60),
            processes: 100,
            series: 20_000,
            prices: Vec::new(),
        };
        let meter = Meter::new(Arc::new(policy), now, None);
        let mut device = Self { meter, now, generation: 1, via };
        device.pulse(vec![News::Found { gpu: Self::id(), bus: "".into() }]);
        device
    }

    fn id() -> GpuId {
        GpuId { index: 0, uuid: "GPU-test".into() }
    }

    fn pulse(&mut self, news: Vec<News>) -> Arc<Snapshot> {
        self.meter.tick(self.now, Inputs { news, ..Inputs::default() }).snapshot
    }

    /// A frame after some seconds, in which these points and this instance were read.
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
            instances: instance.into_iter().flat_map(|(id, ratio)| compute_instances(id, ratio)).collect(),
            processes: Ok(Arc::from([])),
            samples: Ok(Vec::new()),
            sampled: None,
            listed: None,
            stretch: Stretch::default(),
            rejected: Vec::new(),
            calls: Vec::new(),
        };
        self.pulse(vec![News::Frame(Box::new(frame))])
    }

    fn sent(&mut self, seconds: u64, reading: Reading) -> Reading {
        self.frame(seconds, &[(SENT, reading)], None).gpus[0].integrals[SENT_TOTAL]
    }
}

/// Two compute instances of one GPU instance.
fn compute_instances(gpu_instance: u32, ratio: Reading) -> [InstanceFrame; 2] {
    [0, 1].map(|compute_instance| {
        let mut readings = [Err(Absence::NotYet); InstanceValue::ALL.len()];
        readings[InstanceValue::SmActive as usize] = ratio;
        readings[InstanceValue::MemoryUsed as usize] = Ok(7 << 30);
        InstanceFrame {
            identity: InstanceIdentity {
                id: InstanceId { gpu_instance, compute_instance },
                uuid: format!("MIG-{gpu_instance}-{compute_instance}").into(),
                profile: "1g.10gb".into(),
                memory: Bytes(10 << 30),
            },
            readings: readings.into(),
        }
    })
}

#[test]
fn a_rate_is_counted_over_its_time() {
    let mut device = Device::new(Via::Gpm);
    assert_eq!(device.sent(1, Err(Absence::NotYet)), Err(Absence::NotYet), "no pair yet");
    assert_eq!(device.sent(2, Ok(500)), Ok(1_000));
    assert_eq!(device.sent(3, Ok(0)), Ok(1_000));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(1_000), "what is not known adds nothing");
    assert_eq!(device.sent(1, Ok(7)), Ok(1_007));
}

#[test]
fn a_count_that_wraps_or_begins_anew_never_takes_the_counter_back() {
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
fn an_instance_counts_once_however_many_compute_instances_it_has_and_goes_on_when_its_id_returns() {
    let mut device = Device::new(Via::Gpm);
    let busy = |snapshot: &Snapshot, id| snapshot.gpus[0].instances[&id][InstanceValue::SmActive as usize];
    device.frame(1, &[], Some((3, Ok(500_000_000))));
    let snapshot = device.frame(4, &[], Some((3, Ok(500_000_000))));
    assert_eq!(busy(&snapshot, 3), Ok(2_000_000_000));
    assert!(snapshot.gpus[0].instances[&3][InstanceValue::MemoryUsed as usize].is_err(), "memory is no time");
    // Cut otherwise, and back.
    device.generation += 1;
    device.frame(1, &[], Some((5, Ok(1_000_000_000))));
    device.generation += 1;
    device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    let snapshot = device.frame(1, &[], Some((3, Ok(1_000_000_000))));
    assert_eq!(busy(&snapshot, 3), Ok(3_000_000_000));
    assert_eq!(busy(&snapshot, 5), Ok(0));
}

#[test]
fn metrics_whose_exactness_depends_on_it_name_their_source() {
    let mut device = Device::new(Via::Gpm);
    let snapshot = device.frame(1, &[(SENT, Ok(1))], None);
    let sources: Vec<_> = snapshot
        .roster
        .agent
        .iter()
        .filter(|entry| entry.family == "gpumeter_source_info")
        .map(|entry| entry.labels[2..].iter().map(|(_, value)| &**value).collect::<Vec<_>>())
        .collect();
    assert!(sources.contains(&vec!["gpu_pcie_bytes_total", "gpm"]), "{sources:?}");
}

#[test]
fn what_was_counted_while_a_count_could_not_be_read_is_added_when_it_can() {
    let mut device = Device::new(Via::Field);
    assert_eq!(device.sent(1, Ok(1_000)), Ok(0));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(0));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(0));
    assert_eq!(device.sent(1, Ok(1_500)), Ok(500));
    assert_eq!(device.sent(1, Err(Absence::Failed)), Ok(500));
    device.generation += 1;
    assert_eq!(device.sent(1, Ok(9_000)), Ok(500), "but not over a new plan");
}
