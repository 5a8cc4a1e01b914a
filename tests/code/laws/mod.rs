//! The laws of the account, exact on integers, in random worlds: holders start and end, claims conflict, weights are
//! missing, the GPU is lost or unobserved.

mod evidence;
mod instances;
mod regressions;
mod worlds;

use std::collections::BTreeMap;

use gpumeter::accounting::billing::{ExactMoney, round_together};
use gpumeter::meter::attribution::{settle, split, window_end};
use gpumeter::model::{
    Carry, Grade, HolderId, Method, Money, Parts, Row, Settlement, SlotState, Span, Use, Utc,
};
use proptest::prelude::*;
use worlds::{
    Era, HOLDERS, Tick, USERS, UserTick, claim, era, id, run, settle_one, tick, totals, user_tick, windows,
};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn world() -> impl Strategy<Value = Vec<Era>> {
    prop::collection::vec(era(), 1..8)
}

fn held(settlement: &Settlement) -> u64 {
    settlement.rows.iter().map(|row| row.amounts.parts.held()).sum()
}

fn used(settlement: &Settlement) -> u64 {
    settlement.rows.iter().map(|row| row.amounts.used.total()).sum()
}

fn is_remainder_of_held(holder: &HolderId) -> bool {
    [HolderId::UNALLOCATED, HolderId::UNAVAILABLE, HolderId::UNOBSERVED].contains(&holder.as_str())
}

/// One holder's row, summed over all settlements.
fn held_and_used(totals: &BTreeMap<HolderId, (Parts, Use)>, name: &str) -> (u64, u64) {
    totals.get(&id(name)).map_or((0, 0), |(parts, used)| (parts.held(), used.total()))
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn l1_held_and_remainder_sum_to_the_time(
        world in world(), eras in 1..4_usize,
    ) {
        for (spans, settlement) in windows(&world, eras).iter().zip(run(&windows(&world, eras))) {
            let time = settlement.to.since(settlement.from).0;
            prop_assert_eq!(held(&settlement), time);
            prop_assert_eq!(used(&settlement), spans.iter().map(|span| span.busy).sum::<u64>());
            let idle: u64 = settlement.rows.iter().map(|row| row.amounts.parts.idle).sum();
            let unknown: u64 =
                settlement.rows.iter().map(|row| row.amounts.parts.unmeasured + row.amounts.parts.unavailable).sum();
            prop_assert_eq!(used(&settlement) + idle + unknown, time);
        }
    }

    #[test]
    fn l2_the_parts_sum_to_the_granted_fraction_of_the_segment_to_a_unit(mut era in era()) {
        // Claims that fit, so that each holder gets what it claims.
        era.claims.iter_mut().flatten().for_each(|claim| (claim.0, claim.1) = (1, claim.1 + 4));
        let spans = era.spans(0);
        let settlement = settle_one(&spans, &Carry::new(), &BTreeMap::new());
        let time = settlement.to.0;
        for holding in era.holdings() {
            let found = settlement.rows.iter().find(|row| row.holder == holding.holder);
            let held = found.map_or(0, |row| row.amounts.parts.held());
            let denominator = u64::from(holding.fraction.denominator);
            prop_assert!(held == time / denominator || held == time.div_ceil(denominator));
        }
    }

    #[test]
    fn l3_use_above_the_holdings_is_drawn_or_lent(world in world()) {
        for settlement in run(&windows(&world, 1)) {
            let rows = &settlement.rows;
            let sum = |part: fn(&Parts) -> u64| rows.iter().map(|row| part(&row.amounts.parts)).sum::<u64>();
            let above: u64 =
                settlement.rows.iter().map(|row| row.amounts.used.beyond + row.amounts.used.outside + row.amounts.used.unheld).sum();
            prop_assert_eq!(above, sum(|parts| parts.lent));
            let within: u64 = rows.iter().map(|row| row.amounts.used.within).sum();
            prop_assert_eq!(within, sum(|parts| parts.within));
            // Use is lent only when nothing unallocated is left.
            let rest = settlement.rows.iter().find(|row| row.holder.as_str() == HolderId::UNALLOCATED);
            let rest = rest.map(|row| row.amounts.parts).unwrap_or_default();
            prop_assert!(rest.idle == 0 || sum(|parts| parts.lent) == rest.lent);
        }
    }

    #[test]
    fn l5_energy_sums_to_the_difference_of_the_counter(world in world(), eras in 1..4_usize) {
        for (spans, settlement) in windows(&world, eras).iter().zip(run(&windows(&world, eras))) {
            let drawn: u64 = spans.iter().filter_map(|span| span.energy).map(|energy| energy.0).sum();
            let rows = settlement.rows.iter();
            let rows: u64 = rows.map(|row| row.amounts.energy_static.0 + row.amounts.energy_dynamic.0).sum();
            prop_assert_eq!(rows, drawn);
        }
    }

    #[test]
    fn l7_the_order_of_holdings_changes_nothing(
        world in world(), turns in prop::collection::vec(0..5_usize, 24),
    ) {
        let windows = windows(&world, 2);
        let mut turned = windows.clone();
        for (span, turn) in turned.iter_mut().flatten().zip(&turns) {
            let mut holdings = span.holdings.to_vec();
            holdings.reverse();
            let turn = turn % holdings.len().max(1);
            holdings.rotate_left(turn);
            span.holdings = holdings.into();
        }
        let bytes = |windows: &[Vec<Span>]| format!("{:?}", run(windows));
        prop_assert_eq!(bytes(&windows), bytes(&turned));
    }

    #[test]
    fn l8_only_the_proportions_of_a_ticks_weights_count(
        world in world(), factors in prop::collection::vec(1..1_000_u64, 24),
    ) {
        let windows = windows(&world, 2);
        let mut scaled = windows.clone();
        for (span, factor) in scaled.iter_mut().flatten().zip(&factors) {
            let weights = span.present.values_mut().filter_map(|seen| seen.weight.as_mut());
            weights.for_each(|weight| *weight *= factor);
        }
        prop_assert_eq!(run(&windows), run(&scaled));
    }

    #[test]
    fn l9_money_of_any_lines_is_rate_times_time_and_printed_lines_sum_to_the_printed_total(
        lines in prop::collection::vec((0..10_000_000_000_000_i64, 0..5_000_000_000_000_000_u64), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let hour = 3_600_000_000_000_i128;
        let exact: Vec<ExactMoney> = lines.iter().map(|(rate, time)| ExactMoney::of_time(*rate, *time)).collect();
        let product: i128 = lines.iter().map(|(rate, time)| i128::from(*rate) * i128::from(*time)).sum();
        let total = ExactMoney::sum(exact.iter().copied()).unwrap();
        let (nano, rest) = total.into_parts();
        prop_assert_eq!(nano.0 * hour + i128::from(rest), product);
        // Whichever lines are grouped, the exact total is the same.
        let (left, right) = exact.split_at(cut.index(exact.len()));
        let group = |lines: &[ExactMoney]| ExactMoney::sum(lines.iter().copied()).unwrap();
        prop_assert_eq!(group(left).plus(group(right)).unwrap(), total);
        let printed: Money = round_together(&exact).unwrap().into_iter().sum();
        prop_assert_eq!(vec![printed], round_together(&[total]).unwrap());
    }

    #[test]
    fn l10_a_higher_weight_never_lowers_what_is_used(
        (era, before) in (era(), world()), at in 0..3_usize,
        more in prop_oneof![1..20_u64, 1..2_000_000_000_u64], user in 0..USERS.len(),
    ) {
        let last = run(&windows(&before, 2)).pop().unwrap();
        let mut spans = era.spans(last.to.0);
        let place = at % spans.len();
        let name = id(USERS[user]);
        let used = |spans: &[Span]| {
            let rows = settle_one(spans, &last.carry, &last.weights).rows;
            rows.iter().find(|row| row.holder == name).map_or(0, |row| row.amounts.used.total())
        };
        let lower = used(&spans);
        let seen = spans[place].present.entry(name.clone()).or_default();
        seen.weight = Some(seen.weight.unwrap_or(0) + more);
        prop_assert!(used(&spans) >= lower);
    }

    #[test]
    fn l16_a_neighbour_that_fits_changes_a_holding_by_one_unit_at_most(
        world in world(), neighbours in prop::collection::vec(prop::option::of(1..5_u32), 8),
    ) {
        let fit = |era: &mut Era, fifth: Option<u32>| {
            // Four claims of at most a sixth, and a fifth that may be added.
            era.claims.iter_mut().flatten().for_each(|claim| (claim.0, claim.1) = (1, claim.1 + 6));
            era.claims[4] = fifth.map(|part| (part, 15, 0));
        };
        for (era, neighbour) in world.iter().zip(neighbours) {
            let (mut alone, mut beside) = (era.clone(), era.clone());
            fit(&mut alone, None);
            fit(&mut beside, neighbour);
            let (alone, beside) = (run(&[alone.spans(0)]), run(&[beside.spans(0)]));
            let (alone, beside) = (totals(&alone), totals(&beside));
            for name in &HOLDERS[..4] {
                prop_assert!(held_and_used(&alone, name).0.abs_diff(held_and_used(&beside, name).0) <= 1);
            }
        }
    }

    #[test]
    fn l18_unmeasured_time_is_neither_idle_nor_used(mut era in era()) {
        era.state = if era.covers { SlotState::Unmeasured } else { SlotState::Unavailable };
        for settlement in run(&[era.spans(0)]) {
            for row in settlement.rows.iter().filter(|row| !is_remainder_of_held(&row.holder)) {
                prop_assert_eq!((row.amounts.parts.lent, row.amounts.parts.idle, row.amounts.parts.within, row.amounts.used.total()), (0, 0, 0, 0));
            }
            prop_assert_eq!(settlement.weights, BTreeMap::new());
        }
    }

    #[test]
    fn measured_time_is_all_of_a_measured_row_and_never_more_than_was_used(world in world()) {
        for row in run(&windows(&world, 2)).into_iter().flat_map(|settlement| settlement.rows) {
            prop_assert!(row.amounts.measured <= row.amounts.used.total());
            prop_assert!(row.grade != Grade::Measured || row.amounts.measured == row.amounts.used.total());
        }
    }

    #[test]
    fn what_is_held_names_who_granted_it_and_nothing_else_does(world in world(), eras in 1..4_usize) {
        for (spans, settlement) in windows(&world, eras).iter().zip(run(&windows(&world, eras))) {
            for row in &settlement.rows {
                let own = |span: &Span| span.holdings.iter().find(|one| one.holder == row.holder).map(|one| one.source);
                let known: Vec<_> = spans.iter().filter_map(own).collect();
                prop_assert_eq!(row.granted_by.is_some(), row.amounts.parts.held() > 0 && !row.holder.is_remainder());
                prop_assert!(row.granted_by.is_none_or(|source| known.contains(&source)));
            }
        }
    }

    #[test]
    fn a_split_span_sums_to_the_span(tick in tick(), at in 0..40_u64) {
        let era = Era { state: SlotState::Measured, claims: vec![], covers: false, ticks: vec![tick] };
        let span = era.spans(7).remove(0);
        let (first, second) = split(&span, Utc(at));
        prop_assert_eq!((first.from, first.to, second.to), (span.from, second.from, span.to));
        prop_assert_eq!(first.busy + second.busy, span.busy);
        prop_assert!(first.busy <= first.length().0 && second.busy <= second.length().0);
        let energy = |span: &Span| span.energy.unwrap_or_default();
        prop_assert_eq!(energy(&first) + energy(&second), energy(&span));
        prop_assert_eq!(first.idle_energy + second.idle_energy, span.idle_energy);
    }

    #[test]
    fn garbage_is_refused_or_settled_but_never_panics(
        world in world(), noise in prop::collection::vec(any::<u64>(), 4),
    ) {
        let mut spans = windows(&world, world.len()).remove(0);
        let count = spans.len();
        let span = &mut spans[usize::try_from(noise[0]).unwrap() % count];
        match noise[1] % 6 {
            0 => span.busy = noise[2],
            1 => span.to = Utc(noise[2]),
            2 => span.from = Utc(noise[2]),
            3 => span.energy = Some(gpumeter::model::Microjoules(noise[2])),
            4 => span.present.values_mut().for_each(|seen| {
                seen.weight = Some(u64::MAX - noise[3] % 2);
                seen.memory = Some(u64::MAX);
            }),
            _ => span.idle_energy = gpumeter::model::Microjoules(u64::MAX - noise[2] % 2),
        }
        let owed = BTreeMap::from([(id("a"), i64::MIN), (id("b"), i64::MAX)]);
        let carry = Carry::from([("gpu/used".into(), owed.clone()), ("gpu/held".into(), owed)]);
        let weights = BTreeMap::from([(id("a"), u64::MAX), (id("b"), u64::MAX)]);
        if let Ok(settlement) = settle(spans[0].from, spans[count - 1].to, &spans, &carry, &weights) {
            prop_assert_eq!(held(&settlement), settlement.to.since(settlement.from).0);
        }
    }
}

/// Equal holders `a` and `b`: the same claims, weights and memory in every era of a world whose others change.
fn equals() -> impl Strategy<Value = Vec<Era>> {
    let same = (1..12_u32, prop::collection::vec(user_tick(), 3));
    prop::collection::vec((era(), same, claim()), 1..30).prop_map(|worlds| {
        worlds
            .into_iter()
            .map(|(mut era, (part, users), _)| {
                if era.state != SlotState::Unobserved {
                    era.claims[0] = Some((1, part + 1, 0));
                    era.claims[1] = era.claims[0];
                }
                // A user covered by `a` would share it, and `b` covers none.
                era.covers = false;
                for (tick, user_tick) in era.ticks.iter_mut().zip(users) {
                    // They stay throughout: the carry of a holder that leaves ends.
                    let user_tick: UserTick = Some(user_tick.unwrap_or_default());
                    tick.users[0] = user_tick;
                    tick.users[1] = user_tick;
                }
                era
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn l11_equal_holders_differ_by_one_unit_at_most_over_any_number_of_segments(
        world in equals(), eras in 1..4_usize,
    ) {
        let mut sums = [(0, 0); 2];
        for settlement in run(&windows(&world, eras)) {
            let totals = totals(&[settlement]);
            for (sum, name) in sums.iter_mut().zip(["a", "b"]) {
                let (held, used) = held_and_used(&totals, name);
                *sum = (sum.0 + held, sum.1 + used);
            }
            prop_assert!(sums[0].0.abs_diff(sums[1].0) <= 1, "held {:?}", sums);
            prop_assert!(sums[0].1.abs_diff(sums[1].1) <= 1, "used {:?}", sums);
        }
    }

    #[test]
    fn l6_an_extra_boundary_changes_held_and_used_by_two_units_at_most(
        world in prop::collection::vec(era(), 1..12), at in any::<u64>(), eras in 1..4_usize,
    ) {
        let whole = windows(&world, eras);
        let cut = with_cut(&whole, at);
        let (whole, cut) = (totals(&run(&whole)), totals(&run(&cut)));
        for name in whole.keys().chain(cut.keys()) {
            let (one, other) = (held_and_used(&whole, name.as_str()), held_and_used(&cut, name.as_str()));
            prop_assert!(one.0.abs_diff(other.0) <= 2, "held {name}: {one:?} {other:?}");
            prop_assert!(one.1.abs_diff(other.1) <= 2, "used {name}: {one:?} {other:?}");
        }
    }

    #[test]
    fn l6_windows_add_up_whatever_their_length(
        world in prop::collection::vec(era(), 1..12), eras in 2..6_usize,
    ) {
        // Without the fallbacks that look at the whole window only carries pass from one window to the next.
        let mut world = world;
        for tick in world.iter_mut().flat_map(|era| &mut era.ticks) {
            tick.blind = false;
            for (weight, _) in tick.users.iter_mut().flatten() {
                *weight = Some(weight.unwrap_or(0) + 1);
            }
        }
        let (short, long) = (totals(&run(&windows(&world, 1))), totals(&run(&windows(&world, eras))));
        for name in short.keys().chain(long.keys()) {
            let (one, other) = (held_and_used(&short, name.as_str()), held_and_used(&long, name.as_str()));
            let (held, used) = (one.0.abs_diff(other.0), one.1.abs_diff(other.1));
            prop_assert!(held <= 2 && used <= 2, "{name}: {one:?} {other:?}");
        }
    }
}

/// The windows with one more boundary, at a recorded event that changes nothing else: from there on a holding that
/// does not exist covers a user who is not present.
fn with_cut(windows: &[Vec<Span>], at: u64) -> Vec<Vec<Span>> {
    let end = windows.last().and_then(|window| window.last()).map_or(0, |span| span.to.0);
    let at = Utc(at % end);
    let mut cut = Vec::new();
    for window in windows {
        let mut spans = Vec::new();
        for span in window {
            let (first, mut second) = split(span, at);
            second.covered_by.insert(id("nobody"), id("nowhere"));
            spans.extend([first, second].into_iter().filter(|span| span.length().0 > 0));
        }
        cut.push(spans);
    }
    cut
}

#[test]
fn a_row_is_bridged_if_any_part_was() {
    let users = vec![Some((Some(1), None)); USERS.len()];
    let tick = Tick { length: 10, busy: 1 << 15, users, blind: false, energy: None, idle: 0 };
    let era = Era {
        state: SlotState::Measured,
        claims: vec![Some((1, 2, 0))],
        covers: false,
        ticks: vec![tick.clone(), tick],
    };
    let mut spans = era.spans(0);
    spans[1].method = Method::Bridged;
    spans[1].state = SlotState::Unmeasured;
    spans[1].busy = 0;
    let settlement = settle_one(&spans, &Carry::new(), &BTreeMap::new());
    let row = settlement.rows.iter().find(|row| row.holder == id("a")).unwrap();
    assert_eq!(
        (row.method, row.amounts.parts.unmeasured, row.amounts.parts.held()),
        (Method::Bridged, 5, 10)
    );
    assert_eq!(window_end(Utc(1)), Utc(15_000_000_000));
}

#[test]
fn a_row_has_the_grant_of_its_last_holding_and_a_row_that_is_added_is_of_later() {
    let tick = Tick { length: 10, busy: 0, users: Vec::new(), blind: false, energy: None, idle: 0 };
    let of_era = |part, rank| Era {
        state: SlotState::Measured,
        claims: vec![Some((1, part, rank))],
        covers: false,
        ticks: vec![tick.clone()],
    };
    let world = [of_era(2, 0), of_era(2, 1)];
    let sources = world.each_ref().map(|era| era.holdings()[0].source);
    assert_ne!(sources[0], sources[1]);
    let grants = |windows: &[Vec<Span>]| -> Vec<_> {
        let settled = run(windows);
        let rows = settled.iter().flat_map(|settlement| &settlement.rows);
        rows.filter(|row| row.holder == id("a")).cloned().collect()
    };
    let [of_both] = &grants(&windows(&world, 2))[..] else { panic!() };
    assert_eq!((of_both.granted_by, of_both.amounts.parts.held()), (Some(sources[1]), 10));
    let [mut first, second] = grants(&windows(&world, 1)).try_into().unwrap();
    assert_eq!([first.granted_by, second.granted_by], sources.map(Some));
    first.add(&second);
    first.add(&Row::empty(id("a")));
    assert_eq!(first.granted_by, Some(sources[1]));
}
