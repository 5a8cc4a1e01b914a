//! `gpumeter top`: the node live in a terminal. It only looks.

mod screen;
mod source;
mod state;
mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests;
mod words;

use std::io::{self, IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Args;
use jiff::tz::TimeZone;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::agent::RunningAgent;
use super::interrupts::Interrupts;
use super::{Failure, print, read_config};
use crate::agent::app::Observer;
use crate::runtime::clock::Stop;
use screen::{Theme, draw};
use source::{TopData, TopReading, TopSource};
use state::{AfterKey, TopState};

#[derive(Args, Debug)]
pub(super) struct TopCommand {
    #[command(flatten)]
    agent: RunningAgent,
    /// Print the node once, as text, and end.
    #[arg(long)]
    once: bool,
    /// Look at the GPUs itself instead of asking an agent; done by itself where no agent answers at the default URL.
    #[arg(long, conflicts_with_all = ["url", "web_user", "ca_file", "cert_file"])]
    own: bool,
    /// Configuration file for its own look: grants, prices, resolvers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the driver library (libnvidia-ml.so.1) for its own look, instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
}

/// How long the first data of an own look may take, and how often it is looked for.
const FIRST_TRIES: u32 = 50;
const FIRST_WAIT: Duration = Duration::from_millis(100);

const KEY_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl TopCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        let is_once = self.once;
        let has_terminal = stdin().is_terminal() && stdout().is_terminal();
        if !is_once && !has_terminal {
            let text = "standard input or output is no terminal; gpumeter top --once prints text";
            return Err(Failure::wrong(text));
        }
        let source = self.source()?;
        if is_once {
            return print_once(source);
        }
        let stop = Stop::default();
        let mut interrupts = Interrupts::new().map_err(Failure::found)?;
        let (readings, thread) = source::start(source, stop.clone()).map_err(Failure::found)?;
        let mut terminal = ratatui::try_init().map_err(Failure::found)?;
        let outcome = show(&mut terminal, &readings, &mut interrupts);
        ratatui::restore();
        stop.call();
        drop(readings);
        // A request to an agent that does not answer is not waited for.
        thread.wait(Duration::from_secs(2));
        outcome
    }

    /// The agent, or an own look where none answers at the default URL.
    fn source(self) -> Result<TopSource, Failure> {
        let is_default = self.agent.url == RunningAgent::DEFAULT_URL && self.nvml_library.is_none();
        if !self.own && (!is_default || self.agent.is_reachable()) && self.nvml_library.is_none() {
            return Ok(TopSource::Agent(self.agent));
        }
        let mut config = read_config(self.config.as_ref())?;
        if self.nvml_library.is_some() {
            config.nvml.library = self.nvml_library;
        }
        Ok(TopSource::Own(Observer::start(config).map_err(Failure::found)?.into()))
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    readings: &Receiver<TopReading>,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let theme = Theme { has_colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let mut state = TopState::new(TimeZone::system());
    let mut is_changed = true;
    loop {
        while let Ok(read) = readings.try_recv() {
            state.receive(read);
            is_changed = true;
        }
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| draw(frame, &state, theme)).map_err(Failure::found)?;
        }
        if interrupts.wait(Duration::ZERO).is_some() {
            return Ok(());
        }
        if !wait_for_terminal().map_err(Failure::found)? {
            return Ok(());
        }
        if event::poll(Duration::ZERO).map_err(Failure::found)? {
            is_changed = true;
            if let Event::Key(key) = event::read().map_err(Failure::found)?
                && state.press(key) == AfterKey::Quit
            {
                return Ok(());
            }
        }
    }
}

/// Waits for a key; false when the terminal is gone, from which crossterm would read the end for ever.
fn wait_for_terminal() -> io::Result<bool> {
    let terminal = stdin();
    let mut keys = [PollFd::new(&terminal, PollFlags::IN)];
    match rustix::event::poll(&mut keys, Some(&KEY_WAIT)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(!keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

fn print_once(source: TopSource) -> Result<(), Failure> {
    let data = first_data(&source);
    let money = if data.is_ok() { source.read_money() } else { None };
    source.close();
    let width = terminal::size().ok().filter(|_| stdout().is_terminal()).map_or(120, |(width, _)| width);
    print(&screen::text(&TopData { money, ..data? }, TimeZone::system(), width))
}

/// The first data with processes, which an agent lists only after it was asked.
fn first_data(source: &TopSource) -> Result<TopData, Failure> {
    let (never, mut last) = (Stop::default(), source.read(None));
    for _ in 0..FIRST_TRIES {
        let is_whole = last.as_ref().is_ok_and(|data| data.summary.processes_listed);
        if is_whole || (last.is_err() && matches!(source, TopSource::Agent(_))) {
            break;
        }
        never.wait(FIRST_WAIT);
        last = source.read(None);
    }
    last
}
