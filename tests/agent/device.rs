//! The page of several kinds of boards, by what each of them supports.

use std::collections::BTreeMap;
use std::time::Instant;

use gpumeter::meter::source_level;
use gpumeter::model::catalogue::{Level, Rows, family};

use crate::running::{Demo, wait_until};
use crate::scrape::Scrape;

/// A demo of these GPUs under a driver, with a busy process on the first.
fn demo(driver: &str, gpus: &str) -> (Demo, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.json");
    let work = r#"[{"pid": 4001, "name": "python3", "gpu": 0, "phases": [{"from": 0, "to": 600, "demand": 0.9, "tensor": 0.5, "dram": 0.4, "memory_bytes": 8589934592}], "host": {"uid": 0, "cgroup": "/system.slice/train.service"}}]"#;
    let work = if gpus.contains("mig") {
        work.replace("\"phases\"", "\"instance\": 0, \"phases\"")
    } else {
        work.into()
    };
    let scenario = format!(
        r#"{{"driver_version": "{driver}", "cycle_seconds": 600, "gpus": {gpus}, "processes": {work}}}"#
    );
    std::fs::write(&file, scenario).unwrap();
    (Demo::start(&["--scenario", file.to_str().unwrap()]), directory)
}

fn page(demo: &Demo) -> Scrape {
    let ready =
        |page: &Scrape| page.has("gpu_up", &[]) && page.series_of("gpu_up", &[]).all(|(_, up)| up == "1");
    demo.agent.wait_for("all GPUs", |page| {
        let busy = page.series_of("gpu_busy_seconds_total", &["gpu=\"0\""]).any(|(_, value)| value != "0");
        ready(page) && (busy || page.has("gpu_mig_gr_engine_active_ratio", &[]))
    })
}

fn number(page: &Scrape, family: &str, labels: &[&str]) -> f64 {
    page.value(family, labels).unwrap_or_else(|| panic!("{family} {labels:?} is absent")).parse().unwrap()
}

#[test]
fn an_h100_reports_memory_links_limits_and_repair() {
    let (demo, _scenario) = demo("590.48.01", r#"[{"profile": "h100"}]"#);
    let page = page(&demo);
    let value = |family: &str| number(&page, family, &[]);
    let memory = ["used", "free", "reserved"].map(|part| value(&format!("gpu_memory_{part}_bytes")));
    assert_eq!(memory.iter().sum::<f64>(), value("gpu_memory_total_bytes"));
    assert_eq!(value("gpu_nvlink_links_up"), 18.0);
    assert_eq!(value("gpu_nvlink_links_expected"), 18.0);
    assert_eq!(page.series_of("gpu_nvlink_link_up", &[]).count(), 18, "only links that the board has");
    assert_eq!(number(&page, "gpu_power_limit_watts", &["limit=\"max\""]), 700.0);
    assert_eq!(number(&page, "gpu_clock_hertz", &["clock=\"memory\""]), 2_619e6);
    assert_eq!(number(&page, "gpu_row_remap_banks", &["availability=\"max\""]), 2_560.0);
    // Of the five states only the current one has a series.
    assert_eq!(page.series_of("gpu_recovery_action", &[]).count(), 1);
    assert!(page.has("gpu_recovery_action", &["action=\"none\""]));
    // A board that reports distances to its limits does not show their temperatures too.
    assert!(page.has("gpu_temperature_margin_celsius", &["limit=\"slowdown\""]));
    assert!(!page.has("gpu_temperature_limit_celsius", &[]));
    let platform = page.series_of("gpu_platform_info", &[]).next().unwrap().0;
    assert!(platform.contains("chassis_serial=\"\"") && platform.contains("module_id=\"2\""), "{platform}");
    for reason in ["sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"] {
        assert!(page.has("gpu_throttle_seconds_total", &[&format!("reason=\"{reason}\"")]), "{reason}");
    }
}

#[test]
fn an_a100_under_an_older_driver_reports_limit_temperatures_and_counts_bytes_itself() {
    let (demo, _scenario) = demo("570.124.06", r#"[{"profile": "a100"}]"#);
    let page = page(&demo);
    assert_eq!(number(&page, "gpu_temperature_limit_celsius", &["limit=\"shutdown\""]), 92.0);
    assert!(!page.has("gpu_temperature_margin_celsius", &[]));
    assert!(!page.has("gpu_sm_active_ratio", &[]));
    assert!(page.has("gpu_unsupported", &["family=\"gpu_sm_active_ratio\""]));
    assert!(page.has("gpu_unsupported", &["family=\"gpu_sm_active_seconds_total\""]));
    assert!(page.has("gpumeter_source_info", &["metric=\"gpu_pcie_bytes_total\"", "source=\"field\""]));
    assert!(page.has("gpumeter_source_info", &["metric=\"gpu_power_watts\"", "source=\"call\""]));
    demo.agent.wait_for("bytes since the agent's start", |page| {
        number(page, "gpu_pcie_bytes_total", &["direction=\"receive\""]) > 0.0
    });
}

#[test]
fn boards_without_nvlink_report_no_links_and_no_module() {
    let (demo, _scenario) = demo("590.48.01", r#"[{"profile": "l40s"}, {"profile": "l4"}]"#);
    let page = page(&demo);
    for family in
        ["gpu_nvlink_links_up", "gpu_nvlink_links_expected", "gpu_nvlink_bytes_total", "gpu_platform_info"]
    {
        assert!(!page.has(family, &[]), "{family}");
    }
    assert!(!page.has("gpu_temperature_celsius", &["sensor=\"memory\""]));
    assert_eq!(page.series_of("gpu_temperature_celsius", &["sensor=\"gpu\""]).count(), 2);
}

#[test]
fn a_gpu_that_shares_the_hosts_memory_shows_that_of_its_processes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.json");
    let scenario = r#"{"persona":"gb10","gpus":[{"profile":"rtx-pro-6000","count":1}],"processes":[
        {"pid":4262,"gpu":0,"phases":[{"from":0,"to":600,"demand":0.8,"memory_bytes":63931000000,"sm":0.7}]},
        {"pid":4263,"gpu":0,"phases":[{"from":0,"to":600,"demand":0.1,"memory_bytes":19000000000}]}]}"#;
    std::fs::write(&file, scenario).unwrap();
    let demo = Demo::start(&["--scenario", file.to_str().unwrap()]);
    let page = demo.agent.wait_for("its memory", |page| {
        page.value("gpu_memory_free_bytes", &[]).is_some() && page.value("gpu_up", &[]) == Some("1")
    });
    let bytes = ["total", "used", "free", "reserved"]
        .map(|part| number(&page, &format!("gpu_memory_{part}_bytes"), &[]));
    assert_eq!(bytes, [128_501_256_192.0, 82_931_000_000.0, 45_570_256_192.0, 0.0]);
    assert!(page.has("gpu_info", &["model=\"NVIDIA GB10 (simulated)\"", "memory=\"unified\""]));
    for (part, source) in [("total", "host"), ("used", "processes"), ("free", "host")] {
        let metric = format!("metric=\"gpu_memory_{part}_bytes\"");
        assert!(page.has("gpumeter_source_info", &[&metric, &format!("source=\"{source}\"")]), "{part}");
        assert!(!page.has("gpu_unsupported", &[&format!("family=\"gpu_memory_{part}_bytes\"")]), "{part}");
    }
    assert_eq!(page.value("gpu_processes", &[]), Some("2"));
    for family in ["gpu_fan_speed_ratio", "gpu_power_limit_watts", "gpu_temperature_limit_celsius"] {
        assert!(!page.has(family, &[]), "{family}");
    }
    assert_eq!(page.value("gpu_pcie_link_width_max", &[]), Some("1"));
    // Where a sampler is late, its readings are absent for a while.
    wait_until("the memory as dcgm-exporter shows it", || {
        let dcgm = Scrape::parse(&demo.agent.get("/metrics?profile=dcgm").1);
        ["USED", "FREE"].map(|part| dcgm.value(&format!("DCGM_FI_DEV_FB_{part}"), &[]).map(str::to_owned))
            == ["79089", "43459"].map(|mebibytes| Some(mebibytes.to_owned()))
    });
    wait_until("the memory on the page for people", || {
        let summary: serde_json::Value = serde_json::from_str(&demo.agent.get("/api/v1/summary").1).unwrap();
        let gpu = &summary["gpus"][0];
        [&gpu["memory_used"], &gpu["memory_total"]].map(|number| number.as_u64())
            == [Some(82_931_000_000), Some(128_501_256_192)]
    });
}

/// Series of a GPU at a level, without those whose number depends on tenants, processes and XIDs.
fn series(page: &Scrape, gpu: usize, level: Level) -> Vec<&str> {
    let label = format!("gpu=\"{gpu}\"");
    let is_counted = |name: &&str| {
        let Some(row) = family(name.split('{').next().unwrap_or_default()) else { return false };
        let happens = matches!(row.rows, Rows::Account(_) | Rows::Process(_));
        let named = |label| family(name.split(label).nth(1)?.split('"').next()?);
        let unsupported = named("family=\"").map_or(Level::Lean, |family| family.level);
        let metered = named("metric=\"").map_or(Level::Lean, source_level);
        row.level.max(unsupported).max(metered) <= level
            && !happens
            && !name.contains("xid=")
            && name.contains(&label)
    };
    page.series.keys().map(String::as_str).filter(is_counted).collect()
}

#[test]
fn every_board_stays_within_the_levels() {
    let boards = ["h100", "h200", "a100", "l40s", "l4"];
    let gpus: Vec<String> = boards.iter().map(|board| format!(r#"{{"profile": "{board}"}}"#)).collect();
    let (demo, _scenario) = demo("590.48.01", &format!("[{}]", gpus.join(",")));
    let page = page(&demo);
    for (gpu, board) in boards.iter().enumerate() {
        for (level, most) in [(Level::Lean, 40), (Level::Standard, 100)] {
            let series = series(&page, gpu, level);
            assert!(
                (25..=most).contains(&series.len()),
                "{board}: {} {}\n{series:#?}",
                level.name(),
                series.len()
            );
        }
    }
}

#[test]
fn instances_have_memory_and_activity_for_at_most_three_calls_each_at_a_tick() {
    let seven: Vec<String> =
        (0..7).map(|start| format!(r#"{{"profile": "1g.10gb", "start": {start}}}"#)).collect();
    let begun = Instant::now();
    let (demo, _scenario) =
        demo("590.48.01", &format!(r#"[{{"profile": "h100", "mig": [{}]}}]"#, seven.join(",")));
    page(&demo);
    let page = demo.agent.wait_for("a working instance", |page| {
        page.series_of("gpu_mig_sm_active_seconds_total", &[]).any(|(_, value)| value != "0")
    });
    for family in [
        "gpu_mig_memory_used_bytes",
        "gpu_mig_memory_free_bytes",
        "gpu_mig_tensor_active_ratio",
        "gpu_mig_dram_active_seconds_total",
        "gpu_mig_ecc_errors_total",
    ] {
        assert_eq!(page.series_of(family, &[]).count(), 7, "{family}");
    }
    assert!(!page.has("gpu_utilization_ratio", &[]), "the parent has no utilization");
    let calls = || -> BTreeMap<String, f64> {
        let text = std::fs::read_to_string(demo.driver("calls")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    let count = |calls: &BTreeMap<String, f64>, name: &str| calls.get(name).copied().unwrap_or(0.0);
    wait_until("fifteen ticks", || count(&calls(), "nvmlGpmMigSampleGet") >= 7.0 * 15.0);
    let calls = calls();
    // Both functions are called for the parent too, once with each of the calls that are subtracted.
    let of_instances = |name: &str, parents: &str| count(&calls, name) - count(&calls, parents);
    let all = of_instances("nvmlGpmMetricsGet", "nvmlGpmSampleGet")
        + of_instances("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo")
        + count(&calls, "nvmlGpmMigSampleGet");
    let each = all / count(&calls, "nvmlGpmMigSampleGet");
    assert!(each <= 3.0, "{each} calls: {calls:?}");
    // The slow tier, each minute, reads the error counters of each instance, and four of the parent: at most three times
    // in the first minute, twice when due, and once more those that were never read.
    let errors = count(&calls, "nvmlDeviceGetMemoryErrorCounter");
    let most = (7.0 + 4.0) * (3.0 + (begun.elapsed().as_secs() / 60) as f64);
    assert!((14.0..=most).contains(&errors), "{errors} calls for errors: {calls:?}");
}
