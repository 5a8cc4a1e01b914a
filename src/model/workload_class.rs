//! What a workload is for.

use serde::{Deserialize, Serialize};

use super::named;

named! {
    /// What a workload is for, so that advice knows which idle time is meant to be.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum WorkloadClass {
        /// It ends by itself, and idles only by mistake.
        Batch = "batch",
        /// A person works with it.
        Interactive = "interactive",
        /// It answers requests, and waits for them.
        Service = "service",
        /// It idles on purpose, to be ready at once.
        Warm = "warm",
        /// It may be stopped at any time and goes on later.
        Interruptible = "interruptible",
        /// It holds GPUs for others.
        Reserve = "reserve",
        /// No rule and no default says.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
    fn name
}

impl WorkloadClass {
    /// The classes that a rule may give.
    pub const DECLARED: [Self; 6] =
        [Self::Batch, Self::Interactive, Self::Service, Self::Warm, Self::Interruptible, Self::Reserve];
}
