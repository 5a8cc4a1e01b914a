//! When each change of the state file came into force, and the sums until then.
//!
//! In and out: the file `settled`, replaced by rename under a lock. The process that first sees a change writes
//! it and all others follow, so that several processes, and later ones, agree on when it happened. The file
//! holds sums, not a history. Over a read-only directory each process keeps this in memory.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::complaints::report_error;
use super::hardware::{Hardware, Storm};
use super::layout::Layout;
use super::replace_file;
use crate::condition::Carried;
use crate::schedule::Since;

/// The state in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settled {
    /// The hash of the scenario's text: with another scenario the state begins again.
    pub(crate) scenario: u64,
    /// Elapsed nanoseconds of the last change.
    pub(crate) at: u64,
    pub(crate) hardware: Hardware,
    /// How often the driver was reloaded.
    pub(crate) loads: u32,
    /// By the scenario's number of the GPU.
    pub(crate) slots: Vec<Slot>,
    /// The number of the next moment or storm.
    pub(crate) next: u64,
    pub(crate) moments: Vec<Moment>,
    pub(crate) storms: Vec<RunningStorm>,
    /// Counts of storms and moments that are no longer kept.
    pub(crate) fired: Vec<Fired>,
}

/// A place on the bus and the board in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// 0: the scenario's own board; otherwise the seed of another board's names.
    pub(crate) identity: u64,
    /// Incremented when the board is removed or another is put in.
    pub(crate) life: u32,
    /// Incremented with every new MIG layout.
    pub(crate) cut: u32,
    /// None: the scenario's layout.
    pub(crate) layout: Option<Layout>,
    pub(crate) since: Since,
    /// Elapsed nanoseconds at which the board was put in; 0: it was there from the beginning.
    #[serde(default)]
    pub(crate) came: u64,
    #[serde(default)]
    pub(crate) links: Carried,
    /// Incremented when its processes get new pids.
    #[serde(default)]
    pub(crate) renamed: u32,
}

/// Something that happened once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    pub(crate) number: u64,
    pub(crate) at: u64,
    pub(crate) gpu: u32,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Xid(u64),
    MigChange,
}

/// A storm that has begun, with its beginning in elapsed nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunningStorm {
    pub(crate) number: u64,
    pub(crate) from: u64,
    pub(crate) storm: Storm,
}

/// The number of XIDs of one code on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fired {
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
    pub(crate) fired: u64,
}

impl Settled {
    /// The state at the beginning of the scenario.
    pub(crate) fn beginning(scenario: u64, slots: usize) -> Self {
        Self { scenario, slots: vec![Slot::default(); slots], ..Self::default() }
    }
}

/// A file's modification time, length and inode: they differ once the file was written or replaced.
pub(crate) type Version = Option<(SystemTime, u64, u64)>;

pub(crate) fn version(path: &Path) -> Version {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

/// The files `state` and `settled`.
pub(crate) struct StateFiles {
    directory: PathBuf,
}

impl StateFiles {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf() }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    pub(crate) fn settled(&self) -> PathBuf {
        self.directory.join("settled")
    }

    /// The contents of the state file; `None` if it is invalid, with the reason in `error`.
    pub(crate) fn wanted(&self) -> Option<Hardware> {
        let text = match fs::read_to_string(self.state()) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                report_error(&self.state(), None);
                return Some(Hardware::default());
            }
            Err(error) => {
                self.complain(&error.to_string());
                return None;
            }
        };
        let wanted = Hardware::parse(&text).map_err(|reason| self.complain(&reason)).ok()?;
        report_error(&self.state(), None);
        Some(wanted)
    }

    /// Writes to `error` why the state file is invalid; no call fails for it.
    pub(crate) fn complain(&self, reason: &str) {
        report_error(&self.state(), Some(reason));
    }

    /// The settled state of this scenario, if there is one.
    pub(crate) fn read(&self, scenario: u64, slots: usize) -> Option<Settled> {
        let text = fs::read_to_string(self.settled()).ok()?;
        let settled: Settled = serde_json::from_str(&text).ok()?;
        (settled.scenario == scenario && settled.slots.len() == slots).then_some(settled)
    }

    pub(crate) fn write(&self, settled: &Settled) {
        replace_file(&self.directory, "settled", settled);
    }

    /// The lock for settling; `None` over a read-only directory.
    pub(crate) fn lock(&self) -> Option<FileLock> {
        FileLock::exclusive(&self.directory.join(".settling"))
    }
}

/// A file lock between processes; released when the value is dropped or the process ends.
pub(crate) struct FileLock(File);

impl FileLock {
    /// Waits for the exclusive lock.
    pub(crate) fn exclusive(path: &Path) -> Option<Self> {
        Self::lock(path, libc::LOCK_EX)
    }

    /// Waits for a shared lock.
    pub(crate) fn shared(path: &Path) -> Option<Self> {
        Self::lock(path, libc::LOCK_SH)
    }

    /// Takes the exclusive lock if it is free.
    pub(crate) fn try_exclusive(path: &Path) -> Option<Self> {
        Self::lock(path, libc::LOCK_EX | libc::LOCK_NB)
    }

    fn lock(path: &Path, how: libc::c_int) -> Option<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
        loop {
            // SAFETY: the descriptor is open for as long as the file is held.
            if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
                return Some(Self(file));
            }
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return None;
            }
        }
    }
}

impl Drop for FileLock {
    /// Unlocks before the file is closed: a child that another thread is starting has it open too until it executes.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_state_is_read_for_the_same_scenario_only() {
        let directory = std::env::temp_dir().join(format!("gpumeter-settled-{}", std::process::id()));
        assert!(fs::create_dir_all(&directory).is_ok());
        let record = StateFiles::new(&directory);
        let settled = Settled::beginning(7, 2);
        record.write(&settled);
        assert_eq!(record.read(7, 2), Some(settled));
        assert_eq!((record.read(8, 2), record.read(7, 3)), (None, None));
        assert!(record.lock().is_some());
        assert!(fs::remove_dir_all(&directory).is_ok());
    }

    #[test]
    fn a_lock_ends_with_its_value_and_not_with_the_last_copy_of_its_descriptor() {
        let path = std::env::temp_dir().join(format!("gpumeter-lock-{}", std::process::id()));
        let held = FileLock::exclusive(&path);
        let copy = held.as_ref().map(|lock| lock.0.try_clone());
        assert!(copy.is_some() && FileLock::try_exclusive(&path).is_none());
        drop(held);
        assert!(FileLock::try_exclusive(&path).is_some());
        drop(copy);
        assert!(fs::remove_file(&path).is_ok());
    }
}
