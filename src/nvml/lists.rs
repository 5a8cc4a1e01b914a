//! Which processes have a context on a GPU: the driver's compute, graphics and MPS lists, each asked for when
//! `attention` says so, and kept in between.
//!
//! Clients of MPS stand on a list of their own, under their own pids (Volta and later). It is asked with the
//! graphics list, which is seldom; where it names somebody, with the compute list. A list for which a fast tick
//! has no room waits for the next one: samples attribute meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::attention::{Attention, Known, Look, Occasion, Signs};
use super::door::{Door, Handle, INSUFFICIENT_SIZE, Refusal, ask, more_room};
use super::footprint::Footprint;
use super::quirks::ListForm;
use crate::model::{Absence, Bytes, GpuProcess, Nanoseconds, Rejection, Stamp};

/// More processes than any GPU runs: a driver that asks for more answers garbage.
pub(super) const MOST: usize = 65_536;

/// The driver's word for "no value".
const UNKNOWN_ID: u32 = u32::MAX;

/// More memory than any GPU has: 16 TiB, far above the driver's other words for "no value".
const MOST_MEMORY: u64 = 1 << 44;

/// The bytes that a driver may write per process: 535.54 to 535.97 added a field to the structure without
/// telling (go-nvml issue 75, nvitop issue 79). They are asked for another form, but a driver that does not
/// tell its version must not write past the buffer.
const LARGEST_INFO: usize = 32;

const NO_INFO: sys::nvmlProcessInfo_t = sys::nvmlProcessInfo_t {
    pid: 0,
    usedGpuMemory: 0,
    gpuInstanceId: UNKNOWN_ID,
    computeInstanceId: UNKNOWN_ID,
};

/// The devices whose lists may be asked for.
pub(super) struct Devices {
    /// The GPU.
    pub(super) whole: Handle,
    /// Its MIG instances, by GPU instance id.
    pub(super) instances: Vec<(u32, Handle)>,
}

type List = Result<Vec<GpuProcess>, Absence>;

/// Which of the driver's lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Compute,
    Graphics,
    Mps,
}

/// The lists as they were last answered, with the buffer that they are asked into.
pub(super) struct Lists {
    infos: Vec<sys::nvmlProcessInfo_t>,
    form: ListForm,
    /// Whether the lists of the whole GPU are refused to this user.
    is_whole_refused: bool,
    compute: List,
    graphics: List,
    mps: List,
    attention: Attention,
    merged: Result<Arc<[GpuProcess]>, Absence>,
    listed: Option<Stamp>,
    /// Boot time after the calls.
    read: Option<Nanoseconds>,
    /// When it was last known that the compute list is as it was: taken, or memory did not move.
    confirmed: Option<Stamp>,
}

// SAFETY: the buffer is plain memory that the driver writes only during a call.
unsafe impl Send for Lists {}

impl Lists {
    /// Lists of which nothing is known; `presence` says whether they decide who holds.
    pub(super) fn new(presence: bool, form: ListForm) -> Self {
        Self {
            infos: vec![NO_INFO; 32],
            form,
            is_whole_refused: false,
            compute: Err(Absence::NotYet),
            graphics: Err(Absence::NotYet),
            mps: Err(Absence::NotYet),
            attention: Attention::new(presence),
            merged: Err(Absence::NotYet),
            listed: None,
            read: None,
            confirmed: None,
        }
    }

    /// What decides when to look.
    pub(super) fn attention(&mut self) -> &mut Attention {
        &mut self.attention
    }

    /// Has memory in use read where that may tell who came or went; whether samples are to be asked for.
    pub(super) fn weigh(
        &mut self,
        occasion: &Occasion,
        at: Stamp,
        read: impl FnOnce(&mut Footprint),
    ) -> bool {
        let known = self.known();
        let is_needed = self.attention.needs_memory(occasion, &known);
        let memory = self.attention.memory();
        memory.pass();
        if is_needed {
            read(memory);
        }
        if memory.is_known() && !memory.moved() {
            self.confirmed = Some(at);
        }
        self.attention.needs_samples(occasion, &known)
    }

    /// All processes with a context, by pid, as last listed, and when that was.
    pub(super) fn get(&self) -> (Result<Arc<[GpuProcess]>, Absence>, Option<Stamp>) {
        (self.merged.clone(), self.listed)
    }

    /// Boot time at which the last list had been taken.
    pub(super) fn read(&self) -> Option<Nanoseconds> {
        self.read
    }

    /// Whether it is known of that moment that the list names nobody.
    pub(super) fn is_deserted(&self, at: Stamp) -> bool {
        self.confirmed == Some(at) && self.merged.as_ref().is_ok_and(|list| list.is_empty())
    }

    /// Asks for the lists that are due, for at most so many calls: what has no room waits for the next tick.
    pub(super) fn look(
        &mut self,
        (door, devices): (&mut Door, &Devices),
        signs: &Signs<'_>,
        at: Stamp,
        mut room: usize,
    ) {
        let mut look = self.attention.look(signs, &self.known());
        let has_clients = self.mps.as_ref().is_ok_and(|clients| !clients.is_empty());
        let has_room = look.compute && take(&mut room, 1 + usize::from(has_clients));
        let compute = look.compute && (has_room || self.attention.cannot_wait());
        if compute {
            self.compute = self.list(door, devices, Kind::Compute);
            if has_clients {
                self.mps = self.list(door, devices, Kind::Mps);
            }
            (self.listed, self.confirmed) = (Some(at), Some(at));
            look.graphics |= self.attention.look_further(signs.samples.unwrap_or_default(), &self.known());
        }
        let graphics = look.graphics && take(&mut room, 2);
        if graphics {
            self.graphics = self.list(door, devices, Kind::Graphics);
            self.mps = self.list(door, devices, Kind::Mps);
        }
        if compute || graphics {
            self.read = Some(door.clock().now().boottime);
            self.merged = merge([&self.compute, &self.graphics, &self.mps]).map(Into::into);
        }
        self.attention.looked(Look { compute, graphics });
        self.attention
            .postpone(Look { compute: look.compute && !compute, graphics: look.graphics && !graphics });
        let known = self.known();
        self.attention.settle(signs, &known);
    }

    /// A list that is refused for good is empty for ever; one that failed is not known. Nor is the graphics list while
    /// that of MPS clients failed, since they are asked together: else nobody asked again before its next turn.
    fn known(&self) -> Known {
        let pids = |list: &List| match list {
            Ok(list) => Some(list.iter().map(|process| process.pid).collect()),
            Err(absence) => absence.is_permanent().then(BTreeSet::new),
        };
        let clients = pids(&self.mps).unwrap_or_default();
        let compute = pids(&self.compute).map(|known| known.union(&clients).copied().collect());
        let names_all = !self.compute.as_ref().is_err_and(|absence| absence.is_permanent());
        let clients_failed = self.mps.as_ref().is_err_and(|absence| !absence.is_permanent());
        Known { compute, graphics: pids(&self.graphics).filter(|_| !clients_failed), names_all }
    }

    fn last(&self, kind: Kind) -> &List {
        match kind {
            Kind::Compute => &self.compute,
            Kind::Graphics => &self.graphics,
            Kind::Mps => &self.mps,
        }
    }

    /// One list of the GPU; of its instances, where drivers tell that of a whole MIG GPU only to who may change it.
    fn list(&mut self, door: &mut Door, devices: &Devices, kind: Kind) -> List {
        if let Err(absence) = self.last(kind)
            && absence.is_permanent()
        {
            return Err(*absence);
        }
        if !self.is_whole_refused {
            let list = self.list_of(door, devices.whole, kind);
            if devices.instances.is_empty() || list != Err(Absence::NoPermission) {
                return list;
            }
            self.is_whole_refused = true;
        }
        let mut all = Vec::new();
        for (id, device) in &devices.instances {
            let list = self.list_of(door, *device, kind)?;
            let on_instance = |process: GpuProcess| GpuProcess {
                gpu_instance: process.gpu_instance.or(Some(*id)),
                ..process
            };
            all.extend(list.into_iter().map(on_instance));
        }
        Ok(all)
    }

    /// One list in the newest form that the library has.
    fn list_of(&mut self, door: &mut Door, device: Handle, kind: Kind) -> List {
        loop {
            let answer = match self.form {
                ListForm::Third | ListForm::Second => self.long(door, device, kind),
                ListForm::First => short(door, device, kind),
            };
            if kind == Kind::Mps {
                // A library that lacks this list says nothing of the form of the others.
                return answer;
            }
            self.form = match (answer, self.form) {
                (Err(Absence::NoSymbol), ListForm::Third) => ListForm::Second,
                (Err(Absence::NoSymbol), ListForm::Second) => ListForm::First,
                (answer, _) => return answer,
            };
        }
    }

    fn long(&mut self, door: &mut Door, Handle(device): Handle, kind: Kind) -> List {
        let count = loop {
            let announced = self.infos.len() * size_of::<sys::nvmlProcessInfo_t>() / LARGEST_INFO;
            let mut count = u32::try_from(announced).unwrap_or(u32::MAX);
            let (number, buffer) = (&raw mut count, self.infos.as_mut_ptr());
            let second = buffer.cast::<sys::nvmlProcessInfo_v2_t>();
            let answer = match (self.form, kind) {
                (ListForm::Third, Kind::Compute) => {
                    ask!(door, nvmlDeviceGetComputeRunningProcesses_v3(device, number, buffer))
                }
                (ListForm::Third, Kind::Graphics) => {
                    ask!(door, nvmlDeviceGetGraphicsRunningProcesses_v3(device, number, buffer))
                }
                (ListForm::Third, Kind::Mps) => {
                    ask!(door, nvmlDeviceGetMPSComputeRunningProcesses_v3(device, number, buffer))
                }
                (_, Kind::Compute) => {
                    ask!(door, nvmlDeviceGetComputeRunningProcesses_v2(device, number, second))
                }
                (_, Kind::Graphics) => {
                    ask!(door, nvmlDeviceGetGraphicsRunningProcesses_v2(device, number, second))
                }
                (_, Kind::Mps) => {
                    ask!(door, nvmlDeviceGetMPSComputeRunningProcesses_v2(device, number, second))
                }
            };
            match answer {
                Ok(()) => break (count as usize).min(announced),
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => {
                    let room = (count as usize * LARGEST_INFO).div_ceil(size_of::<sys::nvmlProcessInfo_t>());
                    let wanted = more(door, self.infos.len(), room)?;
                    self.infos.resize(wanted, NO_INFO);
                }
                Err(refusal) => return Err(refusal.into()),
            }
        };
        let infos = self.infos.get(..count).unwrap_or_default();
        let process = |info: &sys::nvmlProcessInfo_t| GpuProcess {
            pid: info.pid,
            gpu_instance: (info.gpuInstanceId != UNKNOWN_ID).then_some(info.gpuInstanceId),
            memory: memory(info.usedGpuMemory),
        };
        Ok(infos.iter().map(process).collect())
    }
}

// The second form is the third under another name: what is written as one is read as the other.
const _: () = assert!(
    size_of::<sys::nvmlProcessInfo_v2_t>() == size_of::<sys::nvmlProcessInfo_t>()
        && align_of::<sys::nvmlProcessInfo_v2_t>() == align_of::<sys::nvmlProcessInfo_t>()
);

/// Takes so many calls out of the room that is left, if there is enough.
fn take(room: &mut usize, calls: usize) -> bool {
    let left = room.checked_sub(calls);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// The first form, which knows no instances: drivers before 460.
fn short(door: &mut Door, Handle(device): Handle, kind: Kind) -> List {
    let none = sys::nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 };
    let mut infos = vec![none; 32];
    let count = loop {
        let room = infos.len();
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        let (number, buffer) = (&raw mut count, infos.as_mut_ptr());
        let answer = match kind {
            Kind::Compute => ask!(door, nvmlDeviceGetComputeRunningProcesses(device, number, buffer)),
            Kind::Graphics => ask!(door, nvmlDeviceGetGraphicsRunningProcesses(device, number, buffer)),
            Kind::Mps => ask!(door, nvmlDeviceGetMPSComputeRunningProcesses(device, number, buffer)),
        };
        match answer {
            Ok(()) => break (count as usize).min(room),
            Err(Refusal::Code(INSUFFICIENT_SIZE)) => {
                let wanted = more(door, room, count as usize)?;
                infos.resize(wanted, none);
            }
            Err(refusal) => return Err(refusal.into()),
        }
    };
    let process = |info: &sys::nvmlProcessInfo_v1_t| GpuProcess {
        pid: info.pid,
        gpu_instance: None,
        memory: memory(info.usedGpuMemory),
    };
    Ok(infos.iter().take(count).map(process).collect())
}

fn memory(used: u64) -> Option<Bytes> {
    (used <= MOST_MEMORY).then_some(Bytes(used))
}

/// Room for so many; none for more than any GPU runs.
fn more(door: &mut Door, room: usize, wanted: usize) -> Result<usize, Absence> {
    more_room(room, wanted, MOST).ok_or_else(|| {
        door.reject(Rejection::Count, 1);
        Absence::Rejected
    })
}

/// The lists as one, by pid; a process that is on several counts once, with the larger memory, since all show
/// the same allocation. A list that may come back leaves out whoever is on it: no list is better than a part
/// of one.
fn merge(lists: [&List; 3]) -> List {
    let refused = |passing: bool| {
        let mut absences = lists.iter().filter_map(|list| list.as_ref().err());
        absences.find(|absence| absence.is_permanent() != passing).copied()
    };
    if let Some(absence) = refused(true) {
        return Err(absence);
    }
    if lists.iter().all(|list| list.is_err()) {
        return Err(refused(false).unwrap_or(Absence::NotSupported));
    }
    let mut found: BTreeMap<(u32, Option<u32>), GpuProcess> = BTreeMap::new();
    for process in lists.into_iter().flatten().flatten() {
        let entry = found.entry((process.pid, process.gpu_instance)).or_insert_with(|| process.clone());
        entry.memory = entry.memory.max(process.memory);
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: List = Err(Absence::NoSymbol);

    fn process(pid: u32, memory: Option<u64>) -> GpuProcess {
        GpuProcess { pid, gpu_instance: None, memory: memory.map(Bytes) }
    }

    #[test]
    fn who_is_on_both_lists_counts_once_with_the_larger_memory() {
        let (compute, graphics) =
            (Ok(vec![process(7, Some(5))]), Ok(vec![process(7, Some(9)), process(3, None)]));
        assert_eq!(merge([&compute, &graphics, &NONE]), Ok(vec![process(3, None), process(7, Some(9))]));
    }

    #[test]
    fn no_list_is_better_than_a_part_of_one_unless_the_rest_never_comes() {
        let some: List = Ok(vec![process(7, None)]);
        assert_eq!(merge([&some, &Err(Absence::Failed), &NONE]), Err(Absence::Failed));
        assert_eq!(merge([&some, &Err(Absence::NotSupported), &NONE]), some);
        assert_eq!(merge([&Err(Absence::NoPermission), &NONE, &NONE]), Err(Absence::NoPermission));
    }
}
