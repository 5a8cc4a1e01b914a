//! The account's time axis: time since boot plus an offset that is fixed once per boot.
//!
//! So a step of the wall clock neither doubles nor loses GPU time; it is recorded beside the account. The offset is taken
//! from the wall clock once the kernel reports it as synchronised, or two minutes after the boot. Until then the axis is
//! provisional: it continues from the last commit, and spans are stored on it, but no window closes. An [`Anchor`] then
//! moves everything of this boot to its real time.
//!
//! Account time never goes back before what is stored, however late the wall clock is, and a clock that is not synchronised
//! moves it at most a day past that. The difference to the wall clock is a metric.

use crate::model::{Nanoseconds, SlotState, Span, Stamp, Utc};

/// Time since boot after which a wall clock is used although it is not synchronised.
const WAIT_FOR_SYNC: Nanoseconds = Nanoseconds::from_seconds(120);

/// The most by which a clock that is not synchronised moves the account past the last commit.
const MAX_UNSYNCHRONISED_GAP: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

/// 2025-01-01T00:00:00Z, the earliest time that a new ledger accepts from a clock that is not synchronised. A real-time
/// clock without its battery begins in 1970 or 2000.
const EARLIEST_UNSYNCHRONISED: Utc = Utc(1_735_689_600_000_000_000);

/// Converts time since boot into account time, within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountTimeline {
    /// Account time - time since boot, in nanoseconds.
    pub offset: i64,
    /// Origin of the offset.
    pub basis: TimelineBasis,
}

/// Origin of the offset of a boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimelineBasis {
    /// The wall clock: the offset is fixed.
    #[default]
    WallClock,
    /// The last commit of earlier boots, at that account time: the offset is provisional.
    LastCommit(Utc),
    /// Nothing, since no boot of this ledger has a fixed offset yet: the offset is provisional.
    NewLedger,
}

/// Fixes the offset of a boot: times after `since` on the provisional axis move by `shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// End of what was committed in earlier boots; none in a new ledger, where everything moves.
    pub since: Option<Utc>,
    /// Real - provisional account time, in nanoseconds.
    pub shift: i64,
    pub booted: Utc,
    /// The real offset, in nanoseconds.
    pub offset: i64,
}

/// When the kernel started, and when an agent first opened the ledger under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// Account time of the boot; 0 while it is unknown.
    pub booted: Utc,
    /// Account time of the first opening of the ledger in this boot; spans that end by then are of an earlier boot.
    pub first_seen: Utc,
}

impl AccountTimeline {
    /// An axis that follows the wall clock of this moment.
    pub const fn starting(now: Stamp) -> Self {
        Self { offset: wall_clock_offset(now), basis: TimelineBasis::WallClock }
    }

    /// Account time of a moment of this boot.
    pub const fn at(self, boottime: Nanoseconds) -> Utc {
        Utc(boottime.0.saturating_add_signed(self.offset))
    }

    /// Wall clock - account time, in nanoseconds; constant unless the wall clock steps.
    pub const fn lead(self, now: Stamp) -> i64 {
        now.utc.0.wrapping_sub(self.at(now.boottime).0) as i64
    }

    /// Whether the offset is not fixed yet.
    pub const fn is_provisional(self) -> bool {
        !matches!(self.basis, TimelineBasis::WallClock)
    }

    /// The anchor of a provisional axis, once the wall clock may be used.
    pub fn anchor(self, now: Stamp, synchronised: bool) -> Option<Anchor> {
        let since = match self.basis {
            TimelineBasis::WallClock => return None,
            TimelineBasis::LastCommit(since) => Some(since),
            TimelineBasis::NewLedger => None,
        };
        let is_too_early = since.is_none() && now.utc < EARLIEST_UNSYNCHRONISED;
        if !synchronised && (now.boottime < WAIT_FOR_SYNC || is_too_early) {
            return None;
        }
        // The provisional axis puts this boot 1 ns after the last commit.
        let least = self.offset.saturating_sub(1);
        let offset = if since.is_none() {
            wall_clock_offset(now)
        } else if synchronised {
            wall_clock_offset(now).max(least)
        } else {
            wall_clock_offset(now).clamp(least, least.saturating_add_unsigned(MAX_UNSYNCHRONISED_GAP.0))
        };
        let fixed = Self { offset, basis: TimelineBasis::WallClock };
        Some(Anchor { since, shift: offset - self.offset, booted: fixed.at(Nanoseconds(0)), offset })
    }

    /// The axis after its offset was fixed.
    pub const fn fixed_by(anchor: &Anchor) -> Self {
        Self { offset: anchor.offset, basis: TimelineBasis::WallClock }
    }
}

const fn wall_clock_offset(now: Stamp) -> i64 {
    now.utc.0.wrapping_sub(now.boottime.0).cast_signed()
}

impl Anchor {
    /// The real time of a moment on the provisional axis.
    pub fn moved(&self, at: Utc) -> Utc {
        if self.is_of_this_boot(at) { Utc(at.0.saturating_add_signed(self.shift)) } else { at }
    }

    /// Whether a moment on the provisional axis is of this boot.
    fn is_of_this_boot(&self, at: Utc) -> bool {
        self.since.is_none_or(|since| at > since)
    }

    /// A span on the real axis. Of one that begins before this boot, the part up to the boot becomes unavailable and is
    /// returned first.
    pub fn moved_span(&self, span: Span) -> (Option<Span>, Span) {
        let to = self.moved(span.to);
        if self.is_of_this_boot(span.from) {
            let from = self.moved(span.from);
            return (None, Span { from, to, ..span });
        }
        let boundary = self.booted.min(to);
        if !self.is_of_this_boot(span.to) || boundary <= span.from {
            return (None, Span { to, ..span });
        }
        let before_boot = Span::empty(span.from, boundary, SlotState::Unavailable);
        (Some(before_boot), Span { from: boundary, to, ..span })
    }
}
