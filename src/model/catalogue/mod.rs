//! Every metric, one row each: what it is called, what it means, its unit, and where its values come from.
//!
//! Pure data, and the laws that it obeys, which are checked when the crate is compiled. It does not know who reads the
//! rows: the plan of a GPU, the encoders, the documentation and the tests all do.

mod account;
mod activity;
mod agent;
mod aliases;
mod bounds;
mod clocks;
mod counters;
mod dcgm;
mod ecc;
mod engines;
mod family;
mod hardware;
mod health;
mod identity;
mod instances;
mod labels;
mod laws;
mod links;
mod memory;
mod points;
mod power;
mod processes;
pub mod reference;
mod repair;
mod source;
mod values;
pub mod xid;
mod xids;

pub use agent::AgentFamily;
pub use aliases::{Alias, Profile};
pub use bounds::Bound;
pub use clocks::{POWER_CAP, THROTTLE_REASONS, ThrottleReason};
pub use counters::{COUNTING, Counter, counters};
pub use dcgm::*;
pub use family::*;
pub use hardware::{HARDWARE, MEMORY_UTILIZATION, STATUS, is_up_down_counter};
pub use labels::{LABELS, Label, values_of};
pub use points::{
    FirstNumbers, INTEGRALS, IntegralOf, KnownPoint, PointId, counter_of, device_points, first_integral,
    first_point, integral_of, known_point, numbered_families, point, points_of,
};
pub use source::*;
pub use values::*;

const SUBJECTS: [&[Family]; 16] = [
    identity::ROWS,
    activity::ROWS,
    engines::ROWS,
    memory::ROWS,
    power::ROWS,
    clocks::ROWS,
    links::ROWS,
    links::PER_LINK,
    xids::ROWS,
    ecc::ROWS,
    repair::ROWS,
    health::ROWS,
    instances::ROWS,
    processes::ROWS,
    account::ROWS,
    agent::ROWS,
];

/// All families in the order of the page.
pub static FAMILIES: [&Family; FAMILY_COUNT] = {
    let mut all = [&identity::ROWS[0]; FAMILY_COUNT];
    let (mut place, mut subject) = (0, 0);
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            all[place] = &SUBJECTS[subject][row];
            (place, row) = (place + 1, row + 1);
        }
        subject += 1;
    }
    all
};

const FAMILY_COUNT: usize = {
    let (mut count, mut subject) = (0, 0);
    while subject < SUBJECTS.len() {
        count += SUBJECTS[subject].len();
        subject += 1;
    }
    count
};

pub fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter()
}

pub fn family(name: &str) -> Option<&'static Family> {
    families().find(|family| family.name == name)
}
