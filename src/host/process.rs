//! Reads one process from `/proc`.
//!
//! In: the directory of a pid. Out: [`ProcessInfo`], or why there is none. The directory is kept open while it is read:
//! once its process has ended, no file in it can be opened, so that a result never mixes two processes with one pid.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::users::UserNameError;
use super::{bounded, cgroup, stat, status};

/// A process as `/proc` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid, which another process may have later.
    pub pid: u32,
    /// Clock ticks between boot and its start; with the pid it names one process of this boot.
    pub start_time: u64,
    /// Its name in the kernel: at most 15 bytes, which the process may choose.
    pub name: String,
    /// The real uid, which names who started it.
    pub uid: u32,
    /// Its paths in the cgroup trees, one per hierarchy.
    pub cgroups: Vec<String>,
}

/// Why a process cannot be identified.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such process, or it is hidden from the agent.
    #[error("process {pid} has ended, or is hidden from the agent, which needs the host's pid namespace")]
    Ended {
        /// The pid asked for.
        pid: u32,
    },
    /// It exists, but cannot be read.
    #[error("/proc/{pid}/{file}: {cause}; the agent needs to read it as root")]
    Unreadable {
        /// The pid asked for.
        pid: u32,
        /// The file that did not answer.
        file: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
    /// It was read, but its user has no name yet.
    #[error("process {pid}: {cause}")]
    Unnamed {
        /// The pid asked for.
        pid: u32,
        /// Why there is no name.
        cause: UserNameError,
    },
    /// A file of it has an unexpected format.
    #[error("/proc/{pid}/{file} is not what proc(5) describes; is proc mounted there?")]
    Malformed {
        /// The pid asked for.
        pid: u32,
        /// The file that was not understood.
        file: &'static str,
    },
}

/// Reads a process.
pub(super) fn read(path: &Path, pid: u32) -> Result<ProcessInfo, ProcessError> {
    let open = OpenProcess::of(path, pid)?;
    let stat = open.stat()?;
    let uid = status::uid(&open.file("status")?).ok_or(ProcessError::Malformed { pid, file: "status" })?;
    let cgroups = cgroup::parse(&open.file("cgroup")?);
    Ok(ProcessInfo { pid, start_time: stat.start_time, name: stat.name, uid, cgroups })
}

/// Reads only the start time. It is in one file, so the directory need not be kept open. Called for every process every
/// second.
pub(super) fn start_time(path: &Path, pid: u32) -> Result<u64, ProcessError> {
    let file = "stat";
    let bytes = bounded::read(&path.join(file), bounded::PROC).map_err(|cause| gone(pid, file, cause))?;
    Ok(stat::parse(&bytes).ok_or(ProcessError::Malformed { pid, file })?.start_time)
}

/// The open directory of a process.
struct OpenProcess {
    pid: u32,
    directory: OwnedFd,
}

impl OpenProcess {
    fn of(path: &Path, pid: u32) -> Result<Self, ProcessError> {
        let directory = bounded::hold(path).map_err(|cause| gone(pid, "", cause))?;
        Ok(Self { pid, directory })
    }

    fn stat(&self) -> Result<stat::Stat, ProcessError> {
        stat::parse(&self.file("stat")?).ok_or(ProcessError::Malformed { pid: self.pid, file: "stat" })
    }

    fn file(&self, name: &'static str) -> Result<Vec<u8>, ProcessError> {
        bounded::read_in(&self.directory, name, bounded::PROC).map_err(|cause| gone(self.pid, name, cause))
    }
}

/// ENOENT and ESRCH mean that the process ended before the file was opened or while it was read.
fn gone(pid: u32, file: &'static str, cause: io::Error) -> ProcessError {
    match cause.kind() {
        io::ErrorKind::NotFound => ProcessError::Ended { pid },
        _ if cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            ProcessError::Ended { pid }
        }
        _ => ProcessError::Unreadable { pid, file, cause },
    }
}
