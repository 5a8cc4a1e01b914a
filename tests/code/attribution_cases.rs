//! Cases of the settlement that the worked segments leave out: the fallback order, covered users, the energy of
//! unused segments, carries that are kept or dropped, and invalid input.

use std::collections::BTreeMap;

use gpumeter::meter::attribution::{SettleError, settle};
use gpumeter::model::{
    ActivitySource, Carry, Fraction, Grade, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds,
    Presence, Row, Settlement, SlotState, Span, Utc,
};

const SECOND: u64 = 1_000_000_000;

fn id(name: &str) -> HolderId {
    HolderId::new(name)
}

/// A measured span of a second, busy throughout, with holdings given as name and denominator of 1/n.
fn span(second: u64, holdings: &[(&str, u32)], present: &[(&str, Option<u64>, Option<u64>)]) -> Span {
    let holding = |(name, denominator): &(&str, u32)| Holding {
        holder: id(name),
        fraction: Fraction { numerator: 1, denominator: *denominator },
        source: HoldingSource::Standing,
        rank: Some(0),
    };
    Span {
        source: ActivitySource::Gpm,
        holdings: holdings.iter().map(holding).collect(),
        busy: SECOND,
        present: present
            .iter()
            .map(|(name, weight, memory)| (id(name), Presence { weight: *weight, memory: *memory }))
            .collect(),
        ..Span::empty(Utc(second * SECOND), Utc((second + 1) * SECOND), SlotState::Measured)
    }
}

fn settled(spans: &[Span], carry: &Carry, previous: &[(&str, u64)]) -> Settlement {
    let previous = previous.iter().map(|(name, weight)| (id(name), *weight)).collect();
    settle(spans[0].from, spans.last().unwrap().to, spans, carry, &previous).unwrap()
}

fn row(settlement: &Settlement, name: &str) -> Row {
    settlement
        .rows
        .iter()
        .find(|row| row.holder == id(name))
        .unwrap_or_else(|| panic!("no row of {name}"))
        .clone()
}

fn used(settlement: &Settlement, name: &str) -> (u64, Grade) {
    let row = row(settlement, name);
    (row.amounts.used.total(), row.grade)
}

#[test]
fn missing_weights_come_from_the_previous_window() {
    let spans = [span(0, &[], &[("a", None, Some(9)), ("b", None, Some(1)), ("c", None, None)])];
    let settlement = settled(&spans, &Carry::new(), &[("a", 1), ("b", 3), ("gone", 96)]);
    assert_eq!(used(&settlement, "a"), (SECOND / 4, Grade::SplitByActivity));
    assert_eq!(used(&settlement, "b"), (SECOND / 4 * 3, Grade::SplitByActivity));
    assert!(settlement.weights.is_empty());
}

#[test]
fn weights_of_the_window_take_precedence_over_those_of_the_previous_window() {
    let spans = [
        span(0, &[], &[("a", Some(3), None), ("b", Some(1), None)]),
        span(1, &[], &[("a", None, None), ("b", None, None)]),
    ];
    let settlement = settled(&spans, &Carry::new(), &[("b", 1)]);
    assert_eq!(used(&settlement, "a"), (SECOND / 2 * 3, Grade::SplitByActivity));
    assert_eq!(row(&settlement, "a").amounts.measured, SECOND / 4 * 3);
    assert_eq!(settlement.weights, BTreeMap::from([(id("a"), SECOND / 4 * 3), (id("b"), SECOND / 4)]));
}

#[test]
fn without_weights_and_memory_all_share_equally() {
    let settlement = settled(&[span(0, &[], &[("a", None, None), ("b", Some(0), None)])], &Carry::new(), &[]);
    assert_eq!(used(&settlement, "a"), (SECOND / 2, Grade::SplitEqually));
}

#[test]
fn all_use_is_measured_for_an_only_user_and_not_for_an_only_remainder() {
    let settlement = settled(&[span(0, &[], &[("a", None, Some(5))])], &Carry::new(), &[]);
    assert_eq!(used(&settlement, "a"), (SECOND, Grade::Measured));
    let settlement = settled(&[span(0, &[], &[(HolderId::SYSTEM, None, Some(5))])], &Carry::new(), &[]);
    assert_eq!(used(&settlement, HolderId::SYSTEM), (SECOND, Grade::SplitByMemory));
}

#[test]
fn a_blind_slot_with_one_holder_is_used_by_that_holder() {
    let mut blind = span(0, &[("a", 2)], &[]);
    blind.blind = true;
    let settlement = settled(&[blind], &Carry::new(), &[]);
    assert_eq!(used(&settlement, "a"), (SECOND, Grade::Measured));
    assert_eq!(row(&settlement, "a").amounts.used.beyond, SECOND / 2);
}

#[test]
fn a_blind_slot_is_used_by_the_only_holder_that_is_left_after_a_conflict() {
    let mut blind = span(0, &[("winner", 1), ("loser", 2)], &[]);
    blind.blind = true;
    let ranked = |(rank, holding): (u32, &Holding)| Holding { rank: Some(rank), ..holding.clone() };
    blind.holdings = (0..).zip(blind.holdings.iter()).map(ranked).collect();
    let settlement = settled(&[blind], &Carry::new(), &[]);
    assert_eq!(used(&settlement, "winner"), (SECOND, Grade::Measured));
    assert!(settlement.rows.iter().all(|row| row.holder != id("loser")));
    assert_eq!(settlement.flags, ["gpu: yield loser to winner"]);
}

#[test]
fn covered_users_share_the_holding_by_what_they_used() {
    let mut covered = span(0, &[("pool", 2)], &[("x", Some(3), None), ("y", Some(1), None)]);
    covered.covered_by = BTreeMap::from([(id("x"), id("pool")), (id("y"), id("pool"))]);
    let settlement = settled(&[covered], &Carry::new(), &[]);
    let (x, y) = (row(&settlement, "x").amounts.used, row(&settlement, "y").amounts.used);
    assert_eq!([x.within, x.beyond, x.outside], [SECOND / 8 * 3, SECOND / 8 * 3, 0]);
    assert_eq!([y.within, y.beyond, y.outside], [SECOND / 8, SECOND / 8, 0]);
    let pool = row(&settlement, "pool");
    assert_eq!(
        (pool.amounts.parts.within, pool.amounts.parts.held(), pool.amounts.used.total()),
        (SECOND / 2, SECOND / 2, 0)
    );
}

#[test]
fn a_user_covered_by_a_claim_that_got_nothing_is_outside() {
    let mut conflict = span(0, &[("a", 1), ("b", 1)], &[("x", Some(1), None)]);
    conflict.holdings = conflict
        .holdings
        .iter()
        .cloned()
        .map(|mut holding| {
            holding.rank = Some(u32::from(holding.holder == id("b")));
            holding
        })
        .collect();
    conflict.covered_by = BTreeMap::from([(id("x"), id("b"))]);
    let settlement = settled(&[conflict], &Carry::new(), &[]);
    assert_eq!(row(&settlement, "x").amounts.used.outside, SECOND);
    assert_eq!(settlement.flags, ["gpu: yield b to a"]);
}

#[test]
fn the_energy_of_unknown_activity_follows_what_is_held() {
    let mut hung = span(0, &[("a", 2), ("b", 4)], &[]);
    (hung.state, hung.busy, hung.source) = (SlotState::Unmeasured, 0, ActivitySource::None);
    (hung.energy, hung.idle_energy) = (Some(Microjoules(700)), Microjoules(400));
    let settlement = settled(&[hung], &Carry::new(), &[]);
    let energy = |name| {
        (row(&settlement, name).amounts.energy_static.0, row(&settlement, name).amounts.energy_dynamic.0)
    };
    assert_eq!([energy("a"), energy("b"), energy("__unallocated__")], [(200, 200), (100, 100), (100, 0)]);
}

#[test]
fn the_energy_of_an_empty_gpu_is_idle_energy() {
    let mut idle = span(0, &[("a", 2)], &[]);
    (idle.busy, idle.energy, idle.idle_energy) = (0, Some(Microjoules(500)), Microjoules(400));
    let settlement = settled(&[idle], &Carry::new(), &[]);
    assert_eq!(row(&settlement, "a").amounts.energy_dynamic, Microjoules(50));
    assert_eq!(row(&settlement, "__unallocated__").amounts.energy_dynamic, Microjoules(50));
}

#[test]
fn memory_is_integrated_and_rounded_once_per_row() {
    let mut spans = [span(0, &[], &[("a", None, Some(3))]), span(1, &[], &[("a", None, Some(4))])];
    spans[1].to = Utc(spans[1].from.0 + SECOND / 2);
    spans[1].busy = 0;
    let short = Span { from: Utc(0), to: Utc(SECOND / 2), busy: 0, ..spans[0].clone() };
    let rest = Span { from: Utc(SECOND / 2), ..spans[0].clone() };
    let rest = Span { busy: 0, ..rest };
    let settlement = settled(&[short, rest, spans[1].clone()], &Carry::new(), &[]);
    assert_eq!(row(&settlement, "a").amounts.memory_byte_seconds, 5);
}

#[test]
fn a_carry_survives_unmeasured_time_and_ends_with_its_holder() {
    let owed = BTreeMap::from([(id("a"), 7), (id("b"), 9)]);
    let carry = Carry::from([("gpu/used".into(), owed.clone()), ("gi1/used".into(), owed.clone())]);
    let mut hung = span(0, &[("a", 1)], &[]);
    (hung.state, hung.busy) = (SlotState::Unmeasured, 0);
    let settlement = settled(&[hung], &carry, &[]);
    assert_eq!(settlement.carry, Carry::from([("gpu/used".into(), owed)]));
    let settlement = settled(&[span(1, &[("a", 1)], &[])], &settlement.carry, &[]);
    assert_eq!(settlement.carry["gpu/used"], BTreeMap::from([(id("a"), 7)]));
}

#[test]
fn activity_of_a_lost_gpu_sets_a_flag_and_counts_as_no_use() {
    let mut lost = span(0, &[("a", 2)], &[("a", Some(1), None)]);
    lost.state = SlotState::Unavailable;
    let settlement = settled(&[lost], &Carry::new(), &[]);
    assert_eq!(settlement.flags, ["gpu: activity while not measured"]);
    assert_eq!(row(&settlement, "a").amounts.parts.unavailable, SECOND / 2);
    assert_eq!(row(&settlement, "__unavailable__").amounts.parts.unavailable, SECOND / 2);
}

#[test]
fn time_without_samples_is_unmeasured_and_unobserved() {
    let mut gap = span(0, &[], &[]);
    (gap.state, gap.busy) = (SlotState::Unobserved, 0);
    let settlement = settled(&[gap], &Carry::new(), &[]);
    assert_eq!(row(&settlement, "__unobserved__").amounts.parts.unmeasured, SECOND);
}

#[test]
fn a_row_names_its_coarsest_meter() {
    let mut spans = [span(0, &[("a", 1)], &[]), span(1, &[("a", 1)], &[]), span(2, &[("a", 1)], &[])];
    spans[1].source = ActivitySource::Utilization;
    (spans[2].state, spans[2].source, spans[2].busy) = (SlotState::Unmeasured, ActivitySource::None, 0);
    assert_eq!(row(&settled(&spans, &Carry::new(), &[]), "a").source, ActivitySource::Utilization);
}

#[test]
fn inconsistent_segments_are_refused_by_name() {
    let refused = |from: u64, to: u64, spans: &[Span]| {
        settle(Utc(from * SECOND), Utc(to * SECOND), spans, &Carry::new(), &BTreeMap::new()).unwrap_err()
    };
    let at = |second: u64| Utc(second * SECOND);
    let fine = || span(0, &[], &[]);
    assert_eq!(refused(1, 1, &[]), SettleError::Window { from: at(1), to: at(1) });
    assert_eq!(refused(0, 1, &[]), SettleError::Gap { from: at(0), to: at(1) });
    assert_eq!(refused(0, 3, &[fine(), span(2, &[], &[])]), SettleError::Gap { from: at(1), to: at(2) });
    assert_eq!(refused(0, 3, &[fine()]), SettleError::Gap { from: at(1), to: at(3) });
    assert_eq!(refused(0, 1, &[fine(), fine()]), SettleError::Overlap { from: at(0), at: at(1) });
    assert_eq!(refused(0, 1, &[fine(), span(1, &[], &[])]), SettleError::Overlap { from: at(1), at: at(1) });
    let backwards = Span { from: at(1), to: at(0), ..fine() };
    assert_eq!(refused(0, 1, &[backwards]), SettleError::Backwards { from: at(1), to: at(0) });
    let busy = Span { busy: SECOND + 1, ..fine() };
    let length = Nanoseconds::SECOND;
    assert_eq!(refused(0, 1, &[busy]), SettleError::Busy { from: at(0), busy: SECOND + 1, length });
    let twice = span(0, &[("a", 2), ("a", 3)], &[]);
    assert_eq!(refused(0, 1, &[twice]), SettleError::HeldTwice { holder: id("a") });
    let reserved = span(0, &[(HolderId::SYSTEM, 2)], &[]);
    assert_eq!(refused(0, 1, &[reserved]), SettleError::Reserved { holder: id(HolderId::SYSTEM) });
    let fraction = Fraction { numerator: 1, denominator: 0 };
    let share = SettleError::Share { holder: id("a"), fraction };
    assert_eq!(refused(0, 1, &[span(0, &[("a", 0)], &[])]), share);
    let energy = Some(Microjoules(u64::MAX));
    let spans = [Span { energy, ..fine() }, Span { energy, ..span(1, &[], &[]) }];
    assert_eq!(refused(0, 2, &spans), SettleError::Energy { from: at(1), energy: Microjoules(u64::MAX) });
}
