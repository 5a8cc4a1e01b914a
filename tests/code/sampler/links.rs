//! NVLink errors over the simulated driver: the fields of each generation, and their growth with scripted errors.

use gpumeter::meter::health::{HealthInput, INPUT_SOURCES};
use gpumeter::model::catalogue::{Family, Point, PointId, device_points};
use gpumeter::model::{Absence, Frame, Reading};

use super::world::World;

const ALL: &str = "gpu_nvlink_errors_total";
const LINK: &str = "gpu_nvlink_link_errors_total";

/// A board whose third link has this many errors of each kind at 30 s.
fn world(profile: &str, errors: &[(&str, u32)]) -> World {
    let errors = errors.iter().map(|(kind, count)| {
        format!(r#"{{"at": 30, "gpu": 0, "link": 2, "kind": "{kind}", "count": {count}}}"#)
    });
    let errors = errors.collect::<Vec<_>>().join(",");
    let script = format!(
        r#"{{"cycle_seconds": 600, "gpus": [{{"profile": "{profile}"}}], "link_errors": [{errors}]}}"#
    );
    World::new(&script, false)
}

fn point_id(family: &str, labels: &[(&str, &str)]) -> PointId {
    let is = |(here, point): &(&Family, &Point)| {
        here.name == family && labels.iter().all(|label| point.labels.contains(label))
    };
    device_points().position(|at| is(&at)).unwrap()
}

fn all_links(frame: &Frame, kind: &str) -> Reading {
    frame.readings[point_id(ALL, &[("kind", kind)])]
}

fn one_link(frame: &Frame, link: &str, kind: &str) -> Reading {
    frame.readings[point_id(LINK, &[("link", link), ("kind", kind)])]
}

/// The value of the health input: the sum over its points.
fn health_input(frame: &Frame) -> i64 {
    let place = INPUT_SOURCES.iter().find(|place| place.input == HealthInput::LinkErrors).unwrap();
    let points = device_points().enumerate().filter(|(_, (family, _))| family.name == place.family);
    points.filter_map(|(point, _)| frame.readings[point].ok()).sum()
}

#[test]
fn boards_in_slots_have_links_of_which_a_bridge_connects_some_or_none() {
    for (profile, links, up) in
        [("a100-pcie", 12, 0), ("a30", 4, 0), ("h100-pcie", 18, 0), ("h100-nvl", 18, 12)]
    {
        let frames = world(profile, &[]).run(1);
        let read = |family| frames[0].readings[point_id(family, &[])];
        assert_eq!(frames[0].identity.nvlinks, links, "{profile}");
        assert_eq!(read("gpu_nvlink_links_up"), Ok(up), "{profile}");
        assert_eq!(read("gpu_nvlink_links_expected"), Err(Absence::NotSupported), "{profile}");
    }
}

#[test]
fn bytes_are_those_of_the_links_where_the_driver_says_0_for_all_and_absent_without_links() {
    let sent = |board: &str| {
        let mut world = World::new(
            &format!(
                r#"{{"cycle_seconds": 600, "gpus": [{{"surprise": "link_totals_zero", {board}}}], "processes": [
                    {{"pid": 7, "gpu": 0, "phases": [{{"from": 0, "to": 600, "demand": 1.0, "nvlink_tx": 18e9}}]}}]}}"#
            ),
            false,
        );
        let frame = world.run(10).pop().unwrap();
        frame.readings[point_id("gpu_nvlink_bytes_total", &[("direction", "transmit")])]
    };
    // 18 GB/s for 20 s, in whole KiB of each link.
    let counted = sent(r#""profile": "h100""#).unwrap();
    assert!((359_990_000_000..=360_000_000_000).contains(&counted), "{counted}");
    assert_eq!(sent(r#""profile": "l40s""#), Err(Absence::NotSupported));
}

#[test]
fn nvlink_5_reports_packet_errors_and_recoveries_instead_of_checksums() {
    let errors = [
        ("receive", 5),
        ("recovery", 3),
        ("recovery_failed", 1),
        ("effective", 40),
        ("symbol", 7),
        ("local_integrity", 2),
    ];
    for profile in ["gb200", "b200"] {
        let frames = world(profile, &errors).run(70);
        let (first, last) = (&frames[0], &frames[69]);
        for (kind, count) in errors {
            assert_eq!(
                (all_links(first, kind), all_links(last, kind)),
                (Ok(0), Ok(count.into())),
                "{profile} {kind}"
            );
            assert_eq!(one_link(last, "2", kind), Ok(count.into()), "{profile} {kind}");
            assert_eq!(one_link(last, "17", kind), Ok(0), "{profile} {kind}");
        }
        for kind in ["crc_flit", "crc_data", "replay"] {
            assert_eq!(all_links(last, kind), Err(Absence::NotSupported), "{profile} {kind}");
        }
        assert_eq!((health_input(first), health_input(last)), (0, 58), "{profile}");
    }
}

#[test]
fn hopper_reports_checksums_replays_and_recoveries_by_link_and_no_sums_that_stay_0() {
    let frames = world("h100", &[("crc_flit", 4), ("replay", 9), ("recovery", 2), ("crc_data", 8)]).run(70);
    let (first, last) = (&frames[0], &frames[69]);
    let kinds = ["crc_flit", "replay", "recovery"];
    assert_eq!(kinds.map(|kind| all_links(first, kind)), [Ok(0); 3]);
    assert_eq!(kinds.map(|kind| all_links(last, kind)), [4, 9, 2].map(Ok));
    assert_eq!(kinds.map(|kind| one_link(last, "2", kind)), [4, 9, 2].map(Ok));
    for kind in ["crc_data", "receive", "recovery_failed", "local_integrity", "effective", "symbol"] {
        assert_eq!(all_links(last, kind), Err(Absence::NotSupported), "{kind}");
    }
    assert_eq!((health_input(first), health_input(last)), (0, 15));
}

#[test]
fn ampere_reports_data_checksums_in_sums_of_the_driver() {
    let frames = world("a100", &[("crc_flit", 4), ("replay", 9), ("recovery", 2), ("crc_data", 8)]).run(70);
    let kinds = ["crc_flit", "crc_data", "replay", "recovery"];
    assert_eq!(kinds.map(|kind| all_links(&frames[69], kind)), [4, 8, 9, 2].map(Ok));
}
