//! MIG: the profiles of a board, and where instances may lie.
//!
//! In: names and starts from the scenario. Out: GPU instance ids as the driver gives them (by size and
//! place). It knows nothing of load.

/// A GPU instance profile with its only compute instance spanning it.
pub(crate) struct MigProfile {
    pub(crate) name: &'static str,
    /// Compute slices of seven.
    pub(crate) slices: u32,
    /// Memory slots of eight.
    pub(crate) size: u32,
    pub(crate) memory_mib: u64,
    /// What an instance without processes uses.
    pub(crate) idle_mib: u64,
    pub(crate) bar1_mib: u64,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    /// NVDEC; as many JPEG engines.
    pub(crate) decoders: u32,
    pub(crate) ofa: u32,
    pub(crate) starts: &'static [u32],
    /// The id of the first GPU instance of this size.
    first_id: u32,
}

impl MigProfile {
    /// The GPU instance id at a start; ids come from size and place.
    pub(crate) fn instance_id(&self, start: u32) -> u32 {
        self.first_id + start / self.size.max(1)
    }

    /// Whether two placements share a slot.
    pub(crate) fn overlaps(&self, start: u32, other: &Self, other_start: u32) -> bool {
        start < other_start + other.size && other_start < start + self.size
    }
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6];

/// H100 SXM at driver 590: `nvidia-smi mig -lgip` and the captures of an idle MIG node.
pub(crate) static H100: [MigProfile; 7] = [
    profile("1g.10gb", (1, 1), (9984, 9, 6184), (16, 1, 1, 0), ALL, 7),
    profile("1g.10gb+me", (1, 1), (9984, 9, 6184), (16, 1, 1, 1), ALL, 7),
    profile("1g.20gb", (1, 2), (20096, 17, 12369), (26, 1, 1, 0), &[0, 2, 4, 6], 3),
    profile("2g.20gb", (2, 2), (20096, 17, 12369), (32, 2, 2, 0), &[0, 2, 4], 3),
    profile("3g.40gb", (3, 4), (40448, 26, 24739), (60, 3, 3, 0), &[0, 4], 1),
    profile("4g.40gb", (4, 4), (40448, 26, 24739), (64, 4, 4, 0), &[0], 1),
    profile("7g.80gb", (7, 8), (81152, 59, 49478), (132, 8, 7, 1), &[0], 0),
];

/// H200 at driver 590; what empty instances other than 3g use is scaled from the 55 MiB of all.
pub(crate) static H200: [MigProfile; 7] = [
    profile("1g.18gb", (1, 1), (16_384, 8, 14_809), (16, 1, 1, 0), ALL, 7),
    profile("1g.18gb+me", (1, 1), (16_384, 8, 14_809), (16, 1, 1, 1), ALL, 7),
    profile("1g.35gb", (1, 2), (33_280, 15, 29_618), (26, 1, 1, 0), &[0, 2, 4, 6], 3),
    profile("2g.35gb", (2, 2), (33_280, 15, 29_618), (32, 2, 2, 0), &[0, 2, 4], 3),
    profile("3g.71gb", (3, 4), (71_424, 22, 59_237), (60, 3, 3, 0), &[0, 4], 1),
    profile("4g.71gb", (4, 4), (71_424, 22, 59_237), (64, 4, 4, 0), &[0], 1),
    profile("7g.141gb", (7, 8), (143_104, 55, 118_474), (132, 8, 7, 1), &[0], 0),
];

/// A100-80 at driver 535; uses of empty instances are those of H100.
pub(crate) static A100: [MigProfile; 7] = [
    profile("1g.10gb", (1, 1), (9728, 9, 8191), (14, 1, 0, 0), ALL, 7),
    profile("1g.10gb+me", (1, 1), (9728, 9, 8191), (14, 1, 1, 1), ALL, 7),
    profile("1g.20gb", (1, 2), (19_968, 13, 16_383), (14, 1, 1, 0), &[0, 2, 4, 6], 3),
    profile("2g.20gb", (2, 2), (19_968, 13, 16_383), (28, 2, 1, 0), &[0, 2, 4], 3),
    profile("3g.40gb", (3, 4), (40_192, 25, 32_767), (42, 3, 2, 0), &[0, 4], 1),
    profile("4g.40gb", (4, 4), (40_192, 25, 32_767), (56, 4, 2, 0), &[0], 1),
    profile("7g.80gb", (7, 8), (80_640, 50, 65_535), (98, 7, 5, 1), &[0], 0),
];

const fn profile(
    name: &'static str,
    (slices, size): (u32, u32),
    (memory_mib, idle_mib, bar1_mib): (u64, u64, u64),
    (sms, copy_engines, decoders, ofa): (u32, u32, u32, u32),
    starts: &'static [u32],
    first_id: u32,
) -> MigProfile {
    MigProfile {
        name,
        slices,
        size,
        memory_mib,
        idle_mib,
        bar1_mib,
        sms,
        copy_engines,
        decoders,
        ofa,
        starts,
        first_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// boards.md: 3g GI 2 at 4:4, 2g GI 3 at 0:2, 1g GI 9 at 2:1, GI 7 at 0:1, GI 12 at 5:1.
    #[test]
    fn instance_ids_come_from_size_and_place() {
        let id = |name: &str, start| {
            H100.iter().find(|profile| profile.name == name).map(|profile| profile.instance_id(start))
        };
        assert_eq!(id("3g.40gb", 4), Some(2));
        assert_eq!(id("2g.20gb", 0), Some(3));
        assert_eq!(id("1g.10gb", 2), Some(9));
        assert_eq!(id("1g.10gb", 0), Some(7));
        assert_eq!(id("1g.10gb", 5), Some(12));
        assert_eq!(id("7g.80gb", 0), Some(0));
    }
}
