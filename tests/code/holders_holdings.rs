//! Who holds what: standing holdings, presence, and which holders a holding covers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumeter::holders::{AllocatedDevice, Allocation, GrantedSlot, Granting, SessionGpu, holdings};
use gpumeter::meter::attribution::{conflicts, granted_shares};
use gpumeter::model::{
    Fact, Facts, Fraction, GpuSelector, Holder, HolderId, Holding, HoldingSource, MigSlot, Selector,
    StandingGrant, UnattributedReason,
};
use proptest::prelude::*;

const QUARTER: Fraction = Fraction { numerator: 1, denominator: 4 };

fn granting(standing: &[StandingGrant], presence: bool) -> Granting<'_> {
    Granting { allocations: &[], standing, presence }
}

fn gpu() -> SessionGpu {
    SessionGpu { index: Some(3), uuid: "GPU-1d1c".into() }
}

fn standing(gpu: GpuSelector, fraction: Fraction, selector: Selector) -> StandingGrant {
    StandingGrant { id: "grant".into(), gpus: vec![gpu], fraction, selector, version: 0 }
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
    let (held, _) = holdings(&gpu(), granting(&granted, false), []);
    let expected = [("unit:a.service", 2), ("user:alice", 3), ("user:zoe", 0)];
    assert_eq!(shares(&held), expected.map(|(holder, rank)| (holder, "1/4".into(), rank)));
    assert!(held.iter().all(|one| one.source == HoldingSource::Standing));
}

#[test]
fn a_grant_to_a_template_unit_covers_its_instances() {
    let of = |name: &str| Holder::unit(name, None, None);
    let present =
        [of("worker@7.service"), of("worker@8.service"), of("worker.service"), of("other@7.service")];
    let granted = [standing(GpuSelector::All, QUARTER, unit("worker@.service"))];
    let (_, covered) = holdings(&gpu(), granting(&granted, false), &present);
    let template = "unit:worker@.service";
    assert_eq!(text(&covered), [("unit:worker@7.service", template), ("unit:worker@8.service", template)]);
    let granted = [standing(GpuSelector::All, QUARTER, unit("worker@7.service"))];
    let (held, covered) = holdings(&gpu(), granting(&granted, false), &present);
    assert_eq!(shares(&held), [("unit:worker@7.service", "1/4".into(), 0)]);
    assert!(covered.is_empty(), "{covered:?}");
}

#[test]
fn several_grants_to_one_holder_are_one_holding() {
    let granted = [
        standing(GpuSelector::All, QUARTER, user("alice")),
        standing(GpuSelector::All, QUARTER, user("bob")),
        standing(GpuSelector::Index(3), QUARTER, user("alice")),
    ];
    let (held, _) = holdings(&gpu(), granting(&granted, false), []);
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
    let (_, covered_by) = holdings(&gpu(), granting(&granted, false), &present);
    assert_eq!(text(&covered_by), [("unit:train.service", "user:alice")]);
}

#[test]
fn a_grant_to_a_uid_covers_its_user_and_his_units_under_whatever_name() {
    for (name, covered) in [
        ("alice", vec![("unit:train.service", "user:alice")]),
        // While the name is unknown the number holds.
        ("1000", vec![("unit:train.service", "user:1000"), ("user:alice", "user:1000")]),
    ] {
        let granted = [standing(GpuSelector::All, QUARTER, Selector::Uid { uid: 1000, name: name.into() })];
        let present = [
            Holder::user("alice", Some(1000)),
            Holder::user("bob", Some(1001)),
            Holder::unit("train.service", Some("alice"), Some(1000)),
        ];
        let (held, covered_by) = holdings(&gpu(), granting(&granted, false), &present);
        assert_eq!(shares(&held), [(&*format!("user:{name}"), "1/4".into(), 0)]);
        assert_eq!(text(&covered_by), covered);
    }
}

#[test]
fn the_holding_of_a_group_or_team_covers_its_members_and_their_units_after_their_own_holdings() {
    let group = Selector::Group { name: "research".into(), members: Arc::new(BTreeSet::from([1000, 1001])) };
    let team = Selector::Team {
        name: "lab".into(),
        users: BTreeSet::from(["carol".to_owned()]),
        uids: BTreeSet::from([1003]),
    };
    let granted = [
        standing(GpuSelector::All, QUARTER, user("alice")),
        standing(GpuSelector::All, QUARTER, group),
        standing(GpuSelector::All, QUARTER, team),
    ];
    let present = [
        Holder::user("alice", Some(1000)),
        Holder::unit("hers.service", Some("alice"), Some(1000)),
        Holder::user("bob", Some(1001)),
        Holder::unit("his.service", Some("bob"), Some(1001)),
        Holder::user("carol", Some(1002)),
        Holder::user("dave", Some(1003)),
        Holder::user("eve", Some(1004)),
    ];
    let (held, covered_by) = holdings(&gpu(), granting(&granted, false), &present);
    let quarter = || "1/4".to_owned();
    assert_eq!(
        shares(&held),
        [("group:research", quarter(), 1), ("team:lab", quarter(), 2), ("user:alice", quarter(), 0)]
    );
    assert_eq!(
        text(&covered_by),
        [
            ("unit:hers.service", "user:alice"),
            ("unit:his.service", "group:research"),
            ("user:bob", "group:research"),
            ("user:carol", "team:lab"),
            ("user:dave", "team:lab"),
        ]
    );
}

#[test]
fn a_holder_that_is_covered_twice_is_covered_by_the_latest_holding() {
    let train = Holder::unit("train.service", Some("alice"), None);
    let odd = Holder { id: HolderId::new("user:x"), ..train };
    let one = standing(GpuSelector::All, QUARTER, user("alice"));
    let other = standing(GpuSelector::All, QUARTER, unit("train.service"));
    let (_, covered_by) = holdings(&gpu(), granting(&[one.clone(), other.clone()], false), [&odd]);
    assert_eq!(text(&covered_by), [("user:x", "unit:train.service")]);
    let (_, covered_by) = holdings(&gpu(), granting(&[other, one], false), [&odd]);
    assert_eq!(text(&covered_by), [("user:x", "user:alice")]);
}

#[test]
fn with_presence_enabled_holders_get_equal_shares() {
    let present = [
        Holder::user("bob", None),
        Holder::unit("a.service", None, None),
        Holder::remainder(HolderId::new(HolderId::SYSTEM)),
        Holder::user("bob", Some(1)),
        Holder::user("alice", None),
    ];
    let (held, covered_by) = holdings(&gpu(), granting(&[], true), &present);
    let third = || "1/3".to_owned();
    assert_eq!(
        shares(&held),
        [("unit:a.service", third(), 0), ("user:alice", third(), 1), ("user:bob", third(), 2)]
    );
    assert!(held.iter().all(|one| one.source == HoldingSource::Presence) && covered_by.is_empty());
    assert_eq!(holdings(&gpu(), granting(&[], false), &present), (vec![], BTreeMap::new()));
    let remainders = UnattributedReason::ALL.map(HolderId::unattributed);
    for id in remainders.into_iter().chain([HolderId::new(HolderId::SYSTEM)]) {
        assert_eq!(
            holdings(&gpu(), granting(&[], true), [&Holder::remainder(id)]),
            (vec![], BTreeMap::new())
        );
    }
}

#[test]
fn presence_holds_nothing_beside_a_standing_holding() {
    let granted = [standing(GpuSelector::All, QUARTER, user("alice"))];
    let (held, covered_by) = holdings(&gpu(), granting(&granted, true), &[Holder::user("bob", None)]);
    assert_eq!(shares(&held), [("user:alice", "1/4".into(), 0)]);
    assert!(covered_by.is_empty());
    let elsewhere = [standing(GpuSelector::Index(0), QUARTER, user("alice"))];
    let (held, _) = holdings(&gpu(), granting(&elsewhere, true), &[Holder::user("bob", None)]);
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

fn any_standing() -> impl Strategy<Value = StandingGrant> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    (name, any::<bool>(), 1..5_u32, 2..5_u32).prop_map(|(name, is_user, denominator, index)| {
        let gpu = if index == 4 { GpuSelector::All } else { GpuSelector::Index(index) };
        standing(gpu, Fraction { numerator: 1, denominator }, if is_user { user(name) } else { unit(name) })
    })
}

proptest! {
    #[test]
    fn the_order_of_holders_does_not_matter(
        granted in prop::collection::vec(any_standing(), 0..5),
        presence: bool,
        (present, shuffled) in prop::collection::vec(any_holder(), 0..8)
            .prop_flat_map(|present| (Just(present.clone()), Just(present).prop_shuffle())),
    ) {
        let (held, covered_by) = holdings(&gpu(), granting(&granted, presence), &present);
        let shuffled = holdings(&gpu(), granting(&granted, presence), &shuffled);
        prop_assert_eq!((&held, &covered_by), (&shuffled.0, &shuffled.1));
        prop_assert!(held.windows(2).all(|pair| pair[0].holder < pair[1].holder));
        for (covered, by) in &covered_by {
            prop_assert!(held.iter().any(|one| one.holder == *by));
            prop_assert!(held.iter().all(|one| one.holder != *covered));
        }
    }
}

#[test]
fn allocations_of_schedulers_come_before_standing_holdings() {
    let allocation = |device: &str, user: &str, fraction| Allocation {
        holder: Holder::user(user, None),
        device: device.into(),
        fraction,
        source: HoldingSource::Presence,
        since: None,
        until: None,
        within: None,
    };
    let allocations = [
        allocation("GPU-1d1c", "job", QUARTER),
        allocation("GPU-1d1c", "job", QUARTER),
        allocation("GPU-other", "elsewhere", Fraction::WHOLE),
    ];
    let standing = [
        standing(GpuSelector::All, QUARTER, user("alice")),
        standing(GpuSelector::All, QUARTER, user("job")),
    ];
    let granting = Granting { allocations: &allocations, standing: &standing, presence: true };
    let present = [Holder::unit("train.service", Some("alice"), None), Holder::user("job", None)];
    let (held, covered_by) = holdings(&gpu(), granting, &present);
    assert_eq!(shares(&held), [("user:alice", "1/4".into(), 1), ("user:job", "1/2".into(), 0)]);
    assert_eq!(text(&covered_by), [("unit:train.service", "user:alice")]);
}

#[test]
fn a_containers_gpu_covers_the_init_containers_and_sidecars_of_its_pod_alone() {
    let pod = |id: &str| Holder::from_id(HolderId::new(id));
    let [main, init, other] = ["k8s:11/main", "k8s:11/init", "k8s:12/main"].map(pod);
    let allocations = [Allocation {
        holder: main.clone(),
        device: "GPU-1d1c".into(),
        fraction: Fraction::WHOLE,
        source: HoldingSource::Kubernetes,
        since: None,
        until: None,
        within: None,
    }];
    let granting = Granting { allocations: &allocations, standing: &[], presence: false };
    let (_, covered_by) = holdings(&gpu(), granting, [&main, &init, &other]);
    assert_eq!(text(&covered_by), [("k8s:11/init", "k8s:11/main")]);
}

#[test]
fn a_grant_on_several_gpus_is_a_share_of_each_and_counts_once_on_one_that_it_names_twice() {
    let gpus = vec![GpuSelector::Index(1), GpuSelector::Index(3), GpuSelector::Uuid("GPU-1d1c".into())];
    let granted = [StandingGrant { gpus, ..standing(GpuSelector::All, QUARTER, user("alice")) }];
    let (held, _) = holdings(&gpu(), granting(&granted, false), []);
    assert_eq!(shares(&held), [("user:alice", "1/4".into(), 0)]);
    let other = SessionGpu { index: Some(2), uuid: "GPU-2e2d".into() };
    assert!(holdings(&other, granting(&granted, false), []).0.is_empty());
    let missing = granted[0].unmatched([&gpu(), &other].into_iter());
    assert_eq!(missing, [GpuSelector::Index(1)], "the other two are granted");
}

/// An allocation of a whole GPU to a holder of that id.
fn whole(id: &str, facts: &[(Fact, &str)]) -> Allocation {
    let facts = Facts::new(facts.iter().copied());
    let holder = Holder { id: HolderId::new(id), facts };
    let source = HoldingSource::Slurm;
    Allocation {
        holder,
        device: "GPU-1d1c".into(),
        fraction: Fraction::WHOLE,
        source,
        since: None,
        until: None,
        within: None,
    }
}

#[test]
fn a_job_that_runs_in_a_pod_is_nested_in_that_and_covered_by_it_on_the_pods_other_gpus() {
    let pod = Holder::from_id(HolderId::new("k8s:11/slurmd"));
    let within = Some(pod.id.clone());
    let on = |device: &str, one: Allocation| Allocation { device: device.into(), ..one };
    let allocations = [
        whole("k8s:11/slurmd", &[]),
        on("GPU-2e2d", whole("k8s:11/slurmd", &[])),
        Allocation { within, ..whole("slurm:alpha/7", &[]) },
        on("GPU-2e2d", whole("slurm:alpha/8", &[])),
    ];
    let granting = Granting { allocations: &allocations, standing: &[], presence: false };
    let [step, other] = ["slurm:alpha/7.0", "slurm:alpha/8.0"].map(|id| Holder::from_id(HolderId::new(id)));
    let (held, covered_by) = holdings(&gpu(), granting, [&pod, &step, &other]);
    let ids: Vec<&str> = held.iter().map(|one| one.holder.as_str()).collect();
    assert_eq!(ids, ["k8s:11/slurmd", "slurm:alpha/7"]);
    let of_job = [("slurm:alpha/7", "k8s:11/slurmd"), ("slurm:alpha/7.0", "slurm:alpha/7")];
    assert_eq!(text(&covered_by), of_job);
    let second = SessionGpu { index: Some(4), uuid: "GPU-2e2d".into() };
    let (_, covered_by) = holdings(&second, granting, [&pod, &step, &other]);
    let of_both = [("slurm:alpha/7.0", "k8s:11/slurmd"), ("slurm:alpha/8.0", "slurm:alpha/8")];
    assert_eq!(text(&covered_by), of_both, "job 8 is not known to run in the pod");
}

#[test]
fn nested_allocations_are_nested_in_the_innermost() {
    let allocations = [
        whole("slurm:alpha/7", &[]),
        whole("slurm:alpha/7.0", &[]),
        whole("k8s:uid", &[]),
        whole("k8s:uid/main", &[]),
        whole("slurm:alpha/77", &[]),
    ];
    let granting = Granting { allocations: &allocations, standing: &[], presence: true };
    let step = Holder::from_id(HolderId::new("slurm:alpha/7.1"));
    let (held, covered_by) = holdings(&gpu(), granting, [&step]);
    assert_eq!(held.len(), 5);
    let expected = [
        ("k8s:uid/main", "k8s:uid"),
        ("slurm:alpha/7.0", "slurm:alpha/7"),
        ("slurm:alpha/7.1", "slurm:alpha/7"),
    ];
    assert_eq!(text(&covered_by), expected);
}

#[test]
fn a_job_of_a_user_with_a_standing_holding_is_nested_in_it() {
    let standing = [standing(GpuSelector::All, Fraction::WHOLE, user("ada"))];
    let allocations = [
        whole("slurm:alpha/7", &[(Fact::SlurmUser, "ada")]),
        whole("slurm:alpha/8", &[(Fact::SlurmUser, "bo")]),
    ];
    let granting = Granting { allocations: &allocations, standing: &standing, presence: false };
    let (_, covered_by) = holdings(&gpu(), granting, []);
    assert_eq!(text(&covered_by), [("slurm:alpha/7", "user:ada")]);
}

/// What each holder is granted on a condo node, whose standing grant of all GPUs has this selector.
fn granted_on_condo(
    selector: Selector,
    allocations: &[Allocation],
) -> (Vec<(String, String)>, Vec<HolderId>) {
    let standing = [standing(GpuSelector::All, Fraction::WHOLE, selector)];
    let granting = Granting { allocations, standing: &standing, presence: false };
    let (held, covered_by) = holdings(&gpu(), granting, []);
    let shares = granted_shares(&held, &covered_by);
    let share = |(place, one): (usize, &Holding)| {
        let share = shares.as_ref().map_or(one.fraction, |shares| shares[place]);
        (one.holder.to_string(), share.to_string())
    };
    (held.iter().enumerate().map(share).collect(), conflicts(&held, &covered_by))
}

fn granted(shares: &[(&str, &str)]) -> Vec<(String, String)> {
    shares.iter().map(|(holder, share)| ((*holder).to_owned(), (*share).to_owned())).collect()
}

#[test]
fn on_a_condo_node_the_owners_pods_and_jobs_are_nested_and_a_guests_come_first() {
    let half = Fraction { numerator: 1, denominator: 2 };
    let pod = |id: &str, namespace| Allocation {
        source: HoldingSource::Kubernetes,
        fraction: half,
        ..whole(id, &[(Fact::Namespace, namespace)])
    };
    let lab = || Selector::Namespace("lab".into());
    let own = [pod("k8s:1/main", "lab"), pod("k8s:2/main", "lab")];
    let shares = [("k8s:1/main", "1/2"), ("k8s:2/main", "1/2"), ("team:lab", "0/1")];
    assert_eq!(granted_on_condo(lab(), &own), (granted(&shares), vec![]));
    let one = [pod("k8s:1/main", "lab")];
    let shares = [("k8s:1/main", "1/2"), ("team:lab", "1/2")];
    assert_eq!(granted_on_condo(lab(), &one), (granted(&shares), vec![]));
    let guest = [pod("k8s:3/main", "guests")];
    let shares = [("k8s:3/main", "1/2"), ("team:lab", "0/1")];
    assert_eq!(granted_on_condo(lab(), &guest), (granted(&shares), vec![]), "the grant yields");
    let job = |user| [whole("slurm:alpha/7", &[(Fact::SlurmUser, user)])];
    let owner = || user("alice");
    let shares = [("slurm:alpha/7", "1/1"), ("user:alice", "0/1")];
    assert_eq!(granted_on_condo(owner(), &job("alice")), (granted(&shares), vec![]), "nested");
    assert_eq!(granted_on_condo(owner(), &job("guest")), (granted(&shares), vec![]), "the grant yields");
}

#[test]
fn a_mig_instance_is_held_by_its_own_allocations_and_by_shares_of_its_gpu() {
    let third = Fraction { numerator: 1, denominator: 3 };
    let devices = [("MIG-a".into(), third), ("MIG-b".into(), Fraction { numerator: 2, denominator: 3 })];
    let slot = MigSlot { size: 4, start: Some(4), devices: devices.into(), ..MigSlot::default() };
    let on = |device: &str, id: &str| Allocation { device: device.into(), ..whole(id, &[]) };
    let allocations =
        [on("MIG-a", "k8s:uid/one"), on("MIG-c", "k8s:uid/elsewhere"), on("GPU-1d1c", "slurm:alpha/7")];
    let standing = [standing(GpuSelector::Index(3), QUARTER, user("alice"))];
    let granting = Granting { allocations: &allocations, standing: &standing, presence: false };
    let (held, _) = holdings(GrantedSlot::Instance { gpu: &gpu(), id: "2", slot: &slot }, granting, []);
    let expected = [("k8s:uid/one", "1/3", 0), ("slurm:alpha/7", "1/1", 0), ("user:alice", "1/4", 1)];
    assert_eq!(shares(&held), expected.map(|(holder, share, rank)| (holder, share.to_owned(), rank)));
    let (held, _) = holdings(&gpu(), granting, []);
    assert_eq!(held.len(), 2, "an allocation of an instance holds nothing on a whole GPU");
}

#[test]
fn a_mig_instance_is_held_by_its_id_or_its_place_on_its_gpu() {
    let slot = MigSlot { size: 4, start: Some(4), ..MigSlot::default() };
    let gpu = gpu();
    let instance = |gpu: &str, id| AllocatedDevice::Instance { gpu: gpu.into(), id };
    let slices = |start, size| AllocatedDevice::Slices { gpu: "GPU-1d1c".into(), start, size };
    for (device, is_held) in [
        (instance("GPU-1d1c", 2), true),
        (instance("GPU-1d1c", 3), false),
        (instance("GPU-other", 2), false),
        (slices(4, Some(4)), true),
        (slices(4, None), true),
        (slices(4, Some(2)), false),
        (slices(0, None), false),
    ] {
        let name = device.to_string();
        let allocations = [Allocation { device, ..whole("k8s:uid/one", &[]) }];
        let granting = Granting { allocations: &allocations, standing: &[], presence: false };
        let (held, _) = holdings(GrantedSlot::Instance { gpu: &gpu, id: "2", slot: &slot }, granting, []);
        assert_eq!(held.len(), usize::from(is_held), "{name}");
        assert!(
            holdings(&gpu, granting, []).0.is_empty(),
            "an allocation of an instance holds nothing on a whole GPU"
        );
    }
}
