//! The kernel log: every XID as a record of /dev/kmsg, written once however many processes use the library.
//!
//! In: the XIDs of a node between two times. Out: lines appended to `kmsg`, and in `.kmsg` the time up to which
//! that was done; a lock lets one process write at a time. `kmsg` is emptied when it is over a MiB, and storms
//! are thinned out before they come here.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::settled::FileLock;
use crate::clock::{self, Now};
use crate::lock;
use crate::node::xids::{self, Happened, Upto};
use crate::node::{Gpu, Node};

/// Nanoseconds of host time.
const CHECK_INTERVAL: u64 = 20_000_000;
const LARGEST: u64 = 1 << 20;

/// Writes the log of one node.
pub(crate) struct Log {
    directory: PathBuf,
    /// The boot clock at elapsed 0.
    boot: u64,
    looked: Mutex<Looked>,
}

#[derive(Default)]
struct Looked {
    host: u64,
    /// Up to where the log is written, as far as this process knows.
    upto: Upto,
}

/// How far the log has come, for all processes.
#[derive(Default, Serialize, Deserialize)]
struct Progress {
    upto: Upto,
    sequence: u64,
    /// GPUs whose line with the UUID is written, which comes before their first XID.
    named: Vec<u32>,
}

impl Log {
    pub(crate) fn new(directory: &Path, boot: u64) -> Self {
        Self { directory: directory.to_path_buf(), boot, looked: Mutex::default() }
    }

    /// Begins the log at the first init of any process; a log that is ahead of the clock is begun again.
    pub(crate) fn begin(&self, node: &Node, elapsed: u64) {
        let Some(_alone) = FileLock::exclusive(&self.directory.join(".kmsg.lock")) else { return };
        let upto = Upto { elapsed, number: 0 };
        let mut progress = self.progress().unwrap_or(Progress { upto, ..Progress::default() });
        if progress.upto.elapsed > elapsed || progress.upto.number > node.settled.next {
            progress.upto = upto;
        }
        lock(&self.looked).upto = progress.upto;
        self.append(&mut progress, "");
    }

    /// Logs new XIDs, at most every 20 ms or when a held clock was moved.
    pub(crate) fn flush(&self, node: &Node, now: Now) {
        let host = clock::host_boottime();
        let mut looked = lock(&self.looked);
        let (moved, changed) = (now.elapsed > looked.upto.elapsed, node.settled.next > looked.upto.number);
        if !(changed || (moved && (now.held || host.saturating_sub(looked.host) >= CHECK_INTERVAL))) {
            return;
        }
        looked.host = host;
        if xids::logged(node, looked.upto, now.elapsed).is_empty() {
            looked.upto = Upto { elapsed: now.elapsed.max(looked.upto.elapsed), number: node.settled.next };
            return;
        }
        // If another process is writing, this one tries again later.
        if let Some(alone) = FileLock::try_exclusive(&self.directory.join(".kmsg.lock")) {
            looked.upto = self.write(node, now.elapsed);
            drop(alone);
        }
    }

    /// Logs new XIDs at once, at shutdown.
    pub(crate) fn flush_now(&self, node: &Node, now: Now) {
        let mut looked = lock(&self.looked);
        if !xids::logged(node, looked.upto, now.elapsed).is_empty() {
            let alone = FileLock::exclusive(&self.directory.join(".kmsg.lock"));
            looked.upto = self.write(node, now.elapsed);
            drop(alone);
        }
    }

    /// Writes what is not logged yet; returns how far the log is then.
    fn write(&self, node: &Node, elapsed: u64) -> Upto {
        let mut progress = self.progress().unwrap_or_default();
        let upto = Upto { elapsed: elapsed.max(progress.upto.elapsed), number: node.settled.next };
        let happened = xids::logged(node, progress.upto, elapsed);
        if happened.is_empty() {
            return upto;
        }
        let mut lines = String::new();
        for happened in happened {
            let Some(gpu) = node.slots.get(happened.gpu as usize) else { continue };
            let mut record = |text: &str| {
                let stamp = self.boot.saturating_add(happened.at) / 1_000;
                let _ = writeln!(lines, "4,{},{stamp},-;{text}", progress.sequence);
                progress.sequence += 1;
            };
            if !progress.named.contains(&gpu.slot) {
                progress.named.push(gpu.slot);
                record(&format!("NVRM: GPU at PCI:{}: {}", place(gpu), gpu.uuid));
            }
            record(&message(node, gpu, happened));
        }
        progress.upto = upto;
        self.append(&mut progress, &lines);
        upto
    }

    fn progress(&self) -> Option<Progress> {
        serde_json::from_str(&fs::read_to_string(self.directory.join(".kmsg")).ok()?).ok()
    }

    /// Best effort: no call fails because the log could not be written.
    fn append(&self, progress: &mut Progress, lines: &str) {
        let path = self.directory.join("kmsg");
        let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) else { return };
        if file.metadata().is_ok_and(|metadata| metadata.len() + lines.len() as u64 > LARGEST) {
            let _ = file.set_len(0);
        }
        let _ = file.write_all(lines.as_bytes());
        if let Ok(text) = serde_json::to_string(&progress) {
            let _ = fs::write(self.directory.join(".kmsg"), text);
        }
    }
}

fn place(gpu: &Gpu) -> String {
    format!("{:04x}:{:02x}:00", gpu.domain, gpu.bus)
}

/// `NVRM: Xid (PCI:0000:0f:00): 79, pid=..., name=..., text`.
fn message(node: &Node, gpu: &Gpu, happened: Happened) -> String {
    let worker = gpu.timeline.present(happened.at).next().map(|(_, worker, _)| worker);
    let culprit = worker.filter(|_| of_a_process(happened.xid));
    let instance = culprit.and_then(|worker| gpu.instances.iter().find(|one| one.engine == worker.engine));
    let part = instance.map_or_else(String::new, |instance| format!(" GPU-I:{:02}", instance.id));
    let who = match culprit {
        Some(worker) => {
            let name = node.name(worker.pid).unwrap_or("");
            format!("pid={}, name={}, ", worker.pid, escaped(name))
        }
        None => "pid='<unknown>', name=<unknown>, ".to_owned(),
    };
    format!("NVRM: Xid (PCI:{}{part}): {}, {who}{}", place(gpu), happened.xid, text(happened.xid))
}

/// Whether a process causes the XID, and not the board.
fn of_a_process(xid: u64) -> bool {
    matches!(xid, 13 | 31 | 32 | 43 | 45 | 68 | 69 | 94 | 109)
}

/// The last part of a path, cut to 15 bytes and escaped as the kernel does.
fn escaped(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or_default();
    let mut escaped = String::new();
    for byte in base.bytes().take(15) {
        if (0x20..0x7F).contains(&byte) && byte != b'\\' {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "\\x{byte:02x}");
        }
    }
    escaped
}

/// The driver's text for an XID, with the variable parts of one real case.
fn text(xid: u64) -> &'static str {
    match xid {
        13 => "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Illegal Instruction Parameter",
        31 => {
            "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000. \
             Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        }
        48 => {
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr \
             0x1a2b3c partition 2, subpartition 1."
        }
        62 => "20a2 00000000 00000000 2042 00000000 00000000 00000000 00000000",
        63 => "Row Remapper: New row (0x00000000001a2b3c) marked for remapping, reset gpu to activate.",
        64 => "Row Remapper: Failed to remap row (0x00000000001a2b3c).",
        74 => "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
        79 => "GPU has fallen off the bus.",
        94 => "Contained: SM (0x1). RST: No, D-RST: No",
        95 => "Uncontained: LTC TAG (0x0,0x1). RST: Yes, D-RST: No",
        109 => "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x3c046",
        119 => {
            "Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76 \
             (GSP_RM_CONTROL) (0x20802068 0x4)."
        }
        140 => {
            "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, \
             PCIE:0"
        }
        154 => "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        _ => "Ch 00000008",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_escaped_as_the_kernel_does() {
        assert_eq!(escaped("/usr/bin/python3"), "python3");
        assert_eq!(escaped("/opt/a very long name indeed"), "a very long nam");
        assert_eq!(escaped("a\nb\\"), "a\\x0ab\\x5c");
    }
}
