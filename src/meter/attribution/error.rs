//! Errors of settlement.

use std::sync::Arc;

use crate::model::{Fraction, HolderId, Microjoules, Nanoseconds, Utc};

/// Input that no account can hold; nothing was settled. Times in the messages are nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    #[error("the window from {} to {} has no length; settle a later one", from.0, to.0)]
    Window { from: Utc, to: Utc },
    #[error("no span covers {} to {}; pass an unobserved one", from.0, to.0)]
    Gap { from: Utc, to: Utc },
    #[error("the span from {} reaches over {}, where another or the window ends; cut it there", from.0, at.0)]
    Overlap { from: Utc, at: Utc },
    #[error("the span from {} ends at {}, before it begins; drop it", from.0, to.0)]
    Backwards { from: Utc, to: Utc },
    #[error("the span from {} is busy {busy} ns of {} ns; make it unmeasured", from.0, length.0)]
    Busy { from: Utc, busy: u64, length: Nanoseconds },
    #[error("the parts of the layout are {sum} of {total} placements; name each placement once")]
    Layout { total: u64, sum: u128 },
    #[error("the slot {slot:?} of the layout has no spans; pass an unobserved one")]
    MissingSlot { slot: Arc<str> },
    #[error("the layout has no slot {slot:?}; drop its spans")]
    UnknownSlot { slot: Arc<str> },
    #[error("{holder} holds {fraction} of a slot; a share lies between 0 and 1")]
    Share { holder: HolderId, fraction: Fraction },
    #[error("{holder} holds twice on one slot; add the fractions")]
    HeldTwice { holder: HolderId },
    #[error("{holder} is reserved and cannot hold; name another holder")]
    Reserved { holder: HolderId },
    #[error("with {} uJ the span from {} makes the window exceed 64 bits of energy; drop its energy", energy.0, from.0)]
    Energy { from: Utc, energy: Microjoules },
}
