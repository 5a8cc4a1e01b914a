//! Processes, users, the kernel's log and other facts of the Linux host.
//!
//! In: the directory that stands for `/`, so that a fixture and the demo's tree are read like the real one. Out:
//! [`ProcessInfo`] (start time, name, uid, cgroups), user names ([`UserDatabase`]), boot id, host name, [`KernelLog`],
//! the GPUs on the PCI bus ([`Pci`]); [`agent_usage`] alone always reads the running agent. All text read is untrusted:
//! reads are bounded, and parsers accept any bytes. It knows no driver, holder or clock, and caches only user names.

pub mod agent_usage;
mod bounded;
mod cgroup;
mod clock_sync;
mod container;
mod driver_device;
mod gpu_minors;
mod kernel_log;
mod passwd;
pub mod pci;
mod pidfd_set;
pub mod pod_logs;
mod printable;
mod process;
pub mod slurm;
mod stat;
mod status;
mod users;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use clock_sync::clock_is_synchronised;
pub use container::FIRST_PID_NAMESPACE;
pub use driver_device::DriverDevices;
pub use kernel_log::KernelLog;
pub use pci::Pci;
pub use pidfd_set::PidfdSet;
pub use pod_logs::PodLogs;
pub use process::{ProcessError, ProcessInfo};
pub use users::{Group, UserDatabase, UserNameError};

use crate::model::Nanoseconds;

/// The time since boot of so many clock ticks, in which `/proc` counts it.
pub fn since_boot(ticks: u64) -> Nanoseconds {
    let per_second = u128::from(rustix::param::clock_ticks_per_second().max(1));
    let nanoseconds = u128::from(ticks) * u128::from(Nanoseconds::SECOND.0) / per_second;
    Nanoseconds(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// A Linux system, seen through the files under its root.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    users: Arc<UserDatabase>,
}

impl Host {
    /// The system whose `/` is `root`, with the users of its passwd file.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let users = UserDatabase::of_file(&root.join("etc/passwd"));
        Self::with_users(root, users)
    }

    /// The system whose `/` is `root`, with those users.
    pub fn with_users(root: impl Into<PathBuf>, users: UserDatabase) -> Self {
        Self { root: root.into(), users: Arc::new(users) }
    }

    /// Its users.
    pub const fn users(&self) -> &Arc<UserDatabase> {
        &self.users
    }

    /// Reads a process; all parts of the result belong to the same process.
    pub fn process(&self, pid: u32) -> Result<ProcessInfo, ProcessError> {
        process::read(&self.directory(pid), pid)
    }

    /// When a process started, in clock ticks since boot: the cheap way to find that a pid belongs to another process.
    pub fn start_time(&self, pid: u32) -> Result<u64, ProcessError> {
        process::start_time(&self.directory(pid), pid)
    }

    /// An empty set for watching at most `most` processes; it stays empty where pids under the root are not the
    /// agent's.
    pub fn pidfd_set(&self, most: usize) -> PidfdSet {
        PidfdSet::new(&self.root, most)
    }

    /// Which boot this is, as the kernel's random UUID.
    pub fn boot_id(&self) -> Option<String> {
        self.word("proc/sys/kernel/random/boot_id")
    }

    /// The name of the host: the kernel's, else the configured one.
    pub fn host_name(&self) -> Option<String> {
        self.word("proc/sys/kernel/hostname").or_else(|| self.word("etc/hostname"))
    }

    /// The NVIDIA GPUs on the PCI bus; none where the kernel shows no bus.
    pub fn pci(&self) -> Option<Pci> {
        Pci::read(&self.root)
    }

    /// UUIDs of its GPUs by minor number, from the driver's files in `/proc`.
    pub fn gpu_minors(&self) -> BTreeMap<u32, String> {
        gpu_minors::read(&self.root)
    }

    /// The pods and containers in the kubelet's log directories.
    pub fn pod_logs(&self) -> PodLogs {
        PodLogs::read(&self.root)
    }

    /// A value that changes when a pod or a container begins or ceases to have logs.
    pub fn pod_logs_changed(&self) -> [Option<(i64, i64)>; 2] {
        pod_logs::changed(&self.root)
    }

    /// The jobs of Slurm that have cgroups; none where the host's cgroups show no Slurm.
    pub fn slurm_cgroups(&self) -> std::io::Result<Option<Vec<slurm::JobCgroup>>> {
        slurm::cgroups(&self.root)
    }

    /// The environment of a step of that job, by the directory of the step's cgroup; none while it has no process.
    pub fn slurm_environment(&self, step: &Path, job: &str) -> Option<slurm::StepEnvironment> {
        slurm::environment(&self.root, step, job)
    }

    /// `slurm.conf` of this node; `first` is where slurmd said that it has it.
    pub fn slurm_configuration(&self, first: Option<&str>) -> Option<String> {
        slurm::configuration(&self.root, first)
    }

    /// Where a file of the host lies for the agent.
    pub fn path(&self, absolute: &Path) -> PathBuf {
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// A number that changes whenever the kernel's driver module is loaded again; none without a module.
    pub fn module_epoch(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        // The kernel creates the directory with the module, so its inode number changes.
        std::fs::metadata(self.root.join("sys/module/nvidia")).ok().map(|directory| directory.ino())
    }

    /// Whether the agent runs in a container.
    pub fn is_container(&self) -> bool {
        container::is_container(&self.root)
    }

    /// Whether its pids are those of the kernel's first pid namespace, which the driver reports.
    pub fn is_in_first_pid_namespace(&self) -> bool {
        container::has_first_pids(&self.root)
    }

    /// The device numbers of the driver that the kernel knows now.
    pub fn driver_devices(&self) -> DriverDevices {
        driver_device::registered(&self.root)
    }

    /// Whether device rules of the agent's cgroup, or a missing capability, deny it the driver's device file.
    pub fn denies_driver_device(&self) -> bool {
        driver_device::is_refused(&self.root)
    }

    /// Opens the kernel's log at its end, or at its beginning if it `came` while the agent waited for it.
    pub fn kernel_log(&self, came: bool) -> std::io::Result<KernelLog> {
        let path = self.root.join("dev/kmsg");
        if came { KernelLog::open_whole(&path) } else { KernelLog::open(&path) }
    }

    fn directory(&self, pid: u32) -> PathBuf {
        self.root.join("proc").join(pid.to_string())
    }

    /// The one word that a file holds.
    fn word(&self, path: &str) -> Option<String> {
        let bytes = bounded::read(&self.root.join(path), bounded::PROC).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let word = text.split_ascii_whitespace().next()?;
        Some(word.to_owned())
    }
}
