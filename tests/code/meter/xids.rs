//! XID counts across restarts of the agent: nothing is counted twice, nothing decreases.

use super::frame_builder::FrameBuilder;
use super::world::{UUID, World};

#[test]
fn xid_counts_and_last_times_survive_agent_restarts_and_grow() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame);
    world.xid(48);
    world.run_without_frames(1);
    let before = world.xids();
    assert_eq!(before, [(48, 1)]);
    let last = world.last_xid();
    for _ in 0..2 {
        world.restart(5);
        assert_eq!((world.xids(), world.last_xid()), (before.clone(), last));
        assert_eq!(world.xid_actions(), 1);
    }
    world.xid(48);
    world.xid(31);
    world.run_without_frames(1);
    assert_eq!((world.xids(), world.xid_actions()), (vec![(31, 1), (48, 2)], 3));
}

#[test]
fn an_xid_that_the_kernel_log_shows_again_after_a_restart_is_counted_once() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame);
    world.xid(79);
    world.restart(2);
    world.logged_xid(79);
    world.run_without_frames(1);
    assert_eq!(world.xids(), [(79, 1)]);
    // In another boot it is a new XID.
    world.reboot_synchronised(60);
    world.logged_xid(79);
    world.run_without_frames(1);
    assert_eq!(world.xids(), [(79, 2)]);
}

#[test]
fn an_xid_count_is_published_only_after_it_is_committed() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame);
    world.xid(48);
    assert_eq!(world.xids(), [], "the ledger has not acknowledged it yet");
    world.run_without_frames(1);
    assert_eq!(world.xids(), [(48, 1)]);
}

#[test]
fn a_forgotten_gpu_counts_xids_from_a_later_start() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame);
    world.xid(79);
    world.set_pci_bus(None);
    world.reopen(false, &[]);
    world.run_without_frames(2);
    world.forget_gpu();
    world.run_without_frames(2);
    world.restart_without_frame(5);
    world.reopen(false, &[UUID]);
    world.run(2, |frame| frame);
    assert_eq!((world.xids(), world.xid_actions()), (vec![], 0));
    assert!(world.xids_since().is_some(), "under the ledger's start time it is not a counter reset");
    world.xid(13);
    world.run_without_frames(1);
    assert_eq!(world.xids(), [(13, 1)]);
}

#[test]
fn an_xid_has_a_gpu_instance_on_a_gpu_with_mig_alone() {
    let mut world = World::new(&["alice"]);
    world.run(3, |frame| frame);
    world.xid_on(48, 0);
    world.run(2, |frame| frame);
    assert_eq!(world.xid_instances(), [None], "a driver may send 0 where there is no instance");
    assert!(!world.reasons()[0].1.contains("instance"), "{:?}", world.reasons());
    let mut world = World::new(&["alice"]);
    let divided = |frame: FrameBuilder| frame.mig(8, 4, 0).instance(3, 4, Some(0));
    world.run(3, divided);
    world.xid_on(48, 3);
    // The line of the kernel's log of the same error names none.
    world.logged_xid(48);
    world.run(2, divided);
    assert_eq!((world.xids(), world.xid_instances()), (vec![(48, 1)], vec![Some(3)]));
    assert!(world.reasons()[0].1.ends_with("last on GPU instance 3"), "{:?}", world.reasons());
}
