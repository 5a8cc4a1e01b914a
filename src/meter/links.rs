//! How many NVLinks of a GPU should be up. One that was never up since the driver was loaded is not connected, as without a
//! bridge or in a virtual machine with one GPU of a baseboard: it is not down.

use crate::model::catalogue::{KnownPoint, PointId, first_point, known_point};
use crate::model::{Absence, Frame};

const UP: PointId = first_point("gpu_nvlink_links_up");
const EXPECTED: PointId = first_point("gpu_nvlink_links_expected");
const REGISTERED: KnownPoint = known_point("gpu_fabric_state", Some("completed"));

/// Sets how many links of a frame's GPU should be up, unless the driver says how many are connected. `most` is the most that
/// were up at once since the driver was loaded; returns the same with this frame.
pub fn expect_links(frame: &mut Frame, most: u32) -> u32 {
    let nvlinks = frame.identity.nvlinks;
    let read = |point: PointId| frame.readings.get(point).copied().unwrap_or(Err(Absence::NotYet));
    let (up, expected) = (read(UP), read(EXPECTED));
    let now = up.ok().and_then(|up| u32::try_from(up).ok()).unwrap_or(0);
    // More than the board has are no links.
    let most = most.max(if nvlinks > 0 { now.min(nvlinks) } else { now });
    let is_told = match expected {
        Ok(number) => number > 0,
        Err(absence) => !absence.is_permanent(),
    };
    let has_links = !up.is_err_and(Absence::is_permanent);
    // A fabric of switches connects all links of its GPUs.
    let connected = if read(REGISTERED.id) == Ok(1) { most.max(nvlinks) } else { most };
    if let Some(place) = frame.readings.get_mut(EXPECTED).filter(|_| !is_told && has_links) {
        *place = if most > 0 { Ok(connected.into()) } else { Err(Absence::NotSupported) };
    }
    most
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::catalogue::device_points;
    use crate::model::{GpuIdentity, Reading};

    /// What is expected of a board with 18 links, and the most that were up.
    fn expected(up: Reading, told: Reading, is_registered: bool, most: u32) -> (Reading, u32) {
        let mut readings: Box<[Reading]> = device_points().map(|_| Err(Absence::NotSupported)).collect();
        (readings[UP], readings[EXPECTED]) = (up, told);
        readings[REGISTERED.id] = if is_registered { Ok(1) } else { Err(Absence::NotSupported) };
        let mut frame = Frame::with(readings);
        frame.identity = Arc::new(GpuIdentity { nvlinks: 18, ..GpuIdentity::default() });
        let most = expect_links(&mut frame, most);
        (frame.readings[EXPECTED], most)
    }

    #[test]
    fn the_most_links_that_were_up_are_expected_and_none_where_none_ever_was() {
        let silent = Err(Absence::NotSupported);
        assert_eq!(expected(Ok(0), silent, false, 0), (silent, 0));
        assert_eq!(expected(Ok(0), Ok(0), false, 0), (silent, 0), "no link leads to a switch");
        assert_eq!(expected(Ok(12), silent, false, 0), (Ok(12), 12));
        assert_eq!(expected(Ok(11), silent, false, 12), (Ok(12), 12));
        assert_eq!(expected(Err(Absence::Failed), silent, false, 12), (Ok(12), 12));
        assert_eq!(expected(Ok(30), silent, false, 12), (Ok(18), 18), "the board has no more");
        assert_eq!(expected(silent, silent, false, 12), (silent, 12), "MIG mode has no links");
    }

    #[test]
    fn what_the_driver_says_and_a_registered_fabric_decide_before_the_most_that_were_up() {
        let silent = Err(Absence::NotSupported);
        assert_eq!(expected(Ok(0), Ok(18), false, 0), (Ok(18), 0));
        assert_eq!(expected(Ok(12), Err(Absence::Failed), false, 12), (Err(Absence::Failed), 12));
        assert_eq!(expected(Ok(17), silent, true, 0), (Ok(18), 17));
        assert_eq!(expected(Ok(0), silent, true, 0), (silent, 0));
    }
}
