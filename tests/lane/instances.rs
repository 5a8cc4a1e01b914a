//! MIG instances: where they lie, and whose readings theirs are when the GPU is cut anew.

use gpumeter::model::Frame;

use crate::world::{World, calls};

const CUT: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100", "mig": [
    {"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 2},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c.2g.20gb", "1c.2g.20gb"]}]}]}"#;

const BY_ID: &str = "nvmlDeviceGetGpuInstanceById";

fn placements(frame: &Frame) -> Vec<(String, String)> {
    let told = frame.instances.iter().map(|instance| &instance.identity);
    told.map(|identity| (identity.profile.to_string(), identity.placement.to_string())).collect()
}

#[test]
fn an_instance_says_where_it_lies_by_two_calls_of_the_plan() {
    let mut world = World::new(CUT, false);
    let first = world.tick();
    let wanted = [("3g.40gb", "4:4"), ("1c.2g.20gb", "0:2"), ("1c.2g.20gb", "0:2"), ("1g.10gb", "2:1")];
    assert_eq!(placements(&first), wanted.map(|(profile, at)| (profile.to_owned(), at.to_owned())));
    let asked = calls([&first]);
    assert_eq!([asked[BY_ID], asked["nvmlGpuInstanceGetInfo"]], [3, 3], "once for each GPU instance");
    assert!(!calls(&world.run(61)).contains_key(BY_ID));
}

#[test]
fn a_driver_that_tells_only_root_leaves_the_placement_empty_and_the_plan_in_force() {
    let mut world = World::new(CUT, false);
    world.faults(r#"[{"function": "nvmlDeviceGetGpuInstanceById", "code": 4}]"#);
    let frames = world.run(61);
    assert!(
        placements(&frames[0])
            .iter()
            .all(|(profile, placement)| { !profile.is_empty() && placement.is_empty() })
    );
    assert_eq!(calls(&frames[1..]).get(BY_ID), None, "no plan is made to look again");
}

#[test]
fn a_placement_that_cannot_be_is_asked_for_again() {
    let mut world = World::new(CUT, false);
    world.faults(r#"[{"function": "nvmlGpuInstanceGetInfo", "garbage": true}]"#);
    assert!(placements(&world.tick()).iter().all(|(_, placement)| placement.is_empty()));
    world.faults("[]");
    let frames = world.run(12);
    assert_eq!(placements(&frames[11])[0].1, "4:4");
}
