//! Random states and faults while several threads call: nothing hangs or crashes, and every return code is possible.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Node, PATIENCE, SECOND};
use libloading::Library;
use nvml_wrapper_sys::bindings as sys;

const NODE: &str = r#"{"seed":4,"cycle_seconds":20,"gpus":[{"profile":"h100","count":2},
    {"profile":"h100","mig":[{"profile":"3g.40gb","start":4},{"profile":"1g.10gb","start":2}]},{"profile":"a100"}],
    "processes":[{"pid":7,"gpu":2,"instance":0,"phases":[{"from":0,"to":20,"demand":0.5}]},
                 {"pid":8,"gpu":0,"phases":[{"from":0,"to":20,"demand":0.5}]}],
    "xids":[{"at":3,"gpu":1,"xid":13}]}"#;

const STATES: [&str; 10] = [
    "{}",
    r#"{"mig":{"2":[]}}"#,
    r#"{"mig":{"2":{"mode":"on","instances":[]},"3":{"mode":"on"}}}"#,
    r#"{"mig":{"2":[{"profile":"7g.80gb","start":0}],"3":[{"profile":"1g.10gb","start":0}]}}"#,
    r#"{"gpus":{"0":{"state":"lost"},"1":{"state":"gone"}}}"#,
    r#"{"gpus":{"1":{"state":"replaced","uuid_seed":3},"3":{"state":"reset_required"}}}"#,
    r#"{"driver":{"loaded":false}}"#,
    r#"{"driver":{"epoch":9}}"#,
    r#"{"xids":[{"gpu":0,"xid":31,"per_second":20000,"count":50000}]}"#,
    "{broken",
];

const FAULTS: [&str; 4] = [
    "[]",
    r#"[{"function":"*","garbage":true}]"#,
    r#"[{"function":"nvmlDeviceGetPowerUsage","delay_us":300,"lock":true}]"#,
    r#"[{"function":"nvmlDeviceGetUUID","hang":true,"chance":0.5}]"#,
];

/// The possible codes: success, uninitialized, invalid argument, not supported, not found, insufficient size, driver not
/// loaded, timeout, GPU lost, reset required, unknown.
const POSSIBLE: [u32; 11] = [0, 1, 2, 3, 6, 7, 9, 10, 15, 16, 999];

type Call = unsafe extern "C" fn(*mut (), *mut (), *mut (), *mut ()) -> u32;

/// Calls init, many functions and shutdown repeatedly.
fn client(library: &Library, over: &AtomicBool, sessions: &AtomicU64) {
    let call = |name: &str, first: *mut (), second: *mut (), third: *mut (), fourth: *mut ()| {
        let function = unsafe { library.get::<Call>(name.as_bytes()) }.unwrap();
        let code = unsafe { function(first, second, third, fourth) };
        assert!(POSSIBLE.contains(&code), "{name} answers {code}");
        code
    };
    let none = std::ptr::null_mut();
    let number = std::ptr::without_provenance_mut;
    let mut room = [0_u64; 4_096];
    while !over.load(Ordering::Relaxed) {
        if call("nvmlInit_v2", none, none, none, none) != 0 {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        sessions.fetch_add(1, Ordering::Relaxed);
        let mut set: *mut () = none;
        call("nvmlEventSetCreate", (&raw mut set).cast(), none, none, none);
        for round in 0..40 {
            let mut device: *mut () = none;
            let index = number(round % 4);
            if call("nvmlDeviceGetHandleByIndex_v2", index, (&raw mut device).cast(), none, none) != 0 {
                continue;
            }
            call("nvmlDeviceRegisterEvents", device, number(0x108), set, none);
            let buffer = || room.as_ptr().cast_mut().cast::<()>();
            for name in [
                "nvmlDeviceGetPowerUsage",
                "nvmlDeviceGetUtilizationRates",
                "nvmlDeviceGetTotalEnergyConsumption",
            ] {
                call(name, device, buffer(), none, none);
            }
            call("nvmlDeviceGetUUID", device, buffer(), number(96), none);
            let mut count = 64_u32;
            call("nvmlDeviceGetComputeRunningProcesses_v3", device, (&raw mut count).cast(), buffer(), none);
            let mut instance: *mut () = none;
            if call("nvmlDeviceGetMigDeviceHandleByIndex", device, none, (&raw mut instance).cast(), none)
                == 0
            {
                call("nvmlDeviceGetMemoryInfo", instance, buffer(), none, none);
            }
            let mut event: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
            call("nvmlEventSetWait_v2", set, (&raw mut event).cast(), none, none);
        }
        room.fill(0);
        call("nvmlShutdown", none, none, none, none);
    }
}

/// Waits until that many more sessions have begun; returns false if the time is over before.
fn wait_for_sessions(sessions: &AtomicU64, more: u64, patience: Duration) -> bool {
    let (before, begun) = (sessions.load(Ordering::Relaxed), Instant::now());
    while sessions.load(Ordering::Relaxed) < before + more {
        if begun.elapsed() > patience {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn clients_survive_random_states_and_faults() {
    let node = Node::new(NODE);
    let library = unsafe { Library::new(node.library()) }.unwrap();
    let (over, sessions) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut lot, mut energy) = (17_u64, 0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| client(&library, &over, &sessions));
        }
        for step in 1..=60_u64 {
            lot = lot.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            node.hold(step * SECOND);
            let pick = usize::try_from(lot >> 33).unwrap();
            fs::write(node.path("faults"), FAULTS[pick / 16 % FAULTS.len()]).unwrap();
            node.state(STATES[pick % STATES.len()]);
            // Some faults and states let no session begin.
            wait_for_sessions(&sessions, 2, Duration::from_millis(30));
        }
        fs::write(node.path("faults"), "[]").unwrap();
        node.state("{}");
        let has_sessions = wait_for_sessions(&sessions, 10, PATIENCE);
        over.store(true, Ordering::Relaxed);
        assert!(has_sessions, "clients begin no sessions without faults");
    });
    drop(library);
    // The truth of a GPU that was never replaced never decreases.
    let nvml = node.nvml();
    for second in 61..65 {
        node.hold(second * SECOND);
        nvml.device_count().unwrap();
        let truth = node.read("truth");
        let now: u64 =
            truth.split("\"energy_uj\":").nth(1).unwrap().split('}').next().unwrap().parse().unwrap();
        assert!(now > energy, "{truth}");
        energy = now;
    }
}
