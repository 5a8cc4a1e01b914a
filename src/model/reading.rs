//! A reading is a value or a reason why there is none. Absent is never zero.

/// One value of one catalogue point, as an integer of its family's unit ([`super::Unit::decimals`]).
pub type Reading = Result<i64, Absence>;

/// Why a reading has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Absence {
    /// The board does not support it; permanent until the driver is loaded again.
    NotSupported,
    /// The driver library has no such function; permanent until the driver is loaded again.
    NoSymbol,
    /// The agent lacks the permission; permanent until the agent is restarted.
    NoPermission,
    /// The GPU is gone or refuses every call.
    Lost,
    /// The driver was unloaded, or loaded again since the library was initialised.
    DriverGone,
    /// The driver returned an error that may be temporary.
    Failed,
    /// The value was outside its plausible range.
    Rejected,
    /// Nothing has been read yet, or a pair of samples is still incomplete.
    NotYet,
    /// The last value is older than two ticks of its tier and is withheld.
    Stale,
}

impl Absence {
    /// Whether it lasts until the driver is loaded again or the agent restarts.
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::NotSupported | Self::NoSymbol | Self::NoPermission)
    }

    /// The value of the `reason` label.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotSupported => "not_supported",
            Self::NoSymbol => "no_symbol",
            Self::NoPermission => "no_permission",
            Self::Lost => "lost",
            Self::DriverGone => "driver_gone",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::NotYet => "not_yet",
            Self::Stale => "stale",
        }
    }
}
