//! MIG instances of a GPU, from the scenario's layout.
//!
//! In: a board and placements with their compute instances. Out: MIG devices in the driver's order, each with
//! its engine in the timeline.

use super::identity::Marks;
use crate::board::Board;
use crate::channel::layout::{Layout, Placement};
use crate::mig::MigProfile;

/// A MIG device: one compute instance of a GPU instance.
#[derive(Clone)]
pub(crate) struct Instance {
    /// GPU instance id.
    pub(crate) id: u32,
    /// Compute instance id within it.
    pub(crate) compute: u32,
    /// Compute slices, and the first of them.
    pub(crate) compute_slices: u32,
    pub(crate) compute_start: u32,
    pub(crate) sms: u32,
    pub(crate) profile: &'static MigProfile,
    /// First memory slot of the GPU instance.
    pub(crate) start: u32,
    pub(crate) uuid: String,
    /// Position of its GPU instance in the scenario.
    pub(crate) entry: usize,
    /// The position of its engine in the timeline.
    pub(crate) engine: usize,
}

impl Instance {
    /// The profile as in the device's name, with the compute part where that is not the whole GPU instance.
    pub(crate) fn name(&self) -> String {
        if self.compute_slices == self.profile.slices {
            self.profile.name.to_owned()
        } else {
            format!("{}c.{}", self.compute_slices, self.profile.name)
        }
    }
}

/// The MIG devices of a layout in ascending GPU instance id, or what is wrong with the layout.
pub(super) fn instances(
    board: &'static Board,
    layout: &Layout,
    marks: &Marks,
) -> Result<Vec<Instance>, String> {
    if board.mig.is_empty() && layout.is_on() {
        return Err(format!("mig: {} has no MIG profiles here; leave it out", board.profile));
    }
    let mut instances: Vec<Instance> = Vec::new();
    for (entry, placement) in layout.instances.iter().enumerate() {
        let Placement { profile: name, start, .. } = placement;
        let known = || board.mig.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
        let profile = board.mig.iter().find(|profile| profile.name == name);
        let profile = profile
            .ok_or_else(|| format!("mig[{entry}]: unknown profile {name:?}; there are {}", known()))?;
        if !profile.starts.contains(start) {
            return Err(format!(
                "mig[{entry}]: {name} cannot start at {start}; it can at {:?}",
                profile.starts
            ));
        }
        if instances.iter().any(|other| profile.overlaps(*start, other.profile, other.start)) {
            return Err(format!("mig[{entry}]: {name} at {start} overlaps an instance before it"));
        }
        let id = profile.instance_id(*start);
        for (compute, (compute_start, compute_slices)) in (0..).zip(computes(profile, entry, placement)?) {
            let one = board.mig.first().map_or(0, |smallest| smallest.sms);
            instances.push(Instance {
                id,
                compute,
                compute_slices,
                compute_start,
                sms: if compute_slices == profile.slices { profile.sms } else { one * compute_slices },
                profile,
                start: *start,
                uuid: marks.instance_uuid(id, compute),
                entry,
                engine: instances.len(),
            });
        }
    }
    instances.sort_by_key(|instance| (instance.id, instance.compute));
    Ok(instances)
}

/// Start and slices of each compute instance.
fn computes(profile: &MigProfile, entry: usize, placement: &Placement) -> Result<Vec<(u32, u32)>, String> {
    if placement.compute.is_empty() {
        return Ok(vec![(0, profile.slices)]);
    }
    let mut start = 0;
    let mut found = Vec::new();
    for name in &placement.compute {
        let slices = match name.split_once("c.") {
            Some((count, rest)) if rest == profile.name => count.parse().ok(),
            _ => (name == profile.name).then_some(profile.slices),
        };
        let slices = slices.filter(|slices| profile.compute_profiles().any(|(_, count)| count == *slices));
        let slices = slices.ok_or_else(|| {
            format!("mig[{entry}]: no compute instance {name:?} in {}; write 1c.{0}", profile.name)
        })?;
        found.push((start, slices));
        start += slices;
    }
    if start > profile.slices {
        return Err(format!("mig[{entry}]: the compute instances need {start} slices of {}", profile.slices));
    }
    Ok(found)
}

/// Each engine's share of the GPU in millionths, by engine.
pub(super) fn shares(board: &Board, instances: &[Instance]) -> Vec<u64> {
    let whole = u64::from(board.mig_slices.max(1));
    let mut shares: Vec<(usize, u64)> = instances
        .iter()
        .map(|instance| (instance.engine, u64::from(instance.compute_slices) * 1_000_000 / whole))
        .collect();
    shares.sort_unstable();
    shares.into_iter().map(|(_, share)| share).collect()
}
