//! The page with dcgm-exporter's names beside what dcgm-exporter itself printed, and its file of counters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::held::{HeldNode, parse};
use crate::agent::policy::refused_counters;
use crate::model::catalogue::Level;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dcgm").join(name)
}

/// A metric of one GPU: type and help, labels with their values, value.
#[derive(Debug, PartialEq)]
struct Metric {
    head: [String; 2],
    labels: BTreeMap<String, String>,
    value: String,
}

/// The metrics of a page with one series each, by name.
fn metrics(page: &str) -> BTreeMap<String, Metric> {
    let mut heads: BTreeMap<&str, [String; 2]> = BTreeMap::new();
    let mut metrics = BTreeMap::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => heads.entry(name).or_default()[0] = help.into(),
            ["#", "TYPE", name, kind] => heads.entry(name).or_default()[1] = kind.into(),
            ["#", ..] => {}
            _ => {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap();
                let labels = labels.trim_end_matches('}').split("\",").map(|pair| {
                    let (label, value) = pair.split_once("=\"").unwrap();
                    (label.to_owned(), value.trim_end_matches('"').to_owned())
                });
                let metric =
                    Metric { head: heads[name].clone(), labels: labels.collect(), value: value.into() };
                assert!(metrics.insert(name.to_owned(), metric).is_none(), "{name} has two series");
            }
        }
    }
    metrics
}

/// Metrics that are on dcgm-exporter's page of that board and not on ours.
const NOT_HERE: [(&str, &str); 5] = [
    ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM prints 0 for a board without the sensor"),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "vGPU is not read"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "before Hopper only DCGM can measure it"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "before Hopper only DCGM can measure it"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "before Hopper only DCGM can measure it"),
];

/// Metrics that are on ours and not on theirs.
const ONLY_HERE: [(&str, &str); 1] =
    [("DCGM_FI_DEV_XID_ERRORS", "0 before the first XID; that exporter has no series then")];

/// Metrics whose value is another in a simulated node.
const OTHER_VALUE: [(&str, &str); 8] = [
    ("DCGM_FI_DEV_GPU_TEMP", "another room"),
    ("DCGM_FI_DEV_POWER_USAGE", "another board of the model"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "another time since the driver was loaded"),
    ("DCGM_FI_DEV_FB_FREE", "the driver of the captured board reserves 434 MiB"),
    ("DCGM_FI_DEV_FB_RESERVED", "the driver of the captured board reserves 434 MiB"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "another link"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "traffic of another machine"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "traffic of another machine"),
];

#[test]
fn an_l4_has_the_page_that_dcgm_exporter_printed_of_one_but_for_what_is_listed() {
    let theirs = metrics(&std::fs::read_to_string(golden("l4-published.prom")).unwrap());
    let ours = metrics(&HeldNode::new(&golden("l4.json"), Level::Standard, 10).pages().dcgm);
    let names = |metrics: &BTreeMap<String, Metric>| metrics.keys().cloned().collect::<BTreeSet<_>>();
    let listed =
        |list: &[(&str, &str)]| list.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();
    let (our_names, their_names) = (names(&ours), names(&theirs));
    assert_eq!(&their_names - &our_names, listed(&NOT_HERE));
    assert_eq!(&our_names - &their_names, listed(&ONLY_HERE));
    let mut others = BTreeSet::new();
    for (name, their) in theirs.iter().filter(|(name, _)| our_names.contains(*name)) {
        let our = &ours[name];
        assert_eq!(our.head, their.head, "{name}");
        assert_eq!(our.labels.keys().collect::<Vec<_>>(), their.labels.keys().collect::<Vec<_>>(), "{name}");
        for label in ["gpu", "device", "DCGM_FI_DRIVER_VERSION"] {
            assert_eq!(our.labels[label], their.labels[label], "{name}");
        }
        assert_eq!(our.labels["modelName"], format!("{} (simulated)", their.labels["modelName"]), "{name}");
        let is_like =
            |value: &str| (value.contains('.'), value.split_once('.').map(|(_, decimals)| decimals.len()));
        assert_eq!(is_like(&our.value), is_like(&their.value), "{name}: {} and {}", our.value, their.value);
        if our.value != their.value {
            others.insert(name.clone());
        }
    }
    assert!(others.is_subset(&listed(&OTHER_VALUE)), "{others:#?}");
}

/// What dcgm-exporter's file has, every line of it in force, and is not on our page.
const REFUSED: [&str; 10] = [
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "DCGM_EXP_P2P_STATUS",
    "DCGM_FI_DEV_BRAND",
    "DCGM_FI_DEV_ECC_INFOROM_VER",
    "DCGM_FI_DEV_INFOROM_IMAGE_VER",
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "DCGM_FI_DEV_OEM_INFOROM_VER",
    "DCGM_FI_DEV_POWER_INFOROM_VER",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_NVML_VERSION",
];

#[test]
fn each_counter_of_dcgm_exporters_file_that_is_not_served_is_named_with_the_reason() {
    let counters = golden("dcgm-exporter-4.8.2-default-counters.csv");
    let text = format!("web: {{dcgm_counters: {}}}\n", counters.display());
    let lines = refused_counters(&parse(&text));
    let refused = lines.iter().map(|line| {
        let (before, reason) = line.split_once(" is not on the page: ").unwrap();
        assert!(!reason.is_empty());
        before.rsplit(' ').next().unwrap()
    });
    assert_eq!(refused.collect::<BTreeSet<_>>(), REFUSED.into_iter().collect());
}

#[test]
fn every_counter_of_dcgm_exporters_file_that_is_served_has_series_on_a_board_that_has_it() {
    let counters = golden("dcgm-exporter-4.8.2-default-counters.csv");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nodes/h100-8.json");
    let node = HeldNode { dcgm_counters: Some(&counters), ..HeldNode::new(&scenario, Level::Lean, 27) };
    let page = node.pages().dcgm;
    let shown: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let text = std::fs::read_to_string(&counters).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut parts = line.split(',').map(str::trim);
        Some((parts.next()?, parts.next()?))
    });
    let asked = rows.filter(|(_, kind)| *kind != "label").map(|(name, _)| name);
    let missing: Vec<&str> = asked.filter(|name| !shown.contains(name)).collect();
    // Retired pages are of boards before Ampere, checksums of data of those before Hopper.
    let of_other_boards = |name: &&str| name.contains("_RETIRED_") || name.contains("_CRC_DATA_");
    let unexpected: Vec<_> =
        missing.into_iter().filter(|name| !REFUSED.contains(name) && !of_other_boards(name)).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}
