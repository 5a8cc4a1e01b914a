//! A reading is a value or a reason why there is none. Absent is never zero.

use super::named;

/// One value of one catalogue point, as an integer of its family's unit ([`super::Unit::decimals`]).
pub type Reading = Result<i64, Absence>;

named! {
    /// Why a reading has no value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Absence {
        /// The board does not support it; permanent until the driver is loaded again.
        NotSupported = "not_supported",
        /// The driver library has no such function; permanent until the driver is loaded again.
        NoSymbol = "no_symbol",
        /// The agent lacks the permission; permanent until the agent is restarted.
        NoPermission = "no_permission",
        /// The GPU is gone or refuses every call.
        Lost = "lost",
        /// The driver was unloaded, or loaded again since the library was initialised.
        DriverGone = "driver_gone",
        /// The driver returned an error that may be temporary.
        Failed = "failed",
        /// The value was outside its plausible range.
        Rejected = "rejected",
        /// Nothing has been read yet, or a pair of samples is still incomplete.
        NotYet = "not_yet",
        /// The last value is older than two ticks of its tier and is withheld.
        Stale = "stale",
    }
    /// The value of the `reason` label.
    fn reason
}

impl Absence {
    /// Whether it lasts until the driver is loaded again or the agent restarts.
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::NotSupported | Self::NoSymbol | Self::NoPermission)
    }
}
