//! `gpumeter record` and `gpumeter replay`: what this node's driver answers, in a file that can be played
//! back anywhere.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, addresses, print};
use crate::app::{self, Recording, demo};
use crate::config::duration;
use crate::model::Nanoseconds;

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct Record {
    /// File to write; it must not exist yet.
    file: PathBuf,
    /// For how long.
    #[arg(long = "for", default_value = "60s", value_name = "DURATION", value_parser = duration)]
    length: Nanoseconds,
    /// Interval between readings of every GPU.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = duration)]
    interval: Nanoseconds,
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
}

impl Record {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let recorded = app::record(&Recording {
            library: self.nvml_library.clone(),
            file: self.file.clone(),
            length: self.length,
            interval: self.interval,
        })
        .map_err(Failure::found)?;
        print(&format!(
            "{0}: GPUs {1}, readings of each {2}; play it with gpumeter replay {0}\n",
            self.file.display(),
            recorded.gpus,
            recorded.ticks,
        ))
    }
}

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct Replay {
    /// The recording.
    file: PathBuf,
    /// Address to serve on, instead of 127.0.0.1:9855; may be repeated.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// How many times faster than it was recorded.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    speed: f64,
    /// Directory of the replay, instead of $XDG_STATE_HOME/gpumeter/replay: a new or empty directory, or one of a
    /// demo or replay. It starts from scratch each time.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// A configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Replay {
    pub(super) fn run(&self) -> Result<(), Failure> {
        demo::run(&demo::Options {
            source: demo::Source::Recording(self.file.clone()),
            listen: addresses(&self.listen)?,
            speed: self.speed,
            fresh: true,
            directory: self.state_dir.clone(),
            config: self.config.clone(),
            otlp_endpoint: None,
        })
        .map_err(Failure::wrong)
    }
}
