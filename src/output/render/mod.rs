//! Encoders: a published snapshot to Prometheus text 0.0.4, OpenMetrics 1.0, OTLP protobuf and JSON.
//!
//! Pure: no sockets, clocks or drivers. All formats are sinks of one [`walk`], so they agree on which series there are,
//! in which order and with which labels; only the page with dcgm-exporter's names has its own. Rendered labels are kept
//! until the roster changes.

mod dcgm;
mod decimal;
mod events;
mod float;
mod format;
mod health;
mod history;
mod json;
mod label_cache;
mod limits;
mod otlp;
mod page;
mod problems;
mod summarize;
mod summary;
mod text;
mod walk;

pub use dcgm::{DcgmCounter, DcgmLabel, DcgmOptions, dcgm_label};
pub use events::{encode_events, events};
pub use format::PageFormat;
pub use health::{HealthReport, ReportedGpu, ReportedReason, ReportedVerdict, health};
pub use history::{
    GpuHistory, HISTORY_POINTS, HISTORY_SERIES, HISTORY_STEP, History, HistoryPoint, RecentUse,
};
pub use json::{json, to_json};
pub use otlp::{OtlpEncoder, OtlpResource, native_name, native_unit};
pub use page::{PageCache, PublishedSnapshot, SharedDocument, gzip};
pub use summarize::{MOST_LISTED, SummarySource, list_processes, report_history, summarize};
pub use summary::*;
pub use walk::{Labels, Sample, Sink, Value, walk};
