//! Tries the simulated driver library before the agent starts: an agent waits for a driver that may come,
//! but a demo's cannot come by itself.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::{DemoError, Options, ScenarioError};
use crate::nvml::{Library, OpenError};
use crate::thread::Thread;

/// How long the trial may take. A script of faults may let every call hang; what is scripted is the agent's
/// to bear, so then the demo starts.
const PATIENCE: Duration = Duration::from_secs(5);

/// The loader's words for a library on a file system that forbids to execute.
const NO_EXEC: &str = "failed to map segment";

/// Opens and closes the library; scenario and clock must be in their places.
pub(super) fn open(options: &Options, directory: &Path, library: &Path) -> Result<(), DemoError> {
    let told = library.with_file_name("error");
    super::absent_is_fine(std::fs::remove_file(&told))
        .map_err(|source| DemoError::File { path: told.clone(), source })?;
    let (sender, answer) = mpsc::channel();
    let path = library.to_owned();
    Thread::start("trial", move || {
        let answer = Library::open(Some(&path)).map(drop);
        // The demo may have stopped waiting.
        let _ = sender.send(answer);
    })?;
    match answer.recv_timeout(PATIENCE) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => refusal(options, directory, library, error),
        Err(_) => {
            tracing::warn!(
                seconds = PATIENCE.as_secs(),
                "the simulated driver library does not open, as when its faults are scripted so; the agent waits"
            );
            Ok(())
        }
    }
}

fn refusal(options: &Options, directory: &Path, library: &Path, error: OpenError) -> Result<(), DemoError> {
    if let OpenError::Missing { reason, .. } = &error
        && reason.contains(NO_EXEC)
    {
        return Err(DemoError::NoExec { directory: directory.into() });
    }
    // It says in a file beside it what it could not tell by a return code.
    let told = std::fs::read_to_string(library.with_file_name("error")).ok();
    let Some(told) = told else {
        if matches!(error, OpenError::Refused { .. }) && library.with_file_name("faults").exists() {
            tracing::warn!(%error, "the simulated driver refuses as its faults are scripted");
            return Ok(());
        }
        return Err(DemoError::Library(error));
    };
    let copy = format!("{}: ", library.with_file_name("scenario").display());
    match told.trim().strip_prefix(&copy) {
        // The user knows the original, not the copy that the library read.
        Some(problem) => Err(DemoError::Scenario(ScenarioError::Broken {
            path: options.source.to_string().into(),
            problem: problem.into(),
        })),
        None => Err(DemoError::DriverEventKind { error, told: told.trim().into() }),
    }
}
