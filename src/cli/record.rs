//! `gpumeter record` writes the answers of this node's driver to a file; `gpumeter replay` plays it back anywhere.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::interrupts::Interrupts;
use super::{Failure, print};
use crate::agent::app::listen_address;
use crate::agent::session::{self, Recording, RecordingTotals};
use crate::cli::demo::{self, DemoCommand};
use crate::config::{self, ListenAddress};
use crate::model::Nanoseconds;

/// How often the end of the recording is checked for while no signal comes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a driver call may take after a signal.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(super) struct RecordCommand {
    /// File to write; it must not exist yet.
    file: PathBuf,
    /// How long to record.
    #[arg(long = "for", default_value = "60s", value_name = "DURATION", value_parser = duration)]
    length: Nanoseconds,
    /// Interval between readings of every GPU.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = duration)]
    interval: Nanoseconds,
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
}

/// A duration from a tenth of a second to a day.
fn duration(text: &str) -> Result<Nanoseconds, config::Complaint> {
    config::duration(text, Nanoseconds(100_000_000), Nanoseconds::from_seconds(86_400))
}

impl RecordCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // Before the file is made, so that a signal always ends the recording with a message.
        let mut interrupts = Interrupts::new().map_err(Failure::found)?;
        let running = session::record(Recording {
            library: self.nvml_library.clone(),
            file: self.file.clone(),
            length: self.length,
            interval: self.interval,
        })
        .map_err(Failure::found)?;
        let mut interrupted = false;
        let recorded = loop {
            if let Some(outcome) = running.wait(Duration::ZERO) {
                break outcome.map_err(Failure::found)?;
            }
            if interrupts.wait(POLL_INTERVAL).is_some() {
                interrupted = true;
                running.stop();
                break running.wait(TIMEOUT).ok_or_else(|| self.hung())?.map_err(Failure::found)?;
            }
        };
        let RecordingTotals { gpus, ticks, answers } = recorded;
        let file = self.file.display();
        print(&format!(
            "{file}: GPUs {gpus}, readings of each {ticks}, answers {answers}; play it with gpumeter replay {file}\n"
        ))?;
        if interrupted {
            let length = self.length.0 / Nanoseconds::SECOND.0;
            return Err(Failure::found(format!(
                "interrupted before {length} s were over; {file} holds what was recorded until then"
            )));
        }
        Ok(())
    }

    fn hung(&self) -> Failure {
        let file = self.file.display();
        Failure::found(format!(
            "interrupted while a driver call has not returned for {} s: the last answers may be missing in {file}",
            TIMEOUT.as_secs()
        ))
    }
}

#[derive(Args, Debug)]
pub(super) struct ReplayCommand {
    /// File of the recording.
    file: PathBuf,
    /// Address to serve on, instead of web.listen or 127.0.0.1:9855; may be repeated.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR", value_parser = listen_address)]
    listen: Vec<ListenAddress>,
    /// How many times faster than it was recorded.
    #[arg(long, default_value = "1", value_name = "N", value_parser = demo::parse_speed)]
    speed: u64,
    /// Directory of the replay, instead of $XDG_STATE_HOME/gpumeter/replay: new, empty, or of an earlier demo or replay;
    /// it is emptied first.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Configuration file with grants and prices, which a recording does not have; otherwise as for gpumeter demo.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ReplayCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        demo::run(&DemoCommand {
            recording: Some(self.file.clone()),
            listen: self.listen.clone(),
            speed: self.speed,
            fresh: true,
            state_dir: self.state_dir.clone(),
            config: self.config.clone(),
            ..DemoCommand::default()
        })
        .map_err(Failure::wrong)
    }
}
