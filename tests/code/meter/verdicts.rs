//! Verdicts on readings of which a part is missing for a while.

use gpumeter::model::{Absence, HealthState, Reading, Remedy};

use super::world::World;

const DEGRADED: (HealthState, Remedy) = (HealthState::Degraded, Remedy::ResetGpu);
const WELL: (HealthState, Remedy) = (HealthState::Ok, Remedy::None);

#[test]
fn a_reading_that_fails_does_not_turn_a_degraded_gpu_healthy() {
    let mut world = World::new(&["alice"]);
    let mut verdicts = Vec::new();
    let failed: Reading = Err(Absence::Failed);
    for dram in [Ok(0), Ok(2), failed, Ok(2), failed, Ok(0)] {
        world.run(1, |frame| frame.uncorrected([dram, Ok(0)]));
        verdicts.push(world.verdict());
    }
    assert_eq!(verdicts, [WELL, DEGRADED, DEGRADED, DEGRADED, DEGRADED, WELL]);
    // A board that counts no errors of SRAM is judged by those of DRAM.
    world.run(1, |frame| frame.uncorrected([Ok(1), Err(Absence::NotSupported)]));
    assert_eq!(world.verdict(), DEGRADED);
    world.run(1, |frame| frame.uncorrected([Ok(0), Err(Absence::NotSupported)]));
    assert_eq!(world.verdict(), WELL);
}
