//! A receiver of OTLP for one signal: its address with the signal's path, and its name in metrics and log.

use std::fmt;
use std::sync::Arc;

use super::{Signal, Tally};
use crate::config::{OtlpDestination, OtlpProtocol};

#[derive(Clone, Debug)]
pub struct Destination {
    pub signal: Signal,
    pub settings: OtlpDestination,
    name: Arc<str>,
    tally: Arc<Tally>,
}

impl Destination {
    pub fn new(settings: &OtlpDestination, signal: Signal) -> Self {
        let name = format!("{}{}", settings.endpoint, added_path(settings, signal));
        Self { signal, settings: settings.clone(), name: name.into(), tally: Arc::default() }
    }

    /// The complete address, as a label value.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    pub(super) fn path(&self) -> String {
        format!("{}{}", self.settings.endpoint.base, added_path(&self.settings, self.signal))
    }

    /// Its host with the port where it is not that of the scheme.
    pub(super) fn authority(&self) -> String {
        let endpoint = &self.settings.endpoint;
        match (endpoint.tls, endpoint.port) {
            (true, 443) | (false, 80) => endpoint.host.clone(),
            (_, port) => format!("{}:{port}", endpoint.host),
        }
    }
}

const fn added_path(settings: &OtlpDestination, signal: Signal) -> &'static str {
    match settings.protocol {
        OtlpProtocol::Http if settings.endpoint.is_whole => "",
        OtlpProtocol::Http => signal.http_path(),
        OtlpProtocol::Grpc => signal.grpc_path(),
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}
