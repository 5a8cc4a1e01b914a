//! Advice over all files takes minutes where nodes are many, so it is made beside the sums of costs, and kept for readers.

use std::sync::Arc;

use parking_lot::Mutex;

use super::FleetShared;
use crate::accounting::advice::{Advice, AdviceForReaders, AdviceRequest};
use crate::accounting::day_files::{ExportError, ExportSource, make_advice_for_readers, read_expected};
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;

/// The pause before advice is made anew, in times of how long it took, where that is not too long.
const PAUSE: u64 = 100;

const LONGEST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// The advice that was made last; before the first time, how far it is.
pub(super) struct KeptAdvice(Mutex<Result<Arc<AdviceForReaders>, String>>);

impl Default for KeptAdvice {
    fn default() -> Self {
        Self(Mutex::new(Err("advice is made after the first look at the exports; ask again".to_owned())))
    }
}

impl KeptAdvice {
    pub(super) fn answer(&self, request: &AdviceRequest) -> Result<Advice, String> {
        let kept = self.0.lock().clone();
        kept.map(|advice| advice.answer(request))
    }

    /// Replaces the text that readers get until advice is made for the first time.
    fn set_reason(&self, text: impl FnOnce() -> String) {
        let mut kept = self.0.lock();
        if kept.is_err() {
            *kept = Err(text());
        }
    }
}

impl FleetShared {
    /// The files of advice, with the nodes that are expected now.
    pub(super) fn source_of_advice(&self) -> Result<ExportSource<'_>, ExportError> {
        let expected = self.expected.as_deref().map(read_expected).transpose()?;
        Ok(ExportSource { expected: expected.unwrap_or_default(), ..self.source() })
    }
}

/// When advice is made anew.
#[derive(Default)]
pub(super) struct AdviceSchedule {
    /// Whether files have changed since it was made.
    is_stale: bool,
    /// Time since boot before which it is not made again; none before the first time.
    not_before: Option<Nanoseconds>,
}

impl AdviceSchedule {
    /// After a look: makes advice where days have changed and the pause is over.
    pub(super) fn make(&mut self, shared: &FleetShared, has_changed: bool) {
        self.is_stale |= has_changed;
        let begun = system_now().boottime;
        let is_due = self.not_before.is_none_or(|time| self.is_stale && time <= begun);
        if !is_due {
            return;
        }
        let step = |done: usize, total: usize| {
            // The number of files is not everybody's.
            let percent = (done * 100).checked_div(total).unwrap_or(100);
            let reason = || format!("advice is being made, {percent} % of the files are read; ask again");
            shared.advice.set_reason(reason);
            if shared.stop.is_called() { Err(ExportError::Cancelled) } else { Ok(()) }
        };
        let made = shared.source_of_advice().and_then(|source| make_advice_for_readers(&source, step));
        let took = system_now().boottime.0.saturating_sub(begun.0);
        let pause = took.saturating_mul(PAUSE).min(LONGEST_PAUSE.0);
        self.not_before = Some(Nanoseconds(begun.0.saturating_add(pause)));
        match made {
            Ok(advice) => {
                let findings = advice.everything.findings.len();
                tracing::info!(
                    findings,
                    seconds = took / Nanoseconds::SECOND.0,
                    "advice was made from the exports"
                );
                *shared.advice.0.lock() = Ok(Arc::new(advice));
                self.is_stale = false;
            }
            Err(ExportError::Cancelled) => {}
            Err(error) => {
                tracing::error!(%error, "advice cannot be made from the exports; that of before stays");
                shared.advice.set_reason(|| {
                    "advice cannot be made from the exports; the log of this server says why".to_owned()
                });
                // It is tried again after the next look.
                self.not_before = None;
            }
        }
    }
}
