//! The Linux files of the simulated node that the agent reads, written from the scenario.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::scenario::HostProcess;
use super::{DemoError, DemoScenario, file_error, make};
use crate::holders::host::FIRST_PID_NAMESPACE;
use crate::runtime::clock::ClockPage;

/// Replaces the tree and returns its root.
pub(super) fn write(
    directory: &Path,
    scenario: &DemoScenario,
    page: &ClockPage,
) -> Result<PathBuf, DemoError> {
    let root = directory.join("host");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(file_error(&root))?;
    }
    let etc = root.join("etc");
    make(&etc)?;
    super::write(&etc.join("hostname"), b"demo-node\n")?;
    super::write(&etc.join("passwd"), passwd(scenario).as_bytes())?;
    let random = root.join("proc/sys/kernel/random");
    make(&random)?;
    // The boot lasts as long as the clock page, so its origin identifies the boot.
    let boot = page.state().utc.0;
    super::write(&random.join("boot_id"), format!("demo-{boot:016x}\n").as_bytes())?;
    super::write(&root.join("proc/sys/kernel/hostname"), b"demo-node\n")?;
    // A recording does not say what memory its host had.
    if !scenario.is_recording() {
        super::write(&root.join("proc/meminfo"), MEMORY)?;
    }
    // The simulated driver reports pids of this namespace.
    let namespaces = root.join("proc/self/ns");
    make(&namespaces)?;
    let pid = namespaces.join("pid");
    symlink(FIRST_PID_NAMESPACE, &pid).map_err(file_error(&pid))?;
    // The simulated driver creates its kernel log beside the library with the first message.
    let log = root.join("dev/kmsg");
    make(&root.join("dev"))?;
    symlink("../../driver/kmsg", &log).map_err(file_error(&log))?;
    for process in scenario.processes() {
        write_process(&root.join("proc").join(process.pid.to_string()), &process)?;
    }
    Ok(root)
}

/// The memory of a DGX Spark, whose GPU shares it, before any process of the scenario has some.
const MEMORY: &[u8] =
    b"MemTotal:       125489508 kB\nMemFree:        120246624 kB\nMemAvailable:   121295200 kB\n";

fn passwd(scenario: &DemoScenario) -> String {
    let root = "root:x:0:0:root:/root:/bin/sh\n".to_owned();
    scenario
        .users()
        .fold(root, |text, (uid, name)| text + &format!("{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n"))
}

fn write_process(directory: &Path, process: &HostProcess) -> Result<(), DemoError> {
    let HostProcess { pid, comm, uid, cgroup } = process;
    make(directory)?;
    let write = |name: &str, text: &str| super::write(&directory.join(name), text.as_bytes());
    // Start time is field 22: the processes start a minute after boot.
    write("stat", &format!("{pid} ({comm}) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 6000 0 0 0\n"))?;
    write("comm", &format!("{comm}\n"))?;
    write("status", &format!("Name:\t{comm}\nPid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"))?;
    write("cgroup", &format!("0::{cgroup}\n"))
}
