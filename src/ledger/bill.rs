//! The shape of a bill: lines, GPU totals, and the proof that they agree; made by `billing`.

use crate::model::{ActivitySource, Amounts, GpuId, Grade, HolderId, Method, Money, Nanoseconds, Utc};

/// The account from `from` to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerBill {
    /// First minute.
    pub from: Utc,
    /// End of the last minute: as asked for, or `closed_until` where that is earlier.
    pub to: Utc,
    /// The end that was asked for, where the bill ends earlier.
    pub asked_to: Option<Utc>,
    /// Up to here every GPU's minutes are closed; a later bill begins at [`Bill::to`].
    pub closed_until: Utc,
    /// Of all money here; none where no price was in force.
    pub currency: Option<String>,
    /// Whether the ledger has any price, in force here or not.
    pub has_prices: bool,
    /// By GPU, then holder; remainders have lines too.
    pub lines: Vec<BillLine>,
    /// By GPU.
    pub gpus: Vec<GpuTotal>,
    /// The proof.
    pub reconciliation: Reconciliation,
}

/// What one holder held and used on one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillLine {
    /// The GPU.
    pub gpu: GpuId,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// The holder.
    pub holder: HolderId,
    /// What the holder held, used and drew.
    pub amounts: Amounts,
    /// Whether the GPU's energy was measured; where it was not, that of the amounts says nothing.
    pub has_energy: bool,
    /// The worst grade of any minute.
    pub grade: Grade,
    /// Bridged if any minute was.
    pub method: Method,
    /// Whether any minute is a share of several windows that were added together.
    pub coarse: bool,
    /// The worst meter of each minute, each once.
    pub sources: Vec<ActivitySource>,
    /// The time that `money` is for: held less unavailable, and for `__unavailable__` all unavailable time, while a
    /// price was in force.
    pub charged: Nanoseconds,
    /// The same while no price was in force.
    pub unpriced: Nanoseconds,
    /// For the charged time; none where no price was in force in the whole bill.
    pub money: Option<Money>,
}

impl BillLine {
    /// A line without time.
    pub(super) fn empty(gpu: GpuId, holder: HolderId) -> Self {
        Self {
            gpu,
            gpu_instance: None,
            holder,
            amounts: Amounts::default(),
            has_energy: false,
            grade: Grade::Measured,
            method: Method::Observed,
            coarse: false,
            sources: Vec::new(),
            charged: Nanoseconds(0),
            unpriced: Nanoseconds(0),
            money: None,
        }
    }
}

/// One GPU's total, by its own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTotal {
    /// The GPU.
    pub gpu: GpuId,
    /// Product name.
    pub model: String,
    /// GPU time.
    pub slot: Nanoseconds,
    /// End of its account; before [`Bill::to`] only where the GPU was left behind.
    pub settled_until: Utc,
    /// By price.
    pub intervals: Vec<Interval>,
    /// Sum of the intervals; none where no price was in force.
    pub money: Option<Money>,
}

/// GPU time under one price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// When the price began, perhaps before the bill; none before the first price.
    pub since: Option<Utc>,
    /// Billionths of the currency per GPU-hour; none where there was no price.
    pub nano_per_gpu_hour: Option<i64>,
    /// The price class.
    pub class: Option<String>,
    /// GPU time.
    pub slot: Nanoseconds,
    /// Its money.
    pub money: Option<Money>,
}

/// Sums that were made separately and must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciliation {
    /// GPU time of all GPUs.
    pub slot: Nanoseconds,
    /// Of which no price was in force.
    pub unpriced: Nanoseconds,
    /// Held time of all lines.
    pub held: Nanoseconds,
    /// Money of all GPUs.
    pub gpu_money: Money,
    /// Money of all lines.
    pub line_money: Money,
    /// GPU time - held time, in nanoseconds; must be 0.
    pub imbalance: i128,
    /// Money of GPUs - money of lines; must be 0.
    pub imbalance_money: Money,
}
