//! A directory with a copy of the built library, a scenario and a clock that the test sets.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use tempfile::TempDir;

pub(crate) const SECOND: u64 = 1_000_000_000;
/// UTC at elapsed 0: 2026-01-01.
pub(crate) const BEGUN: u64 = 1_767_225_600 * SECOND;

pub(crate) const EIGHT: &str = r#"{"seed":1,"cycle_seconds":60,"gpus":[{"profile":"h100","count":8}],
    "processes":[
        {"pid":4211,"name":"/usr/bin/python3","gpu":0,"phases":[{"from":0,"to":50,"demand":0.85,"memory_bytes":21474836480,"sm":0.7,"tensor":0.4,"dram":0.3}]},
        {"pid":4212,"name":"/usr/bin/blender","gpu":0,"phases":[{"from":10,"to":40,"demand":0.5,"memory_bytes":1073741824}]}],
    "xids":[{"at":20,"gpu":3,"xid":13},{"at":20,"gpu":4,"xid":79}],
    "throttles":[{"from":20,"to":30,"gpu":0,"reason":"sw_power_cap"}]}"#;

/// The longest time that anything may take before a test fails; generous, since nothing is measured here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until another thread has made it true.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A simulated host.
pub(crate) struct Node {
    pub(crate) directory: TempDir,
    clock: File,
}

impl Node {
    /// A host whose clock is held at 0.
    pub(crate) fn new(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::copy(built(), directory.path().join("libnvidia-ml.so.1")).unwrap();
        fs::write(directory.path().join("scenario"), scenario).unwrap();
        let clock =
            OpenOptions::new().write(true).create_new(true).open(directory.path().join("clock")).unwrap();
        let words = [u64::from_le_bytes(*b"GPUMCLK1"), 0, 1, 0, 0, 1_000_000, BEGUN, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        clock.write_all_at(&bytes, 0).unwrap();
        Self { directory, clock }
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.path("libnvidia-ml.so.1")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn nvml(&self) -> Nvml {
        Nvml::builder().lib_path(self.library().as_os_str()).init().unwrap()
    }

    /// Holds the clock at an elapsed time in nanoseconds.
    pub(crate) fn hold(&self, elapsed: u64) {
        self.clock.write_all_at(&elapsed.to_le_bytes(), 32).unwrap();
    }

    /// Sets the faults; the library reads them at the next call, since the clock is held.
    pub(crate) fn faults(&self, text: &str) {
        self.replace("faults", text);
    }

    /// Sets the state; the library reads it at the next call, since the clock is held.
    pub(crate) fn state(&self, text: &str) {
        self.replace("state", text);
    }

    /// Writes a file by rename, so that a reader never sees half of it.
    fn replace(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    /// How often an XID has fired according to the truth.
    pub(crate) fn fired(&self, gpu: u32, xid: u64) -> u64 {
        let truth = self.read("truth");
        let place = format!("{{\"gpu\":{gpu},\"xid\":{xid},\"fired\":");
        let rest = truth.split_once(&place).map_or("0}", |(_, rest)| rest);
        rest.split_once('}').unwrap().0.parse().unwrap()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

/// The cdylib of this package, which cargo builds before its tests.
fn built() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let candidates = exe.ancestors().skip(1).take(2).map(|folder| folder.join("libnvidia_ml.so"));
    let mut found: Vec<PathBuf> = candidates.filter(|path| path.exists()).collect();
    found.sort_by_key(|path| modified(path));
    found.pop().unwrap()
}

fn modified(path: &Path) -> std::time::SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}
