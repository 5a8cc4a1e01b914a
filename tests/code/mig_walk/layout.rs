//! Random MIG layouts of an H100.

/// A profile's name, its compute slices, its memory slots, and its possible starts.
type Profile = (&'static str, u64, usize, &'static [usize]);

const PROFILES: [Profile; 5] = [
    ("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
    ("2g.20gb", 2, 2, &[0, 2, 4]),
    ("3g.40gb", 3, 4, &[0, 4]),
    ("4g.40gb", 4, 4, &[0]),
    ("7g.80gb", 7, 8, &[0]),
];

/// An instance: its profile and its first memory slot.
pub(crate) type Placement = (&'static str, usize);

/// Compute slices of a profile.
pub(crate) fn slices(profile: &str) -> u64 {
    PROFILES.iter().find(|(name, ..)| *name == profile).map_or(u64::MAX, |(_, slices, ..)| *slices)
}

/// The instances of a GPU in MIG mode; `None` if the mode is off.
pub(crate) type Layout = Option<Vec<Placement>>;

/// A random layout; sometimes MIG is off, sometimes on without instances.
pub(crate) fn layout(random: &mut RandomNumbers) -> Layout {
    let mut free = [true; 8];
    let mut placed = Vec::new();
    for _ in 0..random.below(8) {
        let (name, _, size, starts) = PROFILES[random.below(PROFILES.len() as u64) as usize];
        let fits: Vec<usize> = starts
            .iter()
            .copied()
            .filter(|start| free[*start..start + size].iter().all(|free| *free))
            .collect();
        if !fits.is_empty() {
            let start = fits[random.below(fits.len() as u64) as usize];
            free[start..start + size].fill(false);
            placed.push((name, start));
        }
    }
    let off = placed.is_empty() && random.below(2) == 0;
    (!off).then_some(placed)
}

/// Random numbers of a seed (splitmix64).
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}
