//! The directory: clock, faults, truth, calls, errors; and that the library can be unloaded.

use std::cell::Cell;
use std::ffi::c_void;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{EIGHT, Node, PATIENCE, SECOND, wait_until};
use libloading::Library;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// All readings that change with time, as text.
fn portrait(nvml: &Nvml) -> String {
    let mut text = String::new();
    for index in 0..nvml.device_count().unwrap() {
        let gpu = nvml.device_by_index(index).unwrap();
        let parts = [
            format!("{:?}", gpu.utilization_rates()),
            format!("{:?}", gpu.power_usage()),
            format!("{:?}", gpu.total_energy_consumption()),
            format!("{:?}", gpu.running_compute_processes()),
            format!("{:?}", gpu.process_utilization_stats(None)),
            format!("{:?}", gpu.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu)),
            format!("{:?}", gpu.uuid()),
        ];
        text.push_str(&parts.join("\n"));
    }
    text
}

#[test]
fn a_held_clock_gives_the_same_answers_until_it_is_moved() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(12_345_678_901);
    let (first, begun) = (portrait(&nvml), Instant::now());
    while begun.elapsed() < Duration::from_millis(20) {
        assert_eq!(first, portrait(&nvml));
    }
    node.hold(13 * SECOND);
    assert_ne!(first, portrait(&nvml));
    node.hold(12_345_678_901);
    assert_eq!(first, portrait(&nvml));
}

/// This test runs itself in a second process, which prints its readings.
#[test]
fn two_processes_agree_at_the_same_held_clock() {
    const OTHER: &str = "GPUMETER_SIMULATOR_OTHER_READER";
    if let Ok(library) = std::env::var(OTHER) {
        let nvml = Nvml::builder().lib_path(library.as_ref()).init().unwrap();
        fs::write(Path::new(&library).with_file_name("seen"), portrait(&nvml)).unwrap();
        return;
    }
    let node = Node::new(EIGHT);
    node.hold(31 * SECOND);
    let here = portrait(&node.nvml());
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "channel::two_processes_agree_at_the_same_held_clock"])
        .env(OTHER, node.library())
        .output()
        .unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    assert_eq!(here, node.read("seen"));
}

#[test]
fn two_copies_in_one_process_are_two_nodes() {
    let eight = Node::new(EIGHT);
    let one = Node::new(r#"{"seed":9,"gpus":[{"profile":"h100"}]}"#);
    let (first, second) = (eight.nvml(), one.nvml());
    assert_eq!((first.device_count().unwrap(), second.device_count().unwrap()), (8, 1));
    let uuid = |nvml: &Nvml| nvml.device_by_index(0).unwrap().uuid().unwrap();
    assert_ne!(uuid(&first), uuid(&second));
    eight.hold(15 * SECOND);
    first.device_count().unwrap();
    second.device_count().unwrap();
    assert!(eight.read("truth").contains("\"elapsed_ns\":15000000000"));
    assert!(one.read("truth").contains("\"elapsed_ns\":0,"));
}

#[test]
fn a_hang_blocks_only_its_gpu_until_the_fault_is_removed() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.faults(r#"[{"function":"nvmlDeviceGetPowerUsage","gpu":3,"hang":true}]"#);
    thread::scope(|scope| {
        let (done, came) = mpsc::channel();
        let gpus = &nvml;
        scope.spawn(move || {
            let third = gpus.device_by_index(3).unwrap();
            done.send(third.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu).is_ok())
                .unwrap();
            done.send(third.power_usage().is_ok()).unwrap();
        });
        assert!(came.recv_timeout(PATIENCE).unwrap());
        // Calls are counted in a file, which is written when the clock has moved.
        let second = Cell::new(0);
        wait_until("the hung call", || {
            second.set(second.get() + 1);
            node.hold(second.get() * SECOND);
            assert!(nvml.device_by_index(2).unwrap().uuid().is_ok());
            node.read("calls").contains("\"nvmlDeviceGetPowerUsage\":1")
        });
        for _ in 0..100 {
            assert!(nvml.device_by_index(2).unwrap().power_usage().is_ok());
        }
        assert!(came.try_recv().is_err());
        fs::remove_file(node.path("faults")).unwrap();
        assert!(came.recv_timeout(PATIENCE).unwrap());
    });
}

#[test]
fn a_fault_with_a_delay_slows_a_call() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.faults(r#"[{"function":"*","gpu":1,"delay_ms":80}]"#);
    let gpu = nvml.device_by_index(1).unwrap();
    let begun = Instant::now();
    gpu.power_usage().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(80));
}

#[test]
fn a_fault_with_a_code_replaces_the_answer() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let (lost, well) = (nvml.device_by_index(5).unwrap(), nvml.device_by_index(6).unwrap());
    node.faults(r#"[{"function":"*","gpu":5,"code":15},{"function":"nvmlInit_v2","code":9}]"#);
    assert!(matches!(lost.power_usage(), Err(NvmlError::GpuLost)));
    assert!(well.power_usage().is_ok());
    assert!(matches!(
        Nvml::builder().lib_path(node.library().as_os_str()).init(),
        Err(NvmlError::DriverNotLoaded)
    ));
    assert!(well.power_usage().is_ok());
    node.faults("[]");
    assert!(lost.power_usage().is_ok());
}

#[test]
fn truth_and_calls_follow_the_held_clock() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    for _ in 0..3 {
        gpu.power_usage().unwrap();
    }
    node.hold(7 * SECOND);
    gpu.power_usage().unwrap();
    let (truth, calls) = (node.read("truth"), node.read("calls"));
    assert!(truth.starts_with(r#"{"elapsed_ns":7000000000,"gpus":[{"uuid":"GPU-"#), "{truth}");
    assert!(truth.contains(r#"{"pid":4212,"gpu":0,"instance":null,"busy_ns":0}"#), "{truth}");
    assert!(calls.contains(r#""nvmlDeviceGetPowerUsage":4"#), "{calls}");
    assert!(calls.contains(&format!(r#""pid":{}"#, std::process::id())), "{calls}");
}

#[test]
fn an_invalid_scenario_fails_init_with_the_place_of_the_error() {
    let node = Node::new(r#"{"gpus":[{"profile":"h101"}]}"#);
    assert!(Nvml::builder().lib_path(node.library().as_os_str()).init().is_err());
    let error = node.read("error");
    assert!(error.contains("/scenario: gpus[0]: unknown profile \"h101\"; there are h100"), "{error}");
    fs::write(node.path("scenario"), EIGHT).unwrap();
    assert_eq!(node.nvml().device_count().unwrap(), 8);
    assert!(!node.path("error").exists());
    fs::remove_file(node.path("scenario")).unwrap();
    assert!(Nvml::builder().lib_path(node.library().as_os_str()).init().is_err());
}

#[test]
fn a_read_only_directory_fails_no_call() {
    let node = Node::new(EIGHT);
    // Not by permission bits, which root ignores.
    fs::create_dir_all(node.path("truth/in the way")).unwrap();
    fs::create_dir_all(node.path("calls/in the way")).unwrap();
    assert_eq!(node.nvml().device_count().unwrap(), 8);
}

type Call = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize, usize, usize) -> u32;

/// The names of all exported functions, from the source.
fn functions() -> Vec<String> {
    let mut names = Vec::new();
    let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi")];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let functions = text.split("fn nvml").skip(1).filter_map(|rest| rest.split_once('('));
        names.extend(functions.map(|(name, _)| format!("nvml{name}")));
    }
    names.sort();
    names
}

fn call(library: &Library, name: &str, first: *mut c_void, second: *mut c_void) -> u32 {
    let function = unsafe { library.get::<Call>(name.as_bytes()) };
    let function = function.unwrap_or_else(|error| unreachable!("{name} is not exported: {error}"));
    unsafe { function(first, second, 0, 0, 0, 0) }
}

/// Whether the first argument is a device.
fn takes_device(name: &str) -> bool {
    // The drain state takes a PCI place: a drained GPU has no handle.
    let finds = ["nvmlDeviceGetHandleBy", "nvmlDeviceGetCount", "nvmlDeviceQueryDrain"]
        .iter()
        .any(|start| name.starts_with(start));
    let gpm = ["nvmlGpmSampleGet", "nvmlGpmMigSampleGet"].contains(&name) || name.starts_with("nvmlGpmQuery");
    (name.starts_with("nvmlDevice") && !finds) || gpm
}

#[test]
fn nothing_is_left_after_every_function_was_called_and_the_library_closed() {
    let node = Node::new(EIGHT);
    let library = ManuallyDrop::new(unsafe { Library::new(node.library()) }.unwrap());
    let names = functions();
    assert!(names.len() > 120, "{names:?}");
    let marker = unsafe { library.get::<*const u32>(b"gpumeter_simulated") }.unwrap();
    assert_eq!(unsafe { **marker }, 1);
    let (called, closing) = mpsc::channel();
    let (close, closed) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Dropped by a failing assertion too, so that the thread does not wait for ever.
        let close = close;
        let (library_there, names) = (&*library, &names);
        let caller = scope.spawn(move || {
            call_all(library_there, names);
            called.send(()).unwrap();
            // The thread ends only after the library is closed: a destructor of a thread-local would crash here.
            let _ = closed.recv();
        });
        closing.recv_timeout(PATIENCE).unwrap();
        // The thread no longer uses the library.
        let handle = unsafe { std::ptr::read(&raw const *library) };
        assert!(mapped(&node), "the check itself is broken");
        handle.close().unwrap();
        assert!(!mapped(&node), "pinned by a thread that called it");
        close.send(()).unwrap();
        caller.join().unwrap();
    });
    assert!(!mapped(&node));
}

/// Whether the library or its clock page is mapped into this process.
fn mapped(node: &Node) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(node.directory.path().to_str().unwrap())
}

fn call_all(library: &Library, names: &[String]) {
    let mut buffer = [0_u64; 4096];
    let mut room = || {
        buffer.fill(0);
        buffer.as_mut_ptr().cast::<c_void>()
    };
    let null = std::ptr::null_mut();
    for name in names.iter().filter(|name| takes_device(name)) {
        assert_eq!(call(library, name, null, null), 1, "{name} before init");
    }
    assert_eq!(call(library, "nvmlInit_v2", null, null), 0);
    let mut device: *mut c_void = null;
    assert_eq!(call(library, "nvmlDeviceGetHandleByIndex_v2", null, (&raw mut device).cast()), 0);
    let skipped = ["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"];
    for name in names.iter().filter(|name| !skipped.contains(&name.as_str())) {
        if takes_device(name) {
            assert_eq!(call(library, name, 0x1234 as *mut c_void, room()), 2, "{name} with a wrong handle");
            call(library, name, device, null);
            call(library, name, device, room());
        } else {
            call(library, name, null, null);
            call(library, name, room(), null);
        }
    }
    assert_eq!(call(library, "nvmlInit", null, null), 0);
    assert_eq!(call(library, "nvmlShutdown", null, null), 0);
    assert_eq!(call(library, "nvmlShutdown", null, null), 0);
    assert_eq!(call(library, "nvmlShutdown", null, null), 1);
}
