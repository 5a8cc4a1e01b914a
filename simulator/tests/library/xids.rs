//! XIDs: storms are counted exactly, and the kernel log has each XID once.

use std::collections::BTreeMap;

use crate::support::{EIGHT, Node, SECOND};
use nvml_wrapper::EventSet;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::struct_wrappers::event::EventData;

fn registered<'nvml>(nvml: &'nvml Nvml, gpus: &[u32]) -> EventSet<'nvml> {
    let mut events = nvml.create_event_set().unwrap();
    for gpu in gpus {
        let device = nvml.device_by_index(*gpu).unwrap();
        events = device.register_events(EventTypes::CRITICAL_XID_ERROR, events).unwrap();
    }
    events
}

/// The number of events of each XID, by GPU.
fn drained(events: &EventSet<'_>) -> BTreeMap<(u32, u64), u64> {
    let mut seen = BTreeMap::new();
    while let Ok(EventData { device, event_data, .. }) = events.wait(0) {
        let xid = match event_data {
            Some(XidError::Value(xid)) => xid,
            _ => 0,
        };
        *seen.entry((device.index().unwrap(), xid)).or_insert(0) += 1;
    }
    seen
}

fn log_lines(node: &Node) -> Vec<String> {
    node.read("kmsg").lines().map(str::to_owned).collect()
}

#[test]
fn every_xid_of_a_storm_is_delivered_and_counted_in_the_truth() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let events = registered(&nvml, &[3]);
    node.state(
        r#"{"xids":[{"gpu":3,"xid":31,"per_second":10000,"from":1.0,"count":25000},
                    {"gpu":5,"xid":31,"per_second":10000,"from":1.0,"count":25000}]}"#,
    );
    assert!(drained(&events).is_empty());
    let mut all = 0;
    for tenth in 11..60 {
        node.hold(tenth * SECOND / 10);
        all += drained(&events).get(&(3, 31)).copied().unwrap_or(0);
        assert_eq!(all, node.fired(3, 31), "after {tenth} tenths");
    }
    assert_eq!((all, node.fired(5, 31)), (25_000, 25_000));
    // A storm that was removed from the file fires no more and stays counted.
    node.state("{}");
    node.hold(8 * SECOND);
    assert!(drained(&events).is_empty());
    assert_eq!(node.fired(3, 31), 25_000);
    // A hundred lines per second reach the log.
    drop(events);
    drop(nvml);
    let lines = log_lines(&node);
    let of_third = lines.iter().filter(|line| line.contains("Xid (PCI:0000:5b:00): 31, "));
    assert_eq!(of_third.count(), 300);
}

#[test]
fn an_event_set_far_behind_drops_the_oldest_events_and_counts_them() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let events = registered(&nvml, &[0]);
    node.state(r#"{"xids":[{"gpu":0,"xid":13,"per_second":100000,"count":100000}]}"#);
    drained(&events);
    node.hold(SECOND);
    assert_eq!(drained(&events).get(&(0, 13)), Some(&65_536));
    node.hold(2 * SECOND);
    nvml.device_count().unwrap();
    assert!(node.read("calls").contains("\"events_dropped\":34463"), "{}", node.read("calls"));
}

#[test]
fn a_lost_gpu_raises_its_xid_once() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let events = registered(&nvml, &[6]);
    node.state(r#"{"gpus":{"6":{"state":"lost"}}}"#);
    node.state(r#"{"gpus":{"6":{"state":"lost"}},"xids":[]}"#);
    let mut seen = 0;
    while events.wait(0).is_ok() {
        seen += 1;
    }
    assert_eq!(seen, 1);
    drop(events);
    drop(nvml);
    assert_eq!(node.fired(6, 79), 1);
    let lines = log_lines(&node);
    let gone = "NVRM: Xid (PCI:0000:c0:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
    assert_eq!(lines.iter().filter(|line| line.ends_with(gone)).count(), 1, "{lines:?}");
}

#[test]
fn the_kernel_log_has_every_xid_once_with_two_processes() {
    let node = Node::new(EIGHT);
    // Two copies in one directory are two libraries with their own memory, as in two processes.
    std::fs::copy(node.library(), node.path("second.so")).unwrap();
    let first = node.nvml();
    let second = Nvml::builder().lib_path(node.path("second.so").as_os_str()).init().unwrap();
    for second_of in 1..=300 {
        node.hold(second_of * SECOND);
        first.device_count().unwrap();
        second.device_count().unwrap();
    }
    drop(first);
    drop(second);
    let lines = log_lines(&node);
    // Two XIDs in each of five minutes, and each GPU's name before its first.
    let xids: Vec<&String> = lines.iter().filter(|line| line.contains("NVRM: Xid (PCI:")).collect();
    assert_eq!((xids.len(), lines.len()), (10, 12), "{lines:?}");
    for (number, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("4,{number},")), "{line}");
    }
    let [first, ..] = xids.as_slice() else { unreachable!() };
    let expected =
        "4,1,20000000,-;NVRM: Xid (PCI:0000:5b:00): 13, pid='<unknown>', name=<unknown>, Graphics SM";
    assert!(first.starts_with(expected), "{first}");
}

#[test]
fn the_kernel_log_names_the_process_and_stays_small() {
    let text = r#"{"cycle_seconds":10,"gpus":[{"profile":"h100"}],"xids":[{"at":5,"gpu":0,"xid":31}],
        "processes":[{"pid":4211,"name":"/usr/bin/python3","gpu":0,"phases":[{"from":0,"to":10,"demand":1}]}]}"#;
    let node = Node::new(text);
    let nvml = node.nvml();
    node.hold(5 * SECOND);
    nvml.device_count().unwrap();
    assert!(
        node.read("kmsg").contains(": 31, pid=4211, name=python3, Ch 00000008, intr 00000000. MMU Fault")
    );
    // Ten thousand minutes at once, and then a few more.
    for step in 1..=8 {
        node.hold(step * 600_000 * SECOND);
        nvml.device_count().unwrap();
        assert!(node.read("kmsg").len() < 2 << 20);
    }
    assert_eq!(node.fired(0, 31), 480_000);
}
