//! Amounts of the account for a holder on a slot: the parts of held time, and used time.

use serde::{Deserialize, Serialize};

use super::{Microjoules, named};

/// The five parts of held slot time, in nanoseconds; they sum to what was held, each at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Used by those whom the holding covers.
    pub within: u64,
    /// Used by others than those whom the holding covers.
    pub lent: u64,
    /// Used by nobody. Unused time is `lent` and `idle` together.
    pub idle: u64,
    /// Held while activity was unknown.
    pub unmeasured: u64,
    /// Held while the slot was lost or broken.
    pub unavailable: u64,
}

impl Parts {
    /// What was held.
    pub const fn held(&self) -> u64 {
        self.within + self.lent + self.idle + self.unmeasured + self.unavailable
    }

    /// Subtracts parts that are contained in these.
    pub const fn remove(&mut self, part: &Self) {
        self.within -= part.within;
        self.lent -= part.lent;
        self.idle -= part.idle;
        self.unmeasured -= part.unmeasured;
        self.unavailable -= part.unavailable;
    }

    /// Adds another span's parts.
    pub const fn add(&mut self, other: &Self) {
        self.within += other.within;
        self.lent += other.lent;
        self.idle += other.idle;
        self.unmeasured += other.unmeasured;
        self.unavailable += other.unavailable;
    }
}

/// Slot time that a user kept busy, in nanoseconds: the four shares sum to what was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Within a holding that covers the user.
    pub within: u64,
    /// Above the held part, by a user who holds something on this slot.
    pub beyond: u64,
    /// By a user who holds nothing on a slot that others hold.
    pub outside: u64,
    /// On a slot that nobody holds.
    pub unheld: u64,
}

impl Use {
    /// What was used.
    pub const fn total(&self) -> u64 {
        self.within + self.beyond + self.outside + self.unheld
    }

    /// Subtracts use that is contained in this.
    pub const fn remove(&mut self, part: &Self) {
        self.within -= part.within;
        self.beyond -= part.beyond;
        self.outside -= part.outside;
        self.unheld -= part.unheld;
    }

    /// Adds another span's use.
    pub const fn add(&mut self, other: &Self) {
        self.within += other.within;
        self.beyond += other.beyond;
        self.outside += other.outside;
        self.unheld += other.unheld;
    }
}

/// All amounts that the account has for a holder on a slot: from the row of a window to the line of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// The parts of what was held; for `__unallocated__`, `lent` is what was drawn from it.
    pub parts: Parts,
    /// What was used.
    pub used: Use,
    /// The share of the energy that an idle GPU would have drawn.
    pub energy_static: Microjoules,
    /// The share of the energy above that.
    pub energy_dynamic: Microjoules,
    /// Resident memory x time, in byte-seconds, rounded down.
    pub memory_byte_seconds: u64,
    /// The part of what was used whose split was measured, in nanoseconds.
    pub measured: u64,
}

impl Amounts {
    /// Adds another span's amounts; what the driver reports (energy, memory) stops at the largest number.
    pub const fn add(&mut self, other: &Self) {
        self.parts.add(&other.parts);
        self.used.add(&other.used);
        self.energy_static.0 = self.energy_static.0.saturating_add(other.energy_static.0);
        self.energy_dynamic.0 = self.energy_dynamic.0.saturating_add(other.energy_dynamic.0);
        self.memory_byte_seconds = self.memory_byte_seconds.saturating_add(other.memory_byte_seconds);
        self.measured += other.measured;
    }

    /// The sum with other amounts of one GPU; none where its time or energy has more than 64 bits, as only a wrong file says.
    pub fn checked_add(mut self, other: &Self) -> Option<Self> {
        let totals = |Self { parts, used, energy_static, energy_dynamic, measured, .. }: &Self| {
            let held = [parts.within, parts.lent, parts.idle, parts.unmeasured, parts.unavailable];
            let used = [used.within, used.beyond, used.outside, used.unheld];
            let energy = [energy_static.0, energy_dynamic.0];
            let total = |all: &[u64]| all.iter().map(|one| u128::from(*one)).sum::<u128>();
            [total(&held), total(&used), total(&energy), u128::from(*measured)]
        };
        let fits = totals(&self).iter().zip(totals(other)).all(|(one, two)| *one + two <= u64::MAX.into());
        fits.then(|| {
            self.add(other);
            self
        })
    }

    /// Subtracts amounts that are contained in these.
    pub const fn remove(&mut self, part: &Self) {
        self.parts.remove(&part.parts);
        self.used.remove(&part.used);
        self.energy_static.0 = self.energy_static.0.saturating_sub(part.energy_static.0);
        self.energy_dynamic.0 = self.energy_dynamic.0.saturating_sub(part.energy_dynamic.0);
        self.memory_byte_seconds = self.memory_byte_seconds.saturating_sub(part.memory_byte_seconds);
        self.measured -= part.measured;
    }
}

named! {
    /// How the busy time of a slot was split between its users, best first; a row has its worst grade.
    /// The ledger stores the place of a variant: append only.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Grade {
        /// By each process's own utilization, or one user took all.
        #[default]
        Measured = "measured",
        /// By the weights of other ticks or windows.
        SplitByActivity = "split_by_activity",
        /// Along what each holds.
        SplitByHolding = "split_by_holding",
        /// By resident memory.
        SplitByMemory = "split_by_memory",
        /// Equally per holder.
        SplitEqually = "split_equally",
        /// The owner is unknown.
        Unknown = "unknown",
    }
    /// The name in statements and in the ledger.
    fn name
}

named! {
    /// How a row was determined. The ledger stores the place of a variant: append only.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Method {
        /// Observed by the agent.
        #[default]
        Observed = "observed",
        /// Assumed for a gap in which the agent did not run, since the same holder held before and after it.
        Bridged = "bridged",
    }
    /// The name in statements and in the ledger.
    fn name
}
