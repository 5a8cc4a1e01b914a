//! The laws on a GPU that is divided into MIG instances, in random layouts.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumeter::model::{
    ActivitySource, HolderId, InstanceSpan, MigLayout, MigSlot, MigSpan, Parts, Row, Settlement, SlotState,
    Span, Utc,
};
use proptest::prelude::*;

use super::worlds::{Era, Tick, era, run};
use super::{cases, held, id};

/// The MIG layout of a GPU, and for each era the activity of its instances.
#[derive(Clone, Debug)]
struct Division {
    sizes: Vec<u64>,
    free: u64,
    stranded: Option<u64>,
    eras: Vec<Vec<Era>>,
}

fn division() -> impl Strategy<Value = Division> {
    let sizes = prop::collection::vec(1..5_u64, 1..4);
    (sizes, 0..3_u64, prop::option::of(0..3_u64)).prop_flat_map(|(sizes, free, stranded)| {
        let slots = sizes.len();
        let eras = prop::collection::vec(prop::collection::vec(era(), slots), 1..6);
        eras.prop_map(move |eras| Division { sizes: sizes.clone(), free, stranded, eras })
    })
}

impl Division {
    fn layout(&self) -> MigLayout {
        let slots = (0_u32..)
            .zip(&self.sizes)
            .map(|(slot, size)| (slot.to_string().into(), MigSlot { size: *size, ..MigSlot::default() }));
        let total = self.sizes.iter().sum::<u64>() + self.free + self.stranded.unwrap_or(0);
        MigLayout { total, slots: slots.collect(), unallocated: self.free, stranded: self.stranded }
    }

    /// A window for each era.
    fn windows(&self) -> Vec<Vec<Span>> {
        let layout = Arc::new(self.layout());
        let mut from = 0;
        let mut windows = Vec::new();
        for era in &self.eras {
            let spans = spans(era, &layout, from);
            from = spans.last().map_or(from, |span| span.to.0);
            windows.push(spans);
        }
        windows
    }
}

/// The ticks of the first slot, with the activity of each slot.
fn spans(slots: &[Era], layout: &Arc<MigLayout>, from: u64) -> Vec<Span> {
    let lengths: Vec<u64> = slots[0].ticks.iter().map(|tick| tick.length).collect();
    let of_slots: Vec<Vec<Span>> = slots
        .iter()
        .map(|slot| {
            let ticks = lengths.iter().zip(slot.ticks.iter().cycle());
            let ticks = ticks.map(|(length, tick)| Tick { length: *length, ..tick.clone() }).collect();
            Era { ticks, ..slot.clone() }.spans(from)
        })
        .collect();
    let gpu = of_slots[0].iter().enumerate().map(|(place, first)| {
        let slots = (0_u32..).zip(&of_slots).map(|(slot, spans)| {
            let Span { state, source, holdings, covered_by, busy, shares, present, blind, .. } =
                spans[place].clone();
            let slot_span =
                InstanceSpan { state, source, holdings, covered_by, busy, shares, present, blind };
            (slot.to_string().into(), slot_span)
        });
        Span {
            state: SlotState::Measured,
            source: ActivitySource::None,
            holdings: Arc::default(),
            covered_by: BTreeMap::new(),
            busy: 0,
            present: BTreeMap::new(),
            blind: false,
            instances: Some(Box::new(MigSpan { layout: Arc::clone(layout), slots: slots.collect() })),
            ..first.clone()
        }
    });
    gpu.collect()
}

/// The rows of one slot.
fn of_slot(settlement: &Settlement, slot: Option<u32>) -> impl Iterator<Item = &Row> {
    settlement.rows.iter().filter(move |row| row.slot.gpu_instance == slot)
}

fn slot_time(settlement: &Settlement, slot: Option<u32>) -> u64 {
    of_slot(settlement, slot).map(|row| row.amounts.parts.held()).sum()
}

/// Whether an integer is the floor or the ceiling of `total x part / whole`.
fn is_share(found: u64, [total, part, whole]: [u64; 3]) -> bool {
    let exact = u128::from(total) * u128::from(part);
    let whole = u128::from(whole);
    (exact / whole..=exact.div_ceil(whole)).contains(&u128::from(found))
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn l4_slots_unallocated_and_stranded_time_sum_to_the_gpus_time(division in division()) {
        let layout = division.layout();
        for settlement in run(&division.windows()) {
            let time = settlement.to.since(settlement.from).0;
            prop_assert_eq!(held(&settlement), time);
            // A window has at most as many segments as ticks, and each may add a unit.
            let segments = 4;
            for (slot, size) in (0_u32..).zip(&division.sizes) {
                let exact = u128::from(time) * u128::from(*size) / u128::from(layout.total);
                let found = u128::from(slot_time(&settlement, Some(slot)));
                prop_assert!(found.abs_diff(exact) <= segments, "{found} of {exact}");
            }
            let free: BTreeMap<&str, u64> = of_slot(&settlement, None)
                .map(|row| (row.holder.as_str(), row.amounts.parts.held()))
                .collect();
            prop_assert!(free.keys().all(|name| [HolderId::UNALLOCATED, HolderId::STRANDED].contains(name)));
            prop_assert!(layout.stranded.is_some() || !free.contains_key(HolderId::STRANDED));
        }
    }

    #[test]
    fn l1_and_l3_hold_in_each_slot_and_nothing_is_lent_across_slots(division in division()) {
        for (spans, settlement) in division.windows().iter().zip(run(&division.windows())) {
            let time = settlement.to.since(settlement.from).0;
            for slot in 0..u32::try_from(division.sizes.len()).unwrap() {
                let mut parts = Parts::default();
                let (mut used, mut above) = (0, 0);
                for row in of_slot(&settlement, Some(slot)) {
                    parts.add(&row.amounts.parts);
                    used += row.amounts.used.total();
                    above += row.amounts.used.total() - row.amounts.used.within;
                }
                prop_assert_eq!(above, parts.lent, "drawn and lent in slot {}", slot);
                prop_assert_eq!(used, parts.within + parts.lent);
                let mine = slot.to_string();
                let busy: u64 = spans.iter().map(|span| span.instances.as_ref().unwrap().slots[&*mine].busy).sum();
                let exact = u128::from(busy) * u128::from(parts.held()) / u128::from(time);
                // Segments are scaled one by one, each to an integer.
                prop_assert!(u128::from(used).abs_diff(exact) <= 8 + exact / 1_000 + u128::from(time) / 20,
                    "{used} of {exact}");
            }
        }
    }

    #[test]
    fn l5_the_energy_of_all_slots_is_the_difference_of_the_counter(division in division()) {
        for (spans, settlement) in division.windows().iter().zip(run(&division.windows())) {
            let drawn: u64 = spans.iter().filter_map(|span| span.energy).map(|energy| energy.0).sum();
            let rows = settlement.rows.iter().map(|row| row.amounts);
            let booked: u64 = rows.map(|amounts| amounts.energy_static.0 + amounts.energy_dynamic.0).sum();
            prop_assert_eq!(booked, drawn);
        }
    }

    #[test]
    fn l7_the_order_of_holdings_of_an_instance_changes_no_row(division in division()) {
        let windows = division.windows();
        let mut turned = windows.clone();
        for span in turned.iter_mut().flatten() {
            for slot in span.instances.as_mut().unwrap().slots.values_mut() {
                let mut holdings = slot.holdings.to_vec();
                holdings.reverse();
                slot.holdings = holdings.into();
            }
        }
        prop_assert_eq!(run(&windows), run(&turned));
    }

    #[test]
    fn l11_instances_of_one_size_have_the_same_time_to_a_unit_over_any_number_of_windows(
        division in division(), repeats in 1..5_usize,
    ) {
        let mut division = division;
        division.sizes = vec![3; 3];
        let eras = division.eras.iter().map(|era| era.iter().cycle().take(3).cloned().collect::<Vec<_>>());
        let eras: Vec<Vec<Era>> = eras.collect();
        division.eras = std::iter::repeat_n(eras, repeats).flatten().collect();
        // Carries stay while nothing is observed, since no holder is known to have left; so they do here.
        let mut sums = [0_u64; 3];
        for settlement in run(&division.windows()) {
            for (slot, sum) in (0_u32..).zip(&mut sums) {
                *sum += slot_time(&settlement, Some(slot));
            }
            prop_assert!(sums.iter().max().unwrap() - sums.iter().min().unwrap() <= 1, "{:?}", sums);
        }
    }

    #[test]
    fn between_two_epochs_all_time_is_unavailable_and_carries_of_instances_end(
        division in division(), length in 1..1_000_u64,
    ) {
        let mut windows = division.windows();
        let end = windows.last().unwrap().last().unwrap().to;
        let mut between = windows[0][0].clone();
        between.instances = None;
        (between.from, between.to, between.state) = (end, Utc(end.0 + length), SlotState::Unavailable);
        between.energy = None;
        windows.push(vec![between]);
        let last = run(&windows).pop().unwrap();
        prop_assert!(last.carry.is_empty(), "{:?}", last.carry);
        let rows: Vec<_> = last.rows.iter().map(|row| (row.slot.gpu_instance, row.holder.clone())).collect();
        prop_assert_eq!(rows, vec![(None, id(HolderId::UNAVAILABLE))]);
        prop_assert_eq!(last.rows[0].amounts.parts.unavailable, length);
    }
}

#[test]
fn seven_instances_at_ninety_percent_use_seven_eighths_of_ninety_percent() {
    let holder = |slot: u32| format!("user:{slot}");
    let users = vec![None; super::USERS.len()];
    let tick =
        Tick { length: 1_000_000_000, busy: 0, users, blind: false, energy: Some(700_000_000), idle: 0 };
    let era = Era { state: SlotState::Measured, claims: vec![], covers: false, ticks: vec![tick; 15] };
    let layout = Division { sizes: vec![1; 7], free: 0, stranded: Some(1), eras: Vec::new() }.layout();
    let mut spans = spans(&vec![era; 7], &Arc::new(layout), 0);
    for span in &mut spans {
        for (slot, instance) in &mut span.instances.as_mut().unwrap().slots {
            instance.busy = 900_000_000;
            let user = HolderId::new(holder(slot.parse().unwrap()));
            instance.present.insert(user, Default::default());
        }
    }
    let settlement = run(&[spans]).remove(0);
    for slot in 0..7 {
        let row = of_slot(&settlement, Some(slot)).find(|row| *row.holder.0 == *holder(slot)).unwrap();
        assert_eq!(row.amounts.used.total(), 15_000_000_000 / 8 * 9 / 10, "90 % of an eighth");
        assert_eq!(row.amounts.energy_dynamic.0, 1_500_000_000, "a seventh of what was drawn");
        assert!(is_share(slot_time(&settlement, Some(slot)), [15_000_000_000, 1, 8]));
    }
    let stranded = of_slot(&settlement, None).next().unwrap();
    assert_eq!((stranded.holder.as_str(), stranded.amounts.parts.idle), ("__stranded__", 1_875_000_000));
}

/// What each user of a slot used, computed tick by tick without the agent's code, as fractions of 2^-64 nanoseconds.
fn used_tick_by_tick(spans: &[Span], slot: &str) -> BTreeMap<HolderId, u128> {
    let mut used: BTreeMap<HolderId, u128> = BTreeMap::new();
    for span in spans {
        let MigSpan { layout, slots } = &**span.instances.as_ref().unwrap();
        let (instance, size) = (&slots[slot], layout.slots[slot].size);
        if instance.state != SlotState::Measured || instance.busy == 0 {
            continue;
        }
        let busy = u128::from(instance.busy) * u128::from(size) * (1 << 64) / u128::from(layout.total);
        let weights = tick_weights(instance);
        let sum: u128 = weights.values().sum();
        for (user, weight) in weights {
            *used.entry(user).or_default() += busy / sum.max(1) * weight;
        }
    }
    used
}

/// The weights of those present in a tick: by held, else by memory, else equal; the fractions have denominator 12.
fn tick_weights(instance: &InstanceSpan) -> BTreeMap<HolderId, u128> {
    let held = |user: &HolderId| {
        let holding = instance.holdings.iter().find(|holding| holding.holder == *user);
        holding
            .map_or(0, |holding| u128::from(holding.fraction.numerator * 12 / holding.fraction.denominator))
    };
    let memory = |user: &HolderId| instance.present[user].memory.map_or(0, u128::from);
    let users = || instance.present.keys();
    let weighted = |weight: &dyn Fn(&HolderId) -> u128| {
        let weights: BTreeMap<HolderId, u128> =
            users().map(|user| (user.clone(), weight(user))).filter(|(_, weight)| *weight > 0).collect();
        (!weights.is_empty()).then_some(weights)
    };
    weighted(&held)
        .or_else(|| weighted(&memory))
        .or_else(|| weighted(&|_| 1))
        .unwrap_or_else(|| BTreeMap::from([(id(HolderId::UNATTRIBUTED), 1)]))
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn busy_time_of_an_instance_is_split_tick_by_tick_among_those_present_in_the_tick(division in division()) {
        let mut division = division;
        for era in division.eras.iter_mut().flatten() {
            era.covers = false;
            // Claims that fit together, in twelfths.
            era.claims.iter_mut().flatten().for_each(|claim| *claim = (claim.0.clamp(1, 2), 12, 0));
            for tick in &mut era.ticks {
                tick.blind = false;
                tick.length += 1_000_000;
                tick.users.iter_mut().flatten().for_each(|user| user.1 = user.1.map(|memory| memory % 10_000));
            }
        }
        for (spans, settlement) in division.windows().iter().zip(run(&division.windows())) {
            for slot in 0..u32::try_from(division.sizes.len()).unwrap() {
                let exact = used_tick_by_tick(spans, &slot.to_string());
                let mut found: BTreeMap<HolderId, u64> = BTreeMap::new();
                for row in of_slot(&settlement, Some(slot)) {
                    *found.entry(row.holder.clone()).or_default() += row.amounts.used.total();
                }
                for user in exact.keys().chain(found.keys()) {
                    let exact = exact.get(user).map_or(0, |used| used >> 64);
                    let found = u128::from(found.get(user).copied().unwrap_or(0));
                    prop_assert!(found.abs_diff(exact) <= 16, "{user} in slot {slot}: {found} of {exact}");
                }
            }
        }
    }
}
