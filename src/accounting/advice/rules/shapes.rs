//! Shares of a workload while it was alone.

use crate::model::{EDGES, Nanoseconds, Shape};

/// Time alone of which the shares must be known.
pub(super) const LEAST_ALONE: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

pub(super) fn alone(shape: &Shape) -> u128 {
    shape.0[..EDGES.len()].iter().map(|time| u128::from(*time)).sum()
}

/// Whether at most a twentieth of the time was shared or unknown.
pub(super) fn is_mostly_alone(shape: &Shape) -> bool {
    let rest: u128 = shape.0[EDGES.len()..].iter().map(|time| u128::from(*time)).sum();
    rest * 19 <= alone(shape)
}

/// The share of the time alone with at least so many percent, in thousandths; none without such time.
pub(super) fn share_from(shape: &Shape, percent: u16) -> Option<u128> {
    let bins = EDGES.iter().zip(&shape.0).filter(|(edge, _)| **edge >= percent);
    let above: u128 = bins.map(|(_, time)| u128::from(*time)).sum();
    (above * 1_000).checked_div(alone(shape))
}

/// The time alone with a percent or more: idle time hides how much the work needs.
pub(super) fn at_work(shape: &Shape) -> u128 {
    alone(shape) - u128::from(shape.0[0])
}

/// The percentage below which the share was in 99 % of that time, by the upper edges of the bins; 1 where there is no such time.
pub(super) fn most_at_work(shape: &Shape) -> u16 {
    let (all, mut sum) = (at_work(shape), 0);
    let edges = EDGES.iter().skip(1).copied().chain([100]);
    let found = edges.zip(&shape.0[..EDGES.len()]).enumerate().find(|(place, (_, time))| {
        sum += if *place > 0 { u128::from(**time) } else { 0 };
        sum * 100 >= all * 99
    });
    found.map_or(100, |(_, (edge, _))| edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_work_leaves_idle_time_out_and_is_the_upper_edge_of_its_bin() {
        let of = |times: &[(usize, u64)]| {
            let mut shape = Shape::default();
            times.iter().for_each(|(place, time)| shape.0[*place] = *time);
            most_at_work(&shape)
        };
        assert_eq!([of(&[]), of(&[(0, 5)]), of(&[(11, 1)])], [1, 1, 100]);
        // A notebook that is idle for 99 %.
        assert_eq!(of(&[(0, 9_900), (7, 100)]), 60);
        assert_eq!([of(&[(2, 99), (6, 1)]), of(&[(2, 98), (6, 2)])], [10, 50]);
        assert_eq!(of(&[(2, 98), (6, 1), (11, 1), (12, 900), (13, 900)]), 50);
    }
}
