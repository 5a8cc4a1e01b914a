//! MIG: profiles of boards, instances by handle, several compute instances in one GPU instance.

use std::mem;
use std::ptr;

use crate::support::{Node, SECOND};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

/// H200 at driver 590: two compute instances in one 3g, and a 1g beside it.
const SHARED: &str = r#"{"seed":5,"cycle_seconds":60,"gpus":[{"profile":"h200","mig":[
        {"profile":"1g.18gb","start":0},
        {"profile":"3g.71gb","start":4,"compute":["1c.3g.71gb","2c.3g.71gb"]}]}],
    "processes":[
        {"pid":7,"gpu":0,"instance":1,"compute":1,
         "phases":[{"from":0,"to":60,"demand":1.0,"memory_bytes":17179869184}]},
        {"pid":8,"gpu":0,"instance":0,"phases":[{"from":0,"to":60,"demand":0.5,"memory_bytes":2097152}]}]}"#;

fn raw(gpu: &Device<'_>) -> sys::nvmlDevice_t {
    // SAFETY: it is only passed back to the library that gave it.
    unsafe { gpu.handle() }
}

/// Calls a function of the library's table; `$zero` names a fresh value that it fills.
macro_rules! ask {
    ($gpu:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: the arguments are what the header says.
        unsafe { ($gpu.nvml().lib().$function.as_ref().unwrap())($($argument),*) }
    };
}

#[test]
fn compute_instances_share_the_memory_and_not_the_processors() {
    let node = Node::new(SHARED);
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let parent = nvml.device_by_index(0).unwrap();
    let devices: Vec<_> = (0..3).map(|index| parent.mig_device_by_index(index).unwrap()).collect();
    let names: Vec<_> = devices.iter().map(|device| device.name().unwrap()).collect();
    let expected = ["1c.3g.71gb", "2c.3g.71gb", "1g.18gb"];
    assert_eq!(names, expected.map(|name| format!("NVIDIA H200 MIG {name} (simulated)")));
    let sms: Vec<_> =
        devices.iter().map(|device| device.attributes().unwrap().multiprocessor_count).collect();
    assert_eq!(sms, [16, 32, 16]);
    let used: Vec<_> = devices.iter().map(|device| device.memory_info().unwrap().used).collect();
    assert_eq!(used, [(22 << 20) + (16 << 30), (22 << 20) + (16 << 30), (8 << 20) + (2 << 20)]);
    assert_eq!(parent.memory_info().unwrap().used, used.iter().skip(1).sum::<u64>());
    let mut uuids: Vec<_> = devices.iter().map(|device| device.uuid().unwrap()).collect();
    assert!(uuids.iter().all(|uuid| uuid.starts_with("MIG-") && uuid.chars().nth(18) == Some('5')));
    uuids.dedup();
    assert_eq!(uuids.len(), 3);
    let processes = parent.running_compute_processes().unwrap();
    let places: Vec<_> = processes
        .iter()
        .map(|process| (process.pid, process.gpu_instance_id, process.compute_instance_id))
        .collect();
    assert_eq!(places, [(7, Some(2), Some(1)), (8, Some(7), Some(0))]);
    drop((devices, parent));
    drop(nvml);
    let truth = node.read("truth");
    assert!(truth.contains(r#""pid":7,"gpu":0,"instance":1,"busy_ns":30000000000"#), "{truth}");
}

#[test]
fn instances_are_found_by_handle_and_know_their_places() {
    let node = Node::new(SHARED);
    let nvml = node.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    let mut instance: sys::nvmlGpuInstance_t = ptr::null_mut();
    assert_eq!(ask!(parent, nvmlDeviceGetGpuInstanceById(raw(&parent), 2, &raw mut instance)), 0);
    assert_eq!(ask!(parent, nvmlDeviceGetGpuInstanceById(raw(&parent), 1, &raw mut instance)), 6);
    // SAFETY: numbers and a pointer may be zero.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { mem::zeroed() };
    assert_eq!(ask!(parent, nvmlGpuInstanceGetInfo(instance, &raw mut info)), 0);
    assert_eq!((info.device, info.id, info.profileId), (raw(&parent), 2, 9));
    assert_eq!((info.placement.start, info.placement.size), (4, 4));
    let (mut found, mut count) = ([ptr::null_mut(); 7], 0);
    assert_eq!(
        ask!(parent, nvmlDeviceGetGpuInstances(raw(&parent), 9, found.as_mut_ptr(), &raw mut count)),
        0
    );
    assert_eq!((count, found.first()), (1, Some(&instance)));
    for (profile, expected) in [(19, 3), (14, 1), (9, 0), (15, 1)] {
        let asked =
            ask!(parent, nvmlDeviceGetGpuInstanceRemainingCapacity(raw(&parent), profile, &raw mut count));
        assert_eq!((asked, count), (0, expected), "{profile}");
    }
    let mut compute: sys::nvmlComputeInstance_t = ptr::null_mut();
    assert_eq!(ask!(parent, nvmlGpuInstanceGetComputeInstanceById(instance, 1, &raw mut compute)), 0);
    // SAFETY: as above.
    let mut place: sys::nvmlComputeInstanceInfo_t = unsafe { mem::zeroed() };
    assert_eq!(ask!(parent, nvmlComputeInstanceGetInfo_v2(compute, &raw mut place)), 0);
    assert_eq!((place.id, place.profileId, place.gpuInstance), (1, 1, instance));
    assert_eq!((place.placement.start, place.placement.size), (1, 2));
    // SAFETY: as above.
    let mut profile: sys::nvmlComputeInstanceProfileInfo_t = unsafe { mem::zeroed() };
    let asked = ask!(parent, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0, &raw mut profile));
    assert_eq!(
        (asked, profile.sliceCount, profile.multiprocessorCount, profile.instanceCount),
        (0, 2, 32, 1)
    );
    let left = ask!(parent, nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0, &raw mut count));
    assert_eq!((left, count), (0, 0));
    // A GPU's handle is not a GPU instance's.
    assert_eq!(ask!(parent, nvmlGpuInstanceGetInfo(raw(&parent).cast(), &raw mut info)), 2);
}

/// Name, id, most instances, slices, SM, MiB, decoders, as `nvidia-smi mig -lgip` lists them.
type Row = (&'static str, u32, u32, u32, u32, u64, u32);

const LISTINGS: [(&str, &[Row]); 4] = [
    (
        "a100-40",
        &[
            ("MIG 1g.5gb", 19, 7, 1, 14, 4864, 0),
            ("MIG 2g.10gb", 14, 3, 2, 28, 9984, 1),
            ("MIG 3g.20gb", 9, 2, 3, 42, 19_968, 2),
            ("MIG 4g.20gb", 5, 1, 4, 56, 19_968, 2),
            ("MIG 7g.40gb", 0, 1, 7, 98, 40_448, 5),
            ("MIG 1g.5gb+me", 20, 1, 1, 14, 4864, 1),
            ("MIG 1g.10gb", 15, 4, 1, 14, 9984, 1),
        ],
    ),
    (
        "a30",
        &[
            ("MIG 1g.6gb", 14, 4, 1, 14, 5952, 0),
            ("MIG 2g.12gb", 5, 2, 2, 28, 11_968, 2),
            ("MIG 4g.24gb", 0, 1, 4, 56, 24_000, 4),
            ("MIG 1g.6gb+me", 21, 1, 1, 14, 5952, 1),
            ("MIG 2g.12gb+me", 6, 1, 2, 28, 11_968, 2),
        ],
    ),
    (
        "b200",
        &[
            ("MIG 1g.23gb", 19, 7, 1, 18, 20_992, 1),
            ("MIG 2g.45gb", 14, 3, 2, 36, 45_312, 2),
            ("MIG 3g.90gb", 9, 2, 3, 70, 91_136, 3),
            ("MIG 4g.90gb", 5, 1, 4, 72, 91_136, 4),
            ("MIG 7g.180gb", 0, 1, 7, 148, 182_784, 7),
            ("MIG 1g.23gb+me", 20, 1, 1, 18, 20_992, 1),
            ("MIG 1g.45gb", 15, 4, 1, 30, 45_312, 1),
        ],
    ),
    (
        "rtx-pro-6000",
        &[
            ("MIG 1g.24gb", 14, 4, 1, 46, 24_187, 1),
            ("MIG 2g.48gb", 5, 2, 2, 94, 48_517, 2),
            ("MIG 4g.96gb", 0, 1, 4, 188, 97_280, 4),
            ("MIG 1g.24gb+me", 21, 1, 1, 46, 24_187, 1),
            ("MIG 1g.24gb+gfx", 47, 4, 1, 46, 24_187, 1),
            ("MIG 2g.48gb+gfx", 35, 2, 2, 94, 48_517, 2),
            ("MIG 4g.96gb+gfx", 32, 1, 4, 188, 97_280, 4),
            ("MIG 1g.24gb-me", 67, 4, 1, 46, 24_187, 0),
            ("MIG 2g.48gb-me", 66, 2, 2, 94, 48_517, 0),
            ("MIG 1g.24gb+me.all", 65, 1, 1, 46, 24_187, 4),
            ("MIG 2g.48gb+me.all", 64, 1, 2, 94, 48_517, 4),
        ],
    ),
];

#[test]
fn boards_list_their_own_profiles() {
    for (board, rows) in LISTINGS {
        let node = Node::new(&format!(r#"{{"gpus":[{{"profile":"{board}"}}]}}"#));
        let nvml = node.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let mut listed = Vec::new();
        for enumerator in 0..17 {
            // SAFETY: numbers and characters may be zero.
            let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
            info.version = u32::try_from(size_of_val(&info)).unwrap() | 2 << 24;
            if ask!(gpu, nvmlDeviceGetGpuInstanceProfileInfoV(raw(&gpu), enumerator, &raw mut info)) == 0 {
                let name: String = info
                    .name
                    .iter()
                    .take_while(|letter| **letter != 0)
                    .map(|letter| char::from(letter.cast_unsigned()))
                    .collect();
                listed.push((
                    name,
                    info.id,
                    info.instanceCount,
                    info.sliceCount,
                    info.multiprocessorCount,
                    info.memorySizeMB,
                    info.decoderCount,
                ));
            }
        }
        let expected: Vec<_> =
            rows.iter().map(|row| (row.0.to_owned(), row.1, row.2, row.3, row.4, row.5, row.6)).collect();
        assert_eq!(listed, expected, "{board}");
    }
}

#[test]
fn an_a30_has_its_own_instance_ids() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"a30","mig":[{"profile":"2g.12gb","start":0},{"profile":"1g.6gb","start":2},{"profile":"1g.6gb","start":3}]}]}"#,
    );
    let nvml = node.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    let mut count = 0;
    assert_eq!(ask!(parent, nvmlDeviceGetMaxMigDeviceCount(raw(&parent), &raw mut count)), 0);
    assert_eq!(count, 4);
    let off = Node::new(r#"{"gpus":[{"profile":"a30"}]}"#);
    let off = off.nvml();
    let undivided = off.device_by_index(0).unwrap();
    let mut none = 9;
    assert_eq!(ask!(undivided, nvmlDeviceGetMaxMigDeviceCount(raw(&undivided), &raw mut none)), 0);
    assert_eq!(none, 0);
    let mut ids = Vec::new();
    for index in 0..3 {
        let device = parent.mig_device_by_index(index).unwrap();
        assert_eq!(ask!(parent, nvmlDeviceGetGpuInstanceId(raw(&device), &raw mut count)), 0);
        ids.push(count);
    }
    assert_eq!(ids, [1, 5, 6]);
    assert!(matches!(parent.mig_device_by_index(3), Err(NvmlError::NotFound)));
    assert!(matches!(parent.mig_device_by_index(4), Err(NvmlError::InvalidArg)));
    // 2g.12gb, 1g.6gb, 1g.6gb without processes.
    assert_eq!(parent.memory_info().unwrap().used, (25 + 12 + 12) << 20);
}

#[test]
fn an_rtx_pro_6000_has_four_instances() {
    let mig = [0, 3, 6, 9].map(|start| format!(r#"{{"profile":"1g.24gb","start":{start}}}"#)).join(",");
    let node = Node::new(&format!(r#"{{"gpus":[{{"profile":"rtx-pro-6000","mig":[{mig}]}}]}}"#));
    let nvml = node.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    assert!((0..4).all(|index| parent.mig_device_by_index(index).is_ok()));
    let (mut places, mut count) = ([sys::nvmlGpuInstancePlacement_t { start: 9, size: 9 }; 4], 4);
    let asked = ask!(
        parent,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(raw(&parent), 14, places.as_mut_ptr(), &raw mut count)
    );
    assert_eq!(
        (asked, count, places.map(|place| (place.start, place.size))),
        (0, 4, [(0, 3), (3, 3), (6, 3), (9, 3)])
    );
    assert_eq!(ask!(parent, nvmlDeviceGetGpuInstanceRemainingCapacity(raw(&parent), 14, &raw mut count)), 0);
    assert_eq!(count, 0);
}

#[test]
fn mig_mode_can_be_on_without_instances() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100","mig":{"mode":"on"}},{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    let [bare, other] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    assert_eq!(bare.mig_mode().unwrap().current, 1);
    assert_eq!(bare.mig_device_count().unwrap(), 7);
    assert!((0..7).all(|index| matches!(bare.mig_device_by_index(index), Err(NvmlError::NotFound))));
    assert!(matches!(bare.utilization_rates(), Err(NvmlError::NotSupported)));
    assert_eq!(bare.memory_info().unwrap().used, 0);
    assert!(bare.running_compute_processes().unwrap().is_empty());
    let mut count = 0;
    assert_eq!(ask!(bare, nvmlDeviceGetGpuInstanceRemainingCapacity(raw(&bare), 19, &raw mut count)), 0);
    assert_eq!(count, 7);
    // The two steps of a reconfiguration, and back.
    let modes = |state: &str| {
        node.state(state);
        [&bare, &other].map(|gpu| (gpu.mig_mode().unwrap().current, gpu.mig_device_by_index(0).is_ok()))
    };
    assert_eq!(modes(r#"{"mig":{"1":{"mode":"on","instances":[]}}}"#), [(1, false), (1, false)]);
    assert_eq!(modes(r#"{"mig":{"1":[{"profile":"7g.80gb","start":0}]}}"#), [(1, false), (1, true)]);
    assert_eq!(modes(r#"{"mig":{"0":[]}}"#), [(0, false), (0, false)]);
    assert_eq!(modes(r#"{"mig":{"0":{"mode":"off"}}}"#), [(0, false), (0, false)]);
}

#[test]
fn an_impossible_mig_layout_is_refused_with_its_place() {
    let error = |mig: &str| {
        let node = Node::new(&format!(r#"{{"gpus":[{{"profile":"h200","mig":[{mig}]}}]}}"#));
        assert!(nvml_wrapper::Nvml::builder().lib_path(node.library().as_os_str()).init().is_err());
        node.read("error")
    };
    let text = error(r#"{"profile":"3g.71gb","start":4,"compute":["2c.3g.71gb","2c.3g.71gb"]}"#);
    assert!(text.contains("mig[0]: the compute instances need 4 slices of 3"), "{text}");
    let text = error(r#"{"profile":"3g.71gb","start":4,"compute":["1c.2g.35gb"]}"#);
    assert!(text.contains("no compute instance \"1c.2g.35gb\" in 3g.71gb"), "{text}");
}
