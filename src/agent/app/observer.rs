//! An agent that only looks, for `gpumeter top` on a node without an agent: it keeps no ledger, serves nothing, takes no lock
//! and writes no file, so that an agent may start beside it at any time.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use super::{Launch, Receivers, Reloads, SAMPLERS_TIMEOUT, Shared, StartError, Threads, start, web};
use crate::agent::session::{self, Search};
use crate::config::Config;
use crate::output::serve::{BoundListeners, LatestSnapshot};
use crate::runtime::clock::{Clock, Stop};

pub struct Observer {
    shared: Arc<Shared>,
    threads: Threads,
}

impl Observer {
    /// Starts to read the node. Of the configuration, whatever would be written or served is left out.
    ///
    /// # Errors
    /// A thread cannot be started, or web users cannot be read.
    pub fn start(mut config: Config) -> Result<Self, StartError> {
        config.ledger.enabled = false;
        (config.web.listen, config.web.dcgm_listen) = Default::default();
        config.web.control = None;
        let clock = Clock::of_library(config.nvml.library.as_deref());
        let launch = Launch {
            config,
            source: None,
            clock,
            root: PathBuf::from("/"),
            simulated: false,
            observes: true,
            web_file: None,
            systemd_socket: false,
        };
        let (web, access, passwords) = web::WebSource::open(&launch.config, None)?;
        let (news, inbox) = mpsc::channel();
        let (reloads, reload_requests) = mpsc::channel();
        let shared = Arc::new(Shared::new(&launch, access, Reloads::new(reloads), news));
        session::start(&launch.config, &shared.sessions)?;
        let bound = BoundListeners { listeners: Vec::new(), unbound: Vec::new() };
        let threads = start(launch, Receivers { bound, inbox, reload_requests, web, passwords }, &shared)?;
        Ok(Self { shared, threads })
    }

    pub fn pages(&self) -> &LatestSnapshot {
        &self.shared.status.pages
    }

    /// Called by SIGTERM and SIGINT.
    pub fn stop(&self) -> &Stop {
        &self.shared.stop
    }

    pub fn has_no_driver(&self) -> bool {
        session::search(&self.shared.sessions) == Search::Failed
    }

    pub fn close(self) {
        self.shared.stop.call();
        self.threads.close();
        session::close(&self.shared.sessions, SAMPLERS_TIMEOUT);
    }
}
