//! The metrics of OpenTelemetry's semantic conventions for hardware that families here have as other names.
//!
//! The conventions have the status Development. Which series gets which name says [`super::Alias`].

use super::{Family, Rows};
use crate::model::Unit;

/// The metrics, in the order in which they are sent. They have the labels of the families that they are made of.
pub static HARDWARE: [Family; 12] = [
    gauge("hw.gpu.utilization", Unit::Ratio, "Fraction of time spent in a specific task."),
    gauge("hw.gpu.memory.limit", Unit::Bytes, "Size of the GPU memory."),
    gauge("hw.gpu.memory.usage", Unit::Bytes, "GPU memory used."),
    gauge(MEMORY_UTILIZATION, Unit::Ratio, "Fraction of GPU memory used."),
    counter("hw.gpu.io", Unit::Bytes, "Received and transmitted bytes by the GPU."),
    gauge("hw.power", Unit::Watts, "Power consumed by the component."),
    counter("hw.energy", Unit::Joules, "Energy consumed by the component."),
    gauge("hw.temperature", Unit::Celsius, "Temperature in degrees Celsius."),
    gauge("hw.temperature.limit", Unit::Celsius, "Temperature limit in degrees Celsius."),
    gauge("hw.fan.speed_ratio", Unit::Ratio, "Fan speed expressed as a fraction of its maximum speed."),
    counter("hw.errors", Unit::None, "Number of errors encountered by the component."),
    gauge(STATUS, Unit::None, "Operational status: 1 or 0 for each of the possible states."),
];

/// The one that no family has: used memory of all memory.
pub const MEMORY_UTILIZATION: &str = "hw.gpu.memory.utilization";

pub const STATUS: &str = "hw.status";

/// Whether the conventions call a gauge of theirs an UpDownCounter.
pub fn is_up_down_counter(name: &str) -> bool {
    [STATUS, "hw.gpu.memory.limit", "hw.gpu.memory.usage"].contains(&name)
}

const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family::gauge(name, unit, help, Rows::Agent)
}

const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family::counter(name, unit, help, Rows::Agent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue::{Profile, families};

    #[test]
    fn every_other_name_is_a_metric_of_the_conventions_with_the_family_s_type_and_unit() {
        let mut used = vec![MEMORY_UTILIZATION];
        for family in families() {
            for alias in family.aliases.iter().filter(|alias| alias.profile == Profile::Otel) {
                let metric = HARDWARE.iter().find(|metric| metric.name == alias.name).unwrap();
                assert_eq!((metric.kind, metric.unit), (family.kind, family.unit), "{}", alias.name);
                assert_eq!((alias.scale, alias.rate), ((1, 1), false), "{}", alias.name);
                used.push(alias.name);
            }
        }
        for metric in &HARDWARE {
            assert!(used.contains(&metric.name), "{}", metric.name);
        }
    }
}
