//! From one state of the hardware to the next: what changes, when, and the sums until then.
//!
//! In: the current node, the hardware that the state file wants, the time. Out: the settled state. It is pure:
//! no files, no clocks.

use super::{Gpu, Node};
use crate::abi::answer::{GPU_IS_LOST, RESET_REQUIRED, Refused};
use crate::channel::hardware::{Fate, Hardware, Standing};
use crate::channel::layout::Layout;
use crate::channel::scenario::Scenario;
use crate::channel::settled::{Fired, Moment, RunningStorm, Settled, Slot, What};
use crate::condition::Carried;
use crate::schedule::{Since, Totals, hash};

/// The most moments and storms that are kept; older ones are only counted.
const MOMENTS: usize = 256;
const STORMS: usize = 64;

/// The error of every call about a GPU in this state.
pub(super) fn refusal(health: Standing) -> Option<Refused> {
    match health {
        Standing::Well | Standing::Replaced => None,
        Standing::Lost | Standing::Gone | Standing::Guest => Some(GPU_IS_LOST),
        Standing::ResetRequired => Some(RESET_REQUIRED),
    }
}

/// Whether clients count the GPU at init.
pub(super) fn is_counted(health: Standing) -> bool {
    !matches!(health, Standing::Gone | Standing::Guest)
}

/// Rejects hardware with GPUs or processes that the scenario lacks.
pub(super) fn check(wanted: &Hardware, scenario: &Scenario, slots: usize) -> Result<(), String> {
    let scripted = |pid: &u32| scenario.processes.iter().any(|process| process.pid == *pid);
    if let Some(pid) = wanted.pids.keys().find(|pid| !scripted(pid)) {
        return Err(format!("pids: the scenario has no process {pid}"));
    }
    let gpus = wanted.gpus.keys().map(|gpu| ("gpus", *gpu));
    let mig = wanted.mig.keys().map(|gpu| ("mig", *gpu));
    let xids = wanted.xids.iter().map(|storm| ("xids", storm.gpu));
    match gpus.chain(mig).chain(xids).find(|(_, gpu)| *gpu as usize >= slots) {
        Some((place, gpu)) => Err(format!("{place}: there is no gpu {gpu}")),
        None => Ok(()),
    }
}

/// The next state; the same hardware again changes nothing.
pub(super) fn settle(node: &Node, wanted: Hardware, elapsed: u64) -> Settled {
    let former = &node.settled;
    let mut next = former.clone();
    let (before, after) = (&former.hardware.driver, &wanted.driver);
    let loaded_again = after.loaded && !before.loaded;
    // A driver of another version has been reloaded too.
    let reloaded = loaded_again || after.epoch != before.epoch || after.version != before.version;
    next.at = elapsed;
    next.loads += u32::from(reloaded);
    next.slots = Vec::new();
    for gpu in &node.slots {
        let Some(slot) = former.slots.get(gpu.slot as usize) else { continue };
        let change = Change::new(&node.scenario, former, &wanted, gpu.slot);
        change.raise(&mut next, elapsed);
        next.slots.push(change.slot(gpu, slot, elapsed, reloaded));
    }
    settle_storms(&mut next, &wanted, elapsed);
    forget_old(&mut next);
    next.hardware = wanted;
    next
}

/// The change of one place.
struct Change {
    gpu: u32,
    before: Fate,
    after: Fate,
    /// The new layout, if it differs.
    layout: Option<Layout>,
    /// Whether its processes have new pids.
    renamed: bool,
    stopped: bool,
}

impl Change {
    fn new(scenario: &Scenario, former: &Settled, wanted: &Hardware, gpu: u32) -> Self {
        let own = layout(scenario, gpu);
        let now = former.slots.get(gpu as usize).and_then(|slot| slot.layout.as_ref()).or(own);
        let next = wanted.mig.get(&gpu).or(own);
        let (before, after) = (former.hardware.fate(gpu), wanted.fate(gpu));
        let stopped = !wanted.driver.loaded || refusal(after.state).is_some();
        let mut processes = scenario.processes.iter().filter(|process| process.gpu == gpu);
        let renamed = processes.any(|process| former.hardware.pid(process.pid) != wanted.pid(process.pid));
        Self {
            gpu,
            before,
            after,
            renamed,
            layout: (next != now).then(|| next.cloned().unwrap_or_default()),
            stopped,
        }
    }

    fn slot(&self, gpu: &Gpu, slot: &Slot, elapsed: u64, reloaded: bool) -> Slot {
        let identity = self.identity();
        let another = identity != slot.identity;
        let left = is_counted(self.before.state) && !is_counted(self.after.state);
        if !(another || left || reloaded || self.layout.is_some() || self.stopped != slot.since.stopped) {
            return if self.renamed { renamed(gpu, slot, elapsed) } else { slot.clone() };
        }
        let engines =
            self.layout.as_ref().map_or_else(|| gpu.engines(), |layout| layout.instances.len().max(1));
        let laid_out = |totals: &Totals| totals.laid_out(engines, |place| gpu.timeline.share(place));
        let mut done = laid_out(&gpu.timeline.lifetime(elapsed));
        let loaded = gpu.timeline.loaded(elapsed);
        let mut forgotten = slot.since.forgotten.as_ref().map(laid_out);
        if loaded > slot.since.counting {
            // The scenario has reloaded the driver since the last change.
            forgotten = Some(laid_out(&gpu.timeline.lifetime(loaded)));
        }
        if another {
            // A new board has done nothing; the work of processes stays.
            let workers = std::mem::take(&mut done.workers);
            done = laid_out(&Totals { workers, ..Totals::default() });
            forgotten = None;
        }
        if reloaded {
            forgotten = Some(done.clone());
        }
        let counting = if reloaded || another { elapsed } else { loaded };
        Slot {
            identity,
            life: slot.life + u32::from(another || left),
            cut: slot.cut + u32::from(self.layout.is_some()),
            layout: self.layout.clone().or_else(|| slot.layout.clone()),
            since: Since { at: elapsed, done: Some(done), forgotten, counting, stopped: self.stopped },
            came: if another { elapsed } else { slot.came },
            links: if another { Carried::default() } else { carried(gpu, elapsed, reloaded) },
            renamed: slot.renamed + u32::from(self.renamed),
        }
    }

    fn identity(&self) -> u64 {
        match self.after.state {
            Standing::Replaced => hash(self.after.uuid_seed).max(1),
            _ => 0,
        }
    }

    /// Adds the events and XIDs that come with the change.
    fn raise(&self, next: &mut Settled, elapsed: u64) {
        let mut moment = |what| {
            next.moments.push(Moment { number: next.next, at: elapsed, gpu: self.gpu, what });
            next.next += 1;
        };
        if self.layout.is_some() {
            moment(What::MigChange);
        }
        if self.before.state == self.after.state || self.after.quiet {
            return;
        }
        match self.after.state {
            Standing::Lost => moment(What::Xid(79)),
            Standing::ResetRequired => moment(What::Xid(154)),
            _ => {}
        }
    }
}

/// The same place after its processes got new pids: all counters continue.
fn renamed(gpu: &Gpu, slot: &Slot, elapsed: u64) -> Slot {
    let loaded = gpu.timeline.loaded(elapsed);
    let forgotten = if loaded > slot.since.counting {
        Some(gpu.timeline.lifetime(loaded))
    } else {
        slot.since.forgotten.clone()
    };
    let done = Some(gpu.timeline.lifetime(elapsed));
    Slot {
        since: Since { at: elapsed, done, forgotten, counting: loaded, stopped: slot.since.stopped },
        links: carried(gpu, elapsed, false),
        renamed: slot.renamed + 1,
        ..slot.clone()
    }
}

/// What the links have carried until now, and the part that the driver no longer counts.
fn carried(gpu: &Gpu, elapsed: u64, reloaded: bool) -> Carried {
    let links = &gpu.condition.links;
    let done = links.lifetime(&gpu.timeline, elapsed);
    let mut forgotten = done.clone();
    if !reloaded {
        for (mine, counted) in forgotten.iter_mut().zip(links.counted(&gpu.timeline, elapsed)) {
            *mine = mine.since(counted);
        }
    }
    Carried { done, forgotten }
}

/// The scenario's own layout of a GPU.
fn layout(scenario: &Scenario, gpu: u32) -> Option<&Layout> {
    let mut first = 0;
    for group in &scenario.gpus {
        if (first..first + group.count).contains(&gpu) {
            return Some(&group.mig);
        }
        first += group.count;
    }
    None
}

/// Ends storms that were removed from the file; begins new ones at their time, or now.
fn settle_storms(next: &mut Settled, wanted: &Hardware, elapsed: u64) {
    let former = &next.hardware.xids;
    for running in &mut next.storms {
        if former.contains(&running.storm) && !wanted.xids.contains(&running.storm) {
            running.storm.count = running.fired(elapsed);
        }
    }
    for storm in wanted.xids.iter().filter(|storm| !former.contains(storm)) {
        let from = storm.from.map_or(elapsed, super::xids::nanoseconds);
        next.storms.push(RunningStorm { number: next.next, from, storm: *storm });
        next.next += 1;
    }
}

/// Drops old moments and storms and keeps only their counts.
fn forget_old(next: &mut Settled) {
    let moments = next.moments.len().saturating_sub(MOMENTS);
    for moment in next.moments.drain(..moments).collect::<Vec<_>>() {
        if let What::Xid(xid) = moment.what {
            count(&mut next.fired, Fired { gpu: moment.gpu, xid, fired: 1 });
        }
    }
    let storms = next.storms.len().saturating_sub(STORMS);
    for RunningStorm { storm, .. } in next.storms.drain(..storms).collect::<Vec<_>>() {
        count(&mut next.fired, Fired { gpu: storm.gpu, xid: storm.xid, fired: storm.count });
    }
}

/// Adds to the count of the same GPU and code.
pub(super) fn count(all: &mut Vec<Fired>, more: Fired) {
    match all.iter_mut().find(|known| (known.gpu, known.xid) == (more.gpu, more.xid)) {
        Some(known) => known.fired += more.fired,
        None => all.push(more),
    }
}

impl Gpu {
    fn engines(&self) -> usize {
        self.instances.len().max(1)
    }
}
