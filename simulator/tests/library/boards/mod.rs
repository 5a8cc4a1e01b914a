//! Boards report what captures of real ones show.

mod ask;
mod report;
mod surprises;

use crate::support::{Node, SECOND};
use ask::{ask, field_value, number};
use nvml_wrapper::enum_wrappers::device::{Clock, P2pCapabilitiesIndex};
use nvml_wrapper::error::NvmlError;

const MIB: u64 = 1 << 20;

#[test]
fn every_board_reports_what_its_captures_show() {
    let expected = include_str!("boards.txt");
    let boards: Vec<_> = expected.lines().skip(1).map(|line| line.split_once(": ").unwrap()).collect();
    let gpus: Vec<_> = boards.iter().map(|(profile, _)| format!(r#"{{"profile":"{profile}"}}"#)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    for (index, (profile, expected)) in (0..).zip(boards) {
        assert_eq!(report::line(&nvml.device_by_index(index).unwrap()), expected, "{profile}");
    }
}

#[test]
fn each_gpu_of_a_module_reports_the_whole_module() {
    let node = Node::new(r#"{"gpus":[{"profile":"gb200","count":4}]}"#);
    let nvml = node.nvml();
    node.hold(100 * SECOND);
    let gpus: Vec<_> = (0..4).map(|index| nvml.device_by_index(index).unwrap()).collect();
    let module = |gpu| field_value(gpu, 186, 1).unwrap();
    let own = |gpu| field_value(gpu, 186, 0).unwrap();
    let [first, second, third, _] = gpus.as_slice() else { unreachable!() };
    assert_eq!(module(first), module(second));
    assert_eq!(module(first), own(first) + own(second) + 130_000);
    assert!((440_000..480_000).contains(&module(third)), "{}", module(third));
    assert_eq!(
        [187, 188, 189].map(|field| field_value(first, field, 1).unwrap()),
        [500_000, 2_500_000, 2_500_000]
    );
    assert_eq!(first.serial().unwrap(), second.serial().unwrap());
    assert_ne!(first.serial().unwrap(), third.serial().unwrap());
    let domains: Vec<_> = gpus.iter().map(|gpu| gpu.pci_info().unwrap().domain).collect();
    assert_eq!(domains, [8, 9, 0x18, 0x19]);
    assert_eq!(first.board_id().unwrap(), 0x80600);
}

#[test]
fn boards_refuse_the_calls_that_real_ones_refuse() {
    let profiles = ["h100", "t4", "a10", "rtx-4090", "rtx-6000-ada"];
    let gpus: Vec<_> = profiles.iter().map(|profile| format!(r#"{{"profile":"{profile}"}}"#)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    let fans: Vec<_> = (0..5).map(|index| gpu(index).fan_speed(0).ok()).collect();
    assert_eq!(fans.get(..4).unwrap(), [None, None, Some(0), Some(0)]);
    assert!(fans.get(4).unwrap().is_some_and(|percent| percent >= 30));
    // The T4 lacks average power; every board has the instant, and the memory has only the average.
    assert_eq!([0, 1].map(|index| field_value(&gpu(index), 185, 0).is_ok()), [true, false]);
    assert_eq!([0, 1].map(|index| field_value(&gpu(index), 186, 0).is_ok()), [true, true]);
    assert_eq!([0, 2].map(|index| field_value(&gpu(index), 185, 2).is_ok()), [true, false]);
    assert_eq!(field_value(&gpu(0), 186, 2), Err(3));
    let target = nvml_wrapper::enum_wrappers::device::TemperatureThreshold::AcousticCurr;
    let targets: Vec<_> = (0..5).map(|index| gpu(index).temperature_threshold(target).ok()).collect();
    assert_eq!(targets, [None, None, None, Some(84), Some(85)]);
    assert!(matches!(gpu(3).serial(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu(3).gsp_firmware_version(), Err(NvmlError::NotSupported)));
    assert!(matches!(
        gpu(0).encoder_capacity(nvml_wrapper::enum_wrappers::device::EncoderType::H264),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(gpu(0).encoder_utilization().unwrap().utilization, 0);
    assert_eq!(gpu(0).encoder_stats().unwrap().session_count, 0);
    let minors: Vec<_> = (0..5).map(|index| gpu(index).minor_number().unwrap()).collect();
    assert_eq!(minors, [0, 1, 2, 3, 7]);
}

#[test]
fn application_clocks_are_deprecated_from_driver_590_on() {
    let node = Node::new(r#"{"gpus":[{"profile":"a100"}]}"#);
    let clock = |node: &Node| {
        let nvml = node.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        number(|value| ask!(&gpu, nvmlDeviceGetApplicationsClock(1, value)))
    };
    assert_eq!(clock(&node), Ok(1140));
    let newer = Node::new(r#"{"driver_version":"590.48.01","gpus":[{"profile":"a100"}]}"#);
    assert_eq!(clock(&newer), Err(26));
}

#[test]
fn power_smoothing_needs_permission_and_newer_drivers_have_more_fields() {
    let scenario = |driver: &str| {
        format!(
            r#"{{"driver_version":"{driver}","gpus":[{{"profile":"b200"}},{{"profile":"h100"}},{{"profile":"rtx-pro-6000"}}]}}"#
        )
    };
    let codes = |driver: &str, field| {
        let node = Node::new(&scenario(driver));
        let nvml = node.nvml();
        [0, 1, 2].map(|index| field_value(&nvml.device_by_index(index).unwrap(), field, 0))
    };
    assert_eq!(codes("580.105.08", 251), [Err(4), Err(3), Err(3)]);
    assert_eq!(codes("580.105.08", 274), [Err(2); 3]);
    assert_eq!(codes("590.48.01", 274), [Err(3), Ok(100), Err(3)]);
    assert_eq!(codes("590.48.01", 301), [Err(2); 3]);
    assert_eq!(codes("610.57.04", 301), [Ok(0); 3]);
}

#[test]
fn older_drivers_report_traffic_in_coarse_steps_and_omit_reserved_memory() {
    let seen = |driver: &str| {
        let node = Node::new(&format!(
            r#"{{"driver_version":"{driver}","gpus":[{{"profile":"a30"}},{{"profile":"h100"}}]}}"#
        ));
        let nvml = node.nvml();
        node.hold(5 * SECOND);
        let traffic = |index| {
            let send = nvml_wrapper::enum_wrappers::device::PcieUtilCounter::Send;
            nvml.device_by_index(index).unwrap().pcie_throughput(send).unwrap()
        };
        let mut memory = nvml_wrapper_sys::bindings::nvmlMemory_t { total: 0, free: 0, used: 0 };
        assert_eq!(ask!(&nvml.device_by_index(0).unwrap(), nvmlDeviceGetMemoryInfo(&raw mut memory)), 0);
        assert_eq!(memory.total, memory.free + memory.used);
        (traffic(0), traffic(1), memory.total / MIB)
    };
    assert_eq!(seen("470.256.02"), (1_000, 600, 24_258));
    assert_eq!(seen("570.148.08"), (600, 600, 24_576));
}

#[test]
fn an_a100_in_mig_mode_keeps_its_clocks_up_and_has_one_jpeg_engine() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"a100","mig":[{"profile":"7g.80gb","start":0}]},{"profile":"h100","mig":[{"profile":"7g.80gb","start":0}]}]}"#,
    );
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    let seen = |index| {
        let gpu = nvml.device_by_index(index).unwrap();
        let instance = gpu.mig_device_by_index(0).unwrap().attributes().unwrap();
        let engines = (instance.shared_decoder_count, instance.shared_jpeg_count, instance.shared_ofa_count);
        (gpu.clock_info(Clock::SM).unwrap(), engines)
    };
    assert_eq!(seen(0), (1410, (5, 1, 1)));
    assert_eq!(seen(1), (345, (7, 7, 1)));
}

#[test]
fn gpus_of_one_processor_are_closer_in_the_topology() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100","count":8}]}"#);
    let nvml = node.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    let level = |one, other| format!("{:?}", gpu(one).topology_common_ancestor(gpu(other)).unwrap());
    assert_eq!([level(0, 3), level(0, 4), level(5, 6)], ["Node", "System", "Node"]);
    assert_eq!(nvml.topology_gpu_set(0).unwrap().len(), 4);
    let near =
        gpu(5).topology_nearest_gpus(nvml_wrapper::enum_wrappers::device::TopologyLevel::Node).unwrap();
    let near: Vec<_> = near.iter().map(|gpu| gpu.index().unwrap()).collect();
    assert_eq!(near, [4, 6, 7]);
    let peer = |what| format!("{:?}", gpu(0).p2p_status(&gpu(7), what).unwrap());
    assert_eq!([P2pCapabilitiesIndex::Read, P2pCapabilitiesIndex::NvLink].map(peer), ["Ok", "Ok"]);
    assert_eq!(gpu(0).cpu_affinity(2).unwrap(), [(1 << 56) - 1, 0]);
    assert_eq!(gpu(7).cpu_affinity(2).unwrap(), [0xFF << 56, (1 << 48) - 1]);
}
