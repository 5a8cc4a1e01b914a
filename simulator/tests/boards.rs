//! Each board answers what real ones were seen to answer, asked through the interface.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

mod support;

use std::mem;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, P2pCapabilitiesIndex, TemperatureThreshold};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;
use support::{Node, SECOND};

/// MiB, watts, MHz; `margin` is the GPU's shutdown distance where the board counts in margins.
struct Seen {
    profile: &'static str,
    name: &'static str,
    pci: (u32, u32),
    memory: (u64, u64),
    bar1: u64,
    limits: (u32, u32, u32),
    sm: (u32, u32),
    memory_clock: u32,
    /// Memory clock and number of graphics clocks, the highest first.
    sets: &'static [(u32, usize)],
    state: u32,
    pcie: (u32, u32, u32),
    remap: Option<u32>,
    /// Shutdown and slowdown: degrees, or distances.
    thresholds: Result<(u32, u32), (i32, i32)>,
    memory_temperature: bool,
    mig: bool,
    c2c: Option<bool>,
    part: Option<&'static str>,
}

const BOARDS: [Seen; 13] = [
    Seen {
        profile: "t4",
        name: "Tesla T4",
        pci: (0x1EB8, 0x12A2),
        memory: (15_360, 448),
        bar1: 256,
        limits: (60, 70, 70),
        sm: (1590, 1590),
        memory_clock: 5001,
        sets: &[(5001, 87), (405, 24)],
        state: 0,
        pcie: (3, 3, 16),
        remap: None,
        thresholds: Ok((96, 93)),
        memory_temperature: false,
        mig: false,
        c2c: None,
        part: Some("900-2G183-0000-001"),
    },
    Seen {
        profile: "a10",
        name: "NVIDIA A10",
        pci: (0x2236, 0x1482),
        memory: (23_028, 512),
        bar1: 32_768,
        limits: (100, 150, 150),
        sm: (225, 1695),
        memory_clock: 6251,
        sets: &[(6251, 99), (405, 13)],
        state: 8,
        pcie: (4, 4, 16),
        remap: Some(192),
        thresholds: Ok((101, 98)),
        memory_temperature: false,
        mig: false,
        c2c: None,
        part: Some("900-2G133-0020-000"),
    },
    Seen {
        profile: "a30",
        name: "NVIDIA A30",
        pci: (0x20B7, 0x1532),
        memory: (24_576, 318),
        bar1: 32_768,
        limits: (100, 165, 165),
        sm: (210, 1440),
        memory_clock: 1215,
        sets: &[(1215, 83)],
        state: 0,
        pcie: (4, 4, 16),
        remap: Some(640),
        thresholds: Ok((92, 89)),
        memory_temperature: true,
        mig: true,
        c2c: None,
        part: Some("900-21001-0040-000"),
    },
    Seen {
        profile: "a100-40",
        name: "NVIDIA A100-SXM4-40GB",
        pci: (0x20B0, 0x134F),
        memory: (40_960, 518),
        bar1: 65_536,
        limits: (100, 400, 400),
        sm: (210, 1410),
        memory_clock: 1215,
        sets: &[(1215, 81)],
        state: 0,
        pcie: (4, 4, 16),
        remap: Some(640),
        thresholds: Ok((92, 89)),
        memory_temperature: true,
        mig: true,
        c2c: None,
        part: Some("692-2G506-0200-003"),
    },
    Seen {
        profile: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        pci: (0x20B2, 0x147F),
        memory: (81_920, 763),
        bar1: 131_072,
        limits: (100, 500, 500),
        sm: (210, 1410),
        memory_clock: 1593,
        sets: &[(1593, 81)],
        state: 0,
        pcie: (4, 4, 16),
        remap: Some(640),
        thresholds: Ok((92, 89)),
        memory_temperature: true,
        mig: true,
        c2c: None,
        part: Some("692-2G506-0212-005"),
    },
    Seen {
        profile: "l4",
        name: "NVIDIA L4",
        pci: (0x27B8, 0x16CA),
        memory: (23_034, 434),
        bar1: 32_768,
        limits: (40, 72, 72),
        sm: (210, 2040),
        memory_clock: 6251,
        sets: &[(6251, 123), (405, 30)],
        state: 8,
        pcie: (4, 4, 16),
        remap: Some(96),
        thresholds: Err((-5, -2)),
        memory_temperature: false,
        mig: false,
        c2c: None,
        part: Some("900-2G193-0000-000"),
    },
    Seen {
        profile: "l40s",
        name: "NVIDIA L40S",
        pci: (0x26B9, 0x1851),
        memory: (46_068, 609),
        bar1: 65_536,
        limits: (100, 350, 350),
        sm: (210, 2520),
        memory_clock: 9001,
        sets: &[(9001, 155), (405, 14)],
        state: 8,
        pcie: (4, 4, 16),
        remap: Some(192),
        thresholds: Err((-5, -2)),
        memory_temperature: false,
        mig: false,
        c2c: None,
        part: Some("900-2G133-0080-000"),
    },
    Seen {
        profile: "h100",
        name: "NVIDIA H100 80GB HBM3",
        pci: (0x2330, 0x16C1),
        memory: (81_559, 479),
        bar1: 131_072,
        limits: (200, 700, 700),
        sm: (345, 1980),
        memory_clock: 2619,
        sets: &[(2619, 110), (1593, 110)],
        state: 0,
        pcie: (5, 5, 16),
        remap: Some(2560),
        thresholds: Err((-8, -2)),
        memory_temperature: true,
        mig: true,
        c2c: Some(false),
        part: Some("692-2G520-0200-000"),
    },
    Seen {
        profile: "h100-nvl",
        name: "NVIDIA H100 NVL",
        pci: (0x2321, 0x1839),
        memory: (95_830, 594),
        bar1: 131_072,
        limits: (200, 310, 400),
        sm: (345, 1785),
        memory_clock: 2619,
        sets: &[(2619, 97)],
        state: 0,
        pcie: (5, 5, 16),
        remap: Some(3072),
        thresholds: Err((-8, -2)),
        memory_temperature: true,
        mig: true,
        c2c: Some(false),
        part: Some("692-2G520-0290-000"),
    },
    Seen {
        profile: "h200",
        name: "NVIDIA H200",
        pci: (0x2335, 0x18BE),
        memory: (143_771, 614),
        bar1: 262_144,
        limits: (200, 700, 700),
        sm: (345, 1980),
        memory_clock: 3201,
        sets: &[(3201, 110)],
        state: 0,
        pcie: (5, 5, 16),
        remap: Some(3072),
        thresholds: Err((-8, -2)),
        memory_temperature: true,
        mig: true,
        c2c: Some(false),
        part: Some("695-2G520-0280-001"),
    },
    Seen {
        profile: "b200",
        name: "NVIDIA B200",
        pci: (0x2901, 0x1999),
        memory: (183_359, 728),
        bar1: 262_144,
        limits: (200, 1000, 1000),
        sm: (120, 1965),
        memory_clock: 3996,
        sets: &[(3996, 247), (3402, 247)],
        state: 0,
        pcie: (5, 5, 16),
        remap: Some(3840),
        thresholds: Err((-5, -3)),
        memory_temperature: true,
        mig: true,
        c2c: Some(false),
        part: Some("692-2G525-0220-500"),
    },
    Seen {
        profile: "gb200",
        name: "NVIDIA GB200",
        pci: (0x2941, 0x2046),
        memory: (189_471, 742),
        bar1: 262_144,
        limits: (200, 1200, 1200),
        sm: (120, 2062),
        memory_clock: 3996,
        sets: &[(3996, 260)],
        state: 0,
        pcie: (5, 6, 16),
        remap: Some(3968),
        thresholds: Err((-5, -2)),
        memory_temperature: true,
        mig: true,
        c2c: Some(true),
        part: Some("900-2G548-A801-000"),
    },
    Seen {
        profile: "gb300",
        name: "NVIDIA GB300",
        pci: (0x31C2, 0x21F1),
        memory: (284_208, 947),
        bar1: 524_288,
        limits: (200, 1400, 1400),
        sm: (120, 2070),
        memory_clock: 3996,
        sets: &[(3996, 261)],
        state: 0,
        pcie: (6, 6, 16),
        remap: Some(5952),
        thresholds: Err((-5, -2)),
        memory_temperature: true,
        mig: true,
        c2c: Some(true),
        part: Some("900-2G548-0081-000"),
    },
];

const MIB: u64 = 1 << 20;

#[test]
fn every_board_answers_as_seen() {
    let gpus: Vec<_> = BOARDS.iter().map(|seen| format!(r#"{{"profile":"{}"}}"#, seen.profile)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    for (index, seen) in (0..).zip(&BOARDS) {
        let gpu = nvml.device_by_index(index).unwrap();
        identity(&gpu, seen);
        clocks_and_power(&gpu, seen);
        heat(&gpu, seen);
        links_and_parts(&gpu, seen);
    }
}

fn identity(gpu: &Device<'_>, seen: &Seen) {
    let of = seen.profile;
    assert_eq!(gpu.name().unwrap(), format!("{} (simulated)", seen.name), "{of}");
    let pci = gpu.pci_info().unwrap();
    assert_eq!(pci.pci_device_id, seen.pci.0 << 16 | 0x10DE, "{of}");
    assert_eq!(pci.pci_sub_system_id, Some(seen.pci.1 << 16 | 0x10DE), "{of}");
    assert_eq!(gpu.board_part_number().ok().as_deref(), seen.part, "{of}");
    let memory = gpu.memory_info().unwrap();
    assert_eq!(memory.total.div_ceil(MIB), seen.memory.0, "{of}");
    assert_eq!(memory.reserved.div_ceil(MIB), seen.memory.1, "{of}");
    assert_eq!((memory.used, gpu.bar1_memory_info().unwrap().total), (0, seen.bar1 * MIB), "{of}");
}

fn clocks_and_power(gpu: &Device<'_>, seen: &Seen) {
    let of = seen.profile;
    let limits = gpu.power_management_limit_constraints().unwrap();
    let default = gpu.power_management_limit_default().unwrap();
    let watts = (limits.min_limit / 1000, default / 1000, limits.max_limit / 1000);
    assert_eq!(watts, seen.limits, "{of}");
    let sm = (gpu.clock_info(Clock::SM).unwrap(), gpu.max_clock_info(Clock::SM).unwrap());
    assert_eq!((sm, gpu.max_clock_info(Clock::Memory).unwrap()), (seen.sm, seen.memory_clock), "{of}");
    let sets: Vec<(u32, usize)> = gpu
        .supported_memory_clocks()
        .unwrap()
        .into_iter()
        .map(|memory| (memory, graphics_clocks(gpu, memory)))
        .collect();
    assert_eq!(sets, seen.sets, "{of}");
    assert!(matches!(gpu.supported_graphics_clocks(1), Err(NvmlError::NotFound)), "{of}");
    assert_eq!(gpu.performance_state().unwrap().as_c(), seen.state, "{of}");
}

/// How many there are; the client's own call cuts them at 128.
fn graphics_clocks(gpu: &Device<'_>, memory: u32) -> usize {
    let (raw, mut count, mut clocks) = (unsafe_handle(gpu), 300, [0; 300]);
    let code = call(gpu, |library| {
        library
            .nvmlDeviceGetSupportedGraphicsClocks
            .as_ref()
            .ok()
            .map(|f| unsafe { f(raw, memory, &raw mut count, clocks.as_mut_ptr()) })
    });
    assert_eq!(code, 0);
    count as usize
}

fn heat(gpu: &Device<'_>, seen: &Seen) {
    let of = seen.profile;
    let distances = [193, 194].map(|field| field_value(gpu, field, 0));
    match seen.thresholds {
        Ok(degrees) => {
            let shutdown = gpu.temperature_threshold(TemperatureThreshold::Shutdown).unwrap();
            let slowdown = gpu.temperature_threshold(TemperatureThreshold::Slowdown).unwrap();
            assert_eq!((shutdown, slowdown), degrees, "{of}");
            assert_eq!(distances, [Err(3), Err(3)], "{of}");
        }
        Err((shutdown, slowdown)) => {
            let signed = |value: i32| Ok(u64::from(value.cast_unsigned()));
            assert_eq!(distances, [signed(shutdown), signed(slowdown)], "{of}");
        }
    }
    assert_eq!(field_value(gpu, 82, 0).is_ok(), seen.memory_temperature, "{of}");
    let memory_limit = gpu.temperature_threshold(TemperatureThreshold::MemoryMax);
    assert_eq!(memory_limit.is_ok(), seen.memory_temperature, "{of}");
}

fn links_and_parts(gpu: &Device<'_>, seen: &Seen) {
    let (of, raw) = (seen.profile, unsafe_handle(gpu));
    let width = gpu.max_pcie_link_width().unwrap();
    let device = number(|value| {
        call(gpu, |library| {
            library.nvmlDeviceGetGpuMaxPcieLinkGeneration.as_ref().ok().map(|f| unsafe { f(raw, value) })
        })
    });
    assert_eq!((gpu.max_pcie_link_gen().unwrap(), device.unwrap(), width), seen.pcie, "{of}");
    assert_eq!(gpu.mig_mode().is_ok(), seen.mig, "{of}");
    let mut histogram: sys::nvmlRowRemapperHistogramValues_t = unsafe { mem::zeroed() };
    let code = call(gpu, |library| {
        library.nvmlDeviceGetRowRemapperHistogram.as_ref().ok().map(|f| unsafe { f(raw, &raw mut histogram) })
    });
    assert_eq!((code == 0).then_some(histogram.max), seen.remap, "{of}");
    let mut c2c = sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: 9 };
    let code = call(gpu, |library| {
        library.nvmlDeviceGetC2cModeInfoV.as_ref().ok().map(|f| unsafe { f(raw, &raw mut c2c) })
    });
    assert_eq!((code == 0).then_some(c2c.isC2cEnabled == 1), seen.c2c, "{of}");
}

fn unsafe_handle(gpu: &Device<'_>) -> sys::nvmlDevice_t {
    // SAFETY: it is only passed back to the library that gave it.
    unsafe { gpu.handle() }
}

fn call(gpu: &Device<'_>, of: impl FnOnce(&sys::NvmlLib) -> Option<u32>) -> u32 {
    of(gpu.nvml().lib()).unwrap()
}

fn number(of: impl FnOnce(*mut u32) -> u32) -> Result<u32, u32> {
    let mut value = 0;
    match of(&raw mut value) {
        0 => Ok(value),
        code => Err(code),
    }
}

/// A field's eight bytes, or its code.
fn field_value(gpu: &Device<'_>, field: u32, scope: u32) -> Result<u64, u32> {
    // SAFETY: integers and a union of numbers may all be zero.
    let mut value: sys::nvmlFieldValue_t = unsafe { mem::zeroed() };
    (value.fieldId, value.scopeId) = (field, scope);
    let raw = unsafe_handle(gpu);
    // SAFETY: one value is there, as the count says.
    let code = call(gpu, |library| {
        library.nvmlDeviceGetFieldValues.as_ref().ok().map(|f| unsafe { f(raw, 1, &raw mut value) })
    });
    assert_eq!(code, 0);
    // SAFETY: the library sets all eight bytes.
    if value.nvmlReturn == 0 { Ok(unsafe { value.value.ullVal }) } else { Err(value.nvmlReturn) }
}

#[test]
fn a_module_of_two_gpus_is_answered_by_each() {
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
fn boards_refuse_what_real_ones_refuse() {
    let profiles = ["h100", "t4", "a10", "rtx-4090", "rtx-6000-ada"];
    let gpus: Vec<_> = profiles.iter().map(|profile| format!(r#"{{"profile":"{profile}"}}"#)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    let fans: Vec<_> = (0..5).map(|index| gpu(index).fan_speed(0).ok()).collect();
    assert_eq!(fans.get(..4).unwrap(), [None, None, Some(0), Some(0)]);
    assert!(fans.get(4).unwrap().is_some_and(|percent| percent >= 30));
    // Average power is newer than the T4.
    assert_eq!([0, 1].map(|index| field_value(&gpu(index), 185, 0).is_ok()), [true, false]);
    assert_eq!([0, 2].map(|index| field_value(&gpu(index), 185, 2).is_ok()), [true, false]);
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
        let raw = unsafe_handle(&gpu);
        number(|value| {
            call(&gpu, |library| {
                library.nvmlDeviceGetApplicationsClock.as_ref().ok().map(|f| unsafe { f(raw, 1, value) })
            })
        })
    };
    assert_eq!(clock(&node), Ok(1140));
    let newer = Node::new(r#"{"driver_version":"590.48.01","gpus":[{"profile":"a100"}]}"#);
    assert_eq!(clock(&newer), Err(26));
}

#[test]
fn gpus_of_one_processor_are_nearer() {
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

#[test]
fn a_board_that_misleads_shows_it_and_the_truth_stays() {
    let surprises = [
        "after_load_window",
        "persistence_off",
        "first_look_power",
        "power_cap_at_rest",
        "drifting_margin",
        "no_margin",
        "clocked_down",
        "zero_clock",
        "narrow_link",
        "many_replays",
        "hidden_memory",
        "memory_busy_at_rest",
    ];
    let gpus: Vec<_> =
        surprises.iter().map(|name| format!(r#"{{"profile":"l40s","surprise":"{name}"}}"#)).collect();
    let node = Node::new(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
    let nvml = node.nvml();
    node.hold(120 * SECOND);
    let named = |name: &str| {
        let index = surprises.iter().position(|known| *known == name).unwrap();
        nvml.device_by_index(u32::try_from(index).unwrap()).unwrap()
    };
    let after = named("after_load_window");
    let state = format!("{:?}", after.performance_state().unwrap());
    assert_eq!(
        (after.utilization_rates().unwrap().gpu, after.clock_info(Clock::SM).unwrap(), state.as_str()),
        (100, 2520, "Zero")
    );
    assert!(field_value(&after, 185, 0).unwrap() > field_value(&after, 186, 0).unwrap());
    let off = named("persistence_off");
    assert!(
        (17..=25).contains(&off.utilization_rates().unwrap().gpu) && !off.is_in_persistent_mode().unwrap()
    );
    assert_eq!(off.current_throttle_reasons().unwrap().bits(), 1);
    let odd = named("first_look_power");
    let first = odd.power_usage().unwrap();
    assert_eq!(named("power_cap_at_rest").current_throttle_reasons().unwrap().bits(), 4);
    assert!(field_value(&named("power_cap_at_rest"), 74, 0).unwrap() >= 7_015_000_000_000);
    assert_eq!(margin(&named("no_margin")), Err(3));
    let drifting = named("drifting_margin");
    let (before, degrees) = (margin(&drifting).unwrap(), field_degrees(&drifting));
    let down = named("clocked_down");
    assert_eq!(
        (down.clock_info(Clock::SM).unwrap(), down.current_throttle_reasons().unwrap().bits()),
        (86, 0x88)
    );
    assert_eq!(named("zero_clock").clock_info(Clock::SM).unwrap(), 0);
    let narrow = named("narrow_link");
    assert_eq!((narrow.current_pcie_link_width().unwrap(), narrow.max_pcie_link_width().unwrap()), (1, 16));
    assert!((106..=174).contains(&named("many_replays").pcie_replay_counter().unwrap()));
    assert_eq!(named("hidden_memory").memory_info().unwrap().used, 20 * MIB);
    let busy = named("memory_busy_at_rest").utilization_rates().unwrap();
    assert_eq!((busy.gpu, busy.memory), (0, 37));
    node.hold(131 * SECOND);
    assert_eq!(first - odd.power_usage().unwrap(), 27_000);
    assert_eq!(after.utilization_rates().unwrap().gpu, 0);
    assert_ne!(margin(&drifting).unwrap() + field_degrees(&drifting), before + degrees);
    drop(nvml);
    assert!(!node.read("truth").contains("\"busy_ns\":1"), "{}", node.read("truth"));
}

fn field_degrees(gpu: &Device<'_>) -> i32 {
    let sensor = nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu;
    gpu.temperature(sensor).unwrap().cast_signed()
}

fn margin(gpu: &Device<'_>) -> Result<i32, u32> {
    let mut asked: sys::nvmlMarginTemperature_v1_t = unsafe { mem::zeroed() };
    asked.version = u32::try_from(size_of::<sys::nvmlMarginTemperature_v1_t>()).unwrap() | 1 << 24;
    let raw = unsafe_handle(gpu);
    match call(gpu, |library| {
        library.nvmlDeviceGetMarginTemperature.as_ref().ok().map(|f| unsafe { f(raw, &raw mut asked) })
    }) {
        0 => Ok(asked.marginTemperature),
        code => Err(code),
    }
}
