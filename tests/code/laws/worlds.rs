//! Random worlds for the laws: eras of some ticks in which holdings, state and meter are constant.

use std::collections::BTreeMap;

use gpumeter::meter::attribution::settle;
use gpumeter::model::{
    ActivitySource, Carry, Fraction, HolderId, Holding, HoldingSource, Microjoules, Parts, Presence,
    Settlement, SlotState, Span, Use, Utc,
};
use proptest::prelude::*;

/// Users who may hold, then users who only use.
pub(crate) const HOLDERS: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(crate) const USERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", HolderId::SYSTEM];

/// A claim as fraction and rank, or none.
pub(crate) type Claim = Option<(u32, u32, u32)>;

/// A user's weight and memory in a tick, or absence.
pub(crate) type UserTick = Option<(Option<u64>, Option<u64>)>;

#[derive(Clone, Debug)]
pub(crate) struct Tick {
    pub(crate) length: u64,
    /// Busy share of the length, in 2^-16.
    pub(crate) busy: u64,
    pub(crate) users: Vec<UserTick>,
    pub(crate) blind: bool,
    pub(crate) energy: Option<u64>,
    pub(crate) idle: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Era {
    pub(crate) state: SlotState,
    pub(crate) claims: Vec<Claim>,
    /// Whether the holding of `a` covers user `f`.
    pub(crate) covers: bool,
    pub(crate) ticks: Vec<Tick>,
}

pub(crate) fn id(name: &str) -> HolderId {
    HolderId::new(name)
}

pub(crate) fn user_tick() -> impl Strategy<Value = UserTick> {
    let weight = prop_oneof![2 => Just(None), 1 => Just(Some(0)), 4 => (1..9_u64).prop_map(Some),
        2 => (1..2_000_000_000_u64).prop_map(Some)];
    let memory = prop::option::of(prop_oneof![0..4_u64, 0..100_000_000_000_u64]);
    prop::option::weighted(0.6, (weight, memory))
}

pub(crate) fn tick() -> impl Strategy<Value = Tick> {
    (
        prop_oneof![3 => 1..40_u64, 1 => 1..15_000_000_000_u64],
        prop_oneof![1 => Just(0), 2 => Just(1 << 16), 5 => 0..=1_u64 << 16],
        // One tick in four has no weights.
        (prop::collection::vec(user_tick(), USERS.len()), prop::bool::weighted(0.25)),
        prop::bool::weighted(0.1),
        (prop::option::weighted(0.8, 0..10_000_u64), 0..5_000_u64),
    )
        .prop_map(|(length, busy, (mut users, lost), blind, (energy, idle))| {
            if lost {
                users.iter_mut().flatten().for_each(|user_tick| user_tick.0 = None);
            }
            Tick { length, busy, users, blind, energy, idle }
        })
}

/// A claim that may not fit beside others.
pub(crate) fn claim() -> impl Strategy<Value = Claim> {
    let fraction = (1..12_u32).prop_flat_map(|whole| (0..=whole, Just(whole), 0..3_u32));
    prop::option::weighted(0.5, fraction)
}

pub(crate) fn era() -> impl Strategy<Value = Era> {
    let state = prop_oneof![
        8 => Just(SlotState::Measured),
        1 => Just(SlotState::Unmeasured),
        1 => Just(SlotState::Unavailable),
        1 => Just(SlotState::Unobserved),
    ];
    let claims = prop::collection::vec(claim(), HOLDERS.len());
    (state, claims, any::<bool>(), prop::collection::vec(tick(), 1..4)).prop_map(
        |(state, claims, covers, ticks)| {
            // The GPU is unobserved: no holdings are known.
            let claims = if state == SlotState::Unobserved { vec![None; HOLDERS.len()] } else { claims };
            Era { state, claims, covers, ticks }
        },
    )
}

impl Era {
    pub(crate) fn holdings(&self) -> Vec<Holding> {
        let claims = HOLDERS.iter().zip(&self.claims);
        let source =
            |numerator, rank| HoldingSource::ALL[(numerator + rank) as usize % HoldingSource::ALL.len()];
        claims
            .filter_map(|(name, claim)| claim.map(|claim| (name, claim)))
            .map(|(name, (numerator, denominator, rank))| Holding {
                holder: id(name),
                fraction: Fraction { numerator, denominator },
                source: source(numerator, rank),
                rank: Some(rank),
            })
            .collect()
    }

    /// The era's spans, from `from` on.
    pub(crate) fn spans(&self, from: u64) -> Vec<Span> {
        let covered_by = if self.covers { BTreeMap::from([(id("f"), id("a"))]) } else { BTreeMap::new() };
        let holdings = self.holdings();
        let mut at = from;
        self.ticks
            .iter()
            .map(|tick| {
                let begin = at;
                at += tick.length;
                let measured = self.state == SlotState::Measured;
                let busy = (u128::from(tick.length) * u128::from(tick.busy)) >> 16;
                Span {
                    source: if measured { ActivitySource::Gpm } else { ActivitySource::None },
                    holdings: holdings.clone().into(),
                    covered_by: covered_by.clone(),
                    busy: if measured { u64::try_from(busy).unwrap() } else { 0 },
                    present: tick.present(),
                    blind: tick.blind,
                    energy: tick.energy.map(Microjoules),
                    idle_energy: Microjoules(tick.idle),
                    ..Span::empty(Utc(begin), Utc(at), self.state)
                }
            })
            .collect()
    }
}

impl Tick {
    fn present(&self) -> BTreeMap<HolderId, Presence> {
        USERS
            .iter()
            .zip(&self.users)
            .filter_map(|(name, user_tick)| {
                user_tick.map(|(weight, memory)| (id(name), Presence { weight, memory }))
            })
            .collect()
    }
}

/// The windows of a world, each of `eras` eras.
pub(crate) fn windows(world: &[Era], eras: usize) -> Vec<Vec<Span>> {
    let mut from = 0;
    world
        .chunks(eras)
        .map(|window| {
            let mut spans = Vec::new();
            for era in window {
                let next = era.spans(from);
                from = next.last().map_or(from, |span| span.to.0);
                spans.extend(next);
            }
            spans
        })
        .collect()
}

/// Settles one window.
pub(crate) fn settle_one(spans: &[Span], carry: &Carry, previous: &BTreeMap<HolderId, u64>) -> Settlement {
    let (from, to) = (spans.first().unwrap().from, spans.last().unwrap().to);
    settle(from, to, spans, carry, previous).unwrap()
}

/// Settles windows one after another.
pub(crate) fn run(windows: &[Vec<Span>]) -> Vec<Settlement> {
    let (mut carry, mut weights) = (Carry::new(), BTreeMap::new());
    windows
        .iter()
        .map(|spans| {
            let settlement = settle_one(spans, &carry, &weights);
            carry.clone_from(&settlement.carry);
            weights.clone_from(&settlement.weights);
            settlement
        })
        .collect()
}

/// Held and used of each holder over many windows.
pub(crate) fn totals(settlements: &[Settlement]) -> BTreeMap<HolderId, (Parts, Use)> {
    let mut totals: BTreeMap<HolderId, (Parts, Use)> = BTreeMap::new();
    for row in settlements.iter().flat_map(|settlement| &settlement.rows) {
        let total = totals.entry(row.holder.clone()).or_default();
        total.0.add(&row.amounts.parts);
        total.1.add(&row.amounts.used);
    }
    totals
}
