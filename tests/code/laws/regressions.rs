//! Former errors of this and other accounts, and nested holdings.

use std::collections::BTreeMap;

use gpumeter::meter::attribution::settle;
use gpumeter::model::{
    ActivitySource, Carry, Fraction, Grade, HolderId, Holding, HoldingSource, Presence, Row, Settlement,
    SlotState, Span, Utc,
};
use proptest::prelude::*;

use super::worlds::{era, run, windows};
use super::{cases, held, id, used};

const SECOND: u64 = 1_000_000_000;

/// A claim: holder, numerator and denominator, rank.
type Claim<'a> = (&'a str, u32, u32, u32);

fn holding((holder, numerator, denominator, rank): &Claim<'_>) -> Holding {
    Holding {
        holder: id(holder),
        fraction: Fraction { numerator: *numerator, denominator: *denominator },
        source: HoldingSource::Kubernetes,
        rank: Some(*rank),
    }
}

/// A measured span of a whole GPU from one second to another, busy for so long, with weights by user.
fn span(seconds: std::ops::Range<u64>, busy: u64, claims: &[Claim<'_>], weights: &[(&str, u64)]) -> Span {
    let present = weights.iter().map(|(user, weight)| {
        let weight = (*weight > 0).then_some(*weight);
        (id(user), Presence { weight, memory: Some(1) })
    });
    Span {
        source: ActivitySource::Gpm,
        holdings: claims.iter().map(holding).collect(),
        busy,
        present: present.collect(),
        ..Span::empty(Utc(seconds.start * SECOND), Utc(seconds.end * SECOND), SlotState::Measured)
    }
}

fn settled(spans: &[Span], carry: &Carry) -> Settlement {
    settle(spans[0].from, spans[spans.len() - 1].to, spans, carry, &BTreeMap::new()).unwrap()
}

fn row<'a>(settlement: &'a Settlement, name: &str) -> &'a Row {
    settlement.rows.iter().find(|row| row.holder == id(name)).unwrap_or_else(|| panic!("no row of {name}"))
}

fn covered(span: Span, pairs: &[(&str, &str)]) -> Span {
    let covered_by = pairs.iter().map(|(inner, outer)| (id(inner), id(outer))).collect();
    Span { covered_by, ..span }
}

#[test]
fn unattributed_use_beside_a_full_holding_is_lent_and_the_held_time_still_sums() {
    let settlement = settled(&[span(0..15, 12 * SECOND, &[("alice", 1, 1, 0)], &[])], &Carry::new());
    let (alice, nobody) = (row(&settlement, "alice"), row(&settlement, HolderId::UNATTRIBUTED));
    let parts = alice.amounts.parts;
    assert_eq!((parts.within, parts.lent, parts.idle), (0, 12 * SECOND, 3 * SECOND));
    assert_eq!((nobody.amounts.used.outside, nobody.grade), (12 * SECOND, Grade::Unknown));
}

#[test]
fn an_idle_and_a_busy_replica_are_the_same_at_ticks_of_one_and_of_four_seconds() {
    let claims = [("pod-a", 1, 2, 0), ("pod-b", 1, 2, 0)];
    let weights = [("pod-a", 0), ("pod-b", 80)];
    let at = |tick: u64| {
        let ticks = (0..16 / tick)
            .map(|place| span(place * tick..(place + 1) * tick, tick * SECOND * 3 / 4, &claims, &weights));
        settled(&ticks.collect::<Vec<_>>(), &Carry::new())
    };
    let [one, four] = [at(1), at(4)];
    for name in ["pod-a", "pod-b"] {
        assert_eq!(row(&one, name).amounts, {
            let mut amounts = row(&four, name).amounts;
            amounts.memory_byte_seconds = row(&one, name).amounts.memory_byte_seconds;
            amounts
        });
    }
    let (idle, busy) = (row(&one, "pod-a").amounts, row(&one, "pod-b").amounts);
    assert_eq!((idle.used.total(), idle.parts.lent, idle.parts.idle), (0, 4 * SECOND, 4 * SECOND));
    assert_eq!((busy.used.within, busy.used.beyond), (8 * SECOND, 4 * SECOND));
}

#[test]
fn three_equal_holders_differ_by_one_unit_at_most_in_every_window_of_a_day() {
    let claims = [("a", 1, 3, 0), ("b", 1, 3, 0), ("c", 1, 3, 0)];
    let weights = [("a", 1), ("b", 1), ("c", 1)];
    let window = span(0..15, 10 * SECOND + 1, &claims, &weights);
    let (mut carry, mut sums) = (Carry::new(), [[0_u64; 2]; 3]);
    for _ in 0..24 * 3_600 / 15 {
        let settlement = settled(std::slice::from_ref(&window), &carry);
        for (name, sum) in ["a", "b", "c"].into_iter().zip(&mut sums) {
            let amounts = row(&settlement, name).amounts;
            *sum = [sum[0] + amounts.parts.held(), sum[1] + amounts.used.total()];
        }
        for place in 0..2 {
            let of = sums.map(|sum| sum[place]);
            assert!(of.iter().max().unwrap() - of.iter().min().unwrap() <= 1, "{sums:?}");
        }
        carry = settlement.carry;
    }
}

#[test]
fn a_stale_overlapping_holding_of_lower_rank_holds_nothing_and_is_flagged() {
    let claims = [("slurm:c/8", 1, 1, 0), ("slurm:c/7", 1, 1, 1)];
    let settlement = settled(&[span(0..15, 15 * SECOND, &claims, &[("slurm:c/8", 1)])], &Carry::new());
    assert_eq!(row(&settlement, "slurm:c/8").amounts.parts.within, 15 * SECOND);
    assert!(settlement.rows.iter().all(|row| row.holder != id("slurm:c/7")));
    assert_eq!(settlement.flags, ["gpu: yield slurm:c/7 to slurm:c/8"]);
}

#[test]
fn replicas_raised_from_four_to_ten_under_running_pods_keep_what_was_granted_until_they_do_not_fit() {
    let four = [("a", 1, 4, 0), ("b", 1, 4, 0)];
    let mixed = [("a", 1, 4, 0), ("b", 1, 4, 0), ("c", 1, 10, 0)];
    let spans = [span(0..10, 0, &four, &[]), span(10..20, 0, &mixed, &[])];
    let settlement = settled(&spans, &Carry::new());
    let held = |settlement: &Settlement, name| row(settlement, name).amounts.parts.held();
    assert_eq!([held(&settlement, "a"), held(&settlement, "c")], [5 * SECOND, SECOND]);
    assert!(settlement.flags.is_empty());
    // Four of the old replicas and one of the new ones are more than the GPU: a conflict of one rank.
    let names = ["a", "b", "c", "d", "e"];
    let more = names.map(|name| if name == "e" { (name, 1, 10, 0) } else { (name, 1, 4, 0) });
    let settlement = settled(&[span(0..10, 0, &more, &[])], &Carry::new());
    assert_eq!(settlement.flags.len(), 5);
    assert_eq!(held(&settlement, "e"), SECOND, "none above its claim");
    assert_eq!(names.map(|name| held(&settlement, name)).iter().sum::<u64>(), 10 * SECOND);
}

#[test]
fn a_step_that_works_inside_its_jobs_holding_is_within_both_and_never_beyond() {
    let claims = [("slurm:c/7", 1, 1, 0), ("slurm:c/7.0", 1, 3, 0)];
    let step = span(0..15, 12 * SECOND, &claims, &[("slurm:c/7.0", 1)]);
    let settlement = settled(&[covered(step, &[("slurm:c/7.0", "slurm:c/7")])], &Carry::new());
    let (job, step) = (row(&settlement, "slurm:c/7").amounts, row(&settlement, "slurm:c/7.0").amounts);
    assert_eq!((job.parts.within, job.parts.idle), (7 * SECOND, 3 * SECOND));
    assert_eq!((step.parts.within, step.used.within, step.used.beyond), (5 * SECOND, 12 * SECOND, 0));
    assert!(settlement.flags.is_empty());
}

#[test]
fn a_job_nested_in_a_standing_grant_holds_its_part_and_the_owner_holds_the_rest() {
    let claims = [("group:physics", 1, 1, 1), ("slurm:c/9", 1, 2, 0)];
    let guest = span(0..16, 16 * SECOND, &claims, &[("slurm:c/9", 1)]);
    let settlement = settled(&[covered(guest, &[("slurm:c/9", "group:physics")])], &Carry::new());
    let (owner, guest) = (row(&settlement, "group:physics").amounts, row(&settlement, "slurm:c/9").amounts);
    assert_eq!((owner.parts.held(), owner.parts.within), (8 * SECOND, 8 * SECOND));
    assert_eq!((guest.parts.held(), guest.used.within, guest.used.beyond), (8 * SECOND, 16 * SECOND, 0));
    assert!(settlement.flags.is_empty(), "{:?}", settlement.flags);
}

#[test]
fn ticks_with_weights_are_split_by_weights_and_blind_ticks_by_holdings() {
    let claims = [("a", 1, 2, 0), ("b", 1, 2, 0)];
    let seen = span(0..8, 8 * SECOND, &claims, &[("a", 3), ("b", 1)]);
    let blind = Span { blind: true, ..span(8..16, 8 * SECOND, &claims, &[]) };
    let settlement = settled(&[seen, blind], &Carry::new());
    let [a, b] = ["a", "b"].map(|name| row(&settlement, name).clone());
    assert_eq!([a.amounts.used.total(), b.amounts.used.total()], [10 * SECOND, 6 * SECOND]);
    assert_eq!((a.grade, a.amounts.measured), (Grade::SplitByHolding, 6 * SECOND));
}

#[test]
fn the_carry_of_a_holder_ends_with_it() {
    let three = span(0..10, 0, &[("a", 1, 3, 0), ("b", 1, 3, 0), ("c", 1, 3, 0)], &[]);
    let first = settled(&[three], &Carry::new());
    assert!(first.carry["gpu/held"].contains_key(&id("b")));
    let second = settled(&[span(10..20, 0, &[("a", 1, 3, 0), ("c", 1, 3, 0)], &[])], &first.carry);
    assert!(second.carry.values().all(|owed| !owed.contains_key(&id("b"))), "{:?}", second.carry);
    assert_eq!(held(&second), 10 * SECOND);
}

/// Nested holdings: `b` in `a`, `c` in `b`, and users in each.
const NESTED: [(&str, &str); 5] = [("b", "a"), ("c", "b"), ("f", "c"), ("g", "a"), ("e", "d")];

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn l1_to_l5_hold_over_nested_holdings(world in prop::collection::vec(era(), 1..8), eras in 1..4_usize) {
        let mut windows = windows(&world, eras);
        for span in windows.iter_mut().flatten() {
            *span = covered(span.clone(), &NESTED);
        }
        for (spans, settlement) in windows.iter().zip(run(&windows)) {
            prop_assert_eq!(held(&settlement), settlement.to.since(settlement.from).0);
            prop_assert_eq!(used(&settlement), spans.iter().map(|span| span.busy).sum::<u64>());
            let sum = |of: fn(&Row) -> u64| settlement.rows.iter().map(of).sum::<u64>();
            let above = sum(|row| row.amounts.used.total() - row.amounts.used.within);
            prop_assert_eq!(above, sum(|row| row.amounts.parts.lent));
            prop_assert_eq!(sum(|row| row.amounts.used.within), sum(|row| row.amounts.parts.within));
            let drawn: u64 = spans.iter().filter_map(|span| span.energy).map(|energy| energy.0).sum();
            let booked = sum(|row| row.amounts.energy_static.0 + row.amounts.energy_dynamic.0);
            prop_assert_eq!(booked, drawn);
        }
    }

    #[test]
    fn an_inner_holding_never_changes_what_is_held_outside_its_outer_one(
        world in prop::collection::vec(era(), 1..6),
    ) {
        // `d` is in no holding; whether `c` holds a part of `a` must not matter to it.
        let with = |nested: bool| {
            let mut windows = windows(&world, 1);
            for span in windows.iter_mut().flatten() {
                let claims = [("a", 1, 2, 0), ("c", 1, 3, 0), ("d", 1, 2, 0)];
                let claims = claims.iter().filter(|claim| nested || claim.0 != "c");
                let holdings = claims.map(holding).collect();
                *span = Span { holdings, ..covered(span.clone(), &[("c", "a")]) };
            }
            let settlements = run(&windows);
            settlements.iter().flat_map(|settlement| &settlement.rows).fold([0; 3], |sums: [u64; 3], row| {
                let place = ["a", "c", "d"].iter().position(|name| id(name) == row.holder);
                let mut sums = sums;
                if let Some(place) = place {
                    sums[place] += row.amounts.parts.held();
                }
                sums
            })
        };
        let ([a, c, d], [whole, _, alone]) = (with(true), with(false));
        prop_assert!(d.abs_diff(alone) <= 1 && (a + c).abs_diff(whole) <= 1, "{a} {c} {d}; {whole} {alone}");
    }
}
