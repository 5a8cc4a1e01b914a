//! What the NVLink fabric says of a GPU.

use gpumeter::model::catalogue::device_points;
use gpumeter::model::{Absence, Frame, Reading};

use super::world::World;

/// A registration that takes 100 s, and a route that is unhealthy from 200 s to 400 s.
const TROUBLES: &str = r#""fabric": [{"from": 0, "to": 100, "gpu": 0, "trouble": "in_progress"},
    {"from": 200, "to": 400, "gpu": 0, "trouble": "route_unhealthy"}]"#;

fn world(profile: &str) -> World {
    let scenario = format!(
        r#"{{"cycle_seconds": 1000, "gpus": [{{"profile": "{profile}"}}], "processes": [], {TROUBLES}}}"#
    );
    World::new(&scenario, false)
}

/// The readings of a family, each with its last label.
fn readings(frame: &Frame, name: &str) -> Vec<(&'static str, Reading)> {
    let points = frame.readings.iter().zip(device_points()).filter(|(_, (family, _))| family.name == name);
    points
        .map(|(reading, (_, point))| (point.labels.last().map_or("", |(_, value)| value), *reading))
        .collect()
}

/// The values of a family's label that are 1.
fn active(frame: &Frame, name: &str) -> Vec<&'static str> {
    let all = readings(frame, name).into_iter();
    all.filter(|(_, reading)| *reading == Ok(1)).map(|(value, _)| value).collect()
}

#[test]
fn a_fabric_reports_faults_and_their_sum_once_the_gpu_is_registered() {
    let mut world = world("b200");
    let frame = world.run(60).pop().unwrap();
    assert_eq!(active(&frame, "gpu_fabric_state"), ["in_progress"]);
    assert!(readings(&frame, "gpu_fabric_fault").iter().all(|(_, reading)| *reading == Err(Absence::NotYet)));
    let frame = world.run(110).pop().unwrap();
    assert_eq!(active(&frame, "gpu_fabric_state"), ["completed"]);
    assert_eq!(active(&frame, "gpu_fabric_health"), ["healthy"]);
    assert!(readings(&frame, "gpu_fabric_fault").iter().all(|(_, reading)| *reading == Ok(0)));
    assert_eq!(readings(&frame, "gpu_fabric_health_mask"), [("", Ok(0x1aa))]);
    let frame = world.run(120).pop().unwrap();
    assert_eq!(active(&frame, "gpu_fabric_fault"), ["route_unhealthy"]);
    assert_eq!(active(&frame, "gpu_fabric_health"), ["unhealthy"]);
    assert_eq!(readings(&frame, "gpu_fabric_health_mask"), [("", Ok(0x19a))]);
}

#[test]
fn a_fabric_without_health_has_a_state_alone() {
    let frame = world("h100").run(290).pop().unwrap();
    assert_eq!(active(&frame, "gpu_fabric_state"), ["completed"]);
    for family in ["gpu_fabric_health", "gpu_fabric_fault", "gpu_fabric_health_mask"] {
        let all = readings(&frame, family);
        assert!(all.iter().all(|(_, reading)| *reading == Err(Absence::NotSupported)), "{family}: {all:?}");
    }
}
