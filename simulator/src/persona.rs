//! Driver variants: versions, missing functions, and wrong answers of older or special drivers.
//!
//! In: the name of a variant, from a scenario. Out: versions, and the functions that its library lacks. A symbol
//! cannot be removed from a loaded library: [`without`] makes a copy of the file that lacks it. A library that
//! still has the function returns "function not found" for it.

mod elf;
mod since;

use serde::Deserialize;

pub use elf::without;

/// A driver variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persona {
    /// The newest driver, without oddities.
    #[default]
    Plain,
    /// Before memory v2, process lists v3, GPM and most later functions.
    R470,
    /// 535.54.03: entries of the v3 process lists have 32 bytes.
    #[serde(rename = "early_535")]
    Early535,
    /// 535.98: the v3 process lists were withdrawn.
    #[serde(rename = "r535_98")]
    R535Without3,
    /// The memory temperature field is marked as a double and holds an integer.
    R545DoubleTag,
    /// Before 580.82 moved field ids.
    R580Ids,
    /// That of GB10: every GPU is one, whatever its profile.
    Gb10,
    /// Before the second version of the remapped rows.
    R590,
}

const NAMES: [(&str, Persona); 7] = [
    ("r470", Persona::R470),
    ("early_535", Persona::Early535),
    ("r535_98", Persona::R535Without3),
    ("r545_double_tag", Persona::R545DoubleTag),
    ("r580_ids", Persona::R580Ids),
    ("gb10", Persona::Gb10),
    ("r590", Persona::R590),
];

const THIRD_LISTS: [&str; 3] = [
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
];

impl Persona {
    /// The variant with a name as in a scenario.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, persona)| *persona)
    }

    /// The names of all variants except the plain one.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The default driver version of a scenario.
    #[must_use]
    pub fn driver_version(self) -> &'static str {
        match self {
            Self::Plain => "580.105.08",
            Self::R470 => "470.256.02",
            Self::Early535 => "535.54.03",
            Self::R535Without3 => "535.98",
            Self::R545DoubleTag => "545.23.08",
            Self::R580Ids => "580.65.06",
            Self::Gb10 => "580.95.05",
            Self::R590 => "590.48.01",
        }
    }

    /// The default CUDA version of a scenario: 1000 times its major plus ten times its minor.
    #[must_use]
    pub fn cuda_version(self) -> i32 {
        match self {
            Self::R470 => 11_040,
            Self::Early535 | Self::R535Without3 => 12_020,
            Self::R545DoubleTag => 12_030,
            Self::Plain | Self::R580Ids | Self::Gb10 => 13_000,
            Self::R590 => 13_010,
        }
    }

    /// The functions of the newest header that its library lacks.
    #[must_use]
    pub fn missing(self) -> Vec<&'static str> {
        // The plain one has all functions: its scenarios may set any version.
        if self == Self::Plain {
            return Vec::new();
        }
        let newer = since::SINCE.iter().filter(|(version, _)| *version > self.cuda_version());
        let mut missing: Vec<&str> = newer.flat_map(|(_, functions)| functions.iter().copied()).collect();
        if self == Self::R535Without3 {
            missing.extend(THIRD_LISTS);
        }
        missing
    }

    /// The first field id that its driver does not know; the plain one goes by the driver's major version.
    pub(crate) fn fields(self, driver: u32) -> u32 {
        let cuda = match (self, driver) {
            (Self::Plain, 610..) => 13_030,
            (Self::Plain, 590..) => 13_010,
            _ => self.cuda_version(),
        };
        let known = since::FIELDS.iter().rev().find(|(version, _)| *version <= cuda);
        known.map_or(0, |(_, fields)| *fields)
    }

    pub(crate) fn lacks(self, function: &str) -> bool {
        if self == Self::Plain {
            return false;
        }
        let newer = since::SINCE.iter().filter(|(version, _)| *version > self.cuda_version());
        newer.flat_map(|(_, functions)| functions.iter()).any(|newer| *newer == function)
            || (self == Self::R535Without3 && THIRD_LISTS.contains(&function))
    }

    /// The profile of every GPU, where the driver supports one board only.
    pub(crate) fn profile(self) -> Option<&'static str> {
        (self == Self::Gb10).then_some("gb10")
    }

    /// Whether the function's process entries have one field more.
    pub(crate) fn widens(self, function: &str) -> bool {
        self == Self::Early535 && THIRD_LISTS.contains(&function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_lacks_more() {
        let lacks =
            |name: &str, function| Persona::named(name).is_some_and(|persona| persona.lacks(function));
        for function in ["nvmlDeviceGetMemoryInfo_v2", "nvmlGpmSampleGet", THIRD_LISTS[0]] {
            assert!(lacks("r470", function) && !lacks("early_535", function), "{function}");
        }
        assert!(lacks("r535_98", THIRD_LISTS[0]) && !lacks("r545_double_tag", THIRD_LISTS[0]));
        assert!(lacks("r590", "nvmlDeviceGetRemappedRows_v2") && !lacks("r590", "nvmlDeviceGetRemappedRows"));
        assert!(Persona::names().all(|name| Persona::named(name).is_some()));
        assert!(Persona::Plain.missing().is_empty() && Persona::R470.missing().len() > 100);
    }

    #[test]
    fn an_older_driver_knows_fewer_fields() {
        let fields = |name: &str| Persona::named(name).map(|persona| persona.fields(0));
        assert_eq!(["r470", "early_535", "r545_double_tag"].map(fields), [Some(161), Some(197), Some(197)]);
        assert_eq!(fields("r590"), Some(289));
        assert_eq!([580, 590, 610].map(|driver| Persona::Plain.fields(driver)), [274, 289, 303]);
    }

    #[test]
    fn the_names_are_those_of_a_scenario() {
        for name in Persona::names() {
            let read: Option<Persona> = serde_json::from_value(name.into()).ok();
            assert_eq!(read, Persona::named(name), "{name}");
        }
    }
}
