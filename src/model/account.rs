//! Amounts of the account for a holder on a slot: the parts of held time, and used time.

use serde::{Deserialize, Serialize};

use super::{Microjoules, json, named};

/// The five parts of held slot time, in nanoseconds; they sum to what was held, each at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Used by those whom the holding covers.
    #[serde(rename = "within_ns", with = "json::integer")]
    pub within: u64,
    /// Used by others than those whom the holding covers.
    #[serde(rename = "lent_ns", with = "json::integer")]
    pub lent: u64,
    /// Used by nobody. Unused time is `lent` and `idle` together.
    #[serde(rename = "idle_ns", with = "json::integer")]
    pub idle: u64,
    /// Held while activity was unknown.
    #[serde(rename = "unmeasured_ns", with = "json::integer")]
    pub unmeasured: u64,
    /// Held while the slot was lost or broken.
    #[serde(rename = "unavailable_ns", with = "json::integer")]
    pub unavailable: u64,
}

impl Parts {
    pub const fn held(&self) -> u64 {
        self.within + self.lent + self.idle + self.unmeasured + self.unavailable
    }

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
    #[serde(rename = "within_ns", with = "json::integer")]
    pub within: u64,
    /// Above the held part, by a user who holds something on this slot.
    #[serde(rename = "beyond_ns", with = "json::integer")]
    pub beyond: u64,
    /// By a user who holds nothing on a slot that others hold.
    #[serde(rename = "outside_ns", with = "json::integer")]
    pub outside: u64,
    /// On a slot that nobody holds.
    #[serde(rename = "unheld_ns", with = "json::integer")]
    pub unheld: u64,
}

impl Use {
    pub const fn total(&self) -> u64 {
        self.within + self.beyond + self.outside + self.unheld
    }

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
    pub used: Use,
    /// The share of the energy that an idle GPU would have drawn.
    pub energy_static: Microjoules,
    /// The share of the energy above that.
    pub energy_dynamic: Microjoules,
    /// Resident memory x time, in byte-seconds, rounded down.
    pub memory_byte_seconds: u64,
    /// Energy above idle power in ticks in which a process of the holder was there and the GPU was busy for less than 1 % of
    /// the time. A share of the GPU's energy, which the two above divide by other rules.
    pub energy_waiting: Microjoules,
    /// The part of what was used whose split was measured, in nanoseconds.
    pub measured: u64,
    /// The most resident memory of a tick, in bytes; 0 where none was reported. Of several GPUs it is the most on one.
    pub memory_peak: u64,
}

/// How an amount of one span and that of another make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmountKind {
    /// They are added up.
    Counted,
    /// They are added up, and since the driver reports them the sum stops at the largest number: one absurd reading must not
    /// keep the rest of the account from being stored.
    Reported,
    /// The larger one counts. It cannot be divided: each part of a span has it whole.
    Maximum,
}

/// One of the amounts: the list of these says how all of them are added, stored, exported and printed.
#[derive(Debug)]
pub struct Amount {
    /// Its name with its unit: the column of the ledger and of day files.
    pub name: &'static str,
    /// Its field in a line of a bill in JSON; none where that has none.
    pub json: Option<&'static str>,
    pub kind: AmountKind,
    field: Field,
}

type Field = (fn(&Amounts) -> u64, fn(&mut Amounts) -> &mut u64);

macro_rules! field {
    ($($path:tt)+) => {
        (|amounts| amounts.$($path)+, |amounts| &mut amounts.$($path)+)
    };
}

/// All amounts: the parts of held time, the shares of used time, what the driver reports, measured time, and maxima. A new one is a row
/// here, a field of [`Amounts`] and a column of the ledger.
pub const AMOUNTS: &[Amount] = &[
    counted("within_ns", Some("within_ns"), field!(parts.within)),
    counted("lent_ns", Some("lent_ns"), field!(parts.lent)),
    counted("idle_ns", Some("idle_ns"), field!(parts.idle)),
    counted("unmeasured_ns", Some("unmeasured_ns"), field!(parts.unmeasured)),
    counted("unavailable_ns", Some("unavailable_ns"), field!(parts.unavailable)),
    // A bill has the sum of the four instead of the first.
    counted("used_within_ns", None, field!(used.within)),
    counted("used_beyond_ns", Some("beyond_share_ns"), field!(used.beyond)),
    counted("used_outside_ns", Some("outside_holding_ns"), field!(used.outside)),
    counted("used_unheld_ns", Some("unheld_ns"), field!(used.unheld)),
    reported("energy_static_uj", Some("energy_static_uj"), field!(energy_static.0)),
    reported("energy_dynamic_uj", Some("energy_dynamic_uj"), field!(energy_dynamic.0)),
    reported("memory_byte_seconds", None, field!(memory_byte_seconds)),
    reported("energy_waiting_uj", None, field!(energy_waiting.0)),
    counted("measured_ns", Some("measured_ns"), field!(measured)),
    maximum("memory_peak_bytes", None, field!(memory_peak)),
];

pub const PARTS: &[Amount] = AMOUNTS.split_at(5).0;

pub const USES: &[Amount] = AMOUNTS.split_at(5).1.split_at(4).0;

pub const REPORTED: &[Amount] = AMOUNTS.split_at(9).1.split_at(4).0;

const fn counted(name: &'static str, json: Option<&'static str>, field: Field) -> Amount {
    Amount { name, json, kind: AmountKind::Counted, field }
}

const fn reported(name: &'static str, json: Option<&'static str>, field: Field) -> Amount {
    Amount { name, json, kind: AmountKind::Reported, field }
}

const fn maximum(name: &'static str, json: Option<&'static str>, field: Field) -> Amount {
    Amount { name, json, kind: AmountKind::Maximum, field }
}

impl Amount {
    pub fn of(&self, amounts: &Amounts) -> u64 {
        self.field.0(amounts)
    }

    pub fn of_mut<'a>(&self, amounts: &'a mut Amounts) -> &'a mut u64 {
        self.field.1(amounts)
    }
}

impl Amounts {
    pub fn add(&mut self, other: &Self) {
        for amount in AMOUNTS {
            let (sum, more) = (amount.of_mut(self), amount.of(other));
            *sum = match amount.kind {
                AmountKind::Counted => *sum + more,
                AmountKind::Reported => sum.saturating_add(more),
                AmountKind::Maximum => more.max(*sum),
            };
        }
    }

    /// The sum with other amounts of one GPU; none where its time or energy has more than 64 bits, as only a wrong file says.
    pub fn checked_add(mut self, other: &Self) -> Option<Self> {
        let (energy, measured) = (REPORTED.split_at(2).0, AMOUNTS.split_at(13).1.split_at(1).0);
        let fits = [PARTS, USES, energy, measured].into_iter().all(|kinds| {
            let mut both = kinds.iter().flat_map(|kind| [kind.of(&self), kind.of(other)]);
            both.try_fold(0_u64, u64::checked_add).is_some()
        });
        fits.then(|| {
            self.add(other);
            self
        })
    }

    /// Subtracts amounts that are contained in these. A maximum stays, since it may be of the rest.
    pub fn remove(&mut self, part: &Self) {
        for amount in AMOUNTS {
            let (sum, less) = (amount.of_mut(self), amount.of(part));
            *sum = match amount.kind {
                AmountKind::Counted => *sum - less,
                AmountKind::Reported => sum.saturating_sub(less),
                AmountKind::Maximum => *sum,
            };
        }
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
        SplitByHolding = "split_by_holding",
        SplitByMemory = "split_by_memory",
        SplitEqually = "split_equally",
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
        #[default]
        Observed = "observed",
        /// Assumed for a gap in which the agent did not run, since the same holder held before and after it.
        Bridged = "bridged",
    }
    /// The name in statements and in the ledger.
    fn name
}
