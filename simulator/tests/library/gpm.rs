//! Every GPM metric, of GPUs and of instances.

use crate::raw::{INVALID_ARGUMENT, NOT_SUPPORTED, between, call, gpu, instance, sample};
use crate::support::{Node, SECOND};
use nvml_wrapper_sys::bindings as sys;

const MIB: f64 = 1_048_576.0;

fn script(driver: &str, gpu: &str) -> String {
    format!(
        r#"{{"cycle_seconds":60,"driver_version":"{driver}","gpus":[{gpu}],
        "processes":[{{"pid":7,"gpu":0,"instance":INSTANCE,"phases":[{{"from":0,"to":60,"demand":1.0,"sm":0.8,
            "tensor":0.4,"dfma":0.1,"imma":0.05,"fp64":0.02,"fp32":0.3,"fp16":0.04,"integer":0.25,
            "occupancy":0.45,"dram":0.35,"decoder":0.2,"jpeg":0.15,"ofa":0.12,"encoder":0.07,
            "pcie_tx":1048576000,"pcie_rx":2097152000,"nvlink_tx":18874368000,"nvlink_rx":37748736000}}]}}]}}"#
    )
}

fn whole(driver: &str) -> Node {
    Node::new(&script(driver, r#"{"profile":"h100"}"#).replace("INSTANCE", "null"))
}

#[track_caller]
fn near(seen: &[Result<f64, u32>], expected: &[f64]) {
    assert_eq!(seen.len(), expected.len());
    for (seen, expected) in seen.iter().zip(expected) {
        assert!(seen.is_ok_and(|seen| (seen - expected).abs() < 0.01), "{seen:?} is not {expected}");
    }
}

#[test]
fn every_pipe_and_engine_has_its_own_metric() {
    let node = whole("580.105.08");
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let first = sample(&nvml, board);
    node.hold(5 * SECOND);
    let second = sample(&nvml, board);
    let get = |ids: &[u32]| between(&nvml, first, second, ids);
    near(
        &get(&[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]),
        &[100.0, 80.0, 45.0, 25.0, 40.0, 10.0, 25.0, 5.0, 35.0, 2.0, 30.0, 4.0],
    );
    // 1000 and 2000 MiB/s beside 0.6 MB/s at rest and one burst of 0.24 MB.
    let rest = (600_000.0 + 240_000.0 / 5.0) / MIB;
    near(&get(&[20, 21]), &[1_000.0 + rest, 2_000.0 + rest]);
    near(&get(&[30, 36, 40, 46, 50, 166]), &[20.0, 20.0, 15.0, 15.0, 12.0, 7.0]);
    near(&get(&[60, 61, 62, 63, 96, 97]), &[36_000.0, 18_000.0, 2_000.0, 1_000.0, 2_000.0, 1_000.0]);
    // A single process causes no context switches; cycles at 1980 MHz.
    near(&get(&[170, 171, 172, 173, 174]), &[9.9e9, 0.0, 0.0, 0.0, 0.0]);
    let refused = [8, 14, 37, 47, 51, 100, 160, 175];
    assert_eq!(get(&refused), [Err(NOT_SUPPORTED); 8]);
    assert_eq!(get(&[0, 210, 248, 9_999]), [Err(INVALID_ARGUMENT); 4]);
}

#[test]
fn every_gpm_metric_is_a_number_or_refused_and_shares_are_percent() {
    let node = whole("590.48.01");
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let first = sample(&nvml, board);
    node.hold(3 * SECOND + 123_456_789);
    let second = sample(&nvml, board);
    let ids: Vec<u32> = (1..=209).collect();
    let mut answered = 0;
    for (id, value) in ids.iter().zip(between(&nvml, first, second, &ids)) {
        let Ok(value) = value else { continue };
        answered += 1;
        assert!(value.is_finite() && value >= 0.0, "metric {id}: {value}");
        assert!((20..170).contains(id) || *id >= 170 || value <= 100.0, "metric {id}: {value}");
    }
    assert!(answered >= 75, "{answered}");
}

#[test]
fn gpm_counters_are_sums_and_absent_before_driver_590() {
    let node = whole("590.48.01");
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    node.hold(5 * SECOND);
    let first = sample(&nvml, board);
    node.hold(10 * SECOND);
    let second = sample(&nvml, board);
    let ids: Vec<u32> = (248..=260).collect();
    let cycles = |share: f64| share * 19.8e9;
    let expected = [
        cycles(1.0),
        cycles(0.8),
        cycles(0.4),
        cycles(0.1),
        cycles(0.25),
        cycles(0.05),
        cycles(0.1),
        10.0 * (1_000.0 * MIB + 624_000.0),
        10.0 * (2_000.0 * MIB + 624_000.0),
        cycles(0.25),
        cycles(0.02),
        cycles(0.3),
        cycles(0.04),
    ];
    // Of ten seconds, not of the five between the samples.
    for (seen, expected) in between(&nvml, first, second, &ids).into_iter().zip(expected) {
        assert!((seen.unwrap() / expected - 1.0).abs() < 1e-9, "{seen:?} is not {expected}");
    }
    let links = between(&nvml, first, second, &[261, 262, 297, 212]);
    let gib = 2_000.0 * MIB * 10.0;
    assert_eq!(links, [Ok(gib), Ok(gib / 2.0), Err(NOT_SUPPORTED), Err(NOT_SUPPORTED)]);
    // Between equal samples the sums are not 0.
    assert_eq!(between(&nvml, second, second, &[248]), [Ok(19.8e9)]);
    let older = whole("580.105.08");
    let nvml = older.nvml();
    older.hold(SECOND);
    let alone = sample(&nvml, gpu(&nvml, 0));
    assert_eq!(between(&nvml, alone, alone, &[248, 260]), [Err(INVALID_ARGUMENT); 2]);
}

#[test]
fn gpm_samples_closer_than_100_ms_get_the_last_whole_interval() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"}],"processes":[
            {"pid":7,"gpu":0,"phases":[{"from":1,"to":1.5,"demand":1.0}]}]}"#,
    );
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let at = |nanoseconds| {
        node.hold(nanoseconds);
        sample(&nvml, board)
    };
    let busy = |first, second| between(&nvml, first, second, &[1]).remove(0).unwrap();
    let (first, near, far) = (at(1_510_000_000), at(1_590_000_000), at(1_610_000_001));
    // The driver has read its counters at 1.4 and 1.5 s: busy throughout, though idle between the samples.
    assert_eq!(busy(first, near), 100.0);
    assert_eq!(busy(first, far), 0.0);
    assert!(busy(near, near).is_nan());
}

#[test]
fn an_instance_has_its_own_pipes_and_no_links() {
    let mig = r#"{"profile":"h100","mig":[{"profile":"3g.40gb","start":4},{"profile":"1g.10gb","start":0}]}"#;
    let node = Node::new(&script("590.48.01", mig).replace("INSTANCE", "0"));
    let nvml = node.nvml();
    let parent = gpu(&nvml, 0);
    let large = instance(&nvml, parent, 0);
    let by_id = || {
        let sample = sample(&nvml, parent);
        assert_eq!(call!(nvml, nvmlGpmMigSampleGet, parent, 2, sample), 0);
        sample
    };
    let first = [sample(&nvml, large), by_id(), sample(&nvml, parent)];
    node.hold(2 * SECOND);
    let second = [sample(&nvml, large), by_id(), sample(&nvml, parent)];
    let ids = [1, 2, 6, 10, 30, 32, 42, 170];
    let expected = [100.0, 80.0, 10.0, 35.0, 20.0, 20.0, 15.0, 3.96e9];
    near(&between(&nvml, first[0], second[0], &ids), &expected);
    assert_eq!(between(&nvml, first[0], second[0], &ids), between(&nvml, first[1], second[1], &ids));
    // Three decoders and no optical flow; neither PCIe nor NVLink by instance, and no second engine.
    assert_eq!(between(&nvml, first[0], second[0], &[33, 50, 20, 60, 175, 255]), [Err(NOT_SUPPORTED); 6]);
    assert_eq!(between(&nvml, first[0], second[0], &[249]), [Ok(0.8 * 3.96e9)]);
    // The parent is busy by the instance's share of its slices.
    near(&between(&nvml, first[2], second[2], &[1]), &[300.0 / 7.0]);
    let mut request: Box<nvml_wrapper_sys::bindings::nvmlGpmMetricsGet_t> =
        Box::new(unsafe { std::mem::zeroed() });
    (request.version, request.sample1, request.sample2) = (1, first[0], second[2]);
    assert_eq!(call!(nvml, nvmlGpmMetricsGet, &raw mut *request), INVALID_ARGUMENT);
}

#[test]
fn processes_that_share_an_engine_cause_context_switches() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"}],"processes":[
            {"pid":7,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0}]},
            {"pid":8,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0}]}]}"#,
    );
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let first = sample(&nvml, board);
    node.hold(SECOND);
    let second = sample(&nvml, board);
    // A hundred slices with one context switch of 20 microseconds each.
    near(&between(&nvml, first, second, &[172, 173, 174, 1]), &[100.0, 39_600.0, 0.2, 100.0]);
}

#[test]
fn gpm_of_a_gpu_instance_is_the_sum_of_its_compute_instances() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"h100","mig":[
            {"profile":"3g.40gb","start":4,"compute":["1c.3g.40gb","2c.3g.40gb"]}]}],"processes":[
            {"pid":7,"gpu":0,"instance":0,"compute":0,"phases":[{"from":0,"to":60,"demand":1.0,"sm":0.9}]},
            {"pid":8,"gpu":0,"instance":0,"compute":1,"phases":[{"from":0,"to":60,"demand":1.0,"sm":0.3}]}]}"#,
    );
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let of_instance = || {
        let taken = sample(&nvml, board);
        assert_eq!(call!(nvml, nvmlGpmMigSampleGet, board, 2, taken), 0);
        taken
    };
    let firsts =
        [of_instance(), sample(&nvml, instance(&nvml, board, 0)), sample(&nvml, instance(&nvml, board, 1))];
    node.hold(5 * SECOND);
    let seconds =
        [of_instance(), sample(&nvml, instance(&nvml, board, 0)), sample(&nvml, instance(&nvml, board, 1))];
    let seen = [0, 1, 2].map(|part: usize| between(&nvml, firsts[part], seconds[part], &[2])[0]);
    // A third of 90 % and two thirds of 30 %; each compute instance alone as its process.
    near(&seen, &[50.0, 90.0, 30.0]);
    // Two graphics engines, and no third.
    let engines = between(&nvml, firsts[0], seconds[0], &[170, 175, 180]);
    assert!(engines[0].is_ok() && engines[1].is_ok(), "{engines:?}");
    assert_eq!(engines[2], Err(NOT_SUPPORTED));
}

#[test]
fn gpm_samples_of_two_layouts_are_refused() {
    let node = Node::new(r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let ask = |first, second| {
        let mut request: Box<sys::nvmlGpmMetricsGet_t> = Box::new(unsafe { std::mem::zeroed() });
        (request.version, request.sample1, request.sample2) = (1, first, second);
        call!(nvml, nvmlGpmMetricsGet, &raw mut *request)
    };
    let first = sample(&nvml, board);
    node.hold(5 * SECOND);
    let second = sample(&nvml, board);
    assert_eq!(ask(first, second), 0);
    node.state(r#"{"mig":{"0":[{"profile":"7g.80gb","start":0}]}}"#);
    assert_eq!(ask(first, second), INVALID_ARGUMENT);
    node.hold(10 * SECOND);
    let third = sample(&nvml, board);
    assert_eq!(ask(second, third), INVALID_ARGUMENT);
    node.hold(15 * SECOND);
    assert_eq!(ask(third, sample(&nvml, board)), 0);
}

#[test]
fn gpm_counters_of_the_gpu_continue_across_layouts_and_new_instances_start_at_zero() {
    let script = script("590.48.01", r#"{"profile":"h100"}"#).replace("INSTANCE", "null");
    let node = Node::new(&script);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let ids = [248, 249, 250, 257, 258, 259, 260];
    let read_cycles = || {
        let alone = sample(&nvml, board);
        between(&nvml, alone, alone, &ids).into_iter().map(Result::unwrap).collect::<Vec<f64>>()
    };
    node.hold(50 * SECOND);
    let mut last = read_cycles();
    assert!(last.iter().all(|cycles| *cycles > 0.0), "{last:?}");
    let layouts = [
        r#"[{"profile":"3g.40gb","start":4},{"profile":"1g.10gb","start":0}]"#,
        r#"[{"profile":"1g.10gb","start":0},{"profile":"1g.10gb","start":1},{"profile":"3g.40gb","start":4}]"#,
        "[]",
    ];
    for layout in layouts {
        node.state(&format!(r#"{{"mig":{{"0":{layout}}}}}"#));
        let now = read_cycles();
        assert_eq!(now, last, "{layout}");
        if layout != "[]" {
            let first = instance(&nvml, board, 0);
            let alone = sample(&nvml, first);
            assert_eq!(between(&nvml, alone, alone, &[249]), [Ok(0.0)], "{layout}");
        }
        last = now;
    }
}
