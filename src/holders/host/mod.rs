//! Processes, users, the kernel's log and other facts of the Linux host.
//!
//! Everything is read below the directory that stands for `/`, so that a fixture and the demo's tree are read like the
//! real one; only [`agent_usage`] always reads the running agent. All text is untrusted: reads are bounded, and parsers
//! accept any bytes. Each file adds what it reads as methods of [`Host`].

pub mod agent_usage;
mod clock_sync;
mod container;
mod driver;
mod kernel_log;
mod memory;
mod passwd;
pub mod pci;
mod pidfd_set;
mod pod_cgroups;
pub mod pod_logs;
mod process;
pub mod slurm;
mod socket_owner;
mod untrusted;
mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use clock_sync::clock_is_synchronised;
pub use container::FIRST_PID_NAMESPACE;
pub use kernel_log::KernelLog;
pub use memory::HostMemory;
pub use pci::Pci;
pub use pidfd_set::PidfdSet;
pub use pod_logs::PodLogs;
pub use process::{ProcessError, ProcessInfo};
pub use socket_owner::socket_owner;
pub use users::{Group, UserDatabase, UserNameError};

use crate::model::Nanoseconds;

/// Time since boot of a value in clock ticks, as `/proc` has it.
pub fn since_boot(ticks: u64) -> Nanoseconds {
    let per_second = u128::from(rustix::param::clock_ticks_per_second().max(1));
    let nanoseconds = u128::from(ticks) * u128::from(Nanoseconds::SECOND.0) / per_second;
    Nanoseconds(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    users: Arc<UserDatabase>,
}

impl Host {
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let users = UserDatabase::of_file(&root.join("etc/passwd"));
        Self::with_users(root, users)
    }

    pub fn with_users(root: impl Into<PathBuf>, users: UserDatabase) -> Self {
        Self { root: root.into(), users: Arc::new(users) }
    }

    pub const fn users(&self) -> &Arc<UserDatabase> {
        &self.users
    }

    /// The path at which the agent finds a file that has this absolute path on the host.
    pub fn path(&self, absolute: &Path) -> PathBuf {
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Whether this is the system of the agent itself, which runs in a pod of Kubernetes on it.
    pub fn has_our_pod(&self) -> bool {
        self.root == Path::new("/") && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }

    pub fn boot_id(&self) -> Option<String> {
        self.read_word("proc/sys/kernel/random/boot_id")
    }

    /// The id of the machine; empty where there is none. In a container, which has none of its own, that of the firmware.
    pub fn machine_id(&self) -> String {
        let firmware = || self.read_word("sys/class/dmi/id/product_uuid");
        self.read_word("etc/machine-id").or_else(firmware).unwrap_or_default()
    }

    /// The name of the host: the kernel's, else the configured one.
    pub fn host_name(&self) -> Option<String> {
        self.read_word("proc/sys/kernel/hostname").or_else(|| self.read_word("etc/hostname"))
    }

    fn read_word(&self, path: &str) -> Option<String> {
        untrusted::read_text(&self.root.join(path)).split_ascii_whitespace().next().map(str::to_owned)
    }
}
