//! What protects the pages: read at the start and at each reload; and the thread that verifies passwords.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Shared, StartError};
use crate::config::{Config, FileSet};
use crate::serve::{Access, Passwords, Security, VerifyRequest};
use crate::thread::{self, Thread};

/// Passwords that may wait to be verified.
const WAITING: usize = 16;

/// Where passwords wait to be verified.
pub(super) type PasswordRequests = mpsc::Receiver<VerifyRequest>;

/// What protects the pages, with the files that it comes from.
pub(super) struct WebSource {
    /// The web configuration file, if there is one.
    file: Option<PathBuf>,
    files: FileSet,
}

impl WebSource {
    /// Reads everything for the first time.
    ///
    /// # Errors
    /// What is wrong, a problem to a line.
    pub(super) fn open(
        config: &Config,
        file: Option<PathBuf>,
    ) -> Result<(Self, Arc<Access>, PasswordRequests), StartError> {
        let mut source = Self { file, files: FileSet::default() };
        let security = source.read(config).map_err(StartError::Web)?;
        let (passwords, questions) = mpsc::channel(WAITING);
        Ok((source, Arc::new(Access::new(security, Passwords::new(passwords))), questions))
    }

    /// Whether a file has changed since it was last read.
    pub(super) fn has_changed(&mut self) -> bool {
        self.files.have_changed()
    }

    /// Whether no file is read at all.
    pub(super) fn has_no_file(&self) -> bool {
        self.files.is_empty()
    }

    /// The files are about to be read again.
    pub(super) fn mark_read(&mut self) {
        self.files.mark_read();
    }

    /// Reads everything again.
    ///
    /// # Errors
    /// What is wrong, a problem to a line.
    pub(super) fn read(&mut self, config: &Config) -> Result<Security, String> {
        // Before reading: a change in between is found later, not missed.
        let mut files = FileSet::default();
        files.add(self.file.iter().cloned());
        let access = config.web_access(self.file.as_deref()).map_err(|problems| problems.to_string())?;
        files.add(access.files());
        self.files = files;
        let security = Security::load(&access).map_err(|error| error.to_string())?;
        for hint in access.hints() {
            tracing::warn!("{hint}");
        }
        Ok(security)
    }
}

/// What a configuration and a web configuration file say of protection: what is wrong with it, and hints.
///
/// # Errors
/// What is wrong, a problem to a line.
pub fn check_web(
    config: &Config,
    file: Option<&std::path::Path>,
    reads_certificates: bool,
) -> Result<Vec<String>, String> {
    let access = config.web_access(file).map_err(|problems| problems.to_string())?;
    if reads_certificates {
        Security::load(&access).map_err(|error| error.to_string())?;
    }
    Ok(access.hints())
}

/// Starts the thread that verifies passwords, one after the other: each takes a tenth of a second of CPU or more.
pub(super) fn start(mut requests: PasswordRequests, shared: &Shared) -> Result<(), thread::Error> {
    let stop = shared.stop.clone();
    Thread::start("passwords", move || {
        while let Some(VerifyRequest { hash, password, reply, .. }) = requests.blocking_recv() {
            if stop.is_called() {
                return;
            }
            // Whoever asked may have gone while others were verified.
            if !reply.is_closed() {
                let _ = reply.send(bcrypt::verify(password, &hash).unwrap_or(false));
            }
        }
    })?;
    Ok(())
}
