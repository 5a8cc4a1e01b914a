//! Processes that live shortly, only hold memory, or are on several GPUs.

use gpumeter::model::Holder;

use super::holder;
use super::world::{UUID, World};

const SECOND: u64 = 1_000_000_000;
const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000002";

fn user(name: &str, uid: u32) -> Holder {
    Holder::user(name, Some(uid))
}

#[test]
fn use_of_a_process_known_only_from_a_sample_is_its_holders_or_unattributed() {
    let mut world = World::new(&["alice"]);
    world.identify_holders(&[(7, user("alice", 1)), (8, user("bob", 2))]);
    // Pids 8 and 9 began and ended between two lists; pid 9 could not be identified.
    world.run(60, |frame| frame.process(7, 60).unlisted_process(8, 30).unlisted_process(9, 10).busy(100));
    let (rows, seconds) = (world.settled(), world.settled_seconds());
    let used = |name: &str| rows[&holder(name)].used;
    assert_eq!(used("user:alice").total(), seconds * SECOND * 6 / 10);
    assert_eq!(
        used("user:bob").outside,
        seconds * SECOND * 3 / 10,
        "he holds nothing on a GPU that alice holds"
    );
    assert_eq!(used("__unattributed__").total(), seconds * SECOND / 10);
    world.assert_balanced();
}

#[test]
fn a_process_that_holds_memory_and_does_nothing_has_idle_time_and_no_use() {
    let mut world = World::new(&["alice", "bob"]);
    world.identify_holders(&[(7, user("alice", 1)), (8, user("bob", 2))]);
    world.run(60, |frame| frame.process(7, 100).process_without_sample(8).busy(80));
    let (rows, seconds) = (world.settled(), world.settled_seconds());
    let bob = &rows[&holder("user:bob")];
    assert_eq!(bob.used.total(), 0);
    assert_eq!(
        (bob.parts.held(), bob.parts.lent + bob.parts.idle),
        (seconds * SECOND / 2, seconds * SECOND / 2)
    );
    // Alice's use beyond her half.
    assert_eq!(
        (bob.parts.lent, rows[&holder("user:alice")].used.beyond),
        (seconds * SECOND * 3 / 10, seconds * SECOND * 3 / 10)
    );
    world.assert_balanced();
}

#[test]
fn a_process_on_two_gpus_uses_each_of_them_and_is_divided_over_none() {
    let mut world = World::new(&["alice"]);
    let gpus = [(0, UUID), (1, OTHER)];
    world.reopen_with(&gpus);
    world.run_gpus(&gpus, 60);
    for (_, uuid) in gpus {
        let used: i64 = world.stored(&format!(
            "SELECT sum(used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns) FROM counter \
             JOIN gpu ON gpu.id = gpu JOIN holder ON holder.id = holder \
             WHERE uuid = '{uuid}' AND name = 'user:alice'"
        ));
        let seconds = i64::try_from(world.seconds_of(uuid)).unwrap();
        assert!(seconds >= 45, "{uuid}: {seconds} s");
        // The first tick after the GPU was found covers no time.
        assert!(
            (seconds - 2..=seconds).contains(&(used / 1_000_000_000)),
            "{uuid}: {used} ns of {seconds} s"
        );
    }
}

#[test]
fn energy_of_a_restart_is_booked_once_and_completely() {
    let mut world = World::new(&["alice"]);
    world.run(60, |frame| frame.process(7, 100).busy(50));
    world.restart(31);
    world.run(89, |frame| frame.process(7, 100).busy(50));
    let energy: u64 = world.settled().values().map(|row| row.energy).sum();
    let watts = 100;
    assert_eq!(energy / 1_000_000, world.settled_seconds() * watts);
    world.assert_balanced();
}

#[test]
fn the_processes_of_one_holder_count_as_one() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = [7, 9, 10].map(|pid| (pid, user("alice", 1)));
    world.identify_holders(&[&alice[..], &[(8, user("bob", 2))]].concat());
    world.run(60, |frame| frame.process(7, 10).process(9, 20).process(10, 10).process(8, 40).busy(80));
    let (rows, seconds) = (world.settled(), world.settled_seconds());
    for name in ["user:alice", "user:bob"] {
        assert_eq!(rows[&holder(name)].used.total(), seconds * SECOND * 4 / 10, "{name}");
    }
    world.assert_balanced();
}
