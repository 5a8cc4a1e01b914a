//! What misleads a reader is shown, and the truth stays.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;

use crate::MIB;
use crate::ask::{field_value, margin};
use crate::support::{Node, SECOND};

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
