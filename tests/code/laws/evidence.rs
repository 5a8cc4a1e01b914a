//! Laws of the evidence: cuts move no time, the times of a shape sum to that of its holder, a maximum is the maximum.

use std::collections::BTreeMap;

use gpumeter::model::{
    Amounts, Evidence, HolderId, Microjoules, SHAPE_COLUMNS, Series, Settlement, SlotState, Span, TickShares,
    WAITING_SHARE,
};
use proptest::prelude::*;

use super::worlds::{id, run, windows};
use super::{cases, with_cut, world};

/// Shares of GPM by tick, which repeat.
fn shares() -> impl Strategy<Value = Vec<[Option<u16>; 4]>> {
    prop::collection::vec(prop::array::uniform4(prop::option::of(0..=10_000_u16)), 1..9)
}

fn with_shares(mut windows: Vec<Vec<Span>>, shares: &[[Option<u16>; 4]]) -> Vec<Vec<Span>> {
    let spans = windows.iter_mut().flatten().filter(|span| span.state == SlotState::Measured);
    for (span, [sm, tensor, fp64, dram]) in spans.zip(shares.iter().cycle()) {
        span.shares = TickShares([None, *sm, *tensor, *fp64, *dram]);
    }
    windows
}

/// The evidence of all windows, with the memory peak of each run and no other amount, which a cut may round.
fn evidence(settlements: &[Settlement]) -> Evidence {
    let mut sum = Evidence::default();
    settlements.iter().for_each(|settlement| sum.append(settlement.evidence.clone()));
    for run in sum.runs.values_mut() {
        run.amounts = Amounts { memory_peak: run.amounts.memory_peak, ..Amounts::default() };
    }
    sum
}

/// All spans of the windows that have any time.
fn ticks(windows: &[Vec<Span>]) -> impl Iterator<Item = &Span> {
    windows.iter().flatten().filter(|span| span.length().0 > 0)
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn an_extra_cut_anywhere_changes_no_bin_no_use_and_no_memory_peak(
        world in world(), shares in shares(), eras in 1..4_usize, at in any::<prop::sample::Index>(),
    ) {
        let whole = with_shares(windows(&world, eras), &shares);
        let end = whole.last().and_then(|spans| spans.last()).map_or(0, |span| span.to.0);
        let cut = with_cut(&whole, at.index(usize::try_from(end).unwrap_or(usize::MAX).max(1)) as u64);
        prop_assert_eq!(evidence(&run(&cut)), evidence(&run(&whole)));
    }

    #[test]
    fn windows_of_any_length_have_the_same_evidence(world in world(), shares in shares(), eras in 1..4_usize) {
        let (short, long) = (with_shares(windows(&world, eras), &shares), with_shares(windows(&world, world.len()), &shares));
        prop_assert_eq!(evidence(&run(&short)), evidence(&run(&long)));
    }

    #[test]
    fn the_runs_of_each_workload_have_the_sums_of_its_rows(world in world(), eras in 1..4_usize) {
        let settlements = run(&windows(&world, eras));
        let mut rows: BTreeMap<HolderId, Amounts> = BTreeMap::new();
        let of_rows = settlements.iter().flat_map(|settlement| &settlement.rows);
        for row in of_rows.filter(|row| !row.holder.is_remainder()) {
            rows.entry(row.holder.clone()).or_default().add(&row.amounts);
        }
        let mut sum = Evidence::default();
        settlements.iter().for_each(|settlement| sum.append(settlement.evidence.clone()));
        let mut runs: BTreeMap<HolderId, Amounts> = BTreeMap::new();
        sum.runs.iter().for_each(|(key, run)| runs.entry(key.workload.clone()).or_default().add(&run.amounts));
        runs.retain(|_, amounts| *amounts != Amounts::default());
        rows.retain(|_, amounts| *amounts != Amounts::default());
        prop_assert_eq!(runs, rows);
    }

    #[test]
    fn the_times_of_every_shape_sum_to_the_time_of_its_holder(world in world(), shares in shares()) {
        let windows = with_shares(windows(&world, 2), &shares);
        let mut times: BTreeMap<HolderId, u64> = BTreeMap::new();
        for (key, shapes) in &evidence(&run(&windows)).shapes {
            let sums = shapes.map(|shape| shape.0.iter().sum::<u64>());
            prop_assert!(sums.iter().all(|sum| *sum == sums[0]), "{:?}", sums);
            *times.entry(key.holder.clone()).or_default() += sums[0];
        }
        // `g` never holds.
        let present = ticks(&windows).filter(|span| !span.blind && span.present.contains_key(&id("g")));
        let present: u64 = present.map(|span| span.length().0).sum();
        prop_assert_eq!(times.remove(&id("g")).unwrap_or(0), present);
        let all: u64 = ticks(&windows).map(|span| span.length().0).sum();
        prop_assert!(times.values().all(|time| *time <= all));
        prop_assert!(times.keys().all(|holder| !holder.is_remainder()));
    }

    #[test]
    fn a_shape_has_the_time_of_a_tick_in_the_bin_of_its_share_where_its_holder_was_alone(
        world in world(), shares in shares(),
    ) {
        let windows = with_shares(windows(&world, 1), &shares);
        let mut expected = [[0_u64; SHAPE_COLUMNS.len()]; Series::ALL.len()];
        for span in ticks(&windows).filter(|span| !span.blind && span.present.contains_key(&id("g"))) {
            let others = span.present.keys().filter(|user| user.as_str() != HolderId::SYSTEM).count() > 1;
            for (series, sums) in Series::ALL.into_iter().zip(&mut expected) {
                let busy = (span.state == SlotState::Measured).then(|| span.busy_share());
                let share = if series == Series::Busy { busy } else { span.shares.of(series) };
                let column = match share.map(|share| share / 100) {
                    None => 13,
                    Some(_) if others => 12,
                    Some(0) => 0,
                    Some(1..5) => 1,
                    Some(5..10) => 2,
                    Some(percent) => usize::from(percent / 10 + 2).min(11),
                };
                sums[column] += span.length().0;
            }
        }
        let mut found = [[0_u64; SHAPE_COLUMNS.len()]; Series::ALL.len()];
        for (_, shapes) in evidence(&run(&windows)).shapes.iter().filter(|(key, _)| key.holder == id("g")) {
            for (sums, shape) in found.iter_mut().zip(shapes) {
                sums.iter_mut().zip(shape.0).for_each(|(sum, time)| *sum += time);
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_memory_peak_is_the_largest_of_all_ticks_and_waiting_energy_that_of_waiting_ticks(world in world()) {
        let windows = windows(&world, 2);
        let settlements = run(&windows);
        let rows = || settlements.iter().flat_map(|settlement| &settlement.rows);
        for (spans, settlement) in windows.iter().zip(&settlements) {
            for row in &settlement.rows {
                let memory = spans.iter().filter_map(|span| span.present.get(&row.holder)?.memory).max();
                prop_assert_eq!(row.amounts.memory_peak, memory.unwrap_or(0));
            }
        }
        for user in ["a", "f", "g"].map(id) {
            let peak = rows().filter(|row| row.holder == user).map(|row| row.amounts.memory_peak).max().unwrap_or(0);
            let runs = evidence(&settlements).runs.into_iter().filter(|(key, _)| key.workload == user);
            prop_assert_eq!(runs.map(|(_, run)| run.amounts.memory_peak).max().unwrap_or(0), peak);
        }
        let is_waiting = |span: &&Span| {
            let waits = span.state == SlotState::Measured && span.busy_share() < WAITING_SHARE;
            waits && span.idle_energy.0 > 0 && span.present.keys().any(|user| user.as_str() != HolderId::SYSTEM)
        };
        let above = |span: &Span| span.energy.map_or(0, |energy| energy.0.saturating_sub(span.idle_energy.0));
        let expected: u64 = windows.iter().flatten().filter(is_waiting).map(above).sum();
        let found = rows().fold(Microjoules(0), |sum, row| sum + row.amounts.energy_waiting);
        prop_assert_eq!(found.0, expected);
    }
}
