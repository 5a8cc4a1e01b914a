//! What leaves the agent: events, pages, the HTTP server, OTLP.
//!
//! Comes in: published snapshots. Goes out: Prometheus text, OpenMetrics, JSON, OTLP, the web page.
//! Does not know: how a snapshot is made; a request calls no driver and changes nothing.
//!
//! - [`events`]: pure: finds events in snapshots.
//! - [`render`]: pure: prints a snapshot as text, OpenMetrics, OTLP, JSON.
//! - [`push`]: OTLP: a spool on disk, destinations over HTTP and gRPC.
//! - [`serve`]: the HTTP server: TLS, users, metrics, health, API.

pub mod events;
pub mod push;
pub mod render;
pub mod serve;
