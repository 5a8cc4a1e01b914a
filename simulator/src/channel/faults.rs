//! The faults file: calls that are slow, never return or fail, as long as the file says so.
//!
//! In: the file `faults`, looked at again at most every 20 ms of real time. Out: a delay before the call
//! goes on, a hang until the fault leaves the file, an error code in place of an answer. A broken file
//! leaves the former faults in force.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::abi::answer::{Answer, Refused};
use crate::clock;
use crate::state::lock;

const LOOK_AGAIN: u64 = 20_000_000;
const HANG_STEP: Duration = Duration::from_millis(5);

/// One entry of the file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Fault {
    /// A function's name, or `*` for all.
    function: String,
    /// None: any GPU, and calls that concern none.
    #[serde(default)]
    gpu: Option<u32>,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    hang: bool,
    /// What the call answers instead, after delay and hang; 0: what it would.
    #[serde(default)]
    code: u32,
}

impl Fault {
    fn hits(&self, function: &str, gpu: Option<u32>) -> bool {
        (self.function == "*" || self.function == function) && (self.gpu.is_none() || self.gpu == gpu)
    }
}

/// The faults in force.
pub(crate) struct Faults {
    path: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    looked: Option<u64>,
    version: Option<(SystemTime, u64)>,
    faults: Vec<Fault>,
}

impl Faults {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, seen: Mutex::new(Seen::default()) }
    }

    /// Suffers what the file has for this call; returns when and how the call may go on.
    pub(crate) fn suffer(&self, function: &str, gpu: Option<u32>) -> Answer {
        let delay = self.read(|faults| {
            faults.iter().filter(|fault| fault.hits(function, gpu)).map(|fault| fault.delay_ms).max()
        });
        if let Some(delay) = delay.filter(|delay| *delay > 0) {
            thread::sleep(Duration::from_millis(delay));
        }
        while self.read(|faults| faults.iter().any(|fault| fault.hang && fault.hits(function, gpu))) {
            thread::sleep(HANG_STEP);
        }
        let code = self.read(|faults| {
            let mut hits = faults.iter().filter(|fault| fault.hits(function, gpu));
            hits.find(|fault| fault.code != 0).map_or(0, |fault| fault.code)
        });
        Refused::with(code)
    }

    fn read<T>(&self, look: impl FnOnce(&[Fault]) -> T) -> T {
        let mut seen = lock(&self.seen);
        let now = clock::host_boottime();
        if seen.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK_AGAIN) {
            seen.looked = Some(now);
            self.refresh(&mut seen);
        }
        look(&seen.faults)
    }

    fn refresh(&self, seen: &mut Seen) {
        let Ok(metadata) = fs::metadata(&self.path) else {
            *seen = Seen { looked: seen.looked, ..Seen::default() };
            return;
        };
        let version = metadata.modified().ok().map(|modified| (modified, metadata.len()));
        if version.is_some() && version == seen.version {
            return;
        }
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        if let Ok(faults) = serde_json::from_str(&text) {
            seen.faults = faults;
        }
        seen.version = version;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn at(name: &str, text: &str) -> Faults {
        let path = std::env::temp_dir().join(format!("gpumeter-faults-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Faults::new(path)
    }

    fn look(faults: &Faults) -> usize {
        thread::sleep(Duration::from_millis(25));
        faults.read(<[Fault]>::len)
    }

    #[test]
    fn a_fault_hits_its_function_on_its_gpu_only() {
        let faults: Vec<Fault> =
            serde_json::from_str(r#"[{"function":"a","gpu":3,"delay_ms":5},{"function":"*","hang":true}]"#)
                .unwrap();
        let [one, all] = faults.as_slice() else { unreachable!() };
        assert!(
            one.hits("a", Some(3))
                && !one.hits("a", Some(2))
                && !one.hits("a", None)
                && !one.hits("b", Some(3))
        );
        assert!(all.hits("b", None) && all.hits("a", Some(7)));
    }

    #[test]
    fn a_broken_file_leaves_the_former_faults_and_a_removed_one_lifts_them() {
        let faults = at("broken", r#"[{"function":"a"}]"#);
        assert_eq!(look(&faults), 1);
        fs::write(&faults.path, "[{]").unwrap();
        assert_eq!(look(&faults), 1);
        fs::write(&faults.path, "[]").unwrap();
        assert_eq!(look(&faults), 0);
        fs::write(&faults.path, r#"[{"function":"a"},{"function":"b"}]"#).unwrap();
        assert_eq!(look(&faults), 2);
        fs::remove_file(&faults.path).unwrap();
        assert_eq!(look(&faults), 0);
    }
}
