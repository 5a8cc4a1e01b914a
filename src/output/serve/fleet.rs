//! What the server of a fleet says of itself: how far the first look at the exports is, and what the last one found.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ServerStatus;
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;

/// The content type of its metrics.
pub(super) const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The state of the exports; the thread that looks at them writes it, the server reads it.
#[derive(Debug, Default)]
pub struct FleetStatus {
    pub server: Arc<ServerStatus>,
    look: Mutex<Look>,
}

#[derive(Clone, Debug, Default)]
pub struct Look {
    /// How many dates of how many are summed while the first look lasts.
    pub progress: Option<(usize, usize)>,
    /// Time since boot at which the last look ended that went through; none before the first one.
    pub ended: Option<Nanoseconds>,
    /// Why the last look did not go through.
    pub problem: Option<String>,
    /// Files that cannot be read.
    pub unreadable: u64,
    /// What is in the directory and is not read, in words.
    pub refused: Arc<[String]>,
}

impl FleetStatus {
    pub fn change(&self, change: impl FnOnce(&mut Look)) {
        change(&mut self.look.lock());
    }

    pub fn look(&self) -> Look {
        self.look.lock().clone()
    }

    /// Whether the exports are summed and the server listens; what is wrong with the last look is no reason to send readers
    /// elsewhere.
    ///
    /// # Errors
    /// They are not, yet.
    pub fn check_readiness(&self) -> Result<String, String> {
        if let Some(reason) = self.server.missing.reason() {
            return Err(reason);
        }
        let Look { progress, ended, problem, .. } = self.look();
        match (ended, progress, problem) {
            (Some(_), _, None) => Ok("ready".to_owned()),
            (Some(_), _, Some(problem)) => Ok(format!("ready\nthe last look failed: {problem}")),
            (None, _, Some(problem)) => Err(format!("not ready: {problem}")),
            (None, Some((done, total)), None) => {
                Err(format!("not ready: the first look at the exports has summed {done} of {total} days"))
            }
            (None, None, None) => Err("not ready: the first look at the exports begins".to_owned()),
        }
    }

    /// The metrics of the server itself, in Prometheus' text format.
    pub(super) fn metrics(&self) -> String {
        let Look { ended, unreadable, refused, .. } = self.look();
        let mut page = String::new();
        let mut gauge = |name: &str, help: &str, value: &str| {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        };
        if let Some(ended) = ended {
            let age = system_now().boottime.0.saturating_sub(ended.0);
            let (seconds, rest) = (age / Nanoseconds::SECOND.0, age % Nanoseconds::SECOND.0 / 1_000_000);
            let help = "Time since the last look at the exports that went through.";
            gauge("gpumeter_fleet_look_age_seconds", help, &format!("{seconds}.{rest:03}"));
        }
        let help =
            "Files of the exports that cannot be read and keep what they had, and what is no regular file.";
        let refused = refused.len() as u64;
        gauge("gpumeter_fleet_unreadable_files", help, &(unreadable + refused).to_string());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_once_it_has_looked_and_says_before_how_far_it_is() {
        let status = FleetStatus::default();
        status.change(|look| look.progress = Some((2, 31)));
        let told = status.check_readiness().unwrap_err();
        assert_eq!(told, "not ready: the first look at the exports has summed 2 of 31 days");
        assert!(!status.metrics().contains("gpumeter_fleet_look_age_seconds"));
        status.change(|look| (look.ended, look.unreadable) = (Some(Nanoseconds(1)), 3));
        assert_eq!(status.check_readiness(), Ok("ready".to_owned()));
        assert!(status.metrics().contains("\ngpumeter_fleet_unreadable_files 3\n"));
        status.change(|look| look.problem = Some("gone".to_owned()));
        assert_eq!(status.check_readiness(), Ok("ready\nthe last look failed: gone".to_owned()));
    }
}
