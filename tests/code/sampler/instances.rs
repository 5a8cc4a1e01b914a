//! MIG instances: their placement, and whose readings are whose after a change of the layout.

use gpumeter::catalogue::{InstanceValue, first_point};
use gpumeter::model::frame::Tier;
use gpumeter::model::{Absence, Frame};

use super::world::{World, calls, is_due};

const CUT: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100", "mig": [
    {"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 2},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c.2g.20gb", "1c.2g.20gb"]}]}]}"#;

const BY_ID: &str = "nvmlDeviceGetGpuInstanceById";

fn placements(frame: &Frame) -> Vec<(String, String)> {
    let told = frame.instances.iter().map(|instance| &instance.identity);
    told.map(|identity| (identity.profile.to_string(), identity.placement.to_string())).collect()
}

#[test]
fn the_placement_of_an_instance_takes_two_calls_once_per_plan() {
    let mut world = World::new(CUT, false);
    let first = world.tick();
    let wanted = [("3g.40gb", "4:4"), ("1c.2g.20gb", "0:2"), ("1c.2g.20gb", "0:2"), ("1g.10gb", "2:1")];
    assert_eq!(placements(&first), wanted.map(|(profile, at)| (profile.to_owned(), at.to_owned())));
    let asked = calls([&first]);
    assert_eq!([asked[BY_ID], asked["nvmlGpuInstanceGetInfo"]], [3, 3], "once for each GPU instance");
    assert!(!calls(&world.run(61)).contains_key(BY_ID));
}

#[test]
fn a_placement_that_only_root_may_read_stays_empty_and_causes_no_new_plan() {
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
fn an_impossible_placement_is_read_again() {
    let mut world = World::new(CUT, false);
    world.faults(r#"[{"function": "nvmlGpuInstanceGetInfo", "garbage": true}]"#);
    assert!(placements(&world.tick()).iter().all(|(_, placement)| placement.is_empty()));
    world.faults("[]");
    let frames = world.run(12);
    assert_eq!(placements(&frames[11])[0].1, "4:4");
}

/// Two that lie where two of [`CUT`] did, and have their ids.
const ANEW: &str = r#"[{"profile": "3g.40gb", "start": 4}, {"profile": "3g.40gb", "start": 0}]"#;

/// GPU instance and MIG UUID of each instance.
fn who(frame: &Frame) -> Vec<(u32, String)> {
    let told = frame.instances.iter().map(|instance| &instance.identity);
    told.map(|identity| (identity.id.gpu_instance, identity.uuid.to_string())).collect()
}

/// A minute's beginning that is none of the medium tier's: the next two ticks are of the fast tier alone.
fn settled(world: &mut World) -> Frame {
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
    let mut world = World::new(CUT, false);
    let before = settled(&mut world);
    world.cut(ANEW);
    // The event makes the sampler compile a new plan.
    world.plan_anew();
    let after = world.tick();
    assert_eq!(after.instances.len(), 2);
    assert!(who(&after).iter().all(|one| !who(&before).contains(one)));
    assert!(after.instances.iter().all(|one| one.readings[InstanceValue::MemoryUsed as usize].is_ok()));
}

#[test]
fn without_an_event_a_former_instance_never_shows_readings_of_the_one_that_reuses_its_id() {
    for layout in [ANEW, "[]", r#"[{"profile": "7g.80gb", "start": 0}]"#] {
        for presence in [false, true] {
            let mut world = World::new(CUT, presence);
            let former = settled(&mut world);
            let known = who(&former);
            world.cut(layout);
            let cut = world.tick();
            assert!(!is_due(&cut, Tier::Medium), "only the fast tier tells it");
            assert_eq!(who(&cut), known);
            let told = cut.instances.iter().flat_map(|one| one.readings.iter().chain(&one.counters));
            assert!(told.clone().all(Result::is_err), "{layout}: {:?}", cut.instances);
            let next = world.tick();
            assert_eq!(next.generation, former.generation + 1);
            assert!(who(&next).iter().all(|one| !known.contains(one)), "{layout}");
            assert!(next.readings[first_point("gpu_memory_used_bytes")].is_ok());
            assert_eq!(next.identity.mig, layout != "[]");
        }
    }
}

#[test]
fn an_instance_that_never_answered_causes_no_new_plan() {
    let mut world = World::new(CUT, false);
    world.faults(
        r#"[{"function": "nvmlGpmMigSampleGet", "code": 2}, {"function": "nvmlDeviceGetMemoryErrorCounter", "code": 2}]"#,
    );
    let frames = world.run(70);
    assert!(frames.iter().all(|frame| frame.generation == 1));
    let sm = |frame: &Frame| frame.instances[0].readings[InstanceValue::SmActive as usize];
    assert!(frames.iter().all(|frame| sm(frame) == Err(Absence::Failed)));
}

#[test]
fn a_gpu_in_mig_mode_without_instances_shows_its_readings_except_utilization() {
    let bare = r#"{"gpus": [{"profile": "h100", "mig": {"mode": "on", "instances": []}}]}"#;
    let mut world = World::new(bare, true);
    for frame in world.run(70) {
        assert!(frame.identity.mig && frame.instances.is_empty() && frame.generation == 1);
        assert_eq!(frame.readings[first_point("gpu_utilization_ratio")], Err(Absence::NotSupported));
        assert_eq!(frame.readings[first_point("gpu_engine_utilization_ratio")], Err(Absence::NotSupported));
        assert_eq!(frame.readings[first_point("gpu_memory_used_bytes")], Ok(0));
        assert!(frame.readings[first_point("gpu_power_watts")].is_ok());
        assert!(frame.processes.unwrap().is_empty());
    }
    // GPM tells of the whole: nothing is done.
    assert_eq!(world.tick().readings[first_point("gpu_gr_engine_active_ratio")], Ok(0));
    world.cut(ANEW);
    let next = world.run(6).remove(5);
    assert_eq!((next.instances.len(), next.generation), (2, 2), "seen with the medium tier at the latest");
}

/// Processes by pid, with their GPU instance.
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
    world.faults(&refused(true));
    let frames = world.run(8);
    assert_eq!(processes(&frames[7]), Ok(vec![(501, Some(2)), (502, Some(9))]));
    let mut world = World::new(scenario, false);
    world.faults(&refused(false));
    let frames = world.run(8);
    assert_eq!(processes(&frames[7]), Err(Absence::NoPermission), "no list is no empty list");
}
