//! Every metric, one row each: what it is called, what it means, what it is counted in, where it comes from.
//!
//! Pure data and the laws that it obeys, which are checked when the crate is compiled. It does not know who
//! reads the rows: the plan of a GPU, the encoders, the documentation and the tests all do.

mod account;
mod activity;
mod agent;
mod aliases;
mod bounds;
mod clocks;
mod counters;
mod ecc;
mod engines;
mod family;
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
pub use aliases::{Alias, Instrument, Profile};
pub use bounds::Bound;
pub use counters::{COUNTING, Counter, counters};
pub use family::*;
pub use labels::{LABELS, Label, values_of};
pub use points::{
    INTEGRALS, IntegralOf, PointId, counter_of, device_points, first_integral, first_point, integral_of,
    point,
};
pub use source::*;
pub use values::*;

/// All families, by subject, in the order of the page.
pub const SUBJECTS: &[&[Family]] = &[
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
pub fn families() -> impl Iterator<Item = &'static Family> {
    SUBJECTS.iter().flat_map(|subject| subject.iter())
}

/// The family of that full name.
pub fn family(name: &str) -> Option<&'static Family> {
    families().find(|family| family.name == name)
}
