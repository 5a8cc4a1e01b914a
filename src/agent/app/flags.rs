//! The options for serving pages that `run` and the demo have.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use clap::Args;

use crate::config::{Config, ListenAddress};

/// Options for serving pages, named as in Prometheus' exporters.
#[derive(Args, Clone, Debug, Default)]
pub struct WebFlags {
    /// Web configuration file: TLS, users, headers and rate limit in the form of Prometheus' exporters.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Serve on the sockets of the service's systemd socket unit; without one, on the configured addresses.
    #[arg(long = "web.systemd-socket", conflicts_with = "listen")]
    pub systemd_socket: bool,
    /// Address where /metrics has dcgm-exporter's names, instead of web.dcgm_listen; may be repeated.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub dcgm_listen: Vec<ListenAddress>,
}

impl WebFlags {
    /// Sets what takes precedence over the configuration.
    pub fn apply(&self, config: &mut Config) {
        if !self.dcgm_listen.is_empty() {
            config.web.dcgm_listen.clone_from(&self.dcgm_listen);
        }
    }
}

/// An address as in the configuration, or a name of this host with a port.
pub fn listen_address(text: &str) -> Result<ListenAddress, &'static str> {
    let resolved = || text.to_socket_addrs().ok()?.next().map(ListenAddress::Tcp);
    text.parse().ok().or_else(resolved).ok_or("not an address; write it like 127.0.0.1:9855")
}
