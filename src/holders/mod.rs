//! Who uses a GPU, and who holds it.
//!
//! In: processes as the host shows them, standing holdings as configured, the holders present on a GPU.
//! Out: pid to [`Holder`](crate::model::Holder) ([`Directory`], [`Identities`]), and a GPU's holdings with
//! whom each covers ([`holdings`]). Identity goes by kind: the GPU system's own processes, then the unit,
//! then the user; kinds to come (Slurm job, pod, container, VM) stand before the unit, and what belongs to
//! them is unattributed until then. It knows no tenant, no money, no clock, and starts no thread.

mod decode;
mod directory;
mod holdings;
mod identify;
mod identities;
mod place;
mod presence;
mod standing;
mod system;
mod unit;
mod user;
mod workload;

pub use directory::Directory;
pub use holdings::holdings;
pub use identify::identify;
pub use identities::{Identified, Identities};
pub use standing::{GpuSelector, Selector, SessionGpu, Standing, unmatched};
