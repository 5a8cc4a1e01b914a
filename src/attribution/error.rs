//! Errors of settlement.

use std::sync::Arc;

use crate::model::{Fraction, HolderId, Microjoules, Money, Nanoseconds, Utc};

/// Input that no account can hold; nothing was settled. Times in the messages are nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The window is empty or runs backwards.
    #[error("the window from {} to {} has no length; settle a later one", from.0, to.0)]
    Window {
        /// Begin of the window.
        from: Utc,
        /// End of the window.
        to: Utc,
    },
    /// No span covers a part of the window.
    #[error("no span covers {} to {}; pass an unobserved one", from.0, to.0)]
    Gap {
        /// Begin of the gap.
        from: Utc,
        /// End of the gap.
        to: Utc,
    },
    /// A span overlaps another one, or reaches out of the window.
    #[error("the span from {} reaches over {}, where another or the window ends; cut it there", from.0, at.0)]
    Overlap {
        /// Begin of the span.
        from: Utc,
        /// Where it should begin or end.
        at: Utc,
    },
    /// A span ends before it begins.
    #[error("the span from {} ends at {}, before it begins; drop it", from.0, to.0)]
    Backwards {
        /// Begin of the span.
        from: Utc,
        /// End of the span.
        to: Utc,
    },
    /// A span is busy for longer than it lasts.
    #[error("the span from {} is busy {busy} ns of {} ns; make it unmeasured", from.0, length.0)]
    Busy {
        /// Begin of the span.
        from: Utc,
        /// Busy time in nanoseconds.
        busy: u64,
        /// Length of the span.
        length: Nanoseconds,
    },
    /// The parts of a layout are not the whole GPU.
    #[error("the parts of the layout are {sum} of {total} placements; name each placement once")]
    Layout {
        /// Memory slices of the GPU.
        total: u64,
        /// Memory slices of the parts.
        sum: u128,
    },
    /// A slot of the layout has no spans.
    #[error("the slot {slot:?} of the layout has no spans; pass an unobserved one")]
    MissingSlot {
        /// Name of the slot.
        slot: Arc<str>,
    },
    /// There are spans of a slot that the layout does not have.
    #[error("the layout has no slot {slot:?}; drop its spans")]
    UnknownSlot {
        /// Name of the slot.
        slot: Arc<str>,
    },
    /// A claim is not between 0 and the whole slot.
    #[error("{holder} holds {fraction} of a slot; a share lies between 0 and 1")]
    Share {
        /// Holder with the claim.
        holder: HolderId,
        /// Claimed share.
        fraction: Fraction,
    },
    /// A holder has two holdings on one slot.
    #[error("{holder} holds twice on one slot; add the fractions")]
    HeldTwice {
        /// Holder with the claims.
        holder: HolderId,
    },
    /// A remainder has a holding.
    #[error("{holder} is reserved and cannot hold; name another holder")]
    Reserved {
        /// Reserved name.
        holder: HolderId,
    },
    /// The energy of the window exceeds 64 bits.
    #[error("with {} uJ the span from {} makes the window exceed 64 bits of energy; drop its energy", energy.0, from.0)]
    Energy {
        /// Begin of the span.
        from: Utc,
        /// Energy of the span, or its idle energy.
        energy: Microjoules,
    },
    /// Negative money cannot be split.
    #[error("a negative amount ({} nano-units) cannot be split; book a credit", total.0)]
    NegativeMoney {
        /// Amount to split, in nano-units.
        total: Money,
    },
    /// There is money but no time along which to split it, or more time than fits in 64 bits.
    #[error("{} nano-units cannot be split along {time} ns; give the holders' times", total.0)]
    MoneyWithoutTime {
        /// Amount to split, in nano-units.
        total: Money,
        /// Sum of the times.
        time: u128,
    },
}
