//! GPM rates and counters over the simulated driver: which drivers report them, and their values.

use gpumeter::model::catalogue::{Counter, InstanceValue, first_point, point};
use gpumeter::model::{Absence, Frame, InstanceFrame, Reading, Rejection};

use super::world::{World, calls};

const WORK: &str = r#""processes": [{"pid": 11, "gpu": 0, INSTANCE"phases": [{"from": 0, "to": 1000, "demand": 1.0,
    "sm": 0.8, "tensor": 0.4, "pcie_tx": 1048576000, "nvlink_tx": 1800000000, "decoder": 0.2}]}]"#;

fn scenario(driver: &str, gpu: &str, instance: &str) -> String {
    let work = WORK.replace("INSTANCE", instance);
    format!(r#"{{"cycle_seconds": 1000, "driver_version": "{driver}", "gpus": [{gpu}], {work}}}"#)
}

const H100: &str = r#"{"profile": "h100"}"#;
const H100_MIG: &str = r#"{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}"#;

fn count(counters: &[Reading], counter: Counter) -> i64 {
    counters[counter as usize].unwrap()
}

/// The counter's growth between two frames in percent of the elapsed cycles.
fn active(from: &[Reading], to: &[Reading], counter: Counter) -> i64 {
    let growth = |counter| count(to, counter) - count(from, counter);
    (growth(counter) * 100 + growth(Counter::Elapsed) / 2) / growth(Counter::Elapsed)
}

#[test]
fn gpm_counters_need_no_further_calls() {
    let mut older = World::new(&scenario("580.105.08", H100, ""), false);
    let mut newer = World::new(&scenario("590.48.01", H100, ""), false);
    let (before, now) = (older.run(61), newer.run(61));
    assert!(before[60].counters.iter().all(|reading| *reading == Err(Absence::NotSupported)));
    assert_eq!(calls(&before), calls(&now));
    assert_eq!(calls(&now)["nvmlGpmMetricsGet"], 60);
    let between = |counter| active(&now[2].counters, &now[60].counters, counter);
    assert_eq!([Counter::SmActive, Counter::Tensor].map(between), [80, 40]);
    let sent = |frame: &Frame| count(&frame.counters, Counter::PcieTransmit);
    let megabytes = (sent(&now[60]) - sent(&now[2])) / 58 / 1_000_000;
    assert!((1_048..1_052).contains(&megabytes), "{megabytes}");
    assert!(now.iter().all(|frame| frame.rejected.is_empty() && frame.generation == 1));
}

#[test]
fn an_instance_has_counters_of_its_own() {
    let mut world = World::new(&scenario("590.48.01", H100_MIG, r#""instance": 0, "#), false);
    let frames = world.run(20);
    let counters = |frame: usize| &*frames[frame].instances[0].counters;
    assert_eq!(active(counters(2), counters(19), Counter::SmActive), 80);
    assert_eq!(counters(19)[Counter::PcieTransmit as usize], Err(Absence::NotSupported), "no family has it");
}

/// Each pipe: its name, the value of an instance, its counter, and the scripted percent of time.
const PIPES: [(&str, InstanceValue, Counter, i64); 8] = [
    ("integer", InstanceValue::Integer, Counter::Integer, 10),
    ("fp16", InstanceValue::Fp16, Counter::Fp16, 15),
    ("fp32", InstanceValue::Fp32, Counter::Fp32, 20),
    ("fp64", InstanceValue::Fp64, Counter::Fp64, 25),
    ("tensor_dfma", InstanceValue::TensorDfma, Counter::TensorDfma, 5),
    ("tensor_dmma", InstanceValue::TensorDmma, Counter::TensorDmma, 5),
    ("tensor_hmma", InstanceValue::TensorHmma, Counter::TensorHmma, 27),
    ("tensor_imma", InstanceValue::TensorImma, Counter::TensorImma, 8),
];

#[test]
fn an_instance_shows_each_of_its_pipes_and_the_gpu_no_more_than_its_instances() {
    let cut = r#"{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]}"#;
    let work = r#""processes": [{"pid": 11, "gpu": 0, "instance": 0, "phases": [{"from": 0, "to": 1000,
        "demand": 1.0, "sm": 0.8, "tensor": 0.4, "dfma": 0.05, "imma": 0.08, "integer": 0.1, "fp16": 0.15,
        "fp32": 0.2, "fp64": 0.25}]}]"#;
    let node =
        format!(r#"{{"cycle_seconds": 1000, "driver_version": "590.48.01", "gpus": [{cut}], {work}}}"#);
    let frames = World::new(&node, false).run(20);
    assert_eq!(calls(&frames[19..])["nvmlGpmMetricsGet"], 3, "one of the GPU and of each instance");
    let (first, last) = (&frames[2], &frames[19]);
    let [busy, idle] = &*last.instances else { panic!("{:?}", last.instances) };
    let pipes = last.readings.iter().skip(first_point("gpu_pipe_active_ratio"));
    for ((pipe, value, counter, percent), whole) in PIPES.into_iter().zip(pipes) {
        let ratio = |instance: &InstanceFrame| instance.readings[value as usize].unwrap();
        let off = ratio(busy) - percent * 10_000_000;
        assert!(off.abs() < 1_000_000, "{pipe}: {} of {percent} percent", ratio(busy));
        assert_eq!(active(&first.instances[0].counters, &busy.counters, counter), percent, "{pipe}");
        assert_eq!(ratio(idle), 0, "{pipe}");
        assert_eq!(active(&first.instances[1].counters, &idle.counters, counter), 0, "{pipe}");
        let whole = whole.unwrap();
        assert!(whole > 0 && whole <= ratio(busy), "{pipe}: {whole} of the GPU");
    }
}

#[test]
fn an_older_driver_without_counters_still_reports_rates_of_an_instance() {
    let frames = World::new(&scenario("580.105.08", H100_MIG, r#""instance": 0, "#), false).run(5);
    let instance = &frames[4].instances[0];
    assert!(instance.counters.iter().all(|reading| *reading == Err(Absence::NotSupported)));
    assert!(instance.readings[InstanceValue::TensorHmma as usize].is_ok_and(|ratio| ratio > 0));
    // This metric is as new as the counters.
    assert_eq!(instance.readings[InstanceValue::TensorDmma as usize], Err(Absence::NotSupported));
}

#[test]
fn a_failed_sample_interrupts_the_rate_and_not_the_counter() {
    let mut world = World::new(&scenario("590.48.01", H100, ""), false);
    let before = world.run(5).remove(4);
    world.set_faults(r#"[{"function": "nvmlGpmSampleGet", "code": 999}]"#);
    let failed = world.tick();
    assert!(failed.counters.iter().all(|reading| *reading == Err(Absence::Failed)));
    world.set_faults("[]");
    let single = world.tick();
    assert_eq!(single.readings[first_point("gpu_sm_active_ratio")], Err(Absence::NotYet));
    let again = world.tick();
    assert_eq!(active(&before.counters, &again.counters, Counter::SmActive), 80);
    assert_eq!(again.generation, before.generation);
}

#[test]
fn implausible_counters_are_dropped_and_counted() {
    let mut world = World::new(&scenario("590.48.01", H100, ""), false);
    let before = world.run(5).remove(4);
    world.set_faults(r#"[{"function": "nvmlGpmMetricsGet", "garbage": true}]"#);
    let frames = world.run(8);
    let decreased = |frame: &Frame| {
        let pairs = frame
            .counters
            .iter()
            .zip(&before.counters)
            .filter_map(|(now, then)| Some((now.ok()?, then.ok()?)));
        pairs.filter(|(now, then)| now < then).count()
    };
    assert_eq!(decreased(&frames[0]), 0, "{:?}", frames[0].counters);
    let rejected: u64 = frames.iter().flat_map(|frame| &frame.rejected).map(|(_, count)| count).sum();
    assert!(rejected > 0);
    assert!(
        frames
            .iter()
            .flat_map(|frame| &frame.rejected)
            .all(|(reason, _)| { matches!(reason, Rejection::OutOfRange | Rejection::CounterBack) })
    );
}

#[test]
fn a_grace_board_shows_power_of_module_and_memory_and_traffic_between_its_chips() {
    const OUT: usize = point("gpu_c2c_bytes_total", "transmit");
    const PAYLOAD: usize = point("gpu_c2c_payload_bytes_total", "transmit");
    let grace =
        World::new(&scenario("590.48.01", r#"{"profile": "gb200", "count": 2}"#, ""), false).run(3).remove(2);
    let (all, payload) = (grace.readings[OUT].unwrap(), grace.readings[PAYLOAD].unwrap());
    assert!(all > 1_000_000_000 && payload < all && payload > all / 10 * 9, "{payload} of {all}");
    let watts = |point: usize| grace.readings[point].unwrap() / 1_000;
    const MODULE: usize = first_point("gpu_module_power_watts");
    const OWN: usize = first_point("gpu_power_watts");
    const MEMORY: usize = first_point("gpu_memory_power_watts");
    assert!(watts(MODULE) > watts(OWN) && watts(OWN) > watts(MEMORY) && watts(MEMORY) > 0);
    assert_eq!(watts(point("gpu_module_power_limit_watts", "min")), 500);
    assert_eq!(grace.readings[point("gpu_cache_hit_ratio", "host")], Ok(750_000_000));
    let alone = World::new(&scenario("590.48.01", H100, ""), false).run(3).remove(2);
    for absent in [OUT, PAYLOAD, MODULE, first_point("gpu_cache_hit_ratio")] {
        assert_eq!(alone.readings[absent], Err(Absence::NotSupported));
    }
    // The header has eight decoders, and this board seven.
    let decoders = first_point("gpu_video_engine_active_ratio") + 4;
    let fifth = |reading: &Reading| reading.is_ok_and(|ratio| (199_000_000..=201_000_000).contains(&ratio));
    assert!(alone.readings[decoders..decoders + 7].iter().all(fifth));
    assert_eq!(alone.readings[decoders + 7], Err(Absence::NotSupported));
}

#[test]
fn known_metrics_are_read_alone_if_the_driver_refuses_a_request_with_unknown_ones() {
    const ENGINE: usize = first_point("gpu_gr_engine_active_ratio");
    let mut world = World::new(&scenario("590.48.01", H100, ""), false);
    world.run(3);
    world.set_faults(r#"[{"function": "nvmlGpmMetricsGet", "code": 2}]"#);
    assert_eq!(world.tick().readings[ENGINE], Err(Absence::Failed));
    world.set_faults("[]");
    assert!(
        world.tick().counters[0].is_ok(),
        "a driver that refuses the shorter request too has another reason, so nothing is left out"
    );
    // It refuses the whole request once, and then returns the shorter one.
    world.set_faults(r#"[{"function": "nvmlGpmMetricsGet", "code": 2, "chance": 0.5}]"#);
    let is_short_request =
        |frame: &Frame| frame.readings[ENGINE].is_ok() && frame.counters[0] == Err(Absence::NotSupported);
    assert!((0..40).any(|_| is_short_request(&world.tick())));
    world.set_faults("[]");
    assert!(world.run(5).iter().all(is_short_request));
}
