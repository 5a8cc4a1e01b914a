//! What a board reports, as one line of `boards.txt`.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureThreshold};
use nvml_wrapper::error::NvmlError;

use super::MIB;
use super::ask::{ask, c2c, field_value, graphics_clocks, number, remap_banks};

/// The line of a board: identity, sizes in MiB, limits in W, clocks in MHz, temperatures in degrees Celsius.
pub(super) fn line(gpu: &Device<'_>) -> String {
    format!(
        "{}; {}; {}; {}; {}",
        identity(gpu),
        memory(gpu),
        clocks(gpu),
        temperatures(gpu),
        connections(gpu)
    )
}

fn identity(gpu: &Device<'_>) -> String {
    let pci = gpu.pci_info().unwrap();
    let (device, subsystem) = (pci.pci_device_id, pci.pci_sub_system_id.unwrap());
    let part = gpu.board_part_number().unwrap_or_else(|_| "none".to_owned());
    format!("{}, part {part}, PCI {device:08X} {subsystem:08X}", gpu.name().unwrap())
}

fn memory(gpu: &Device<'_>) -> String {
    let memory = gpu.memory_info().unwrap();
    assert_eq!(memory.used, 0);
    let (total, reserved) = (memory.total.div_ceil(MIB), memory.reserved.div_ceil(MIB));
    format!("memory {total}, reserved {reserved}, BAR1 {}", gpu.bar1_memory_info().unwrap().total / MIB)
}

fn clocks(gpu: &Device<'_>) -> String {
    let limits = gpu.power_management_limit_constraints().unwrap();
    let default = gpu.power_management_limit_default().unwrap();
    let power = format!("{} {} {}", limits.min_limit / 1000, default / 1000, limits.max_limit / 1000);
    let sm = format!("{} {}", gpu.clock_info(Clock::SM).unwrap(), gpu.max_clock_info(Clock::SM).unwrap());
    let sets = gpu.supported_memory_clocks().unwrap().into_iter();
    let sets: Vec<_> = sets.map(|memory| format!("{memory}:{}", graphics_clocks(gpu, memory))).collect();
    assert!(matches!(gpu.supported_graphics_clocks(1), Err(NvmlError::NotFound)));
    let memory = gpu.max_clock_info(Clock::Memory).unwrap();
    let state = gpu.performance_state().unwrap().as_c();
    format!("power {power}, SM {sm}, memory {memory}, graphics clocks {}, P{state}", sets.join(" "))
}

/// Shutdown and slowdown, as temperatures or as distances from them, and whether the memory has a temperature.
fn temperatures(gpu: &Device<'_>) -> String {
    let distance = |field| field_value(gpu, field, 0).map(|value| (value as u32).cast_signed());
    let degrees = |threshold| gpu.temperature_threshold(threshold);
    let limits = match (distance(193), distance(194)) {
        (Ok(shutdown), Ok(slowdown)) => format!("distances {shutdown} {slowdown}"),
        refused => {
            assert_eq!(refused, (Err(3), Err(3)));
            let shutdown = degrees(TemperatureThreshold::Shutdown).unwrap();
            format!("limits {shutdown} {}", degrees(TemperatureThreshold::Slowdown).unwrap())
        }
    };
    let memory = field_value(gpu, 82, 0).is_ok();
    assert_eq!(degrees(TemperatureThreshold::MemoryMax).is_ok(), memory);
    format!("{limits}, memory temperature {memory}")
}

fn connections(gpu: &Device<'_>) -> String {
    let (generation, width) = (gpu.max_pcie_link_gen().unwrap(), gpu.max_pcie_link_width().unwrap());
    let device = number(|value| ask!(gpu, nvmlDeviceGetGpuMaxPcieLinkGeneration(value))).unwrap();
    let (mig, banks, c2c) = (gpu.mig_mode().is_ok(), remap_banks(gpu), c2c(gpu));
    format!("PCIe {generation} of {device} x{width}, MIG {mig}, remap banks {banks:?}, C2C {c2c:?}")
}
