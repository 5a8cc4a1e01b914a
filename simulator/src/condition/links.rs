//! NVLink by link: which are up, what passed over each, what went wrong.
//!
//! In: the scenario's entries for one GPU, and its timeline for the traffic. Out: bytes, errors and state of
//! each link at an elapsed time. Links that are up share the traffic; one that is down carries none.

use serde::{Deserialize, Serialize};

use super::{Event, Lasting};
use crate::board::Board;
use crate::channel::incidents::{Incidents, LinkErrorKind};
use crate::schedule::{Cycle, Timeline, Totals};

/// Bytes in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Traffic {
    fn of(totals: &Totals) -> Self {
        let all = totals.all();
        Self { sent: all.nvlink_tx, received: all.nvlink_rx }
    }

    fn plus(self, other: Self, times: u64) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent.saturating_mul(times)),
            received: self.received.saturating_add(other.received.saturating_mul(times)),
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
        }
    }
}

/// What the links had carried when the timeline began, and the part that the driver no longer counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carried {
    pub(crate) done: Vec<Traffic>,
    pub(crate) forgotten: Vec<Traffic>,
}

/// A part of the cycle in which the same links are up.
struct Segment {
    from: u64,
    /// What the GPU had sent and received when the segment began.
    total: Traffic,
    /// What each link had carried by then, in this cycle.
    carried: Vec<Traffic>,
}

/// One GPU's links.
pub(crate) struct Links {
    count: u32,
    /// How many of them lead anywhere, the first ones.
    connected: u32,
    errors: Vec<Event<(LinkErrorKind, u32)>>,
    down: Vec<Lasting<Option<u32>>>,
    segments: Vec<Segment>,
    /// What each link carries in a cycle.
    whole: Vec<Traffic>,
    cycle: u64,
    former: Carried,
}

impl Links {
    pub(super) fn new(script: &Incidents, gpu: u32, board: &Board, work: &Cycle, former: Carried) -> Self {
        let count = board.nvlinks;
        let errors = script.link_errors.iter().filter(|entry| entry.gpu == gpu);
        let down = script.links_down.iter().filter(|entry| entry.gpu == gpu);
        let cycle = work.length();
        let mut links = Self {
            count,
            connected: board.connected_links(),
            errors: errors.map(|entry| Event::new(entry.at, entry.count, (entry.kind, entry.link))).collect(),
            down: down.map(|entry| Lasting::new(entry.from, entry.to, entry.link)).collect(),
            segments: Vec::new(),
            whole: Vec::new(),
            cycle,
            former,
        };
        let mut cuts: Vec<u64> = vec![0, cycle];
        cuts.extend(links.down.iter().flat_map(|lasting| [lasting.from, lasting.to]));
        cuts.sort_unstable();
        cuts.dedup();
        let mut carried = vec![Traffic::default(); count as usize];
        for cut in cuts.iter().take_while(|cut| **cut <= cycle) {
            let total = Traffic::of(&work.totals(*cut));
            if let Some(former) = links.segments.last() {
                carried = links.carried(former, total);
            }
            links.segments.push(Segment { from: *cut, total, carried: carried.clone() });
        }
        // The last begins where the cycle ends.
        links.whole = links.segments.pop().map(|end| end.carried).unwrap_or_default();
        links
    }

    /// Whether a link is up at an elapsed time.
    pub(crate) fn up(&self, link: u32, elapsed: u64) -> bool {
        let down = self.down.iter().filter(|lasting| lasting.at(elapsed, self.cycle));
        link < self.connected
            && !down.into_iter().any(|lasting| lasting.what.is_none_or(|which| which == link))
    }

    /// Errors of a kind on a link, or on all links, after one time and up to another.
    pub(crate) fn errors(&self, kind: LinkErrorKind, link: Option<u32>, span: (u64, u64)) -> u64 {
        let ours = |event: &&Event<(LinkErrorKind, u32)>| {
            event.what.0 == kind && event.what.1 < self.count && link.is_none_or(|link| event.what.1 == link)
        };
        self.errors.iter().filter(ours).map(|event| event.counted(span, self.cycle)).sum()
    }

    /// What each link has carried since elapsed 0, across MIG layouts and driver reloads.
    pub(crate) fn lifetime(&self, timeline: &Timeline, elapsed: u64) -> Vec<Traffic> {
        let cycle = timeline.cycle();
        let mut carried = self.by_script(cycle, timeline.until(elapsed));
        if timeline.began() > 0 {
            reduce(&mut carried, &self.by_script(cycle, timeline.began()));
            for (mine, done) in carried.iter_mut().zip(&self.former.done) {
                *mine = mine.plus(*done, 1);
            }
        }
        carried
    }

    /// What each link has carried since the driver was last loaded.
    pub(crate) fn counted(&self, timeline: &Timeline, elapsed: u64) -> Vec<Traffic> {
        let mut carried = self.lifetime(timeline, elapsed);
        let loaded = timeline.loaded(elapsed);
        if loaded > timeline.began() {
            reduce(&mut carried, &self.lifetime(timeline, loaded));
        } else {
            reduce(&mut carried, &self.former.forgotten);
        }
        carried
    }

    /// What each link would have carried if the cycle had been in force since elapsed 0.
    fn by_script(&self, cycle: &Cycle, elapsed: u64) -> Vec<Traffic> {
        let (cycles, rest) = (elapsed / self.cycle, elapsed % self.cycle);
        let total = Traffic::of(&cycle.totals(rest));
        let segment = self.segments.iter().rev().find(|segment| segment.from <= rest);
        let carried = segment.map(|segment| self.carried(segment, total)).unwrap_or_default();
        carried.iter().zip(&self.whole).map(|(here, whole)| here.plus(*whole, cycles)).collect()
    }

    /// What each link has carried in this cycle when the GPU's traffic has grown to `total`.
    fn carried(&self, segment: &Segment, total: Traffic) -> Vec<Traffic> {
        let up: Vec<bool> = (0..self.count).map(|link| self.up(link, segment.from)).collect();
        let links = up.iter().filter(|up| **up).count() as u64;
        let passed = total.since(segment.total);
        let mut place = 0;
        let mut carried = segment.carried.clone();
        for (mine, up) in carried.iter_mut().zip(up) {
            if up {
                let of = |sum| part(sum, place, links);
                *mine = mine.plus(Traffic { sent: of(passed.sent), received: of(passed.received) }, 1);
                place += 1;
            }
        }
        carried
    }
}

fn reduce(carried: &mut [Traffic], by: &[Traffic]) {
    for (mine, less) in carried.iter_mut().zip(by) {
        *mine = mine.since(*less);
    }
}

/// The share of a sum that one of several links carries; the shares add up.
pub(crate) fn part(sum: u64, place: u64, among: u64) -> u64 {
    let among = among.max(1);
    sum / among + u64::from(place < sum % among)
}
