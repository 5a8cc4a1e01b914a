//! The GPUs of a node under the numbers that schedulers and exporters know them by.
//!
//! In: what the driver or the kernel tells. Out: UUIDs by minor number, by the driver's index, and of MIG instances. It
//! asks nobody itself.

use std::collections::BTreeMap;

/// The UUIDs of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    /// Of GPUs by minor number of the device file.
    pub minors: BTreeMap<u32, String>,
    /// Of GPUs by the driver's index; none before the driver has told.
    pub indices: Option<BTreeMap<u32, String>>,
    /// Of the compute instances of MIG instances, by index of the GPU and id of the GPU instance; none before the driver has
    /// told.
    pub instances: Option<BTreeMap<(u32, u32), Vec<String>>>,
}
