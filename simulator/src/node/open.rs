//! Opening a directory, and following its state.
//!
//! In: the files `scenario`, `clock`, `state`, `settled`. Out: a node, and another one when the state has
//! changed. Errors say which file and what is wrong.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use super::{Gpu, Mishap, Node, Session, SimulatedHost, Watch, gpus, settle};
use crate::abi::answer::{Answer, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, UNINITIALIZED, UNKNOWN};
use crate::channel::delays::Debt;
use crate::channel::devices::Devices;
use crate::channel::faults::Faults;
use crate::channel::hardware::{Hardware, LibraryAge};
use crate::channel::kmsg::Log;
use crate::channel::report::Report;
use crate::channel::scenario::{Delays, Scenario};
use crate::channel::settled::{Settled, StateFiles, version};
use crate::clock::{self, SimulatedClock};
use crate::handles::Handles;
use crate::lock;
use crate::replay::Replay;
use crate::schedule;

/// Nanoseconds of host time.
const CHECK_INTERVAL: u64 = 20_000_000;

impl Node {
    /// Reads a directory's scenario, clock and state; the error says what is wrong and where.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        let path = directory.join("scenario");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scenario = Scenario::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let page = directory.join("clock");
        let clock = SimulatedClock::open(&page).map_err(|error| format!("{}: {error}", page.display()))?;
        let replay = match &scenario.recording {
            Some(name) => Some(Replay::open(&directory.join(name))?),
            None => None,
        };
        let count: u32 = scenario.gpus.iter().map(|group| group.count).sum();
        let record = StateFiles::new(directory);
        let fingerprint = text.bytes().fold(0, |sum, byte| schedule::hash(sum ^ u64::from(byte)));
        let now = clock.now();
        let beginning = Settled::beginning(fingerprint, count as usize);
        // A record from the future was written under another clock.
        let kept = record.read(fingerprint, count as usize).filter(|kept| kept.at <= now.elapsed);
        let kept = kept.and_then(|kept| Some((gpus(&scenario, &kept, &[]).ok()?, kept)));
        let (slots, settled) = match kept {
            Some(kept) => kept,
            None => {
                let slots = gpus(&scenario, &beginning, &[]);
                (slots.map_err(|error| format!("{}: {error}", path.display()))?, beginning)
            }
        };
        let host = SimulatedHost::new(directory, scenario, fingerprint, replay, clock);
        let first = Self::new(Arc::new(host), settled, slots);
        let next = first.next_if_changed().unwrap_or(first);
        let node = next.begin_session(directory);
        node.log.begin(&node, now.elapsed);
        Ok(node)
    }

    /// Begins the session: clients count the GPUs that are there now.
    fn begin_session(self, directory: &Path) -> Self {
        let Self { host, settled, slots, .. } = self;
        let there = |gpu: &&Gpu| settle::is_counted(settled.hardware.fate(gpu.slot).state);
        let members: Vec<(u32, u32)> = slots.iter().filter(there).map(|gpu| (gpu.slot, gpu.life)).collect();
        let devices = Devices::open(directory, members.iter().map(|(slot, _)| *slot));
        let _ = host.session.set(Session { members, loads: settled.loads, devices });
        Self::new(host, settled, slots)
    }

    /// The node that replaces this one, if the state file changed; checked every 20 ms, or
    /// at every call while the clock is held.
    pub(crate) fn next_if_changed(&self) -> Option<Self> {
        let mut watch = lock(&self.watch);
        let now = clock::host_boottime();
        let is_due = watch.looked.is_none_or(|looked| now.saturating_sub(looked) >= CHECK_INTERVAL);
        if !is_due && !self.clock.now().held {
            return None;
        }
        watch.looked = Some(now);
        let (state, settled) = (version(&self.record.state()), version(&self.record.settled()));
        if state == watch.state && settled == watch.settled {
            return None;
        }
        watch.state = state;
        let next = self.settle();
        watch.settled = version(&self.record.settled());
        let next = next?;
        match gpus(&self.scenario, &next, &self.slots) {
            Ok(slots) => Some(Self::new(Arc::clone(&self.host), next, slots)),
            Err(reason) => {
                self.record.complain(&reason);
                None
            }
        }
    }

    /// The settled state, if it differs from this node's. Under a lock: the first process writes it.
    fn settle(&self) -> Option<Settled> {
        let lock = self.record.lock();
        let elapsed = self.clock.now().elapsed;
        let written = self.record.read(self.fingerprint, self.settled.slots.len());
        let written = written.filter(|written| written.at <= elapsed && *written != self.settled);
        let wanted = self.record.wanted();
        let current = written.as_ref().unwrap_or(&self.settled);
        let next = match wanted {
            Some(wanted) if wanted != current.hardware => self.next(written, wanted, elapsed)?,
            _ => return written,
        };
        self.record.write(&next);
        drop(lock);
        Some(next)
    }

    /// Settles the wanted hardware on top of what other processes settled meanwhile; `None` for invalid hardware.
    fn next(&self, written: Option<Settled>, wanted: Hardware, elapsed: u64) -> Option<Settled> {
        let checked = settle::check(&wanted, &self.scenario, self.slots.len());
        checked.map_err(|reason| self.record.complain(&reason)).ok()?;
        let next = match written {
            None => settle::settle(self, wanted, elapsed),
            Some(written) => {
                let slots = gpus(&self.scenario, &written, &self.slots).ok()?;
                settle::settle(&Self::new(Arc::clone(&self.host), written, slots), wanted, elapsed)
            }
        };
        // A layout that the board does not support is never written.
        gpus(&self.scenario, &next, &self.slots).map_err(|reason| self.record.complain(&reason)).ok()?;
        Some(next)
    }

    /// Fails once the driver was unloaded or reloaded, until the next shutdown and init.
    pub(crate) fn check_driver(&self) -> Answer {
        if !self.settled.hardware.driver.loaded {
            self.dead.store(true, Ordering::Relaxed);
            return Err(UNKNOWN);
        }
        let loads = self.session.get().map_or(0, |session| session.loads);
        if self.dead.load(Ordering::Relaxed) || self.settled.loads != loads {
            return Err(UNINITIALIZED);
        }
        Ok(())
    }

    /// Fails if init cannot work: no driver, or a library of another version.
    pub(crate) fn check_init(&self, library: u64) -> Answer {
        let driver = &self.settled.hardware.driver;
        if !driver.loaded {
            return Err(DRIVER_NOT_LOADED);
        }
        let mark = mark(driver.version.as_deref(), &self.scenario);
        if driver.library == Some(LibraryAge::Old) || mark != library {
            return Err(LIB_RM_VERSION_MISMATCH);
        }
        Ok(())
    }

    /// The mark of the driver's current version.
    pub(crate) fn version_mark(&self) -> u64 {
        mark(self.settled.hardware.driver.version.as_deref(), &self.scenario)
    }
}

/// A number for a driver version; the scenario's own is 1.
fn mark(version: Option<&str>, scenario: &Scenario) -> u64 {
    let other = version.filter(|version| *version != scenario.driver_version());
    other.map_or(1, |version| {
        version.bytes().fold(2, |sum, byte| schedule::hash(sum ^ u64::from(byte))).max(2)
    })
}

/// The mark of the driver's version in a directory; `None` if its scenario cannot be read.
pub(crate) fn mark_in(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join("scenario")).ok()?;
    let scenario = Scenario::parse(&text).ok()?;
    let state = fs::read_to_string(directory.join("state")).ok();
    let hardware = state.and_then(|text| Hardware::parse(&text).ok()).unwrap_or_default();
    Some(mark(hardware.driver.version.as_deref(), &scenario))
}

impl SimulatedHost {
    fn new(
        directory: &Path,
        scenario: Scenario,
        fingerprint: u64,
        replay: Option<Replay>,
        clock: SimulatedClock,
    ) -> Self {
        let mishap = |xid: &crate::channel::scenario::ScriptedXid| Mishap {
            at: schedule::slices(xid.at) * schedule::SLICE,
            gpu: xid.gpu,
            xid: xid.xid,
        };
        let mut mishaps: Vec<Mishap> = scenario.xids.iter().map(mishap).collect();
        mishaps.sort_by_key(|mishap| mishap.at);
        let names = scenario.processes.iter().map(|process| (process.pid, process.name.clone()));
        let count: u32 = scenario.gpus.iter().map(|group| group.count).sum();
        let slow = scenario.delays == Delays::Realistic;
        let debts = if slow { count as usize + 1 } else { 0 };
        // No file has this version, so that the state is read in any case.
        let never = Some((SystemTime::UNIX_EPOCH, 0, 0));
        Self {
            fingerprint,
            cuda_version: scenario.cuda_version.unwrap_or_else(|| scenario.persona.cuda_version()),
            names: names.collect(),
            mishaps,
            cycle: schedule::slices(scenario.cycle_seconds).max(1) * schedule::SLICE,
            log: Log::new(directory, clock.boot()),
            clock,
            faults: Faults::new(directory.join("faults")),
            report: Report::new(directory),
            samples: Handles::default(),
            event_sets: Handles::default(),
            replay,
            debts: (0..debts).map(|_| Debt::default()).collect(),
            record: StateFiles::new(directory),
            watch: Mutex::new(Watch { looked: None, state: never, settled: never }),
            session: OnceLock::new(),
            dead: AtomicBool::new(false),
            scenario,
        }
    }
}
