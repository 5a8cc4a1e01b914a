//! Answers questions of what would be: whether workloads would have fitted together, and how many GPUs will be wanted when. They
//! are evidence from the account, and no verdict.
//!
//! Comes in: rows of an account and its runs, which a ledger or the files of many yield. Goes out: [`Fit`] and [`Demand`]. All of it is
//! pure. Does not know: where accounts are kept, who asks.

mod demand;
mod fit;

pub use demand::{
    Demand, DemandDraft, DemandHour, DemandQuarter, DemandRequest, DemandRun, DemandSeries, HourForecast,
    WEEKS, WorkloadStarts,
};
pub use fit::{
    Fit, FitDraft, FitRequest, FitRow, FitStretch, FitTarget, FittedWorkload, LastPrice, Placement,
};
