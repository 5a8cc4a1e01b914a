//! MIG instances: their placement, and which instance has which readings after a change of the layout.

use gpumeter::model::catalogue::{InstanceValue, first_point};
use gpumeter::model::frame::Tier;
use gpumeter::model::{Absence, Frame};

use super::world::{World, calls, is_due};

const SCENARIO: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100", "mig": [
    {"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 2},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c.2g.20gb", "1c.2g.20gb"]}]}]}"#;

const BY_ID: &str = "nvmlDeviceGetGpuInstanceById";

fn placements(frame: &Frame) -> Vec<(String, String)> {
    let identities = frame.instances.iter().map(|instance| &instance.identity);
    identities.map(|identity| (identity.profile.to_string(), identity.placement.to_string())).collect()
}

#[test]
fn the_placement_of_an_instance_takes_two_calls_once_per_plan() {
    let mut world = World::new(SCENARIO, false);
    let first = world.tick();
    let wanted = [("3g.40gb", "4:4"), ("1c.2g.20gb", "0:2"), ("1c.2g.20gb", "0:2"), ("1g.10gb", "2:1")];
    assert_eq!(placements(&first), wanted.map(|(profile, at)| (profile.to_owned(), at.to_owned())));
    let asked = calls([&first]);
    assert_eq!([asked[BY_ID], asked["nvmlGpuInstanceGetInfo"]], [3, 3], "once for each GPU instance");
    assert!(!calls(&world.run(61)).contains_key(BY_ID));
}

#[test]
fn a_placement_that_only_root_may_read_stays_empty_and_causes_no_new_plan() {
    let mut world = World::new(SCENARIO, false);
    world.set_faults(r#"[{"function": "nvmlDeviceGetGpuInstanceById", "code": 4}]"#);
    let frames = world.run(61);
    assert!(
        placements(&frames[0])
            .iter()
            .all(|(profile, placement)| { !profile.is_empty() && placement.is_empty() })
    );
    assert_eq!(calls(&frames[1..]).get(BY_ID), None, "it does not cause a new plan");
}

#[test]
fn an_impossible_placement_is_read_again() {
    let mut world = World::new(SCENARIO, false);
    world.set_faults(r#"[{"function": "nvmlGpuInstanceGetInfo", "garbage": true}]"#);
    assert!(placements(&world.tick()).iter().all(|(_, placement)| placement.is_empty()));
    world.set_faults("[]");
    let frames = world.run(12);
    assert_eq!(placements(&frames[11])[0].1, "4:4");
}

/// A layout of two instances whose ids and places two of [`SCENARIO`] had.
const NEW_LAYOUT: &str = r#"[{"profile": "3g.40gb", "start": 4}, {"profile": "3g.40gb", "start": 0}]"#;

/// The GPU instance id and the MIG UUID of each instance.
fn instance_ids(frame: &Frame) -> Vec<(u32, String)> {
    let identities = frame.instances.iter().map(|instance| &instance.identity);
    identities.map(|identity| (identity.id.gpu_instance, identity.uuid.to_string())).collect()
}

/// The next frame that read the medium tier, so that the two ticks after it read the fast tier only.
fn frame_of_medium_tier(world: &mut World) -> Frame {
    loop {
        let frame = world.tick();
        if is_due(&frame, Tier::Medium)
            && frame.instances[0].readings[InstanceValue::SmActive as usize].is_ok()
        {
            return frame;
        }
    }
}

#[test]
fn a_new_mig_layout_is_shown_in_the_tick_after_its_event() {
    let mut world = World::new(SCENARIO, false);
    let before = frame_of_medium_tier(&mut world);
    world.set_layout(NEW_LAYOUT);
    // The event makes the sampler compile a new plan.
    world.drop_plan();
    let after = world.tick();
    assert_eq!(after.instances.len(), 2);
    assert!(instance_ids(&after).iter().all(|one| !instance_ids(&before).contains(one)));
    assert!(after.instances.iter().all(|one| one.readings[InstanceValue::MemoryUsed as usize].is_ok()));
}

#[test]
fn without_an_event_a_former_instance_never_shows_readings_of_the_one_that_reuses_its_id() {
    for layout in [NEW_LAYOUT, "[]", r#"[{"profile": "7g.80gb", "start": 0}]"#] {
        for presence in [false, true] {
            let mut world = World::new(SCENARIO, presence);
            let former = frame_of_medium_tier(&mut world);
            let known = instance_ids(&former);
            world.set_layout(layout);
            let frame = world.tick();
            assert!(!is_due(&frame, Tier::Medium), "only the fast tier was read");
            assert_eq!(instance_ids(&frame), known);
            let readings = frame.instances.iter().flat_map(|one| one.readings.iter().chain(&one.counters));
            assert!(readings.clone().all(Result::is_err), "{layout}: {:?}", frame.instances);
            let next = world.tick();
            assert_eq!(next.generation, former.generation + 1);
            assert!(instance_ids(&next).iter().all(|one| !known.contains(one)), "{layout}");
            assert!(next.readings[first_point("gpu_memory_used_bytes")].is_ok());
            assert_eq!(next.identity.mig, layout != "[]");
        }
    }
}

#[test]
fn an_instance_that_never_answered_causes_no_new_plan() {
    let mut world = World::new(SCENARIO, false);
    world.set_faults(
        r#"[{"function": "nvmlGpmMigSampleGet", "code": 2}, {"function": "nvmlDeviceGetMemoryErrorCounter", "code": 2}]"#,
    );
    let frames = world.run(70);
    assert!(frames.iter().all(|frame| frame.generation == 1));
    let sm = |frame: &Frame| frame.instances[0].readings[InstanceValue::SmActive as usize];
    assert!(frames.iter().all(|frame| sm(frame) == Err(Absence::Failed)));
}

#[test]
fn a_gpu_in_mig_mode_without_instances_shows_its_readings_except_utilization() {
    let without_instances = r#"{"gpus": [{"profile": "h100", "mig": {"mode": "on", "instances": []}}]}"#;
    let mut world = World::new(without_instances, true);
    // On a busy machine the usual share would stretch the medium tier.
    world.set_driver_share(1_000_000, true);
    for frame in world.run(70) {
        assert!(frame.identity.mig && frame.instances.is_empty() && frame.generation == 1);
        assert_eq!(frame.readings[first_point("gpu_utilization_ratio")], Err(Absence::NotSupported));
        assert_eq!(frame.readings[first_point("gpu_engine_utilization_ratio")], Err(Absence::NotSupported));
        assert_eq!(frame.readings[first_point("gpu_memory_used_bytes")], Ok(0));
        assert!(frame.readings[first_point("gpu_power_watts")].is_ok());
        assert!(frame.processes.unwrap().is_empty());
    }
    // GPM reports the whole GPU, which is idle.
    assert_eq!(world.tick().readings[first_point("gpu_gr_engine_active_ratio")], Ok(0));
    world.set_layout(NEW_LAYOUT);
    let next = world.run(6).remove(5);
    assert_eq!(
        (next.instances.len(), next.generation),
        (2, 2),
        "detected with the medium tier at the latest"
    );
}

/// The pids on the list with their GPU instance.
fn processes(frame: &Frame) -> Result<Vec<(u32, Option<u32>)>, Absence> {
    frame.processes.clone().map(|list| list.iter().map(|one| (one.pid, one.gpu_instance)).collect())
}

#[test]
fn processes_are_listed_by_instance_if_the_list_of_a_mig_gpu_is_refused() {
    let scenario = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100", "mig": [
        {"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 2}]}],
        "processes": [{"pid": 501, "gpu": 0, "instance": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.5}]},
                      {"pid": 502, "gpu": 0, "instance": 1, "phases": [{"from": 0, "to": 1000, "demand": 0.5}]}]}"#;
    let refused = |parent: bool| {
        let lists = ["Compute", "Graphics", "MPSCompute"];
        let faults = lists.map(|list| {
            format!(
                r#"{{"function": "nvmlDeviceGet{list}RunningProcesses_v3", "parent": {parent}, "code": 4}}"#
            )
        });
        format!("[{}]", faults.join(","))
    };
    let mut world = World::new(scenario, false);
    world.set_faults(&refused(true));
    let frames = world.run(8);
    assert_eq!(processes(&frames[7]), Ok(vec![(501, Some(2)), (502, Some(9))]));
    let mut world = World::new(scenario, false);
    world.set_faults(&refused(false));
    let frames = world.run(8);
    assert_eq!(processes(&frames[7]), Err(Absence::NoPermission), "a missing list is not an empty one");
}
