//! The thread of a sampler: it identifies its GPU, reads it in every tick and sends the frames to the tick loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{DriverSessions, WatchedCalls, collector, count_error, report_if_all_are_known, search, watch};
use crate::agent::policy::{AgentPolicy, Wait};
use crate::driver::nvml::{CallSlot, FoundGpu, Library, Sampler, find};
use crate::meter::SamplerNews;
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, Nanoseconds, Unframed};
use crate::runtime::clock::{Stop, next_multiple};
use crate::runtime::thread::{self, Thread};

/// GPM needs more than 100 ms between the samples of a pair.
const PAIR_GAP: Nanoseconds = Nanoseconds(120_000_000);

pub(super) struct SamplerThread {
    pub(super) index: u32,
    pub(super) slot: CallSlot,
    pub(super) thread: Thread,
}

impl SamplerThread {
    pub(super) fn start(
        library: &Arc<Library>,
        index: u32,
        end: &Stop,
        shared: &Arc<DriverSessions>,
    ) -> Result<Self, thread::Error> {
        let slot = CallSlot::default();
        let (library, end) = (Arc::clone(library), end.clone());
        let (slot_by_thread, shared) = (slot.clone(), Arc::clone(shared));
        let thread = Thread::start("sampler", move || {
            if let Some(found) = identify_gpu(&library, index, &slot_by_thread, &end, &shared) {
                let level = shared.policy.now().level;
                let sampler = Sampler::new(library, &found, slot_by_thread, shared.clock.clone(), level);
                let sampling = SamplingLoop {
                    gpu: found.id,
                    collector: collector(index),
                    shared: &shared,
                    sampler,
                    generation: 0,
                };
                sampling.run(&end);
            }
        })?;
        Ok(Self { index, slot, thread })
    }

    pub(super) fn call(&self) -> String {
        let call = self.slot.in_flight().map_or("a driver call", |call| call.function);
        format!("GPU {} in {call}", self.index)
    }
}

/// Reads the identity of the GPU at an index until it is known; none when the session ends.
fn identify_gpu(
    library: &Arc<Library>,
    index: u32,
    slot: &CallSlot,
    end: &Stop,
    shared: &DriverSessions,
) -> Option<FoundGpu> {
    let collector = collector(index);
    watch(shared, Arc::clone(&collector), slot);
    let mut is_logged = false;
    loop {
        let answer = find(library, index, slot, &shared.clock);
        note_absence(shared, index, answer.as_ref().err().copied());
        let reason = match answer {
            Ok(found) if register(&found, slot, shared) => {
                let mut samplers = shared.samplers.lock();
                samplers.unwatch(&collector);
                // A sampler that was stuck in a former session is not counted in this one.
                samplers.unidentified_gpus =
                    samplers.unidentified_gpus.saturating_sub(usize::from(is_logged));
                drop(samplers);
                shared.send(SamplerNews::Found { gpu: found.id.clone(), bus: Arc::clone(&found.bus) });
                report_if_all_are_known(shared);
                return Some(found);
            }
            // "lane" in this label value means sampler thread.
            Ok(_) => "read_by_another_lane",
            Err(absence) => absence.reason(),
        };
        count_error(shared, Arc::clone(&collector), reason);
        if !is_logged {
            tracing::error!(
                index,
                reason,
                "the identity of a GPU cannot be read; it is tried again every 10 s"
            );
            shared.samplers.lock().unidentified_gpus += 1;
            is_logged = true;
        }
        if !search::pause(end, shared) {
            return None;
        }
    }
}

/// Registers this sampler for that GPU; false when the GPU has another one.
fn register(found: &FoundGpu, slot: &CallSlot, shared: &DriverSessions) -> bool {
    let mut samplers = shared.samplers.lock();
    if samplers.slots.contains_key(&found.id.uuid) {
        return false;
    }
    let watched = WatchedCalls::new(collector(found.id.index), slot);
    samplers.slots.insert(Arc::clone(&found.id.uuid), watched);
    samplers.unregistered.push(found.clone());
    true
}

fn note_absence(shared: &DriverSessions, index: u32, absence: Option<Absence>) {
    let absences = &mut shared.samplers.lock().absences;
    match absence {
        Some(absence) => drop(absences.insert(index, absence)),
        None => drop(absences.remove(&index)),
    }
}

struct SamplingLoop<'a> {
    gpu: GpuId,
    collector: Arc<str>,
    shared: &'a DriverSessions,
    sampler: Sampler,
    /// The plan of the last frame.
    generation: u32,
}

impl SamplingLoop<'_> {
    /// Reads at every multiple of the interval, from the start on.
    fn run(mut self, end: &Stop) {
        let shared = self.shared;
        let mut tick: u64 = 0;
        // Whether an event asks for all tiers, and the first tick at which they may be read for an event again.
        let (mut read_all, mut next_read_all) = (false, 0);
        while !end.is_called() {
            let policy = shared.policy.now();
            let hint = shared.received.take_hint(&self.gpu.uuid);
            if hint.mig_changed {
                self.sampler.drop_plan();
            }
            read_all |= hint.read_all;
            if read_all && tick >= next_read_all {
                // Events that repeat, as XIDs do, must not cause all tiers to be read in every tick.
                (read_all, next_read_all) = (false, tick + policy.ticks_per_tier()[Tier::Medium as usize]);
                self.sampler.read_all_tiers_next();
            }
            let earliest = self.read(tick, &policy);
            tick += 1;
            let next =
                next_multiple(shared.clock.now().boottime.max(earliest), policy.config.sampling.interval);
            let wait = Wait { until: next, every: Nanoseconds::SECOND, notify: || {} };
            shared.policy.wait_until(&shared.clock, &policy, end, wait);
        }
        if !shared.stop.is_called() {
            // What the driver keeps for the plan is given back, since the driver may outlive the session.
            self.sampler.drop_plan();
        }
    }

    /// Reads one tick and sends the result to the tick loop; returns the earliest time of the next tick.
    fn read(&mut self, tick: u64, policy: &AgentPolicy) -> Nanoseconds {
        let shared = self.shared;
        let run_tick = || {
            let presence = policy.how_held().is_by_presence();
            self.sampler.configure(policy.level, presence, policy.config.sampling.driver_share);
            self.sampler.show_processes(policy.meter.dcgm);
            self.sampler.tick(policy.ticks_per_tier().map(|every| tick.is_multiple_of(every)))
        };
        match catch_unwind(AssertUnwindSafe(run_tick)) {
            Ok(Ok(frame)) => return self.send_frame(frame, policy.config.sampling.interval),
            Ok(Err(absence)) => {
                note_absence(shared, self.gpu.index, Some(absence));
                count_error(shared, Arc::clone(&self.collector), absence.reason());
                if absence == Absence::Lost {
                    shared.send(SamplerNews::Lost(self.gpu.clone()));
                }
                shared.send(SamplerNews::Unframed(self.sampler.take_unframed()));
            }
            Err(_) => {
                // After a panic the readings may be half updated; the next plan replaces them.
                count_error(shared, Arc::clone(&self.collector), "panic");
                self.sampler.drop_plan();
            }
        }
        Nanoseconds(0)
    }

    /// Sends a frame to the tick loop, unless it is late; returns the earliest time of the next tick.
    fn send_frame(&mut self, frame: Frame, interval: Nanoseconds) -> Nanoseconds {
        let shared = self.shared;
        note_absence(shared, self.gpu.index, None);
        let is_first = frame.generation != self.generation;
        self.generation = frame.generation;
        // A new plan begins a new GPM pair.
        let earliest = if is_first { frame.begun.boottime + PAIR_GAP } else { Nanoseconds(0) };
        // After two ticks a frame is too old to be shown, and its span is closed. The first frame of a plan is
        // never dropped: it reads all tiers, which may always take too long on a slow board.
        let is_late = frame.ended.since(frame.begun).0 > 2 * interval.0;
        if is_late && !is_first {
            // No counter difference may span a tick that came late.
            self.sampler.drop_plan();
            count_error(shared, Arc::clone(&self.collector), "late");
            shared.send(SamplerNews::Unframed(Unframed { calls: frame.calls, rejected: frame.rejected }));
            return earliest;
        }
        let listed = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
        let sampled = frame.samples.iter().flatten().map(|sample| sample.pid);
        shared.processes.see(listed, sampled);
        shared.send(SamplerNews::Frame(Box::new(frame)));
        earliest
    }
}
