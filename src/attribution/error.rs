//! Why something could not be settled, named so that the meter can say which span and go on.

use std::sync::Arc;

use crate::model::{Fraction, HolderId, Microjoules, Money, Nanoseconds, Utc};

/// Input that fits no account; nothing was settled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The window is empty or runs backwards.
    #[error("the window from {} to {} has no length; settle a later one", from.0, to.0)]
    Window {
        /// Its begin.
        from: Utc,
        /// Its end.
        to: Utc,
    },
    /// No span covers a part of the window.
    #[error("no span covers {} to {}; pass one that says unobserved", from.0, to.0)]
    Gap {
        /// Where the gap begins.
        from: Utc,
        /// Where it ends.
        to: Utc,
    },
    /// A span lies on another, or reaches out of the window.
    #[error("the span from {} reaches over {}, where another or the window ends; cut it there", from.0, at.0)]
    Overlap {
        /// The span's begin.
        from: Utc,
        /// Where it had to begin or end.
        at: Utc,
    },
    /// A span ends before it begins.
    #[error("the span from {} ends at {}, before it begins; drop it", from.0, to.0)]
    Backwards {
        /// The span's begin.
        from: Utc,
        /// The span's end.
        to: Utc,
    },
    /// More time busy than there was time.
    #[error("the span from {} is busy {busy} ns of {} ns; make it unmeasured", from.0, length.0)]
    Busy {
        /// The span's begin.
        from: Utc,
        /// Its busy time in nanoseconds.
        busy: u64,
        /// Its length.
        length: Nanoseconds,
    },
    /// The parts of a layout are not the whole GPU.
    #[error("the parts of the layout are {sum} of {total} placements; name each placement once")]
    Layout {
        /// What the GPU has.
        total: u64,
        /// What the parts have.
        sum: u128,
    },
    /// A slot of the layout has no spans.
    #[error("the slot {slot:?} of the layout has no spans; pass one that says unobserved")]
    MissingSlot {
        /// Which slot.
        slot: Arc<str>,
    },
    /// Spans of a slot that the layout does not have.
    #[error("the layout has no slot {slot:?}; drop its spans")]
    UnknownSlot {
        /// Which slot.
        slot: Arc<str>,
    },
    /// A claim above the whole, or of nothing at all.
    #[error("{holder} holds {fraction} of a slot; a share lies between 0 and 1")]
    Share {
        /// Whose claim.
        holder: HolderId,
        /// What was claimed.
        fraction: Fraction,
    },
    /// Two holdings of one holder on one slot.
    #[error("{holder} holds twice on one slot; add the fractions")]
    HeldTwice {
        /// Whose claims.
        holder: HolderId,
    },
    /// A remainder that claims to hold.
    #[error("{holder} is reserved and cannot hold; name another holder")]
    Reserved {
        /// The reserved name.
        holder: HolderId,
    },
    /// The energy of the window is more than a counter can count.
    #[error("the span from {} brings {} uJ, more than the window can sum; drop its energy", from.0, energy.0)]
    Energy {
        /// The span's begin.
        from: Utc,
        /// Its energy, or its idle energy.
        energy: Microjoules,
    },
    /// Less than nothing to share out.
    #[error("{} nano-units are less than nothing and cannot be split; book a credit", total.0)]
    NegativeMoney {
        /// What was to be split.
        total: Money,
    },
    /// Money, or more time than fits, without a time to split it along.
    #[error("{} nano-units cannot be split along {time} ns; give the holders' times", total.0)]
    MoneyWithoutTime {
        /// What was to be split.
        total: Money,
        /// The sum of the times.
        time: u128,
    },
}
