//! The tick over hand-made frames and a real ledger, in virtual time: the account of every GPU-second when frames are
//! late, missing, or from before a restart of the agent.

mod allocations;
mod boots;
mod device;
mod evidence;
mod frame_builder;
mod gaps;
mod heat;
mod late_opening;
mod mig;
mod presence;
mod sticky_faults;
mod units;
mod users;
mod verdicts;
mod versions;
mod waits;
pub(crate) mod world;
mod xids;

use gpumeter::model::catalogue::AccountValue;
use gpumeter::model::{HealthState, Holder, HolderId, Remedy, UnattributedReason};
use world::{Row, World};

const SECOND: u64 = 1_000_000_000;

fn holder(name: &str) -> HolderId {
    HolderId::new(name)
}

/// One holder's whole seconds in the ledger, rounded down: held, used, idle, unmeasured, unavailable.
fn seconds(row: &Row) -> [u64; 5] {
    let parts = row.parts;
    [parts.held(), row.used.total(), parts.idle, parts.unmeasured, parts.unavailable]
        .map(|time| time / SECOND)
}

#[test]
fn a_busy_holder_is_within_what_it_holds() {
    let mut world = World::new(&["alice"]);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    let rows = world.settled();
    let [held, used, idle, unmeasured, _] = seconds(&rows[&holder("user:alice")]);
    assert_eq!((held, used, idle, unmeasured), (45, 27, 18, 0));
    world.assert_balanced();
}

#[test]
fn a_gpu_that_does_not_answer_is_unmeasured_and_then_measured_again() {
    let mut world = World::new(&["alice"]);
    world.run(30, |frame| frame.process(7, 100).busy(100));
    world.run_without_frames(30);
    world.change_plan();
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let row = &world.settled()[&holder("user:alice")];
    let [held, used, idle, unmeasured, _] = seconds(row);
    assert_eq!(held, used + idle + unmeasured);
    assert!((29..=31).contains(&unmeasured), "{unmeasured}");
    assert_eq!(idle, 0, "unobserved time is not idle");
    world.assert_balanced();
}

#[test]
fn a_hung_gpu_shows_no_slow_tier_readings() {
    let mut world = World::new(&["alice"]);
    world.run(30, |frame| frame.process(7, 100).busy(100));
    assert_eq!(world.shown(), [true; 3]);
    world.run_without_frames(2);
    assert!(world.is_up(), "two ticks may be missing");
    world.run_without_frames(1);
    assert_eq!(world.shown(), [false; 3], "the medium tier is read every 5 s, the slow one every minute");
    world.run(1, |frame| frame.process(7, 100).busy(100));
    assert_eq!(world.shown(), [true; 3]);
}

#[test]
fn energy_of_a_gap_is_not_lost() {
    let mut world = World::new(&["alice"]);
    world.run(30, |frame| frame.process(7, 100).busy(100));
    world.run_without_frames(30);
    world.change_plan();
    world.run(60, |frame| frame.process(7, 100).busy(100));
    world.run(30, |frame| frame.process(7, 100).busy(100));
    let energy: u64 = world.settled().values().map(|row| row.energy).sum();
    // The counter grows by 100 J a second; the ledger holds all of it up to the last settled window.
    assert_eq!(energy, world.settled_seconds() * 100_000_000);
}

#[test]
fn a_lost_gpu_keeps_its_bill_and_its_time_is_unavailable() {
    let mut world = World::new(&["alice"]);
    world.run(30, |frame| frame.process(7, 100).busy(100));
    world.lose_gpu();
    world.run_without_frames(60);
    let row = &world.settled()[&holder("user:alice")];
    let [held, used, _, _, unavailable] = seconds(row);
    assert_eq!(held, used + unavailable);
    assert!(unavailable >= 29, "{unavailable}");
    world.assert_balanced();
}

#[test]
fn a_process_identified_late_is_named_while_its_window_is_open() {
    let mut world = World::new(&[]);
    world.forget_identities();
    world.run(8, |frame| frame.process(7, 100).busy(100));
    world.identify(7, "carol");
    world.run(40, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    assert!(!rows.contains_key(&holder("__unattributed__")), "{rows:?}");
    assert!(rows[&holder("user:carol")].used.total() > 20 * SECOND);
}

#[test]
fn use_after_a_pids_last_confirmation_is_unattributed_until_confirmed() {
    let mut world = World::new(&[]);
    world.identify(7, "carol");
    world.confirm_identities();
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    assert!(!rows.contains_key(&holder("user:carol")), "{rows:?}");
    world.confirm_identities();
    world.run(40, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    // The windows that were open at that round.
    let carol = rows[&holder("user:carol")].used.total();
    assert!((5 * SECOND..=30 * SECOND).contains(&carol), "{rows:?}");
    world.assert_balanced();
}

#[test]
fn a_process_without_a_known_holder_is_unattributed() {
    let mut world = World::new(&["alice"]);
    world.forget_identities();
    world.run(60, |frame| frame.process(7, 100).busy(50));
    let rows = world.settled();
    assert_eq!(rows[&holder("__unattributed__")].used.total(), world.settled_seconds() * SECOND / 2);
    assert_eq!(rows[&holder("user:alice")].parts.within, 0);
    world.assert_balanced();
}

#[test]
fn time_of_processes_without_an_owner_is_published_by_reason_and_sums_to_the_tenants() {
    let container = Holder::remainder(HolderId::unattributed(UnattributedReason::Container));
    let pod = Holder::remainder(HolderId::unattributed(UnattributedReason::Pod));
    let mut world = World::new(&["alice"]);
    let check = |world: &World| -> Vec<(&'static str, u64)> {
        let by_reason = world.unattributed();
        let used = world.value("__unattributed__", AccountValue::Used).unwrap_or(0);
        assert_eq!(i128::from(by_reason.values().sum::<u64>()), used);
        by_reason.into_iter().collect()
    };
    // A ledger from before there were reasons.
    world.forget_identities();
    world.run(60, |frame| frame.process(7, 100).busy(50));
    world.identify_holders(&[(7, container), (8, pod)]);
    let mut last = check(&world);
    for second in 0..400 {
        if second == 200 {
            world.restart(5);
        }
        world.run(1, |frame| frame.process(7, 60).process(8, 30).process(9, 10).busy(50));
        let now = check(&world);
        let back = last.iter().any(|(reason, value)| !now.iter().any(|(of, is)| of == reason && is >= value));
        assert!(!back, "from {last:?} to {now:?}");
        last = now;
    }
    assert_eq!(last.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), ["container", "pod", "unknown"]);
    assert!(last.iter().all(|(_, value)| *value > 10 * SECOND), "{last:?}");
    assert!(
        !world.settled().keys().any(|holder| world.settled()[holder].parts.held() > 0
            && holder.as_str().starts_with("__unattributed__"))
    );
    world.assert_balanced();
}

#[test]
fn a_restart_bridges_what_was_held_on_both_sides_and_the_rest_is_unobserved() {
    let mut world = World::new(&["alice"]);
    world.run(47, |frame| frame.process(7, 100).busy(100));
    world.restart(40);
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    let row = &rows[&holder("user:alice")];
    let [held, used, idle, unmeasured, _] = seconds(row);
    assert_eq!(idle, 0);
    assert!((39..=42).contains(&unmeasured), "{unmeasured}");
    assert!(held.abs_diff(used + unmeasured) <= 1);
    assert!(!rows.contains_key(&holder("__unobserved__")), "alice held it all: {rows:?}");
    world.assert_balanced();
}

#[test]
fn a_restart_of_an_unheld_gpu_is_unobserved() {
    let mut world = World::new(&[]);
    world.run(47, |frame| frame);
    world.restart(40);
    world.forget_identities();
    world.run(60, |frame| frame);
    let unobserved = world.settled()[&holder("__unobserved__")].parts.held() / SECOND;
    assert!((39..=42).contains(&unobserved), "{unobserved}");
    world.assert_balanced();
}

#[test]
fn published_counters_wait_for_the_birth_delay_and_never_go_back() {
    let mut world = World::new(&["alice"]);
    let mut last = 0;
    for _ in 0..20 {
        world.run(10, |frame| frame.process(7, 100).busy(100));
        let held = world.published("alice").unwrap_or(0);
        assert!(held >= last, "from {last} to {held}");
        if world.settled_seconds() < 60 {
            assert_eq!(held, 0, "a new counter starts at 0");
        }
        last = held;
    }
    assert!(last > 0);
    world.restart(5);
    world.run(10, |frame| frame.process(7, 100).busy(100));
    assert!(world.published("alice").unwrap_or(0) >= last);
}

#[test]
fn a_gone_tenant_is_shown_for_ten_minutes_and_continues_its_counters() {
    let mut world = World::of_presence("alice");
    world.run(200, |frame| frame.process(7, 100).busy(100));
    world.run(120, |frame| frame);
    let last = world.published("alice").unwrap();
    assert!(last > 0);
    world.run(500, |frame| frame);
    assert_eq!(world.published("alice"), Some(last), "it stays while it is shown");
    world.run(90, |frame| frame);
    assert_eq!(world.published("alice"), None);
    let others = world.published("__unallocated__").unwrap();
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let now = world.published("alice").unwrap();
    assert!(now >= last, "from {last} to {now}");
    assert!(world.published("__unallocated__").unwrap() >= others);
    world.assert_balanced();
}

#[test]
fn hardware_faults_make_time_unavailable_and_application_faults_do_not() {
    for (xid, charged) in [(48, false), (13, true), (119, true)] {
        let mut world = World::new(&["alice"]);
        world.run(30, |frame| frame.process(7, 100).busy(100));
        world.xid(xid);
        world.run(60, |frame| frame.process(7, 100).busy(100));
        let [held, used, _, _, unavailable] = seconds(&world.settled()[&holder("user:alice")]);
        if charged {
            assert_eq!((used, unavailable), (held, 0), "XID {xid}");
        } else {
            assert_eq!(held, used + unavailable, "XID {xid}");
            assert!((40..=60).contains(&unavailable), "XID {xid}: {unavailable}");
        }
        world.assert_balanced();
        let before = world.settled()[&holder("user:alice")].parts.unavailable / SECOND;
        // The driver's counter starts from 0: the GPU was reset.
        world.run(1, |frame| frame.process(7, 100).busy(100).energy_counter(1));
        world.run(60, |frame| frame.process(7, 100).busy(100).energy_counter(2));
        let after = world.settled()[&holder("user:alice")].parts.unavailable / SECOND;
        assert!(after <= before + 26, "XID {xid}: from {before} to {after}");
        world.assert_balanced();
    }
}

#[test]
fn a_hardware_verdict_lasts_until_the_gpu_was_reset() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame.process(7, 100).busy(100));
    assert_eq!(world.verdict(), (HealthState::Ok, Remedy::None));
    world.xid(79);
    assert_eq!(world.verdict(), (HealthState::Failed, Remedy::RebootNode));
    world.run(300, |frame| frame.process(7, 100).busy(100));
    assert_eq!(world.verdict(), (HealthState::Failed, Remedy::RebootNode));
    world.lose_gpu();
    world.run_without_frames(3);
    assert_eq!(world.verdict(), (HealthState::Failed, Remedy::RebootNode));
    world.run(3, |frame| frame.process(7, 100).busy(100));
    assert_eq!(world.verdict(), (HealthState::Ok, Remedy::None));
}

#[test]
fn a_pending_row_remap_degrades_a_gpu_and_one_without_answers_is_unknown() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame.pending_row());
    assert_eq!(world.verdict(), (HealthState::Degraded, Remedy::ResetGpu));
    world.run_without_frames(3);
    assert_eq!(world.verdict().0, HealthState::Unknown);
    world.run(1, |frame| frame);
    assert_eq!(
        world.verdict(),
        (HealthState::Degraded, Remedy::ResetGpu),
        "the recovery is not reported yet"
    );
}

#[test]
fn a_kernel_log_xid_from_before_the_gpus_pci_address_is_known_is_counted_later() {
    let mut world = World::new(&["alice"]);
    world.logged_xid(62);
    assert_eq!(world.verdict().0, HealthState::Failed);
    // It was not known before the restart either.
    assert_eq!(world.execute_sql("UPDATE expected SET pci_bus_id = ''"), 1);
    world.restart_without_frame(5);
    world.logged_xid(62);
    let evidence = |world: &World| world.reasons()[0].1.clone();
    assert!(evidence(&world).ends_with(" once"), "remembered: {}", evidence(&world));
    world.first_frame();
    assert!(evidence(&world).ends_with(" 2 times"), "{}", evidence(&world));
    assert_eq!(world.verdict(), (HealthState::Failed, Remedy::ResetGpu));
}

#[test]
fn an_xid_of_a_gpu_that_hangs_at_start_makes_its_time_unavailable() {
    let mut world = World::new(&["alice"]);
    world.run(45, |frame| frame.process(7, 100).busy(100));
    world.restart_without_frame(5);
    world.logged_xid(95);
    assert_eq!(world.verdict().0, HealthState::Failed);
    world.run_without_frames(60);
    assert_eq!(world.verdict().0, HealthState::Failed);
    let [held, used, _, unmeasured, unavailable] = seconds(&world.settled()[&holder("user:alice")]);
    assert!(held.abs_diff(used + unmeasured + unavailable) <= 2);
    assert!((30..=60).contains(&unavailable), "{unavailable}");
    world.assert_balanced();
}

#[test]
fn an_xid_of_an_unknown_gpu_is_dropped_after_a_while_and_counted() {
    let mut world = World::new(&["alice"]);
    world.logged_xid_of("00000000:99:00.0", 95);
    world.run_without_frames(590);
    assert_eq!(world.dropped_xids("kernel_log"), None, "the GPU may still be found");
    world.run_without_frames(20);
    assert_eq!(world.dropped_xids("kernel_log"), Some(1));
    assert_eq!(world.verdict().0, HealthState::Unknown, "our GPU did not fail, it only sent no frames");
}

#[test]
fn an_interval_has_a_gpu_where_it_is_longer_than_configured() {
    let mut world = World::new(&["alice"]);
    world.run(2, |frame| frame);
    let [configured, of_gpu] = world.intervals("medium");
    assert_eq!(of_gpu, None);
    let fast = world.intervals("fast");
    world.run(2, |frame| frame.stretched(2));
    assert_eq!(world.intervals("medium"), [configured, configured.map(|interval| 2 * interval)]);
    assert_eq!(world.intervals("fast"), fast);
    world.run(1, |frame| frame);
    assert_eq!(world.intervals("medium"), [configured, None]);
}

#[test]
fn a_driver_reload_clears_hardware_faults() {
    for anew in [false, true] {
        let mut world = World::new(&["alice"]);
        world.run(30, |frame| frame.process(7, 100).busy(100));
        world.xid(48);
        world.run(30, |frame| frame.process(7, 100).busy(100));
        let before = world.settled()[&holder("user:alice")].used.total() / SECOND;
        // The new driver's counter may be above the old one's at its first reading.
        world.reopen(anew, &[world::UUID]);
        world.change_plan();
        world.run(90, |frame| frame.process(7, 100).busy(100));
        let after = world.settled()[&holder("user:alice")].used.total() / SECOND;
        assert_eq!(after >= before + 60, anew, "from {before} to {after}");
        world.assert_balanced();
    }
}

#[test]
fn tenants_without_series_are_published_as_other_without_jumps() {
    const TENANTS: [&str; 6] = ["alice", "bob", "carol", "dave", "erin", "__other__"];
    let mut world = World::new(&[]);
    let users = (7..).zip(TENANTS[..5].iter().map(|user| Holder::user(user, None)));
    world.identify_holders(&users.collect::<Vec<_>>());
    let busy = |world: &mut World| {
        world.run(60, |frame| (7..12).fold(frame, |frame, pid| frame.process(pid, 20)).busy(100));
    };
    let used = |world: &World| TENANTS.map(|tenant| world.value(tenant, AccountValue::Used));
    busy(&mut world);
    busy(&mut world);
    let all = used(&world);
    assert!(all[..5].iter().all(Option::is_some) && all[5].is_none(), "{all:?}");
    // The lowest limit that drops some series, but not all.
    let limit = (0..5_000).step_by(10).find(|limit| {
        world.limit_series(*limit);
        busy(&mut world);
        used(&world)[..5].iter().flatten().count() == 2
    });
    assert!(limit.is_some());
    let before = used(&world);
    busy(&mut world);
    let after = used(&world);
    let growth: i128 =
        before.iter().zip(&after).map(|(before, after)| after.unwrap_or(0) - before.unwrap_or(0)).sum();
    assert_eq!(growth, i128::from(60 * SECOND), "{before:?} {after:?}");
    assert!(after[5] > Some(0));
    world.limit_series(20_000);
    busy(&mut world);
    let again = used(&world);
    assert_eq!(again[5], after[5], "all have series again, so the sum stays");
    assert!(again[..5].iter().all(Option::is_some));
    world.assert_balanced();
}
