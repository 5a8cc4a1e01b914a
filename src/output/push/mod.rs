//! OTLP: keeps encoded requests in a spool on disk, and sends them to each destination in order.
//!
//! ```text
//! tick loop --> PushQueue --> Spool --> Delivery per destination --> send: HTTP or gRPC
//!               4 MiB         on disk   what next, and when           |
//!                               ^-------- accepted, refused, tried again
//! ```
//!
//! The queue is short; it is there so that neither disk nor network delays a tick. A request is sent until its destination
//! accepts it, refuses it for good, or the spool is full. Every point is counted once, as sent, rejected or dropped.

mod connect;
mod delivery;
mod destination;
mod grpc;
mod queue;
mod reply;
mod report;
mod run;
mod send;
mod spool;

pub use connect::check_files;
pub use delivery::{Delivery, DeliveryStep};
pub use destination::Destination;
pub use queue::{PushBatch, PushQueue};
pub use report::{PointCounts, Tally};
pub use run::{Push, run};
pub use send::{PushFailure, compress, send};
pub use spool::{Spool, SpoolHealth, SpoolLimits, SpoolRecord};

use crate::config::OtlpDestination;

/// Largest request in bytes, before compression.
pub const MOST_REQUEST: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Metrics,
    /// Events, as log records.
    Logs,
    Traces,
}

impl Signal {
    pub const ALL: [Self; 3] = [Self::Metrics, Self::Logs, Self::Traces];

    pub const fn goes_to(self, destination: &OtlpDestination) -> bool {
        match self {
            Self::Metrics => true,
            Self::Logs => destination.events,
            Self::Traces => destination.traces,
        }
    }

    const fn http_path(self) -> &'static str {
        match self {
            Self::Metrics => "/v1/metrics",
            Self::Logs => "/v1/logs",
            Self::Traces => "/v1/traces",
        }
    }

    const fn grpc_path(self) -> &'static str {
        match self {
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Self::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Points of the request that it refused.
    pub rejected: u64,
    /// Its reason, or a warning; empty if there is none.
    pub message: String,
}
