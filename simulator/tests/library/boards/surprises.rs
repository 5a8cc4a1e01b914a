//! Misleading readings of real boards; the truth stays.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;

use super::MIB;
use nvml_wrapper_sys::bindings as sys;

use super::ask::{ask, field_value, margin, remap_banks};
use crate::support::{Node, SECOND};

#[test]
fn misleading_boards_change_readings_and_not_the_truth() {
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

#[test]
fn rows_can_be_remapped_from_before_the_script() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"a100","surprise":"remap_pending"},{"profile":"a100","surprise":"remap_without_error"},
            {"profile":"a10","surprise":"remap_pending"}],"driver_loads":[60]}"#,
    );
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    let seen = |index| {
        let gpu = nvml.device_by_index(index).unwrap();
        let rows = [142, 143, 144, 145].map(|field| field_value(&gpu, field, 0).unwrap());
        (rows, field_value(&gpu, 3, 0).unwrap(), field_value(&gpu, 5, 0).unwrap(), remap_banks(&gpu).unwrap())
    };
    assert_eq!(seen(0), ([1, 0, 1, 0], 353, 353, 639));
    assert_eq!(seen(1), ([1, 0, 0, 0], 0, 0, 639));
    // The histogram of a board without HBM does not change.
    assert_eq!(seen(2), ([1, 0, 1, 0], 353, 353, 192));
    node.hold(61 * SECOND);
    assert_eq!(seen(0), ([1, 0, 0, 0], 0, 353, 639));
}

#[test]
fn reading_raises_the_clocks_of_one_board_and_another_counts_no_errors() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"rtx-2080-super","surprise":"woken_by_reading"},{"profile":"rtx-4080-super"}]}"#,
    );
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    let gpu = |index| nvml.device_by_index(index).unwrap();
    let woken = gpu(0);
    assert_eq!(
        (woken.clock_info(Clock::SM).unwrap(), woken.current_throttle_reasons().unwrap().bits()),
        (765, 4)
    );
    assert_eq!(woken.utilization_rates().unwrap().gpu, 0);
    // Neither ECC nor a margin, but the SRAM status is supported.
    let without = gpu(1);
    assert_eq!((field_value(&without, 1, 0), margin(&without)), (Err(3), Err(3)));
    let mut status: sys::nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    status.version = u32::try_from(size_of::<sys::nvmlEccSramErrorStatus_v1_t>()).unwrap() | 1 << 24;
    assert_eq!(ask!(&without, nvmlDeviceGetSramEccErrorStatus(&raw mut status)), 0);
    assert_eq!((without.current_pcie_link_gen().unwrap(), without.max_pcie_link_gen().unwrap()), (1, 4));
}

fn field_degrees(gpu: &Device<'_>) -> i32 {
    let sensor = nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu;
    gpu.temperature(sensor).unwrap().cast_signed()
}
