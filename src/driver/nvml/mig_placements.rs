//! Computes which memory slices of a MIG GPU are free and which of these no profile can use.
//!
//! It needs the placements of the instances and the possible ones, which drivers return to administrators only.
//! Read once per plan.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, call};
use crate::model::{Absence, MigSlices};

/// More memory slices than any board has; the most known is 12.
const MOST_SLICES: c_uint = 64;

const MOST_PLACEMENTS: usize = 64;

/// The memory slices of a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlicePlacement {
    pub(super) start: u32,
    pub(super) size: u32,
}

impl SlicePlacement {
    pub(super) fn of(raw: sys::nvmlGpuInstancePlacement_t) -> Result<Self, Absence> {
        let sys::nvmlGpuInstancePlacement_t { start, size } = raw;
        let is_one = start < MOST_SLICES && (1..=MOST_SLICES - start).contains(&size);
        if is_one { Ok(Self { start, size }) } else { Err(Absence::Rejected) }
    }

    fn slices(self) -> std::ops::Range<u32> {
        self.start..self.start + self.size
    }
}

pub(super) fn slices(
    api: &mut DriverApi,
    parent: Handle,
    taken: &[SlicePlacement],
) -> Result<MigSlices, Absence> {
    let mut possible = Vec::new();
    for profile in 0..sys::NVML_GPU_INSTANCE_PROFILE_COUNT {
        match profile_id(api, parent, profile) {
            Ok(id) => possible.extend(placements(api, parent, id)?),
            // This board has no such profile.
            Err(Absence::NotSupported) => {}
            Err(absence) => return Err(absence),
        }
    }
    divided(taken, &possible).ok_or(Absence::Rejected)
}

fn profile_id(api: &mut DriverApi, Handle(parent): Handle, profile: c_uint) -> Result<c_uint, Absence> {
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut info: sys::nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    call!(api, nvmlDeviceGetGpuInstanceProfileInfo(parent, profile, &raw mut info))?;
    Ok(info.id)
}

fn placements(
    api: &mut DriverApi,
    Handle(parent): Handle,
    profile: c_uint,
) -> Result<Vec<SlicePlacement>, Absence> {
    let none = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut found = [none; MOST_PLACEMENTS];
    let mut count = MOST_PLACEMENTS as c_uint;
    let (buffer, number) = (found.as_mut_ptr(), &raw mut count);
    match call!(api, nvmlDeviceGetGpuInstancePossiblePlacements_v2(parent, profile, buffer, number)) {
        Ok(()) => {}
        Err(CallError::NoSymbol) => {
            call!(api, nvmlDeviceGetGpuInstancePossiblePlacements(parent, profile, buffer, number))?;
        }
        Err(error) => return Err(error.into()),
    }
    found.into_iter().take(count as usize).map(SlicePlacement::of).collect()
}

/// Slices by use; none if instances overlap, or lie where no profile may.
fn divided(taken: &[SlicePlacement], possible: &[SlicePlacement]) -> Option<MigSlices> {
    let total = possible.iter().map(|placement| placement.slices().end).max()?;
    let mut is_taken = vec![false; total as usize];
    for slice in taken.iter().flat_map(|placement| placement.slices()) {
        let place = is_taken.get_mut(slice as usize).filter(|is_taken| !**is_taken)?;
        *place = true;
    }
    let mut is_usable = vec![false; total as usize];
    for placement in possible {
        let range = placement.start as usize..placement.slices().end as usize;
        if !is_taken[range.clone()].contains(&true) {
            is_usable[range].fill(true);
        }
    }
    let count = |flags: &[bool]| flags.iter().map(|flag| u32::from(*flag)).sum::<u32>();
    let free = count(&is_usable);
    Some(MigSlices { total, free, stranded: total - count(&is_taken) - free })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(start: u32, size: u32) -> SlicePlacement {
        SlicePlacement { start, size }
    }

    /// The possible placements of a board with eight slices.
    fn possible() -> Vec<SlicePlacement> {
        let ones = (0..7).map(|start| at(start, 1));
        ones.chain([at(0, 2), at(2, 2), at(4, 2), at(6, 2), at(0, 4), at(4, 4), at(0, 8)]).collect()
    }

    #[test]
    fn a_slice_that_no_profile_can_use_is_stranded() {
        let slices = |taken: &[SlicePlacement]| {
            let slices = divided(taken, &possible()).map(|slices| (slices.free, slices.stranded));
            slices.unwrap_or((99, 99))
        };
        assert_eq!(slices(&[]), (8, 0));
        let seven: Vec<SlicePlacement> = (0..7).map(|start| at(start, 1)).collect();
        assert_eq!(slices(&seven), (0, 1), "the eighth slice has no place for one");
        assert_eq!(slices(&[at(0, 4), at(4, 2)]), (2, 0));
        assert_eq!(slices(&[at(0, 4), at(4, 2), at(6, 1)]), (0, 1));
        assert_eq!(slices(&[at(0, 8)]), (0, 0));
    }

    #[test]
    fn placements_that_cannot_be_say_nothing() {
        assert_eq!(divided(&[at(0, 4), at(3, 1)], &possible()), None);
        assert_eq!(divided(&[at(8, 1)], &possible()), None);
        assert_eq!(divided(&[], &[]), None);
        let raw = |start, size| SlicePlacement::of(sys::nvmlGpuInstancePlacement_t { start, size });
        assert_eq!(raw(0, 0), Err(Absence::Rejected));
        assert_eq!(raw(u32::MAX, 1), Err(Absence::Rejected));
        assert_eq!(raw(4, 4), Ok(at(4, 4)));
    }
}
