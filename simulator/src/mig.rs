//! MIG profiles of each board, their placements and NVML's numbers of them.

/// A GPU instance profile.
pub(crate) struct MigProfile {
    pub(crate) name: &'static str,
    /// The driver's id, as in `nvidia-smi mig -lgip`.
    pub(crate) id: u32,
    /// NVML_GPU_INSTANCE_PROFILE_*, by which clients ask for the profile.
    pub(crate) enumerator: u32,
    /// Compute slices.
    pub(crate) slices: u32,
    /// Memory slots.
    pub(crate) size: u32,
    pub(crate) memory_mib: u64,
    /// Used memory of an instance without processes.
    pub(crate) idle_mib: u64,
    pub(crate) bar1_mib: u64,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) ofa: u32,
    pub(crate) starts: &'static [u32],
    /// The id of the first GPU instance of this size.
    first_id: u32,
}

impl MigProfile {
    /// The GPU instance id at a start; it follows from size and place.
    pub(crate) fn instance_id(&self, start: u32) -> u32 {
        self.first_id + start / self.size.max(1)
    }

    /// Whether two placements share a slot.
    pub(crate) fn overlaps(&self, start: u32, other: &Self, other_start: u32) -> bool {
        start < other_start + other.size && other_start < start + self.size
    }

    /// How many of them a GPU can have; only one can hold shared media engines.
    pub(crate) fn most(&self) -> u32 {
        if self.name.contains("+me") { 1 } else { u32::try_from(self.starts.len()).unwrap_or(0) }
    }

    /// NVML_GPU_INSTANCE_PROFILE_CAPS_*: none has peer-to-peer, some have graphics.
    pub(crate) fn capabilities(&self) -> u32 {
        if self.name.ends_with("+gfx") { 2 } else { 0 }
    }

    /// The compute instance profiles that fit, as NVML's number and count of slices; a single slice with twice the
    /// memory has a number of its own.
    pub(crate) fn compute_profiles(&self) -> impl Iterator<Item = (u32, u32)> {
        let counts = [1, 2, 3, 4, 7].into_iter().filter(|count| *count <= self.slices);
        counts.map(|count| (self.compute_profile(count), count))
    }

    /// NVML's number of the compute instance profile with that many slices.
    pub(crate) fn compute_profile(&self, slices: u32) -> u32 {
        match slices {
            1 if self.slices == 1 && self.size > 1 && self.id == 15 => 7,
            7 => 4,
            slices => slices.saturating_sub(1),
        }
    }
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6];

/// Boards with eight slots differ only in sizes and engines; ids, enumerators and places are these.
const ONE: Shape = Shape { id: 19, enumerator: 0, slices: 1, size: 1, starts: ALL, first_id: 7 };
const ONE_ME: Shape = Shape { id: 20, enumerator: 7, ..ONE };
const ONE_WIDE: Shape =
    Shape { id: 15, enumerator: 9, slices: 1, size: 2, starts: &[0, 2, 4, 6], first_id: 3 };
const TWO: Shape = Shape { id: 14, enumerator: 1, slices: 2, size: 2, starts: &[0, 2, 4], first_id: 3 };
const THREE: Shape = Shape { id: 9, enumerator: 2, slices: 3, size: 4, starts: &[0, 4], first_id: 1 };
const FOUR: Shape = Shape { id: 5, enumerator: 3, slices: 4, size: 4, starts: &[0], first_id: 1 };
const SEVEN: Shape = Shape { id: 0, enumerator: 4, slices: 7, size: 8, starts: &[0], first_id: 0 };

/// The A30 has four slots.
const QUARTER: Shape =
    Shape { id: 14, enumerator: 0, slices: 1, size: 1, starts: &[0, 1, 2, 3], first_id: 3 };
const QUARTER_ME: Shape = Shape { id: 21, enumerator: 7, ..QUARTER };
const HALF: Shape = Shape { id: 5, enumerator: 1, slices: 2, size: 2, starts: &[0, 2], first_id: 1 };
const HALF_ME: Shape = Shape { id: 6, enumerator: 8, ..HALF };
const WHOLE: Shape = Shape { id: 0, enumerator: 3, slices: 4, size: 4, starts: &[0], first_id: 0 };

/// H100 SXM at driver 590: `nvidia-smi mig -lgip` and the captures of an idle MIG node.
pub(crate) static H100: [MigProfile; 7] = [
    profile("1g.10gb", ONE, (9984, 9, 6184), (16, 1, 1, 0)),
    profile("1g.10gb+me", ONE_ME, (9984, 9, 6184), (16, 1, 1, 1)),
    profile("1g.20gb", ONE_WIDE, (20_096, 17, 12_369), (26, 1, 1, 0)),
    profile("2g.20gb", TWO, (20_096, 17, 12_369), (32, 2, 2, 0)),
    profile("3g.40gb", THREE, (40_448, 26, 24_739), (60, 3, 3, 0)),
    profile("4g.40gb", FOUR, (40_448, 26, 24_739), (64, 4, 4, 0)),
    profile("7g.80gb", SEVEN, (81_152, 59, 49_478), (132, 8, 7, 1)),
];

/// H100 NVL: names and BAR1 of listings at driver 560; sizes scaled from the SXM board by the memory.
pub(crate) static H100_NVL: [MigProfile; 7] = [
    profile("1g.12gb", ONE, (11_712, 9, 16_383), (16, 1, 1, 0)),
    profile("1g.12gb+me", ONE_ME, (11_712, 9, 16_383), (16, 1, 1, 1)),
    profile("1g.24gb", ONE_WIDE, (23_552, 17, 32_767), (26, 1, 1, 0)),
    profile("2g.24gb", TWO, (23_552, 17, 32_767), (32, 2, 2, 0)),
    profile("3g.47gb", THREE, (47_488, 26, 65_535), (60, 3, 3, 0)),
    profile("4g.47gb", FOUR, (47_488, 26, 65_535), (64, 4, 4, 0)),
    profile("7g.94gb", SEVEN, (95_232, 59, 131_071), (132, 8, 7, 1)),
];

/// H200 at driver 590; what empty instances other than 3g use is scaled from the 55 MiB of all.
pub(crate) static H200: [MigProfile; 7] = [
    profile("1g.18gb", ONE, (16_384, 8, 14_809), (16, 1, 1, 0)),
    profile("1g.18gb+me", ONE_ME, (16_384, 8, 14_809), (16, 1, 1, 1)),
    profile("1g.35gb", ONE_WIDE, (33_280, 15, 29_618), (26, 1, 1, 0)),
    profile("2g.35gb", TWO, (33_280, 15, 29_618), (32, 2, 2, 0)),
    profile("3g.71gb", THREE, (71_424, 22, 59_237), (60, 3, 3, 0)),
    profile("4g.71gb", FOUR, (71_424, 22, 59_237), (64, 4, 4, 0)),
    profile("7g.141gb", SEVEN, (143_104, 55, 118_474), (132, 8, 7, 1)),
];

/// B200: sizes of the listing with 20.50 GiB for 1g; BAR1 and idle use scaled from H200.
pub(crate) static B200: [MigProfile; 7] = [
    profile("1g.23gb", ONE, (20_992, 8, 18_919), (18, 2, 1, 0)),
    profile("1g.23gb+me", ONE_ME, (20_992, 8, 18_919), (18, 2, 1, 1)),
    profile("1g.45gb", ONE_WIDE, (45_312, 15, 37_838), (30, 2, 1, 0)),
    profile("2g.45gb", TWO, (45_312, 15, 37_838), (36, 4, 2, 0)),
    profile("3g.90gb", THREE, (91_136, 22, 75_676), (70, 6, 3, 0)),
    profile("4g.90gb", FOUR, (91_136, 22, 75_676), (72, 8, 4, 0)),
    profile("7g.180gb", SEVEN, (182_784, 55, 151_352), (148, 16, 7, 1)),
];

/// GB200: 1g and 2g of listings; the larger ones scaled from B200 by memory and SMs.
pub(crate) static GB200: [MigProfile; 7] = [
    profile("1g.23gb", ONE, (22_528, 8, 19_549), (18, 2, 1, 0)),
    profile("1g.23gb+me", ONE_ME, (22_528, 8, 19_549), (18, 2, 1, 1)),
    profile("1g.47gb", ONE_WIDE, (46_592, 15, 39_098), (32, 2, 1, 0)),
    profile("2g.47gb", TWO, (46_592, 15, 39_098), (38, 4, 2, 0)),
    profile("3g.95gb", THREE, (94_208, 22, 78_196), (72, 6, 3, 0)),
    profile("4g.95gb", FOUR, (94_208, 22, 78_196), (76, 8, 4, 0)),
    profile("7g.189gb", SEVEN, (188_416, 55, 156_392), (152, 16, 7, 1)),
];

/// A100-80 at driver 535; uses of empty instances are those of H100.
pub(crate) static A100: [MigProfile; 7] = [
    profile("1g.10gb", ONE, (9728, 9, 8191), (14, 1, 0, 0)),
    profile("1g.10gb+me", ONE_ME, (9728, 9, 8191), (14, 1, 1, 1)),
    profile("1g.20gb", ONE_WIDE, (19_968, 13, 16_383), (14, 1, 1, 0)),
    profile("2g.20gb", TWO, (19_968, 13, 16_383), (28, 2, 1, 0)),
    profile("3g.40gb", THREE, (40_192, 25, 32_767), (42, 3, 2, 0)),
    profile("4g.40gb", FOUR, (40_192, 25, 32_767), (56, 4, 2, 0)),
    profile("7g.80gb", SEVEN, (80_640, 50, 65_535), (98, 7, 5, 1)),
];

/// A100-40 at driver 510: two 3g use 19 MiB each; smaller ones and the BAR1 are scaled.
pub(crate) static A100_40: [MigProfile; 7] = [
    profile("1g.5gb", ONE, (4864, 5, 8191), (14, 1, 0, 0)),
    profile("1g.5gb+me", ONE_ME, (4864, 5, 8191), (14, 1, 1, 1)),
    profile("1g.10gb", ONE_WIDE, (9984, 9, 16_383), (14, 1, 1, 0)),
    profile("2g.10gb", TWO, (9984, 9, 16_383), (28, 2, 1, 0)),
    profile("3g.20gb", THREE, (19_968, 19, 32_767), (42, 3, 2, 0)),
    profile("4g.20gb", FOUR, (19_968, 19, 32_767), (56, 4, 2, 0)),
    profile("7g.40gb", SEVEN, (40_448, 38, 65_535), (98, 7, 5, 1)),
];

/// A30 at driver 535.
pub(crate) static A30: [MigProfile; 5] = [
    profile("1g.6gb", QUARTER, (5952, 12, 8191), (14, 1, 0, 0)),
    profile("1g.6gb+me", QUARTER_ME, (5952, 12, 8191), (14, 1, 1, 1)),
    profile("2g.12gb", HALF, (11_968, 25, 16_383), (28, 2, 2, 0)),
    profile("2g.12gb+me", HALF_ME, (11_968, 25, 16_383), (28, 2, 2, 1)),
    profile("4g.24gb", WHOLE, (24_000, 50, 32_767), (56, 4, 4, 1)),
];

/// RTX PRO 6000 Blackwell: twelve slots. GPU instance ids as on the A30 and one engine per slice are assumed.
const QUARTER_OF_12: Shape =
    Shape { id: 14, enumerator: 0, slices: 1, size: 3, starts: &[0, 3, 6, 9], first_id: 3 };
const HALF_OF_12: Shape = Shape { id: 5, enumerator: 1, slices: 2, size: 6, starts: &[0, 6], first_id: 1 };
const ALL_OF_12: Shape = Shape { id: 0, enumerator: 3, slices: 4, size: 12, starts: &[0], first_id: 0 };

pub(crate) static RTX_PRO_6000: [MigProfile; 11] = [
    profile("1g.24gb", QUARTER_OF_12, (24_187, 12, 16_383), (46, 1, 1, 0)),
    profile(
        "1g.24gb+me",
        Shape { id: 21, enumerator: 7, ..QUARTER_OF_12 },
        (24_187, 12, 16_383),
        (46, 1, 1, 1),
    ),
    profile(
        "1g.24gb+gfx",
        Shape { id: 47, enumerator: 10, ..QUARTER_OF_12 },
        (24_187, 12, 16_383),
        (46, 1, 1, 0),
    ),
    profile(
        "1g.24gb-me",
        Shape { id: 67, enumerator: 13, ..QUARTER_OF_12 },
        (24_187, 12, 16_383),
        (46, 1, 0, 0),
    ),
    profile(
        "1g.24gb+me.all",
        Shape { id: 65, enumerator: 15, ..QUARTER_OF_12 },
        (24_187, 12, 16_383),
        (46, 1, 4, 1),
    ),
    profile("2g.48gb", HALF_OF_12, (48_517, 25, 32_767), (94, 2, 2, 0)),
    profile(
        "2g.48gb+gfx",
        Shape { id: 35, enumerator: 11, ..HALF_OF_12 },
        (48_517, 25, 32_767),
        (94, 2, 2, 0),
    ),
    profile(
        "2g.48gb-me",
        Shape { id: 66, enumerator: 14, ..HALF_OF_12 },
        (48_517, 25, 32_767),
        (94, 2, 0, 0),
    ),
    profile(
        "2g.48gb+me.all",
        Shape { id: 64, enumerator: 16, ..HALF_OF_12 },
        (48_517, 25, 32_767),
        (94, 2, 4, 1),
    ),
    profile("4g.96gb", ALL_OF_12, (97_280, 50, 65_535), (188, 4, 4, 1)),
    profile(
        "4g.96gb+gfx",
        Shape { id: 32, enumerator: 12, ..ALL_OF_12 },
        (97_280, 50, 65_535),
        (188, 4, 4, 1),
    ),
];

/// What profiles of one size have in common on all boards with the same number of slots.
#[derive(Clone, Copy)]
struct Shape {
    id: u32,
    enumerator: u32,
    slices: u32,
    size: u32,
    starts: &'static [u32],
    first_id: u32,
}

/// A profile: MiB of memory, of idle use and of BAR1; counts of SMs, copy engines, decoders and OFAs.
const fn profile(
    name: &'static str,
    shape: Shape,
    (memory_mib, idle_mib, bar1_mib): (u64, u64, u64),
    (sms, copy_engines, decoders, ofa): (u32, u32, u32, u32),
) -> MigProfile {
    let Shape { id, enumerator, slices, size, starts, first_id } = shape;
    MigProfile {
        name,
        id,
        enumerator,
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
    fn instance_ids_follow_from_size_and_place() {
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
