//! The GPUs of a node under the numbers by which schedulers and exporters know them.
//!
//! In: the numbers that the driver or the kernel reports. Out: UUIDs by minor number, by index, and of MIG instances.
//! It does no I/O.

use std::collections::BTreeMap;

/// The UUIDs of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    /// Of GPUs by minor number of the device file.
    pub minors: BTreeMap<u32, String>,
    /// Of GPUs by the driver's index; none before the driver has reported them.
    pub indices: Option<BTreeMap<u32, String>>,
    /// Of compute instances, by index of the GPU and id of the GPU instance; none before the driver has reported them.
    pub instances: Option<BTreeMap<(u32, u32), Vec<String>>>,
}

/// Whether the text is `GPU-` or `MIG-` and a UUID; HAMi appends the number of a share, which is refused.
pub(super) fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else { return false };
    let lengths = uuid.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}
