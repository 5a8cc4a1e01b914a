//! TLS, users and headers of the pages, read at start and at each reload; and the thread that verifies passwords.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::StartError;
use crate::config::{Config, FileSet};
use crate::output::serve::{Access, Passwords, Security, VerifyRequest};
use crate::runtime::clock::Stop;
use crate::runtime::thread::{self, Thread};

const QUEUE_LENGTH: usize = 16;

pub(super) type PasswordRequests = mpsc::Receiver<VerifyRequest>;

pub(super) struct WebSource {
    file: Option<PathBuf>,
    pub(super) files: FileSet,
}

impl WebSource {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The problems, one per line.
    pub(super) fn open(
        config: &Config,
        file: Option<PathBuf>,
    ) -> Result<(Self, Arc<Access>, PasswordRequests), StartError> {
        let mut source = Self { file, files: FileSet::default() };
        let security = source.read(config).map_err(StartError::Web)?;
        let (passwords, requests) = mpsc::channel(QUEUE_LENGTH);
        Ok((source, Arc::new(Access::new(security, Passwords::new(passwords))), requests))
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// The problems, one per line.
    pub(super) fn read(&mut self, config: &Config) -> Result<Security, String> {
        // Added before they are read, so that a change in between is found at the next check.
        let mut files = FileSet::default();
        files.add(self.file.iter().cloned());
        let access = config.web_access(self.file.as_deref()).map_err(|problems| problems.to_string())?;
        files.add(access.files());
        self.files = files;
        let security = Security::load(&access)?;
        for hint in access.hints() {
            tracing::warn!("{hint}");
        }
        Ok(security)
    }
}

/// Starts the thread that verifies passwords one after the other; each takes 0.1 s of CPU time or more.
pub(super) fn start(mut requests: PasswordRequests, stop: &Stop) -> Result<(), thread::Error> {
    let stop = stop.clone();
    Thread::start("passwords", move || {
        while let Some(VerifyRequest { hash, password, reply, .. }) = requests.blocking_recv() {
            if stop.is_called() {
                return;
            }
            // The request may have ended while others were verified.
            if !reply.is_closed() {
                let _ = reply.send(bcrypt::verify(password, &hash).unwrap_or(false));
            }
        }
    })?;
    Ok(())
}
