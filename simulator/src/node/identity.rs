//! UUIDs, serials, bus numbers and small differences between boards, all derived from the seed.

use crate::board::Board;
use crate::schedule::hash;

/// Buses of an eight-GPU HGX baseboard.
const BUSES: [u32; 8] = [0x0F, 0x2D, 0x44, 0x5B, 0x89, 0xA8, 0xC0, 0xD8];

/// Domains of a rack tray's four GPUs, each on bus 6.
const RACK_DOMAINS: [u32; 4] = [0x08, 0x09, 0x18, 0x19];

/// The PCI bus of a GPU; beyond eight, GPUs go to the next domain.
pub(crate) fn bus(board: &Board, index: u32) -> u32 {
    if board.rack { 6 } else { BUSES.get(index as usize % BUSES.len()).copied().unwrap_or(0) }
}

/// The PCI domain of a GPU.
pub(crate) fn domain(board: &Board, index: u32) -> u32 {
    if board.rack {
        RACK_DOMAINS.get(index as usize % 4).copied().unwrap_or(0) + index / 4 * 0x20
    } else {
        index / 8
    }
}

/// The number of the GPU's file in `/dev`.
pub(crate) fn minor(board: &Board, index: u32) -> u32 {
    index / 8 * 8 + board.minors.get(index as usize % 8).copied().unwrap_or(0)
}

/// The board's serial: two GPUs of one module share it.
pub(crate) fn serial(board: &Board, seed: u64, index: u32) -> String {
    Marks::new(seed, if board.rack { index / 2 * 2 } else { index }).serial()
}

/// The source of everything random about one GPU: a hash, and the number of its MIG layout.
pub(crate) struct Marks(u64, u32);

impl Marks {
    pub(crate) fn new(seed: u64, index: u32) -> Self {
        Self(hash(hash(seed) ^ u64::from(index)), 0)
    }

    /// The same board under another MIG layout; 0 is the first.
    pub(crate) fn cut(self, cut: u32) -> Self {
        Self(self.0, cut)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.0
    }

    /// A number between two bounds, both included; `what` selects which random number.
    pub(crate) fn between(&self, what: u64, (least, most): (u32, u32)) -> u32 {
        let spread = u64::from(most.saturating_sub(least)) + 1;
        least + u32::try_from(hash(self.0 ^ (what << 32)) % spread).unwrap_or(0)
    }

    /// `PREFIX-` and 8-4-4-4-12 lower-case hexadecimal digits.
    pub(crate) fn uuid(&self, prefix: &str) -> String {
        uuid(prefix, self.0)
    }

    /// The version-5 UUID of a MIG device: another layout gives another UUID to the same id.
    pub(crate) fn instance_uuid(&self, id: u32, compute: u32) -> String {
        let layout = if self.1 == 0 { self.0 } else { hash(self.0 ^ hash(self.1.into())) };
        uuid("MIG", hash(layout ^ (u64::from(id) << 40) ^ (u64::from(compute) << 48)))
    }

    /// 13 digits beginning with 16.
    pub(crate) fn serial(&self) -> String {
        format!("16{:011}", hash(self.0 ^ 5) % 100_000_000_000)
    }
}

fn uuid(prefix: &str, seed: u64) -> String {
    let (high, low) = (hash(seed ^ 6), hash(seed ^ 7));
    let version = if prefix == "MIG" { 0x5000 } else { 0 };
    let third = if version == 0 { high & 0xFFFF } else { (high & 0x0FFF) | version };
    let fourth = ((low >> 48) & 0x3FFF) | 0x8000;
    format!(
        "{prefix}-{:08x}-{:04x}-{third:04x}-{fourth:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        low & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_the_formats_of_real_boards_and_differ() {
        let (first, second) = (Marks::new(1, 0), Marks::new(1, 1));
        let uuid = first.uuid("GPU");
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [3, 8, 4, 4, 4, 12]);
        assert_eq!(uuid, uuid.to_lowercase().replace("gpu", "GPU"));
        assert_ne!(uuid, second.uuid("GPU"));
        assert_eq!(uuid, Marks::new(1, 0).uuid("GPU"));
        assert!(first.serial().len() == 13 && first.serial().starts_with("16"));
        assert_eq!(first.instance_uuid(9, 0).chars().nth(18), Some('5'));
        assert_ne!(first.instance_uuid(9, 0), first.instance_uuid(9, 1));
        assert_ne!(first.instance_uuid(9, 0), Marks::new(1, 0).cut(1).instance_uuid(9, 0));
        assert!((67..=101).contains(&first.between(1, (67, 101))));
    }
}
