//! The host's memory, from `/proc/meminfo`.

use super::{Host, untrusted};
use crate::model::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    pub total: Bytes,
    /// What programs can still allocate without swapping, as the kernel estimates it.
    pub available: Bytes,
}

impl Host {
    /// Reads the memory; none where the kernel shows none.
    pub fn memory(&self) -> Option<HostMemory> {
        parse(&untrusted::read_text(&self.root.join("proc/meminfo")))
    }
}

fn parse(text: &str) -> Option<HostMemory> {
    let value = |key: &str| {
        let mut words = text.lines().find_map(|line| line.strip_prefix(key))?.split_ascii_whitespace();
        let kibibytes: u64 = words.next()?.parse().ok()?;
        Some(Bytes(kibibytes.checked_mul(1_024)?)).filter(|_| words.next() == Some("kB"))
    };
    Some(HostMemory { total: value("MemTotal:")?, available: value("MemAvailable:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_manages_and_what_programs_can_still_have() {
        let text = "MemTotal:       125489508 kB\nMemFree:         7789944 kB\nMemAvailable:   44564480 kB\n";
        let memory = HostMemory { total: Bytes(128_501_256_192), available: Bytes(45_634_027_520) };
        assert_eq!(parse(text), Some(memory));
        for garbage in [
            "",
            "MemTotal: 1 kB\n",
            "MemTotal: 1\nMemAvailable: 1\n",
            "MemTotal: -1 kB\nMemAvailable: 1 kB\n",
        ] {
            assert_eq!(parse(garbage), None, "{garbage:?}");
        }
    }
}
