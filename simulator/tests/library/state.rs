//! The state file: changes of hardware and driver while clients run.

use std::ffi::{c_char, c_void};
use std::fs;

use crate::support::{EIGHT, Node, SECOND};
use libloading::Library;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

const MIG: &str = r#"{"seed":2,"cycle_seconds":60,"gpus":[{"profile":"h100"},{"profile":"h100","mig":[
        {"profile":"3g.40gb","start":4},{"profile":"1g.10gb","start":2}]}],
    "processes":[
        {"pid":7,"gpu":1,"instance":0,"phases":[{"from":0,"to":60,"demand":1.0,"memory_bytes":1048576}]},
        {"pid":8,"gpu":1,"instance":1,"phases":[{"from":0,"to":60,"demand":0.5,"memory_bytes":2097152}]}]}"#;

/// The library, which stays loaded across shutdowns.
struct RawLibrary(Library);

impl RawLibrary {
    fn new(node: &Node) -> Self {
        Self(unsafe { Library::new(node.library()) }.unwrap())
    }

    fn call(&self, name: &str) -> u32 {
        let function = unsafe { self.0.get::<unsafe extern "C" fn() -> u32>(name.as_bytes()) };
        unsafe { function.unwrap()() }
    }

    fn count(&self) -> Result<u32, u32> {
        let mut count = 0;
        let name = b"nvmlDeviceGetCount_v2";
        let function = unsafe { self.0.get::<unsafe extern "C" fn(*mut u32) -> u32>(name) }.unwrap();
        match unsafe { function(&raw mut count) } {
            0 => Ok(count),
            code => Err(code),
        }
    }

    fn handle(&self, index: u32) -> Result<*mut c_void, u32> {
        let mut device = std::ptr::null_mut();
        type Function = unsafe extern "C" fn(u32, *mut *mut c_void) -> u32;
        let function = unsafe { self.0.get::<Function>(b"nvmlDeviceGetHandleByIndex_v2") }.unwrap();
        match unsafe { function(index, &raw mut device) } {
            0 => Ok(device),
            code => Err(code),
        }
    }

    fn energy(&self, device: *mut c_void) -> Result<u64, u32> {
        let mut energy = 0;
        type Function = unsafe extern "C" fn(*mut c_void, *mut u64) -> u32;
        let function = unsafe { self.0.get::<Function>(b"nvmlDeviceGetTotalEnergyConsumption") }.unwrap();
        match unsafe { function(device, &raw mut energy) } {
            0 => Ok(energy),
            code => Err(code),
        }
    }

    fn uuid(&self, device: *mut c_void) -> Result<String, u32> {
        let mut buffer = [0 as c_char; 96];
        type Function = unsafe extern "C" fn(*mut c_void, *mut c_char, u32) -> u32;
        let function = unsafe { self.0.get::<Function>(b"nvmlDeviceGetUUID") }.unwrap();
        match unsafe { function(device, buffer.as_mut_ptr(), 96) } {
            0 => Ok(unsafe { std::ffi::CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned()),
            code => Err(code),
        }
    }
}

fn init(node: &Node) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(node.library().as_os_str()).init()
}

#[test]
fn unloading_the_driver_ends_every_session_and_a_new_load_counts_from_zero() {
    let node = Node::new(EIGHT);
    let library = RawLibrary::new(&node);
    assert_eq!(library.call("nvmlInit_v2"), 0);
    node.hold(30 * SECOND);
    let device = library.handle(0).unwrap();
    let before = library.energy(device).unwrap();
    assert!(before > 1_000_000);
    node.state(r#"{"driver":{"loaded":false}}"#);
    assert_eq!((library.energy(device), library.count()), (Err(999), Err(999)));
    assert_eq!(library.call("nvmlInit_v2"), 9);
    node.hold(40 * SECOND);
    node.state(r#"{"driver":{"epoch":2}}"#);
    // Loaded again, but former sessions stay invalid.
    assert_eq!((library.energy(device), library.count()), (Err(1), Err(1)));
    assert_eq!(library.call("nvmlShutdown"), 0);
    assert_eq!(library.call("nvmlInit_v2"), 0);
    assert_eq!(library.energy(device), Err(2), "a handle of the former driver");
    let device = library.handle(0).unwrap();
    assert_eq!(library.energy(device), Ok(0));
    node.hold(41 * SECOND);
    let after = library.energy(device).unwrap();
    assert!(after > 50_000 && after < before, "{after}");
    assert_eq!(library.call("nvmlShutdown"), 0);
    // The sums of the truth continue; without a driver no work was done.
    let truth = node.read("truth");
    let energy = truth.split("\"energy_uj\":").nth(1).unwrap().split('}').next().unwrap();
    let energy = energy.parse::<u64>().unwrap() / 1_000;
    assert!(energy.abs_diff(before + after) <= 1, "{energy} is not {before} and {after}");
}

#[test]
fn a_new_epoch_is_a_driver_reload() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    node.hold(10 * SECOND);
    assert!(gpu.total_energy_consumption().unwrap() > 0);
    node.state(r#"{"driver":{"epoch":7}}"#);
    assert!(matches!(gpu.total_energy_consumption(), Err(NvmlError::Uninitialized)));
    node.state(r#"{"driver":{"epoch":7}, "xids":[]}"#);
    assert!(matches!(gpu.total_energy_consumption(), Err(NvmlError::Uninitialized)));
    drop(nvml);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.total_energy_consumption().unwrap(), 0);
    assert_eq!(gpu.pcie_replay_counter().unwrap(), 0);
}

#[test]
fn a_driver_of_another_version_needs_the_library_reloaded() {
    let node = Node::new(EIGHT);
    let library = RawLibrary::new(&node);
    assert_eq!(library.call("nvmlInit_v2"), 0);
    assert_eq!(library.call("nvmlShutdown"), 0);
    node.state(r#"{"driver":{"version":"590.48.01","epoch":2}}"#);
    assert_eq!(library.call("nvmlInit_v2"), 18);
    assert_eq!(library.count(), Err(1));
    drop(library);
    assert_eq!(node.nvml().sys_driver_version().unwrap(), "590.48.01");
    node.state(r#"{"driver":{"version":"590.48.01","epoch":2,"library":"old"}}"#);
    assert!(matches!(init(&node), Err(NvmlError::LibRmVersionMismatch)));
    fs::remove_file(node.path("state")).unwrap();
    assert_eq!(node.nvml().sys_driver_version().unwrap(), "580.105.08");
}

#[test]
fn a_library_loaded_before_its_driver_changed_is_refused_at_its_first_init() {
    let node = Node::new(EIGHT);
    let library = RawLibrary::new(&node);
    node.state(r#"{"driver":{"version":"590.48.01"}}"#);
    assert_eq!(library.call("nvmlInit_v2"), 18);
    drop(library);
    assert_eq!(RawLibrary::new(&node).call("nvmlInit_v2"), 0);
}

#[test]
fn a_lost_gpu_fails_every_call_is_counted_and_can_return() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let (lost, well) = (nvml.device_by_index(3).unwrap(), nvml.device_by_index(4).unwrap());
    node.hold(10 * SECOND);
    let before = lost.total_energy_consumption().unwrap();
    node.state(r#"{"gpus":{"3":{"state":"lost"}}}"#);
    assert!(matches!(lost.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::GpuLost)));
    assert!(well.power_usage().is_ok());
    assert_eq!(init(&node).unwrap().device_count().unwrap(), 8);
    node.hold(20 * SECOND);
    fs::remove_file(node.path("state")).unwrap();
    assert_eq!(lost.total_energy_consumption().unwrap(), before);
    node.hold(21 * SECOND);
    assert!(lost.total_energy_consumption().unwrap() > before);
}

#[test]
fn a_removed_gpu_is_not_counted_after_the_next_init() {
    for state in ["gone", "guest"] {
        let node = Node::new(EIGHT);
        let library = RawLibrary::new(&node);
        assert_eq!(library.call("nvmlInit_v2"), 0);
        let (gone, next) = (library.handle(3).unwrap(), library.handle(4).unwrap());
        let uuid = library.uuid(next).unwrap();
        node.state(&format!(r#"{{"gpus":{{"3":{{"state":"{state}"}}}}}}"#));
        assert_eq!((library.energy(gone), library.count()), (Err(15), Ok(8)));
        assert_eq!(library.call("nvmlShutdown"), 0);
        assert_eq!(library.call("nvmlInit_v2"), 0);
        assert_eq!((library.energy(gone), library.count()), (Err(15), Ok(7)));
        assert_eq!(library.uuid(library.handle(3).unwrap()), Ok(uuid), "the next GPU has its index");
        assert_eq!(library.handle(7), Err(2));
        // A new session counts it again.
        node.state("{}");
        assert_eq!((library.energy(gone), library.count()), (Err(15), Ok(7)));
        assert_eq!(library.call("nvmlShutdown"), 0);
        assert_eq!(library.call("nvmlInit_v2"), 0);
        assert_eq!(library.count(), Ok(8));
        assert_eq!(library.call("nvmlShutdown"), 0);
    }
}

#[test]
fn a_replaced_board_has_another_uuid() {
    let node = Node::new(EIGHT);
    let library = RawLibrary::new(&node);
    assert_eq!(library.call("nvmlInit_v2"), 0);
    node.hold(10 * SECOND);
    let old = library.handle(3).unwrap();
    let uuid = library.uuid(old).unwrap();
    node.state(r#"{"gpus":{"3":{"state":"replaced","uuid_seed":5}}}"#);
    assert_eq!(library.energy(old), Err(15));
    assert_eq!(library.call("nvmlShutdown"), 0);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(3).unwrap();
    let (bus, other) = (gpu.pci_info().unwrap().bus_id, gpu.uuid().unwrap());
    assert_ne!(other, uuid);
    assert_eq!(bus, "00000000:5B:00.0");
    assert_eq!(gpu.total_energy_consumption().unwrap(), 0);
    assert_eq!(library.energy(old), Err(15));
    drop(nvml);
    node.state(r#"{"gpus":{"3":{"state":"replaced","uuid_seed":6}}}"#);
    assert_ne!(node.nvml().device_by_index(3).unwrap().uuid().unwrap(), other);
}

#[test]
fn a_gpu_that_needs_a_reset_fails_calls_with_that_code() {
    let node = Node::new(EIGHT);
    let library = RawLibrary::new(&node);
    assert_eq!(library.call("nvmlInit_v2"), 0);
    node.state(r#"{"gpus":{"2":{"state":"reset_required"}}}"#);
    assert_eq!(library.energy(library.handle(2).unwrap()), Err(16));
    assert_eq!(library.call("nvmlShutdown"), 0);
}

#[test]
fn a_process_continues_under_a_new_pid_and_stops_without_one() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"}],"processes":[
            {"pid":7,"name":"one","gpu":0,"phases":[{"from":0,"to":60,"demand":0.5,"memory_bytes":1048576}]},
            {"pid":8,"name":"two","gpu":0,"phases":[{"from":0,"to":60,"demand":0.2,"memory_bytes":1048576}]}]}"#,
    );
    let nvml = node.nvml();
    node.hold(10 * SECOND);
    let gpu = nvml.device_by_index(0).unwrap();
    let pids = || -> Vec<u32> {
        gpu.running_compute_processes().unwrap().iter().map(|process| process.pid).collect()
    };
    assert_eq!(pids(), [7, 8]);
    let energy = gpu.total_energy_consumption().unwrap();
    node.state(r#"{"pids":{"7":4242,"8":null}}"#);
    assert_eq!(pids(), [4242]);
    assert_eq!(nvml.sys_process_name(4242, 64).unwrap(), "one");
    assert_eq!(gpu.total_energy_consumption().unwrap(), energy);
    node.hold(20 * SECOND);
    nvml.device_by_index(0).unwrap();
    node.state("{}");
    assert_eq!(pids(), [7, 8]);
    drop(nvml);
    let truth: serde_json::Value = serde_json::from_str(&node.read("truth")).unwrap();
    let busy = |at: usize| truth["processes"][at]["busy_ns"].as_u64().unwrap() / SECOND;
    // 10 s of both, then 10 s of the first only.
    assert!((9..=11).contains(&busy(0)) && (1..=3).contains(&busy(1)), "{truth}");
    let node = Node::new(MIG);
    let nvml = node.nvml();
    node.state(r#"{"pids":{"9":1}}"#);
    nvml.device_by_index(0).unwrap();
    assert!(node.read("error").contains("no process 9"));
}

#[test]
fn a_mig_layout_can_change_while_the_gpu_runs() {
    let node = Node::new(MIG);
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let parent = nvml.device_by_index(1).unwrap();
    let events = nvml.create_event_set().unwrap();
    let events = parent.register_events(EventTypes::MIG_CONFIG_CHANGE, events).unwrap();
    let old = parent.mig_device_by_index(0).unwrap();
    let (uuid, energy) = (old.uuid().unwrap(), parent.total_energy_consumption().unwrap());
    node.state(r#"{"mig":{"1":[{"profile":"3g.40gb","start":4}]}}"#);
    // One instance is removed and the other created again under the same id.
    assert!(matches!(old.uuid(), Err(NvmlError::InvalidArg)));
    let new = parent.mig_device_by_index(0).unwrap();
    assert_ne!(new.uuid().unwrap(), uuid);
    assert!(matches!(parent.mig_device_by_index(1), Err(NvmlError::NotFound)));
    let processes = parent.running_compute_processes().unwrap();
    let places: Vec<_> = processes.iter().map(|process| (process.pid, process.gpu_instance_id)).collect();
    assert_eq!(places, [(7, Some(2))]);
    assert_eq!(parent.total_energy_consumption().unwrap(), energy);
    node.hold(31 * SECOND);
    let later = parent.total_energy_consumption().unwrap();
    assert!((60_000..700_000).contains(&(later - energy)), "{energy} {later}");
    let event = events.wait(0).unwrap();
    assert_eq!(event.device.index().unwrap(), 1);
    assert!(matches!(events.wait(0), Err(NvmlError::Timeout)));
    // MIG is off, also for another process.
    node.state(r#"{"mig":{"1":[]}}"#);
    assert_eq!(parent.mig_mode().unwrap().current, 0);
    assert!(parent.utilization_rates().is_ok() && parent.running_compute_processes().unwrap().is_empty());
    assert_eq!(parent.total_energy_consumption().unwrap(), later);
    drop((events.wait(0), nvml.device_count()));
    let whole = node.nvml();
    assert_eq!(whole.device_by_index(1).unwrap().total_energy_consumption().unwrap(), later);
}

#[test]
fn a_later_process_sees_the_time_of_a_change() {
    let node = Node::new(MIG);
    {
        let nvml = node.nvml();
        node.hold(30 * SECOND);
        node.state(r#"{"mig":{"1":[{"profile":"7g.80gb","start":0}]}}"#);
        nvml.device_count().unwrap();
    }
    node.hold(45 * SECOND);
    let read = || {
        let nvml = node.nvml();
        let gpu = nvml.device_by_index(1).unwrap();
        (gpu.total_energy_consumption().unwrap(), gpu.mig_device_by_index(0).unwrap().uuid().unwrap())
    };
    let first = read();
    assert_eq!(first, read());
    let settled = node.read("settled");
    assert!(settled.contains("\"at\":30000000000"), "{settled}");
}

#[test]
fn two_processes_agree_on_layouts_and_sums() {
    let node = Node::new(MIG);
    fs::copy(node.library(), node.path("second.so")).unwrap();
    let first = node.nvml();
    let second = Nvml::builder().lib_path(node.path("second.so").as_os_str()).init().unwrap();
    let seen = |nvml: &Nvml| {
        let gpu = nvml.device_by_index(1).unwrap();
        let uuid = gpu.mig_device_by_index(0).ok().map(|instance| instance.uuid().unwrap());
        (gpu.total_energy_consumption().unwrap(), uuid)
    };
    for step in 1..8_u64 {
        node.hold(step * 5 * SECOND);
        let start = if step % 2 == 0 { 0 } else { 4 };
        node.state(&format!(r#"{{"mig":{{"1":[{{"profile":"3g.40gb","start":{start}}}]}}}}"#));
        let (one, other) = if step % 3 == 0 { (&first, &second) } else { (&second, &first) };
        let there = seen(one);
        node.hold(step * 5 * SECOND + SECOND);
        let later = seen(other);
        assert!(later.0 > there.0 && later.1 == there.1, "{there:?} {later:?}");
        assert_eq!(seen(one), later);
    }
}

#[test]
fn after_many_layouts_the_sums_agree_and_the_settled_file_is_small() {
    let node = Node::new(MIG);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    let layouts = [
        r#"[{"profile":"2g.20gb","start":0},{"profile":"1g.10gb","start":3}]"#,
        "[]",
        r#"[{"profile":"4g.40gb","start":0},{"profile":"3g.40gb","start":4}]"#,
    ];
    let mut former = 0;
    for (step, layout) in layouts.iter().cycle().take(24).enumerate() {
        node.hold((step as u64 + 1) * 7 * SECOND + 3_000_000);
        let before = gpu.total_energy_consumption().unwrap();
        node.state(&format!(r#"{{"mig":{{"1":{layout}}}}}"#));
        let energy = gpu.total_energy_consumption().unwrap();
        assert_eq!(energy, before);
        assert!(energy > former);
        former = energy;
    }
    assert!(node.read("settled").len() < 16_384);
}

#[test]
fn an_invalid_state_file_keeps_the_former_state() {
    let node = Node::new(MIG);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    node.state(r#"{"gpus":{"0":{"state":"reset_required"}}}"#);
    assert!(gpu.power_usage().is_err());
    node.state(r#"{"gpus":{"0":{"state":"sad"}}}"#);
    assert!(gpu.power_usage().is_err());
    assert!(node.read("error").contains("sad"));
    node.state(r#"{"mig":{"0":[{"profile":"9g.90gb","start":0}]}}"#);
    assert!(gpu.power_usage().is_err());
    assert!(node.read("error").contains("unknown profile \"9g.90gb\""));
    node.state(r#"{"gpus":{"5":{"state":"lost"}}}"#);
    assert!(gpu.power_usage().is_err());
    assert!(node.read("error").contains("gpus: there is no gpu 5"));
    node.state("{}");
    assert!(gpu.power_usage().is_ok());
}

#[test]
fn device_files_are_open_from_init_to_shutdown() {
    let node = Node::new(EIGHT);
    let open = || {
        let entries = fs::read_dir("/proc/self/fd").unwrap();
        let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let here = links.filter(|path| path.starts_with(node.directory.path()));
        let names = here.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("nvidia")).collect();
        names.sort();
        names
    };
    assert!(open().is_empty());
    let nvml = node.nvml();
    assert_eq!(open().len(), 9);
    assert!(open().contains(&"nvidiactl".to_owned()) && open().contains(&"nvidia7".to_owned()));
    drop(nvml);
    assert!(open().is_empty());
}

/// The sent kibibytes of all links, by field 138.
fn sent_by_links(nvml: &Nvml, index: u32) -> u64 {
    let device = nvml.device_by_index(index).unwrap();
    let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    (value.fieldId, value.scopeId) = (138, u32::MAX);
    let call = nvml.lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
    assert_eq!(unsafe { call(device.handle(), 1, &raw mut value) }, 0);
    assert_eq!(value.nvmlReturn, 0);
    unsafe { value.value.ullVal }
}

#[test]
fn link_counters_continue_across_layouts_and_restart_with_the_driver() {
    let script = r#"{"seed":2,"cycle_seconds":60,"driver_loads":[90],"gpus":[{"profile":"h100"}],"processes":[
        {"pid":7,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0,"nvlink_tx":1024000000}]}]}"#;
    let node = Node::new(script);
    let nvml = node.nvml();
    node.hold(50 * SECOND);
    let before = sent_by_links(&nvml, 0);
    assert!(before.abs_diff(50_000_000) < 100, "{before}");
    node.state(r#"{"mig":{"0":[{"profile":"1g.10gb","start":0}]}}"#);
    nvml.device_count().unwrap();
    node.hold(55 * SECOND);
    node.state(r#"{"mig":{}}"#);
    // No traffic while the process had no instance.
    assert_eq!(sent_by_links(&nvml, 0), before);
    node.hold(65 * SECOND);
    let after = sent_by_links(&nvml, 0);
    assert!(after.abs_diff(60_000_000) < 100, "{after}");
    // The driver is reloaded at 90 s, and earlier traffic is not counted after another layout change either.
    node.hold(95 * SECOND);
    assert!(sent_by_links(&nvml, 0).abs_diff(5_000_000) < 100);
    let energy = || nvml.device_by_index(0).unwrap().total_energy_consumption().unwrap();
    let joules = energy();
    node.state(r#"{"mig":{"0":[{"profile":"1g.10gb","start":1}]}}"#);
    assert_eq!(energy(), joules);
    node.state("{}");
    assert!(sent_by_links(&nvml, 0).abs_diff(5_000_000) < 100);
    assert_eq!(energy(), joules);
}

#[test]
fn gpus_keep_their_module_when_a_neighbour_is_removed() {
    let node = Node::new(r#"{"gpus":[{"profile":"gb200","count":4}]}"#);
    let module = |nvml: &Nvml, index: u32| {
        let device = nvml.device_by_index(index).unwrap();
        let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        (value.fieldId, value.scopeId) = (186, 1);
        let call = nvml.lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
        assert_eq!(unsafe { call(device.handle(), 1, &raw mut value) }, 0);
        (unsafe { value.value.uiVal }, device.serial().unwrap())
    };
    let nvml = node.nvml();
    let (first, last) = (module(&nvml, 1), module(&nvml, 3));
    drop(nvml);
    node.state(r#"{"gpus":{"0":{"state":"gone"}}}"#);
    let nvml = node.nvml();
    assert_eq!(nvml.device_count().unwrap(), 3);
    // GPU 1 is alone on its module; GPUs 2 and 3 still share one.
    let alone = module(&nvml, 0);
    assert!(alone.1 == first.1 && alone.0 + 100_000 < first.0, "{alone:?} {first:?}");
    assert_eq!(module(&nvml, 2), last);
}
