//! The thread that looks at the exports and fills the cache: every five minutes the last days, every hour all.

use std::sync::Arc;
use std::time::Duration;

use super::FleetShared;
use super::advice::AdviceSchedule;
use crate::accounting::day_files::{CacheError, CostCache, LookScope, Looked};
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;
use crate::runtime::thread::{self, Thread, VitalThreads};

const RECENT_INTERVAL: Duration = Duration::from_secs(5 * 60);
const ALL_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(3_600);
/// The pause before a look is repeated that did not go through.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

pub(super) fn start(
    mut cache: CostCache,
    shared: &Arc<FleetShared>,
    vital: &VitalThreads,
) -> Result<Thread, thread::Error> {
    let shared = Arc::clone(shared);
    Thread::start_vital("cache", vital, move || {
        let mut keeper = Keeper {
            shared,
            all_at: None,
            last_problem: None,
            refused: Vec::new(),
            has_changed: false,
            advice: AdviceSchedule::default(),
        };
        loop {
            let pause = keeper.look(&mut cache);
            keeper.make_advice();
            if keeper.shared.stop.wait(pause) {
                return;
            }
        }
    })
}

struct Keeper {
    shared: Arc<FleetShared>,
    /// When all dates were looked at last.
    all_at: Option<Nanoseconds>,
    last_problem: Option<String>,
    refused: Vec<String>,
    /// Whether the last look found other files.
    has_changed: bool,
    advice: AdviceSchedule,
}

impl Keeper {
    /// Makes advice if it is due; never before the first look went through.
    fn make_advice(&mut self) {
        if self.all_at.is_some() {
            self.advice.make(&self.shared, self.has_changed);
        }
    }

    /// Looks once, and returns how long to wait before the next time.
    fn look(&mut self, cache: &mut CostCache) -> Duration {
        let begun = system_now();
        self.has_changed = false;
        let is_all = self.all_at.is_none_or(|at| begun.boottime.0.saturating_sub(at.0) >= ALL_INTERVAL.0);
        let scope = if is_all { LookScope::All } else { LookScope::Recent };
        let is_first = self.all_at.is_none();
        let status = Arc::clone(&self.shared.status);
        let mut told = 0;
        let looked = cache.look(scope, begun.utc, &self.shared.stop, |done, total| {
            status.change(|look| look.progress = Some((done, total)));
            let tenth = (done * 10).checked_div(total).unwrap_or(10);
            if is_first && total > 1 && tenth > told {
                told = tenth;
                tracing::info!(done, total, "days of the exports are summed");
            }
        });
        match looked.and_then(|looked| Ok((looked, cache.unreadable()?))) {
            Ok((looked, unreadable)) => {
                self.told(&looked, scope);
                self.has_changed = looked.filled > 0;
                if is_all {
                    self.all_at = Some(begun.boottime);
                }
                let ended = system_now().boottime;
                let refused: Arc<[String]> = self.refused.clone().into();
                status.change(|look| {
                    (look.ended, look.problem, look.progress) = (Some(ended), None, None);
                    (look.unreadable, look.refused) = (unreadable, refused);
                });
                self.last_problem = None;
                RECENT_INTERVAL
            }
            Err(error) => self.failed(&error),
        }
    }

    fn told(&mut self, looked: &Looked, scope: LookScope) {
        if looked.filled > 0 {
            tracing::info!(days = looked.filled, "days of the exports were summed anew");
        }
        // A look at some dates does not know what else is refused.
        if scope == LookScope::All {
            for line in looked.refused.iter().filter(|line| !self.refused.contains(line)) {
                tracing::warn!("{line}");
            }
            self.refused.clone_from(&looked.refused);
        }
    }

    fn failed(&mut self, error: &CacheError) -> Duration {
        let problem = error.to_string();
        if self.last_problem.as_ref() != Some(&problem) {
            tracing::error!(
                error = problem,
                "the exports cannot be summed; what is known stays, and it is tried again"
            );
        }
        self.shared.status.change(|look| look.problem = Some(problem.clone()));
        self.last_problem = Some(problem);
        RETRY_INTERVAL
    }
}
