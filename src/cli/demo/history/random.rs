//! Numbers that look random and depend on the seed alone, so that a history can be made again to the byte.

/// Mixes numbers to one (SplitMix64).
pub(super) fn mixed(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |state, number| {
        let mut next = (state ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
        next = (next ^ (next >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        next = (next ^ (next >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        next ^ (next >> 31)
    })
}

/// A number from 0 to `most`.
pub(super) fn up_to(most: u64, numbers: &[u64]) -> u64 {
    match most.checked_add(1) {
        Some(count) => mixed(numbers) % count,
        None => mixed(numbers),
    }
}

/// 32 hexadecimal digits in the groups of a UUID.
pub(super) fn uuid(numbers: &[u64]) -> String {
    let (high, low) = (mixed(numbers), mixed(&[mixed(numbers), 1]));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xFFFF,
        high & 0x0FFF | 0x4000,
        low >> 48 & 0x3FFF | 0x8000,
        low & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_all_that_they_are_made_of() {
        assert_eq!(mixed(&[1, 2]), mixed(&[1, 2]));
        assert!(mixed(&[1, 2]) != mixed(&[2, 1]) && mixed(&[1]) != mixed(&[1, 0]));
        assert!((0..1_000).all(|number| up_to(7, &[number]) <= 7));
        assert_eq!((0..1_000).map(|number| up_to(7, &[number])).max(), Some(7));
        assert_eq!(uuid(&[1]).split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_ne!(uuid(&[1]), uuid(&[2]));
    }
}
