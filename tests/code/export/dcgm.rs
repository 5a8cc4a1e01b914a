//! The page with dcgm-exporter's names: pods, MIG instances, events.

use std::sync::Arc;

use gpumeter::agent::policy::dcgm_options;
use gpumeter::config::Config;
use gpumeter::model::catalogue::{RATED, ValuePlace, first_point};
use gpumeter::model::snapshot::{HoldingEntry, ProcessEntry, Roster, Snapshot, WorkloadEntry};
use gpumeter::model::{
    Absence, Fact, Facts, Frame, GpuProcess, HolderKind, HoldingSource, Reading, WorkloadClass,
};
use gpumeter::output::render::{PageCache, PageFormat};

use super::fixture;

/// The lines of the metric of that name, without labels that every series has.
fn lines(config: &str, snapshot: &Snapshot, name: &str) -> Vec<String> {
    let page = page(config, snapshot);
    let series = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let own = |line: &str| {
        let (labels, value) = line.rsplit_once("} ").unwrap();
        let is_own = |label: &&str| {
            let common =
                ["UUID=", "pci_bus_id=", "device=", "modelName=", "Hostname=", "hostname=", "DCGM_FI_"];
            !common.iter().any(|name| label.starts_with(name))
        };
        format!("{} {value}", labels.split(',').filter(is_own).collect::<Vec<_>>().join(","))
    };
    series.map(own).collect()
}

fn page(config: &str, snapshot: &Snapshot) -> String {
    let mut config = Config::parse(config, "config.yaml").unwrap();
    config.read_dcgm_counters().unwrap();
    let cache = PageCache::new(config.sampling.level, false, dcgm_options(&config));
    String::from_utf8(cache.render(snapshot, PageFormat::Dcgm).to_vec()).unwrap()
}

fn pod(name: &str) -> WorkloadEntry {
    let facts =
        [(Fact::Namespace, "ml"), (Fact::Pod, name), (Fact::PodUid, "uid-1"), (Fact::PodContainer, "main")];
    let workload = format!("k8s:ml/{name}/main").into();
    WorkloadEntry {
        workload,
        kind: HolderKind::Pod,
        tenant: "ml".into(),
        class: WorkloadClass::Service,
        facts: Facts::new(facts),
    }
}

fn holding(gpu: usize, name: &str) -> HoldingEntry {
    HoldingEntry {
        gpu,
        gpu_instance: "".into(),
        workload: pod(name).workload,
        tenant: "ml".into(),
        source: HoldingSource::Standing,
        since: fixture::AT,
    }
}

/// Three GPUs, the last with a MIG instance; `a` holds the first alone, or with `b`.
fn snapshot(names: &[&str]) -> Snapshot {
    let process = |name: &str, pid: &str| ProcessEntry {
        gpu: 0,
        gpu_instance: "".into(),
        pid: pid.into(),
        process: "python".into(),
        workload: pod(name).workload,
        tenant: "ml".into(),
    };
    let roster = Roster {
        holdings: names.iter().map(|name| holding(0, name)).collect(),
        workloads: names.iter().map(|name| pod(name)).collect(),
        processes: [process("a", "1"), process("a", "2")].into(),
        ..fixture::roster(3, 0)
    };
    let mut snapshot = fixture::values(Arc::new(roster), 1);
    let listed = |pid| GpuProcess { pid, gpu_instance: None, memory: None };
    change_frame(&mut snapshot, |frame| frame.processes = Ok([1, 2].map(listed).into()));
    snapshot
}

/// Changes what was read of the first GPU.
fn change_frame(snapshot: &mut Snapshot, change: impl FnOnce(&mut Frame)) {
    let mut frame = (**snapshot.gpus[0].frame.as_ref().unwrap()).clone();
    change(&mut frame);
    snapshot.gpus[0].frame = Some(Arc::new(frame));
}

const CONFIGURED: &str = "web: {dcgm_listen: \":9400\"}";

#[test]
fn the_pod_that_holds_a_gpu_alone_is_on_each_of_its_series() {
    let lines = lines(CONFIGURED, &snapshot(&["a"]), "DCGM_FI_DEV_FB_USED");
    assert_eq!(lines[0].split(' ').next(), Some("gpu=\"0\",container=\"main\",namespace=\"ml\",pod=\"a\""));
    assert_eq!(lines[1].split(' ').next(), Some("gpu=\"1\""), "a GPU that no pod holds keeps its series");
}

#[test]
fn a_pod_that_holds_a_gpu_twice_is_one_pod() {
    let twice = lines(CONFIGURED, &snapshot(&["a", "a"]), "DCGM_FI_DEV_SM_CLOCK");
    assert_eq!(twice, lines(CONFIGURED, &snapshot(&["a"]), "DCGM_FI_DEV_SM_CLOCK"));
}

#[test]
fn pods_that_share_a_gpu_have_what_each_uses_beside_the_whole_and_copies_of_the_rest() {
    let shared = snapshot(&["a", "b"]);
    let used = lines(CONFIGURED, &shared, "DCGM_FI_DEV_FB_USED");
    // Two processes of a, of 1,000,000,000 and 1,000,000,001 bytes.
    assert!(used[0].starts_with("gpu=\"0\" "), "{used:#?}");
    assert_eq!(
        used[1..3],
        [
            "gpu=\"0\",pod_uid=\"uid-1\",container=\"main\",namespace=\"ml\",pod=\"a\" 1907",
            "gpu=\"0\",pod_uid=\"uid-1\",container=\"main\",namespace=\"ml\",pod=\"b\" 0"
        ]
    );
    let clock = lines(CONFIGURED, &shared, "DCGM_FI_DEV_SM_CLOCK");
    assert_eq!(clock.len(), 4, "{clock:#?}");
    assert!(clock[0].contains("pod=\"a\"") && clock[1].contains("pod=\"b\""), "{clock:#?}");
    assert_eq!(clock[0].rsplit(' ').next(), clock[1].rsplit(' ').next());
}

#[test]
fn a_pods_part_is_absent_unless_it_is_known_of_each_of_its_processes() {
    let of = |snapshot: &Snapshot, name: &str| {
        let lines = lines(CONFIGURED, snapshot, name).into_iter();
        lines
            .filter(|line| line.contains("pod="))
            .map(|line| line.rsplit(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let [memory, busy] = ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"];
    let known = snapshot(&["a", "b"]);
    assert_eq!(
        (of(&known, memory), of(&known, busy)),
        (vec!["1907".into(), "0".into()], vec!["1".into(), "0".into()])
    );
    let mut unreported = snapshot(&["a", "b"]);
    unreported.processes[1].values[0] = Err(Absence::NotSupported);
    assert_eq!(of(&unreported, memory), ["0"], "memory of one process is not reported");
    let mut unlisted = snapshot(&["a", "b"]);
    change_frame(&mut unlisted, |frame| frame.processes = Err(Absence::Failed));
    assert!(of(&unlisted, memory).is_empty(), "the list could not be read");
    let mut more = snapshot(&["a", "b"]);
    let listed = |pid| GpuProcess { pid, gpu_instance: None, memory: None };
    change_frame(&mut more, |frame| frame.processes = Ok([1, 2, 3].map(listed).into()));
    assert!(of(&more, memory).is_empty(), "not every process has a row");
    let mut idle = snapshot(&["a", "b"]);
    idle.processes.iter_mut().for_each(|process| process.values[1] = Err(Absence::NotYet));
    assert_eq!(of(&idle, busy), ["0", "0"], "nothing ran");
    change_frame(&mut idle, |frame| frame.samples = Err(Absence::NotSupported));
    assert!(of(&idle, busy).is_empty(), "the driver has no samples");
}

#[test]
fn an_instance_repeats_the_values_of_its_gpu_unless_each_shall_have_its_own() {
    let [faithful, corrected] =
        [CONFIGURED, "web: {dcgm_listen: \":9400\", dcgm_corrected: true}"].map(|config| {
            let of = |name| lines(config, &snapshot(&["a"]), name).split_off(2);
            (of("DCGM_FI_DEV_POWER_USAGE"), of("DCGM_FI_DEV_FB_USED"), of("DCGM_FI_DEV_XID_ERRORS"))
        });
    let labels = |lines: &[String]| {
        lines.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let instance = "gpu=\"2\",GPU_I_PROFILE=\"3g.40gb\",GPU_I_ID=\"1\"";
    assert_eq!(labels(&faithful.0), [instance]);
    assert_eq!(labels(&faithful.1), [instance]);
    assert!(faithful.2[0].starts_with(instance), "{:?}", faithful.2);
    assert_eq!(labels(&corrected.0), ["gpu=\"2\""], "power is the GPU's");
    assert_eq!(labels(&corrected.1), [instance], "memory is the instance's");
    assert!(corrected.2[0].starts_with("gpu=\"2\",err_code"), "{:?}", corrected.2);
}

#[test]
fn the_last_xid_is_a_value_and_a_label_and_counts_are_by_code() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counters.csv");
    let counters = "DCGM_FI_DEV_XID_ERRORS, gauge, last\nDCGM_EXP_XID_ERRORS_COUNT, gauge, recent\n\
                    DCGM_EXP_XID_ERRORS_TOTAL, counter, all\nDCGM_EXP_CLOCK_EVENTS_COUNT, gauge, recent\n";
    std::fs::write(&file, counters).unwrap();
    let config = format!("web: {{dcgm_counters: {}, dcgm_labels: v4}}", file.display());
    let mut snapshot = snapshot(&["a"]);
    let of_gpu_1 = |snapshot: &Snapshot, name| {
        let lines = lines(&config, snapshot, name);
        lines.into_iter().filter(|line| line.starts_with("gpu=\"1\"")).collect::<Vec<_>>()
    };
    let last = of_gpu_1(&snapshot, "DCGM_FI_DEV_XID_ERRORS");
    assert_eq!(
        last,
        ["gpu=\"1\",err_code=\"13\",err_msg=\"exception in the compute or graphics engine\" 13"]
    );
    let window = "window_size_in_ms=\"300000\"";
    let recent = of_gpu_1(&snapshot, "DCGM_EXP_XID_ERRORS_COUNT");
    assert_eq!(
        recent,
        [format!("gpu=\"1\",{window},xid=\"13\" 1"), format!("gpu=\"1\",{window},xid=\"79\" 1")]
    );
    let all = of_gpu_1(&snapshot, "DCGM_EXP_XID_ERRORS_TOTAL");
    assert_eq!(all, ["gpu=\"1\",xid=\"13\" 13", "gpu=\"1\",xid=\"79\" 79"]);
    let clocks = of_gpu_1(&snapshot, "DCGM_EXP_CLOCK_EVENTS_COUNT");
    assert_eq!(clocks[0], format!("gpu=\"1\",{window},clock_event=\"clocks_setting\" 1"));
    assert_eq!(clocks.len(), 8, "the first event was not there: {clocks:#?}");
    snapshot.gpus[1].present = true;
    let dcgm = snapshot.gpus[1].dcgm.as_mut().unwrap();
    (dcgm.last_xid, dcgm.recent_xids) = (None, vec![0, 0]);
    assert_eq!(
        of_gpu_1(&snapshot, "DCGM_FI_DEV_XID_ERRORS"),
        ["gpu=\"1\",err_code=\"0\",err_msg=\"No Error\" 0"]
    );
    assert_eq!(of_gpu_1(&snapshot, "DCGM_EXP_XID_ERRORS_COUNT"), [format!("gpu=\"1\",{window} 0")]);
    assert!(page(&config, &snapshot).contains(",hostname=\"some node_name\""));
}

#[test]
fn what_is_absent_has_no_series_and_a_metric_without_series_no_head() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counters.csv");
    let counters = "DCGM_FI_DEV_SM_CLOCK, gauge, clock\nDCGM_FI_DEV_XID_ERRORS, gauge, last\n\
                    DCGM_EXP_XID_ERRORS_COUNT, gauge, recent\nDCGM_EXP_CLOCK_EVENTS_COUNT, gauge, recent\n\
                    DCGM_FI_DEV_COUNT, gauge, GPUs\n";
    std::fs::write(&file, counters).unwrap();
    let config = format!("web: {{dcgm_counters: {}}}", file.display());
    let mut snapshot = snapshot(&[]);
    let heads = |snapshot: &Snapshot| {
        let page = page(&config, snapshot);
        page.lines()
            .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
            .collect::<Vec<_>>()
    };
    for state in &mut snapshot.gpus {
        state.fresh = [false; 3];
    }
    let events = ["DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"];
    assert_eq!(heads(&snapshot), [events[0], events[1], "DCGM_FI_DEV_COUNT"], "GPUs that do not answer");
    for state in &mut snapshot.gpus {
        (state.present, state.dcgm.as_mut().unwrap().last_xid) = (false, None);
        state.dcgm.as_mut().unwrap().recent_xids.fill(0);
    }
    assert!(heads(&snapshot).is_empty(), "GPUs that are gone");
    snapshot.gpus[0].dcgm.as_mut().unwrap().last_xid = Some(79);
    assert_eq!(heads(&snapshot), [events[0]], "one that is gone after an XID");
    for state in &mut snapshot.gpus {
        (state.dcgm, state.present, state.fresh) = (None, true, [true; 3]);
    }
    assert_eq!(heads(&snapshot), ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_COUNT"], "the page is not configured");
}

#[test]
fn a_sum_lacks_what_the_board_does_not_have_and_is_absent_while_a_part_cannot_be_read() {
    let bandwidth = |second: Reading| {
        let mut snapshot = snapshot(&[]);
        let place = ValuePlace::Reading(first_point("gpu_nvlink_bytes_total") + 1);
        let rate = RATED.iter().position(|rated| rated.place == place).unwrap();
        snapshot.gpus[0].dcgm.as_mut().unwrap().rates[rate] = second;
        let lines = lines(CONFIGURED, &snapshot, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL");
        lines.into_iter().filter(|line| line.starts_with("gpu=\"0\"")).count()
    };
    assert_eq!([Ok(5), Err(Absence::NotSupported), Err(Absence::Failed)].map(bandwidth), [1, 1, 0]);
}

#[test]
fn a_page_that_is_not_configured_names_what_it_lacks() {
    let snapshot = snapshot(&[]);
    let notes = |config: &str| {
        let page = page(config, &snapshot);
        page.lines().filter(|line| line.contains("web.dcgm_listen")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        notes("node: {name: n}"),
        ["# Only with web.dcgm_listen or web.dcgm_counters in the configuration: \
          DCGM_FI_DEV_XID_ERRORS, DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, DCGM_FI_PROF_PCIE_TX_BYTES, \
          DCGM_FI_PROF_PCIE_RX_BYTES"]
    );
    assert!(notes(CONFIGURED).is_empty());
}

#[test]
fn a_board_before_hopper_is_named_as_one_without_profiling() {
    let mut roster = fixture::roster(2, 0);
    let mut identity = (*roster.gpus[1].identity).clone();
    (identity.model, identity.compute_capability) = ("NVIDIA A100\n# TYPE".into(), "8.0".into());
    roster.gpus[1].identity = Arc::new(identity);
    let page = page(CONFIGURED, &fixture::values(Arc::new(roster), 1));
    let note = page.lines().next().unwrap();
    assert!(
        note.starts_with("# GPU 1 (NVIDIA A100\\n# TYPE) has no DCGM_FI_PROF_* of its engines"),
        "{note}"
    );
    assert!(page.lines().nth(1).unwrap().starts_with("# HELP"), "{page}");
}
