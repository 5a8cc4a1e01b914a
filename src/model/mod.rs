//! The data types that all folders share: readings and their absence, GPUs, frames, processes, holders, holdings,
//! spans, snapshots, and quantities.
//!
//! Plain data. Does not know: files, the driver, a clock, a wire format. Everything else may import it; it imports nothing.
//!
//! - [`catalogue`]: every metric as a row of a table, and the XID table.

pub mod catalogue;

pub mod account;
mod decimal;
pub mod evidence;
pub mod frame;
pub mod gpu;
pub mod health;
pub mod holder;
mod holder_kind;
pub mod holding;
mod how_held;
pub mod json;
mod largest_remainder;
mod named;
mod node;
mod pattern;
mod pod_label;
pub mod price;
mod printable;
mod quantity;
pub mod reading;
mod release;
pub mod snapshot;
pub mod span;
pub mod stamp;
mod standing_grant;
mod visible_account;
mod workload_class;

pub use account::{AMOUNTS, Amount, AmountKind, Amounts, Grade, Method, PARTS, Parts, REPORTED, USES, Use};
pub use decimal::Decimal;
pub use evidence::{
    EDGES, Evidence, IDLE_COLUMNS, LONGEST_PAUSE, Run, RunKey, SHAPE_COLUMNS, Series, Shape, ShapeKey,
    Shapes, TickShares, WAITING_SHARE, WHOLE_SHARE,
};
pub use frame::{
    CallInFlight, CallTime, Frame, GpuProcess, InstanceFrame, ProcessSample, Rejection, Sampled, Stretch,
    Unframed,
};
pub use gpu::{
    Attachment, FabricPlace, GpuId, GpuIdentity, GpuName, GpuSelector, InstanceId, InstanceIdentity,
    MemoryKind, MigSlices, Notice, PciAddress, Platform, Sxid, SxidCount, Via, XidCount, XidSource,
};
pub use health::{HealthState, Reason, Remedy, STOPS_WORK, StickyFault, Verdict};
pub use holder::{Holder, HolderId, RESERVED, UnattributedReason};
pub use holder_kind::{Fact, Facts, HolderKind};
pub use holding::{Fraction, Holding, HoldingSource, greatest_common_divisor};
pub use how_held::HowHeld;
pub use largest_remainder::{largest_remainder, round_to_digit};
pub(crate) use named::named;
pub use node::NodeIdentity;
pub use pattern::{PodPattern, matches_pattern};
pub use pod_label::PodLabel;
pub use price::{Price, Tariff};
pub use printable::{hexadecimal, printable, printable_lines, shown};
pub use quantity::{Bytes, EnergySum, Microjoules, Money, Nanoseconds, SumOutOfRange, TimeSum, Unit};
pub use reading::{Absence, Reading, SumOfReadings};
pub use release::Release;
pub use span::{
    ActivitySource, Carry, InstanceSpan, MigLayout, MigProfile, MigSlot, MigSpan, Presence, Row, Settlement,
    SlotId, SlotState, Span,
};
pub use stamp::{DAY, HOUR, MINUTE, QUARTER_HOUR, Stamp, Utc};
pub use standing_grant::{Selector, StandingGrant};
pub use visible_account::VisibleAccount;
pub use workload_class::WorkloadClass;
