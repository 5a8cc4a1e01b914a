//! The faults file: calls that are slow, hang, fail or return garbage while the file says so.
//!
//! In: the file `faults`, checked every 20 ms, or at every call while the clock is held. Out: a delay before the call, a hang until the
//! fault is removed, a write to a file that may block, an error code, or garbage in place of the answer. A fault
//! with `lock` holds the driver meanwhile: all other calls wait, also in other processes. While the file is
//! invalid the former faults stay in force, and `error` has the reason.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::complaints::report_error;
use super::settled::{self, FileLock, Version};
use crate::abi::answer::Refused;
use crate::clock::{self, Now};
use crate::lock;
use crate::schedule::hash;

/// Nanoseconds of host time.
const CHECK_INTERVAL: u64 = 20_000_000;
const HANG_STEP: Duration = Duration::from_millis(5);

/// One entry of the file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Fault {
    /// A function's name, or `*` for all.
    function: String,
    /// `None`: any GPU, and calls without one.
    #[serde(default)]
    gpu: Option<u32>,
    /// Only calls on the GPU itself, not on its MIG devices.
    #[serde(default)]
    parent: bool,
    /// Elapsed seconds between which it is in force.
    #[serde(default)]
    from: Option<f64>,
    #[serde(default)]
    to: Option<f64>,
    /// The share of calls that it hits.
    #[serde(default = "whole")]
    chance: f64,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    delay_us: u64,
    #[serde(default)]
    hang: bool,
    /// The driver is held during the delay or hang.
    #[serde(default)]
    lock: bool,
    /// The call writes one byte to this file: on a frozen file system no signal can end it.
    #[serde(default)]
    write: Option<PathBuf>,
    /// The error code of the call, after delay and hang; 0: none.
    #[serde(default)]
    code: u32,
    /// The call succeeds with garbage.
    #[serde(default)]
    garbage: bool,
}

fn whole() -> f64 {
    1.0
}

/// Parses the file's text; the error says what is wrong and where.
fn parse(text: &str) -> Result<Vec<Fault>, String> {
    let faults: Vec<Fault> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (index, fault) in faults.iter().enumerate() {
        if !(0.0..=1.0).contains(&fault.chance) {
            return Err(format!("[{index}]: chance {} is not between 0 and 1", fault.chance));
        }
        if let (Some(from), Some(to)) = (fault.from, fault.to)
            && from >= to
        {
            return Err(format!("[{index}]: from {from} must be before to {to}"));
        }
    }
    Ok(faults)
}

/// Describes the first fault whose function does not exist.
fn unknown(faults: &[Fault]) -> Option<String> {
    let known = |fault: &Fault| fault.function == "*" || super::exports(&fault.function);
    let (index, fault) = faults.iter().enumerate().find(|(_, fault)| !known(fault))?;
    Some(format!("[{index}]: no function {:?} in this library: the fault hits no call", fault.function))
}

/// The call that faults are matched against.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) function: &'a str,
    /// The scenario's number of its GPU.
    pub(crate) gpu: Option<u32>,
    /// Whether it is on a MIG device of the GPU.
    pub(crate) of_instance: bool,
    /// The scenario's seed.
    pub(crate) seed: u64,
    /// The number of calls of the function including this one.
    pub(crate) number: u64,
    /// Returns the simulated time, also while the call waits.
    pub(crate) now: &'a dyn Fn() -> Now,
}

/// The effect of faults on a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultEffect {
    /// It may have waited.
    pub(crate) waited: bool,
    /// Its answer is to be garbage.
    pub(crate) garbage: bool,
}

impl Fault {
    fn hits(&self, function: &str, gpu: Option<u32>) -> bool {
        (self.function == "*" || self.function == function) && (self.gpu.is_none() || self.gpu == gpu)
    }

    fn in_force(&self, elapsed: u64) -> bool {
        let seconds = elapsed as f64 / 1e9;
        self.from.is_none_or(|from| seconds >= from) && self.to.is_none_or(|to| seconds < to)
    }

    /// Whether the fault hits this call by chance: the same calls are hit in every run.
    fn chosen(&self, call: &Call<'_>) -> bool {
        let name = call.function.bytes().fold(call.seed, |seed, byte| hash(seed ^ u64::from(byte)));
        let gpu = u64::from(call.gpu.map_or(0, |gpu| gpu + 1));
        let lot = hash(hash(name ^ gpu) ^ call.number) % 1_000_000;
        (lot as f64) < self.chance * 1e6
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms) + Duration::from_micros(self.delay_us)
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
    version: Version,
    faults: Vec<Fault>,
}

impl Faults {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, seen: Mutex::new(Seen::default()) }
    }

    /// Applies the faults of a call: waits, and returns how to go on or the error of the call.
    pub(crate) fn apply(&self, call: Call<'_>) -> Result<FaultEffect, Refused> {
        let (none, locks) =
            self.read(&call, |faults| (faults.is_empty(), faults.iter().any(|fault| fault.lock)));
        if none {
            return Ok(FaultEffect::default());
        }
        let hits = self.hits(&call);
        if locks && !hits.iter().any(|fault| fault.lock) {
            // Waits until no other call holds the driver.
            drop(FileLock::shared(&self.driver()));
        }
        if hits.is_empty() {
            return Ok(FaultEffect { waited: locks, garbage: false });
        }
        self.wait(&hits, &call);
        let left: Vec<&Fault> = hits.iter().filter(|fault| self.is_still_in_force(fault, &call)).collect();
        let code = left.iter().map(|fault| fault.code).find(|code| *code != 0);
        Refused::with(code.unwrap_or(0))?;
        Ok(FaultEffect { waited: true, garbage: left.iter().any(|fault| fault.garbage) })
    }

    fn hits(&self, call: &Call<'_>) -> Vec<Fault> {
        let elapsed = (call.now)().elapsed;
        let hit = |fault: &&Fault| {
            let is_meant = !(fault.parent && call.of_instance) && fault.hits(call.function, call.gpu);
            is_meant && fault.in_force(elapsed) && fault.chosen(call)
        };
        self.read(call, |faults| faults.iter().filter(hit).cloned().collect())
    }

    /// Whether a fault is still in the file and within its time.
    fn is_still_in_force(&self, fault: &Fault, call: &Call<'_>) -> bool {
        fault.in_force((call.now)().elapsed) && self.read(call, |faults| faults.contains(fault))
    }

    fn wait(&self, hits: &[Fault], call: &Call<'_>) {
        let held = hits.iter().any(|fault| fault.lock).then(|| FileLock::exclusive(&self.driver()));
        let delay = hits.iter().map(Fault::delay).max().unwrap_or_default();
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        while hits.iter().any(|fault| fault.hang && self.is_still_in_force(fault, call)) {
            thread::sleep(HANG_STEP);
        }
        for path in hits.iter().filter_map(|fault| fault.write.as_ref()) {
            // A file that cannot be written blocks no call.
            let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let _ = file.and_then(|mut file| file.write_all(b"."));
        }
        drop(held);
    }

    /// The file whose lock stands for the driver's lock.
    fn driver(&self) -> PathBuf {
        self.path.with_file_name(".driver")
    }

    fn read<T>(&self, call: &Call<'_>, body: impl FnOnce(&[Fault]) -> T) -> T {
        let mut seen = lock(&self.seen);
        let now = clock::host_boottime();
        let is_due = seen.looked.is_none_or(|looked| now.saturating_sub(looked) >= CHECK_INTERVAL);
        if is_due || (call.now)().held {
            seen.looked = Some(now);
            self.refresh(&mut seen);
        }
        body(&seen.faults)
    }

    fn refresh(&self, seen: &mut Seen) {
        let version = settled::version(&self.path);
        if version == seen.version {
            return;
        }
        if version.is_none() {
            report_error(&self.path, None);
            *seen = Seen { looked: seen.looked, ..Seen::default() };
            return;
        }
        let read = fs::read_to_string(&self.path).map_err(|error| error.to_string());
        match read.and_then(|text| parse(&text)) {
            Ok(faults) => {
                report_error(&self.path, unknown(&faults).as_deref());
                seen.faults = faults;
            }
            Err(reason) => report_error(&self.path, Some(&reason)),
        }
        seen.version = version;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Faults of a file with that text, and its directory.
    fn of(text: &str) -> (Faults, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("faults");
        fs::write(&path, text).unwrap();
        (Faults::new(path), directory)
    }

    const HELD: Now = Now { elapsed: 0, utc: 0, held: true };

    /// A call of the function `a` on GPU 1 under a held clock.
    fn call(seed: u64, number: u64) -> Call<'static> {
        Call { function: "a", gpu: Some(1), of_instance: false, seed, number, now: &|| HELD }
    }

    fn look(faults: &Faults) -> usize {
        faults.read(&call(1, 0), <[Fault]>::len)
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
    fn an_invalid_file_keeps_the_former_faults_and_a_removed_file_ends_them() {
        let (faults, _directory) = of(r#"[{"function":"a"}]"#);
        assert_eq!(look(&faults), 1);
        let complaint = || fs::read_to_string(faults.path.with_file_name("error")).unwrap_or_default();
        for (text, said) in [
            ("[{]", "line 1 column 3"),
            (r#"[{"function":"a","delay":5}]"#, "unknown field `delay`, expected one of `function`, `gpu`"),
            (r#"[{"function":"a","chance":25}]"#, "[0]: chance 25 is not between 0 and 1"),
            (r#"[{"function":"a","from":3,"to":2}]"#, "[0]: from 3 must be before to 2"),
        ] {
            fs::write(&faults.path, text).unwrap();
            assert_eq!(look(&faults), 1, "{text}");
            assert!(complaint().contains(said), "{}", complaint());
        }
        fs::write(&faults.path, "[]").unwrap();
        assert_eq!((look(&faults), complaint().as_str()), (0, ""));
        fs::write(&faults.path, r#"[{"function":"a"},{"function":"b"}]"#).unwrap();
        assert_eq!(look(&faults), 2);
        fs::remove_file(&faults.path).unwrap();
        assert_eq!((look(&faults), complaint().as_str()), (0, ""));
    }

    #[test]
    fn a_writing_fault_leaves_one_byte_and_an_unwritable_file_is_ignored() {
        let (faults, _directory) = of("[]");
        let byte = faults.path.with_extension("byte");
        let _ = fs::remove_file(&byte);
        let text = serde_json::json!([{"function": "a", "write": byte}, {"function": "a", "write": "/nonexistent/x"}]);
        fs::write(&faults.path, text.to_string()).unwrap();
        assert_eq!(look(&faults), 2);
        for number in 0..3 {
            assert!(faults.apply(call(1, number)).is_ok_and(|effect| effect.waited));
        }
        assert_eq!(fs::read(&byte).unwrap(), b".");
    }

    #[test]
    fn a_fault_by_chance_hits_the_same_calls_in_every_run() {
        let faults: Vec<Fault> =
            serde_json::from_str(r#"[{"function":"a","from":1.5,"to":2,"chance":0.25,"delay_us":40}]"#)
                .unwrap();
        let [fault] = faults.as_slice() else { unreachable!() };
        assert!(!fault.in_force(1_499_999_999) && fault.in_force(1_500_000_000));
        assert!(fault.in_force(1_999_999_999) && !fault.in_force(2_000_000_000));
        assert_eq!(fault.delay(), Duration::from_micros(40));
        let lots =
            |seed| (0..4_000).filter(|number| fault.chosen(&call(seed, *number))).collect::<Vec<u64>>();
        assert!((800..1_200).contains(&lots(1).len()), "{}", lots(1).len());
        assert_eq!(lots(1), lots(1));
        assert_ne!(lots(1), lots(2));
    }
}
