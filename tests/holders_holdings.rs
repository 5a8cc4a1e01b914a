//! Who holds what: standing holdings, presence, and whom a holding covers.

use std::collections::BTreeMap;

use gpumeter::holders::{GpuSelector, Selector, SessionGpu, Standing, holdings};
use gpumeter::model::{Fraction, Holder, HolderId, Holding, HoldingSource, UnattributedReason};
use proptest::prelude::*;

const QUARTER: Fraction = Fraction { numerator: 1, denominator: 4 };

fn gpu() -> SessionGpu {
    SessionGpu { index: Some(3), uuid: "GPU-1d1c".into() }
}

fn standing(gpu: GpuSelector, fraction: Fraction, selector: Selector) -> Standing {
    Standing { id: "grant".into(), gpu, fraction, selector }
}

fn user(name: &str) -> Selector {
    Selector::User(name.into())
}

fn unit(name: &str) -> Selector {
    Selector::Unit(name.into())
}

fn shares(held: &[Holding]) -> Vec<(&str, String, u32)> {
    held.iter()
        .map(|one| (one.holder.as_str(), one.fraction.to_string(), one.rank.unwrap_or(u32::MAX)))
        .collect()
}

fn text(covered_by: &BTreeMap<HolderId, HolderId>) -> Vec<(&str, &str)> {
    covered_by.iter().map(|(covered, by)| (covered.as_str(), by.as_str())).collect()
}

#[test]
fn standing_holdings_are_ranked_by_their_order_and_sorted_by_holder() {
    let granted = [
        standing(GpuSelector::All, QUARTER, user("zoe")),
        standing(GpuSelector::Index(2), QUARTER, user("bob")),
        standing(GpuSelector::Uuid("GPU-1d1c".into()), QUARTER, unit("a.service")),
        standing(GpuSelector::Index(3), QUARTER, user("alice")),
    ];
    let (held, _) = holdings(&gpu(), &granted, false, []);
    let expected = [("unit:a.service", 2), ("user:alice", 3), ("user:zoe", 0)];
    assert_eq!(shares(&held), expected.map(|(holder, rank)| (holder, "1/4".into(), rank)));
    assert!(held.iter().all(|one| one.source == HoldingSource::Standing));
}

#[test]
fn several_grants_to_one_holder_are_one_holding() {
    let granted = [
        standing(GpuSelector::All, QUARTER, user("alice")),
        standing(GpuSelector::All, QUARTER, user("bob")),
        standing(GpuSelector::Index(3), QUARTER, user("alice")),
    ];
    let (held, _) = holdings(&gpu(), &granted, false, []);
    assert_eq!(shares(&held), [("user:alice", "1/2".into(), 0), ("user:bob", "1/4".into(), 1)]);
}

#[test]
fn a_users_holding_covers_his_units_unless_they_hold_something_themselves() {
    let granted = [
        standing(GpuSelector::All, QUARTER, user("alice")),
        standing(GpuSelector::All, QUARTER, unit("own.service")),
    ];
    let present = [
        Holder::user("alice", Some(1000)),
        Holder::user("bob", Some(1001)),
        Holder::unit("train.service", Some("alice"), Some(1000)),
        Holder::unit("own.service", Some("alice"), Some(1000)),
        Holder::unit("other.service", Some("bob"), Some(1001)),
        Holder::remainder(HolderId::new(HolderId::SYSTEM)),
    ];
    let (_, covered_by) = holdings(&gpu(), &granted, false, &present);
    assert_eq!(text(&covered_by), [("unit:train.service", "user:alice")]);
}

#[test]
fn a_grant_to_a_uid_covers_its_user_and_his_units_under_whatever_name() {
    for (name, covered) in [
        ("alice", vec![("unit:train.service", "user:alice")]),
        // As long as the name is not known the number holds.
        ("1000", vec![("unit:train.service", "user:1000"), ("user:alice", "user:1000")]),
    ] {
        let granted = [standing(GpuSelector::All, QUARTER, Selector::Uid { uid: 1000, name: name.into() })];
        let present = [
            Holder::user("alice", Some(1000)),
            Holder::user("bob", Some(1001)),
            Holder::unit("train.service", Some("alice"), Some(1000)),
        ];
        let (held, covered_by) = holdings(&gpu(), &granted, false, &present);
        assert_eq!(shares(&held), [(&*format!("user:{name}"), "1/4".into(), 0)]);
        assert_eq!(text(&covered_by), covered);
    }
}

#[test]
fn one_who_is_covered_twice_is_covered_by_the_latest() {
    let train = Holder::unit("train.service", Some("alice"), None);
    let odd = Holder { id: HolderId::new("user:x"), ..train };
    let one = standing(GpuSelector::All, QUARTER, user("alice"));
    let other = standing(GpuSelector::All, QUARTER, unit("train.service"));
    let (_, covered_by) = holdings(&gpu(), &[one.clone(), other.clone()], false, [&odd]);
    assert_eq!(text(&covered_by), [("user:x", "unit:train.service")]);
    let (_, covered_by) = holdings(&gpu(), &[other, one], false, [&odd]);
    assert_eq!(text(&covered_by), [("user:x", "user:alice")]);
}

#[test]
fn presence_holds_equal_shares_where_it_was_chosen() {
    let present = [
        Holder::user("bob", None),
        Holder::unit("a.service", None, None),
        Holder::remainder(HolderId::new(HolderId::SYSTEM)),
        Holder::user("bob", Some(1)),
        Holder::user("alice", None),
    ];
    let (held, covered_by) = holdings(&gpu(), &[], true, &present);
    let third = || "1/3".to_owned();
    assert_eq!(
        shares(&held),
        [("unit:a.service", third(), 0), ("user:alice", third(), 1), ("user:bob", third(), 2)]
    );
    assert!(held.iter().all(|one| one.source == HoldingSource::Presence) && covered_by.is_empty());
    assert_eq!(holdings(&gpu(), &[], false, &present), (vec![], BTreeMap::new()));
    let remainders = UnattributedReason::ALL.map(HolderId::unattributed);
    for id in remainders.into_iter().chain([HolderId::new(HolderId::SYSTEM)]) {
        assert_eq!(holdings(&gpu(), &[], true, [&Holder::remainder(id)]), (vec![], BTreeMap::new()));
    }
}

#[test]
fn presence_holds_nothing_beside_a_standing_holding() {
    let granted = [standing(GpuSelector::All, QUARTER, user("alice"))];
    let (held, covered_by) = holdings(&gpu(), &granted, true, &[Holder::user("bob", None)]);
    assert_eq!(shares(&held), [("user:alice", "1/4".into(), 0)]);
    assert!(covered_by.is_empty());
    let elsewhere = [standing(GpuSelector::Index(0), QUARTER, user("alice"))];
    let (held, _) = holdings(&gpu(), &elsewhere, true, &[Holder::user("bob", None)]);
    assert_eq!(shares(&held), [("user:bob", "1/1".into(), 0)]);
}

fn any_holder() -> impl Strategy<Value = Holder> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    (name.clone(), name, 0..3).prop_map(|(name, as_user, kind)| match kind {
        0 => Holder::user(name, None),
        1 => Holder::unit(name, Some(as_user), None),
        _ => Holder::remainder(HolderId::new(HolderId::SYSTEM)),
    })
}

fn any_standing() -> impl Strategy<Value = Standing> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    (name, any::<bool>(), 1..5_u32, 2..5_u32).prop_map(|(name, is_user, denominator, index)| {
        let gpu = if index == 4 { GpuSelector::All } else { GpuSelector::Index(index) };
        standing(gpu, Fraction { numerator: 1, denominator }, if is_user { user(name) } else { unit(name) })
    })
}

proptest! {
    #[test]
    fn the_order_of_holders_never_changes_anything(
        granted in prop::collection::vec(any_standing(), 0..5),
        presence: bool,
        (present, shuffled) in prop::collection::vec(any_holder(), 0..8)
            .prop_flat_map(|present| (Just(present.clone()), Just(present).prop_shuffle())),
    ) {
        let (held, covered_by) = holdings(&gpu(), &granted, presence, &present);
        let shuffled = holdings(&gpu(), &granted, presence, &shuffled);
        prop_assert_eq!((&held, &covered_by), (&shuffled.0, &shuffled.1));
        prop_assert!(held.windows(2).all(|pair| pair[0].holder < pair[1].holder));
        for (covered, by) in &covered_by {
            prop_assert!(held.iter().any(|one| one.holder == *by));
            prop_assert!(held.iter().all(|one| one.holder != *covered));
        }
    }
}
