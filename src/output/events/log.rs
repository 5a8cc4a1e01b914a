//! The latest events, with storms joined.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Event;
use crate::model::{Nanoseconds, Utc};

/// Events that are kept; those of tenants have a ring of their own, so that churn of workloads never evicts an XID.
const MOST_EVENTS: usize = 500;
/// Repetitions within this time after an event are joined to one.
const STORM: Nanoseconds = Nanoseconds::from_seconds(60);
/// Storms that are followed; more are not joined.
const MOST_STORMS: usize = 1_000;

type StormKey = (&'static str, Arc<str>, Arc<str>);

/// What came after an event of the same kind, GPU and detail.
#[derive(Debug)]
struct Storm {
    until: Utc,
    joined: Option<Event>,
}

#[derive(Debug, Default)]
pub struct EventLog {
    rings: Mutex<[VecDeque<Arc<Event>>; 2]>,
    storms: Mutex<BTreeMap<StormKey, Storm>>,
}

impl EventLog {
    /// Adds what was found, and returns what is to be told now: the first of a storm at once, the rest after a minute as one
    /// with their count.
    pub fn record(&self, found: Vec<Event>, now: Utc) -> Vec<Arc<Event>> {
        let mut told = self.join(found, now);
        told.sort_by_key(|event| event.at);
        let told: Vec<Arc<Event>> = told.into_iter().map(Arc::new).collect();
        let mut rings = self.rings.lock();
        for event in &told {
            let ring = &mut rings[usize::from(event.kind.is_of_tenant)];
            if ring.len() >= MOST_EVENTS {
                ring.pop_front();
            }
            ring.push_back(Arc::clone(event));
        }
        told
    }

    fn join(&self, found: Vec<Event>, now: Utc) -> Vec<Event> {
        let mut storms = self.storms.lock();
        let mut told = Vec::new();
        storms.retain(|_, storm| {
            if now < storm.until {
                return true;
            }
            let Some(mut joined) = storm.joined.take() else { return false };
            joined.observed = now;
            told.push(joined);
            storm.until = Utc(now.0.saturating_add(STORM.0));
            true
        });
        for event in found {
            if !event.kind.joins {
                told.push(event);
                continue;
            }
            match storms.get_mut(&event.storm()) {
                Some(storm) => storm.joined = Some(joined(storm.joined.take(), event)),
                None => {
                    if storms.len() < MOST_STORMS {
                        let until = Utc(now.0.saturating_add(STORM.0));
                        storms.insert(event.storm(), Storm { until, joined: None });
                    }
                    told.push(event);
                }
            }
        }
        told
    }

    /// The latest events, the oldest first.
    pub fn latest(&self) -> Vec<Arc<Event>> {
        let rings = self.rings.lock();
        let mut events: Vec<Arc<Event>> = rings.iter().flatten().cloned().collect();
        events.sort_by_key(|event| event.at);
        events
    }
}

/// The later event, standing for both.
fn joined(earlier: Option<Event>, mut later: Event) -> Event {
    if let Some(earlier) = earlier {
        later.count = later.count.saturating_add(earlier.count);
        for party in earlier.parties {
            if !later.parties.contains(&party) {
                later.parties.push(party);
            }
        }
    }
    later
}
