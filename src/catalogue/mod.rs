//! Every metric, one row each: what it is called, what it means, what it is counted in, where it comes from.
//!
//! Pure data and the laws that it obeys, which are checked when the crate is compiled. It does not know who
//! reads the rows: the plan of a GPU, the encoders, the documentation and the tests all do.

mod account;
mod activity;
mod agent;
mod clocks;
mod errors;
mod family;
mod identity;
mod instances;
mod laws;
mod links;
mod memory;
mod points;
mod power;
mod processes;
pub mod reference;
pub mod xid;

pub use family::*;
pub use points::{INTEGRALS, PointId, device_points, first_point, integral_source, point};

/// All families, by subject, in the order of the page.
pub const SUBJECTS: &[&[Family]] = &[
    identity::ROWS,
    activity::ROWS,
    memory::ROWS,
    power::ROWS,
    clocks::ROWS,
    links::ROWS,
    errors::ROWS,
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
