//! Readings of the simulated GPUs through nvml-wrapper.

use crate::support::{BEGUN, EIGHT, Node, SECOND};
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;

const MIG: &str = r#"{"seed":2,"cycle_seconds":60,"gpus":[{"profile":"h100","mig":[
        {"profile":"3g.40gb","start":4},{"profile":"1g.10gb","start":2},{"profile":"2g.20gb","start":0}]}],
    "processes":[
        {"pid":7,"gpu":0,"instance":0,
         "phases":[{"from":0,"to":60,"demand":1.0,"memory_bytes":1048576,"sm":0.5}]},
        {"pid":8,"gpu":0,"instance":1,"phases":[{"from":0,"to":60,"demand":0.5,"memory_bytes":2097152}]}]}"#;

#[test]
fn eight_gpus_have_different_identities() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.105.08");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..8 {
        let gpu = nvml.device_by_index(index).unwrap();
        assert_eq!(gpu.name().unwrap(), "NVIDIA H100 80GB HBM3 (simulated)");
        assert_eq!(gpu.index().unwrap(), index);
        let (uuid, bus) = (gpu.uuid().unwrap(), gpu.pci_info().unwrap().bus_id);
        assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), index);
        assert_eq!(nvml.device_by_pci_bus_id(bus.as_str()).unwrap().index().unwrap(), index);
        assert!(bus.starts_with("00000000:") && uuid.starts_with("GPU-"), "{bus} {uuid}");
        assert!(seen.insert(uuid) && seen.insert(gpu.serial().unwrap()) && seen.insert(bus));
    }
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
}

#[test]
fn a_busy_gpu_shows_its_load_on_every_meter() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(35 * SECOND);
    let (busy, rest) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert!(busy.utilization_rates().unwrap().gpu > 60);
    assert_eq!(rest.utilization_rates().unwrap().gpu, 0);
    assert!(
        busy.power_usage().unwrap() > 300_000 && (67_000..=101_000).contains(&rest.power_usage().unwrap())
    );
    assert!(
        busy.temperature(TemperatureSensor::Gpu).unwrap() > rest.temperature(TemperatureSensor::Gpu).unwrap()
    );
    assert_eq!(busy.clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(rest.clock_info(Clock::SM).unwrap(), 345);
    assert_eq!(rest.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).unwrap(), 0);
    let memory = busy.memory_info().unwrap();
    assert_eq!(memory.used, 21_474_836_480 + 1_073_741_824);
    assert_eq!(memory.total, memory.used + memory.free + memory.reserved);
    assert_eq!(rest.memory_info().unwrap().used, 0);
    assert!(matches!(busy.fan_speed(0), Err(NvmlError::NotSupported)));
    assert_eq!(busy.current_throttle_reasons().unwrap().bits(), 0);
    assert_eq!(rest.current_throttle_reasons().unwrap().bits(), 1);
    node.hold(25 * SECOND);
    assert_eq!(busy.current_throttle_reasons().unwrap().bits(), 4);
    assert!(busy.clock_info(Clock::SM).unwrap() < 1980);
}

#[test]
fn energy_grows_as_in_the_truth() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let mut former = gpu.total_energy_consumption().unwrap();
    for minute in 1..5 {
        node.hold(minute * 60 * SECOND);
        let energy = gpu.total_energy_consumption().unwrap();
        assert!(energy > former);
        former = energy;
        let truth = node.read("truth");
        assert!(truth.contains(&format!("\"elapsed_ns\":{}", minute * 60 * SECOND)), "{truth}");
        assert!(truth.contains(&format!("\"energy_uj\":{energy}")), "{energy} in {truth}");
    }
}

#[test]
fn processes_come_and_go_with_their_phases() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let pids = |gpu: &Device<'_>| {
        gpu.running_compute_processes().unwrap().iter().map(|process| process.pid).collect::<Vec<_>>()
    };
    assert_eq!(pids(&gpu), [4211]);
    node.hold(10 * SECOND);
    assert_eq!(pids(&gpu), [4211, 4212]);
    node.hold(55 * SECOND);
    assert!(pids(&gpu).is_empty());
    assert!(gpu.running_graphics_processes().unwrap().is_empty());
    assert_eq!(nvml.sys_process_name(4212, 64).unwrap(), "/usr/bin/blender");
}

#[test]
fn process_samples_end_after_the_last_seen_time() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    node.hold(20 * SECOND);
    let all = gpu.process_utilization_stats(None).unwrap();
    assert!(all.len() > 20 && all.iter().any(|sample| sample.pid == 4212));
    let last = all.iter().map(|sample| sample.timestamp).max().unwrap();
    assert!(last <= (BEGUN + 20 * SECOND) / 1_000 && last > (BEGUN + 19 * SECOND) / 1_000);
    assert!(matches!(gpu.process_utilization_stats(last), Err(NvmlError::NotFound)));
    node.hold(21 * SECOND);
    let next = gpu.process_utilization_stats(last).unwrap();
    assert!(next.iter().all(|sample| sample.timestamp > last) && (10..=12).contains(&next.len()));
    let idle = nvml.device_by_index(1).unwrap();
    assert!(matches!(idle.process_utilization_stats(None), Err(NvmlError::NotFound)));
}

#[test]
fn gpm_is_exact_between_two_samples() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let first = gpu.gpm_sample().unwrap();
    node.hold(5 * SECOND);
    let second = gpu.gpm_sample().unwrap();
    let metrics =
        [GpmMetricId::GraphicsUtil, GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil, GpmMetricId::DramBwUtil];
    let values: Vec<f64> = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &first, &second, &metrics)
        .unwrap()
        .into_iter()
        .map(|metric| metric.unwrap().value)
        .collect();
    let [busy, sm, tensor, dram] = values.as_slice() else { unreachable!() };
    assert!((80.0..90.0).contains(busy), "{busy}");
    assert!(
        (sm / busy - 0.7).abs() < 1e-4
            && (tensor / busy - 0.4).abs() < 1e-4
            && (dram / busy - 0.3).abs() < 1e-4
    );
    let same = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &second, &second, &metrics).unwrap();
    assert!(same.into_iter().all(|metric| metric.unwrap().value.is_nan()));
}

#[test]
fn scripted_errors_occur_at_their_time_once_a_cycle() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let events = nvml.create_event_set().unwrap();
    let (third, fourth) = (nvml.device_by_index(3).unwrap(), nvml.device_by_index(4).unwrap());
    let events = fourth
        .register_events(
            EventTypes::CRITICAL_XID_ERROR,
            third.register_events(EventTypes::CRITICAL_XID_ERROR, events).unwrap(),
        )
        .unwrap();
    assert!(matches!(events.wait(20), Err(NvmlError::Timeout)));
    node.hold(81 * SECOND);
    let mut seen = Vec::new();
    while let Ok(event) = events.wait(0) {
        seen.push((event.device.index().unwrap(), format!("{:?}", event.event_data)));
    }
    let seen: Vec<_> = seen.iter().map(|(gpu, _)| *gpu).collect();
    assert_eq!(seen, [3, 4, 3, 4]);
}

#[test]
fn a_gpu_in_mig_mode_reports_by_instance() {
    let node = Node::new(MIG);
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let parent = nvml.device_by_index(0).unwrap();
    assert_eq!(parent.mig_mode().unwrap().current, 1);
    assert!(matches!(parent.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(parent.process_utilization_stats(None), Err(NvmlError::NotSupported)));
    assert!(parent.power_usage().unwrap() > 100_000);
    // By GPU instance id: 3g is 2, 2g is 3, 1g is 9.
    let names: Vec<_> =
        (0..3).map(|index| parent.mig_device_by_index(index).unwrap().name().unwrap()).collect();
    assert_eq!(
        names,
        ["3g.40gb", "2g.20gb", "1g.10gb"]
            .map(|profile| format!("NVIDIA H100 80GB HBM3 MIG {profile} (simulated)"))
    );
    assert!(matches!(parent.mig_device_by_index(3), Err(NvmlError::NotFound)));
    let large = parent.mig_device_by_index(0).unwrap();
    assert!(large.uuid().unwrap().starts_with("MIG-"));
    assert_eq!(large.memory_info().unwrap().used, (26 + 1) << 20);
    assert_eq!(large.memory_info().unwrap().total, 40_448 << 20);
    assert!(matches!(large.power_usage(), Err(NvmlError::NotSupported)));
    assert_eq!(large.attributes().unwrap().multiprocessor_count, 60);
    let processes = parent.running_compute_processes().unwrap();
    let places: Vec<_> = processes.iter().map(|process| (process.pid, process.gpu_instance_id)).collect();
    assert_eq!(places, [(7, Some(2)), (8, Some(9))]);
    let first = parent.gpm_mig_sample(2).unwrap();
    node.hold(40 * SECOND);
    let second = parent.gpm_mig_sample(2).unwrap();
    let metrics = [GpmMetricId::GraphicsUtil, GpmMetricId::SmUtil];
    let values = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &first, &second, &metrics).unwrap();
    let values: Vec<f64> = values.into_iter().map(|metric| metric.unwrap().value).collect();
    assert_eq!(values, [100.0, 50.0]);
}

#[test]
fn boards_refuse_unsupported_link_calls() {
    let profiles = ["h100", "h200", "a100", "l40s", "l4"];
    let gpus: Vec<String> = profiles.iter().map(|profile| format!(r#"{{"profile":"{profile}"}}"#)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    let seen: Vec<_> = (0..5)
        .map(|index| {
            let gpu = nvml.device_by_index(index).unwrap();
            let memory = gpu.memory_info().unwrap();
            assert_eq!(memory.total, memory.free + memory.reserved);
            let links = (0..18).filter(|link| gpu.link_wrapper_for(*link).is_active().is_ok()).count();
            (gpu.gpm_support().unwrap(), gpu.mig_mode().is_ok(), links, gpu.performance_state().unwrap())
        })
        .map(|(gpm, mig, links, state)| (gpm, mig, links, format!("{state:?}")))
        .collect();
    let expected = [(true, true, 18, "Zero"), (true, true, 18, "Zero"), (false, true, 12, "Zero")];
    let inference = [(false, false, 0, "Eight"); 2];
    let expected = expected
        .iter()
        .chain(&inference)
        .map(|(gpm, mig, links, state)| (*gpm, *mig, *links, (*state).to_owned()));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}
