//! A reading is a value or a reason why there is none. Absent is never zero.

/// One value of one catalogue point, as an integer of its family's unit ([`super::Unit::decimals`]).
pub type Reading = Result<i64, Absence>;

/// Why a reading has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Absence {
    /// This board cannot answer it; permanent until the driver is loaded anew.
    NotSupported,
    /// The driver library has no such function; permanent until the driver is loaded anew.
    NoSymbol,
    /// The agent lacks the right to ask; permanent until the agent is restarted.
    NoPermission,
    /// The GPU is gone or refuses every call.
    Lost,
    /// The driver itself is gone: unloaded, or loaded anew since the library was initialised.
    DriverGone,
    /// The driver answered with an error that may pass.
    Failed,
    /// The answer was outside what the quantity can be.
    Rejected,
    /// Nothing has been read yet, or a pair of samples is still incomplete.
    NotYet,
    /// The last value is older than two ticks of its tier and is withheld.
    Stale,
}

impl Absence {
    /// Whether asking again is pointless until the driver or the agent starts anew.
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
