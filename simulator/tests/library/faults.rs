//! Faults: a held driver, garbage, times, chances, and realistic call times.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{EIGHT, Node, PATIENCE, SECOND, wait_until};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

#[test]
fn a_call_that_holds_the_driver_blocks_every_gpu_until_it_returns() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.faults(r#"[{"function":"nvmlDeviceGetPowerUsage","gpu":3,"hang":true,"lock":true}]"#);
    thread::scope(|scope| {
        let lift = Lift(node.path("faults"));
        let (done, came) = mpsc::channel();
        let gpus = &nvml;
        let faulty = done.clone();
        scope.spawn(move || {
            gpus.device_by_index(3).unwrap().power_usage().unwrap();
            faulty.send("faulty").unwrap();
        });
        wait_until("a call that holds the driver", || held(&node));
        scope.spawn(move || {
            // Another GPU, and a call without a fault.
            gpus.device_by_index(2).unwrap().uuid().unwrap();
            done.send("healthy").unwrap();
        });
        assert!(came.recv_timeout(Duration::from_millis(300)).is_err());
        drop(lift);
        let mut over = [(); 2].map(|()| came.recv_timeout(PATIENCE).unwrap());
        over.sort_unstable();
        assert_eq!(over, ["faulty", "healthy"]);
    });
}

/// Removes the faults on drop, by a failing assertion too: the hung call would never return.
struct Lift(PathBuf);

impl Drop for Lift {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether a call holds the driver: its file is locked.
fn held(node: &Node) -> bool {
    File::open(node.path(".driver")).is_ok_and(|file| {
        let is_held = file.try_lock().is_err();
        // A child that another test is starting has it open too until it executes.
        let _ = file.unlock();
        is_held
    })
}

#[test]
fn a_fault_is_in_force_between_its_simulated_times() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    node.faults(r#"[{"function":"nvmlDeviceGetPowerUsage","gpu":1,"code":999,"from":10,"to":20}]"#);
    for (second, faulty) in [(9, false), (10, true), (19, true), (20, false)] {
        node.hold(second * SECOND);
        assert_eq!(gpu.power_usage().is_err(), faulty, "at {second}");
    }
}

#[test]
fn a_fault_by_chance_hits_its_share_of_calls() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    node.faults(r#"[{"function":"nvmlDeviceGetPowerUsage","code":10,"chance":0.3}]"#);
    let failed = (0..1_000).filter(|_| matches!(gpu.power_usage(), Err(NvmlError::Timeout))).count();
    assert!((230..370).contains(&failed), "{failed}");
}

#[test]
fn garbage_values_are_impossible() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let truth = nvml.device_by_index(0).unwrap().total_energy_consumption().unwrap();
    node.faults(r#"[{"function":"*","garbage":true}]"#);
    let lib = nvml.lib();
    let mut count = 0;
    assert_eq!(unsafe { lib.nvmlDeviceGetCount_v2.as_ref().unwrap()(&raw mut count) }, 0);
    assert_eq!(count, u32::MAX);
    let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
    assert_eq!(unsafe { lib.nvmlDeviceGetUtilizationRates.as_ref().unwrap()(device, &raw mut rates) }, 0);
    assert_eq!(rates.gpu, 250);
    let (mut percent, mut period) = (0, 0);
    let encoder = lib.nvmlDeviceGetEncoderUtilization.as_ref().unwrap();
    assert_eq!(unsafe { encoder(device, &raw mut percent, &raw mut period) }, 0);
    assert_eq!(percent, 250);
    let mut memory = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
    assert_eq!(unsafe { lib.nvmlDeviceGetMemoryInfo.as_ref().unwrap()(device, &raw mut memory) }, 0);
    assert_eq!((memory.total, memory.used), (u64::MAX, u64::MAX));
    let energy = lib.nvmlDeviceGetTotalEnergyConsumption.as_ref().unwrap();
    let seen: Vec<u64> = (0..20)
        .map(|_| {
            let mut now = 0;
            assert_eq!(unsafe { energy(device, &raw mut now) }, 0);
            now
        })
        .collect();
    assert!(seen.iter().any(|now| *now < truth) && seen.contains(&u64::MAX), "{seen:?}");
    let none = sys::nvmlProcessInfo_t { pid: 9, usedGpuMemory: 9, gpuInstanceId: 9, computeInstanceId: 9 };
    let mut infos = [none; 4];
    let mut count = 4;
    let list = lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().unwrap();
    assert_eq!(unsafe { list(device, &raw mut count, infos.as_mut_ptr()) }, 0);
    assert_eq!((count, infos.map(|info| info.pid)), (u32::MAX, [0, 0, 9, 9]));
    assert_eq!(infos.map(|info| info.usedGpuMemory), [u64::MAX, u64::MAX, 9, 9]);
}

#[test]
fn garbage_reaches_texts_fields_samples_and_metrics() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let gpu = nvml.device_by_index(0).unwrap();
    let device = unsafe { gpu.handle() };
    let first = gpu.gpm_sample().unwrap();
    node.hold(25 * SECOND);
    let second = gpu.gpm_sample().unwrap();
    node.faults(r#"[{"function":"*","garbage":true}]"#);
    let lib = nvml.lib();
    let name = lib.nvmlDeviceGetName.as_ref().unwrap();
    let (mut endless, mut foreign) = (0, 0);
    for _ in 0..20 {
        let mut buffer = [1_i8; 96];
        assert_eq!(unsafe { name(device, buffer.as_mut_ptr().cast(), 96) }, 0);
        endless += u32::from(!buffer.contains(&0));
        let bytes: Vec<u8> = buffer.iter().map(|byte| byte.cast_unsigned()).collect();
        foreign += u32::from(String::from_utf8(bytes).is_err());
    }
    assert!(endless > 0 && foreign > 0 && endless + foreign == 20, "{endless} {foreign}");
    let mut field: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    field.fieldId = 186;
    assert_eq!(unsafe { lib.nvmlDeviceGetFieldValues.as_ref().unwrap()(device, 1, &raw mut field) }, 0);
    assert_eq!((field.nvmlReturn, field.timestamp, unsafe { field.value.ullVal }), (0, i64::MAX, u64::MAX));
    let metrics = [nvml_wrapper::enums::gpm::GpmMetricId::SmUtil; 12];
    let values = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &first, &second, &metrics).unwrap();
    let values: Vec<f64> = values.into_iter().map(|metric| metric.unwrap().value).collect();
    assert!(values.iter().all(|value| !(0.0..=100.0).contains(value)), "{values:?}");
    assert!(values.iter().any(|value| value.is_nan()) && values.iter().any(|value| value.is_infinite()));
    let mut samples: [sys::nvmlProcessUtilizationSample_t; 64] = unsafe { std::mem::zeroed() };
    let mut count = 64;
    let read = lib.nvmlDeviceGetProcessUtilization.as_ref().unwrap();
    assert_eq!(unsafe { read(device, samples.as_mut_ptr(), &raw mut count, 0) }, 0);
    let [sample, ..] = samples;
    assert_eq!((sample.pid, sample.smUtil), (0, 250));
    assert!(sample.timeStamp > crate::support::BEGUN / 1_000 * 100);
    // The same calls of another process are corrupted alike, and without the fault the answers are right again.
    node.faults("[]");
    assert_eq!(gpu.name().unwrap(), "NVIDIA H100 80GB HBM3 (simulated)");
}

#[test]
fn calls_with_realistic_delays_take_the_time_of_real_ones() {
    let node = Node::new(&EIGHT.replacen('{', r#"{"delays":"realistic","#, 1));
    let nvml = node.nvml();
    // Measured from before the first call: one that overslept shortens the next ones, so only the sum is certain.
    let begun = Instant::now();
    let gpu = nvml.device_by_index(0).unwrap();
    gpu.pcie_throughput(nvml_wrapper::enum_wrappers::device::PcieUtilCounter::Send).unwrap();
    // 11.6 us each.
    for _ in 0..1_000 {
        gpu.memory_info().unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_micros(20_000 + 11_400), "{:?}", begun.elapsed());
}
