//! Reads the driver's compute, graphics and MPS process lists when `process_schedule` selects them, and keeps
//! them in between.
//!
//! MPS clients are on a list of their own, under their own pids (Volta and later). It is read together with the
//! graphics list, and with the compute list once it names a client. A list that exceeds the calls of a fast tick
//! waits for the next one; meanwhile use is attributed by samples.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, INSUFFICIENT_SIZE, call};
use super::process_schedule::{
    ListedPids, ListsDue, MemoryWatch, ProcessSchedule, ScheduleInputs, TickState,
};
use super::quirks::ListForm;
use crate::model::{Absence, Bytes, GpuProcess, Nanoseconds, Stamp};

/// More processes than any GPU runs; a larger count from the driver is garbage.
pub(super) const MOST: usize = 65_536;

/// The driver's marker for "no value".
const UNKNOWN_ID: u32 = u32::MAX;

/// More memory than any GPU has: 16 TiB, far below the driver's other markers for "no value".
const MOST_MEMORY: u64 = 1 << 44;

/// The bytes that a driver may write per process: 535.54 to 535.97 added a field to the structure without a new
/// version (go-nvml issue 75, nvitop issue 79). The older form is used with them, but a driver that does not
/// report its version must not write past the buffer either.
const LARGEST_INFO: usize = 32;

const NO_INFO: sys::nvmlProcessInfo_t = sys::nvmlProcessInfo_t {
    pid: 0,
    usedGpuMemory: 0,
    gpuInstanceId: UNKNOWN_ID,
    computeInstanceId: UNKNOWN_ID,
};

/// The devices whose lists may be read.
pub(super) struct ListDevices {
    /// The GPU.
    pub(super) whole: Handle,
    /// Its MIG instances, by GPU instance id.
    pub(super) instances: Vec<(u32, Handle)>,
}

type ListResult = Result<Vec<GpuProcess>, Absence>;

/// One of the driver's process lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Compute,
    Graphics,
    Mps,
}

/// The lists as last read, with the buffer that the driver fills.
pub(super) struct ProcessLists {
    infos: Vec<sys::nvmlProcessInfo_t>,
    form: ListForm,
    /// Whether this user may not read the lists of the whole GPU.
    is_whole_refused: bool,
    compute: ListResult,
    graphics: ListResult,
    mps: ListResult,
    schedule: ProcessSchedule,
    merged: Result<Arc<[GpuProcess]>, Absence>,
    listed: Option<Stamp>,
    /// The boot time after the list calls.
    read: Option<Nanoseconds>,
    /// When the compute list was last known to be current: it was read, or memory had not changed.
    confirmed: Option<Stamp>,
}

// SAFETY: the buffer is plain memory that the driver writes only during a call.
unsafe impl Send for ProcessLists {}

impl ProcessLists {
    /// Lists that were never read; `presence` says whether they decide who holds the GPU.
    pub(super) fn new(presence: bool, form: ListForm) -> Self {
        Self {
            infos: vec![NO_INFO; 32],
            form,
            is_whole_refused: false,
            compute: Err(Absence::NotYet),
            graphics: Err(Absence::NotYet),
            mps: Err(Absence::NotYet),
            schedule: ProcessSchedule::new(presence),
            merged: Err(Absence::NotYet),
            listed: None,
            read: None,
            confirmed: None,
        }
    }

    /// The schedule of the lists.
    pub(super) fn schedule(&mut self) -> &mut ProcessSchedule {
        &mut self.schedule
    }

    /// Reads memory in use if the schedule needs it; returns whether samples must be read.
    pub(super) fn check_memory(
        &mut self,
        state: &TickState,
        at: Stamp,
        read: impl FnOnce(&mut MemoryWatch),
    ) -> bool {
        let known = self.known();
        let is_needed = self.schedule.needs_memory(state, &known);
        let memory = self.schedule.memory();
        memory.clear();
        if is_needed {
            read(memory);
        }
        if memory.is_known() && !memory.changed() {
            self.confirmed = Some(at);
        }
        self.schedule.needs_samples(state, &known)
    }

    /// All processes with a context, by pid, and when the lists were read.
    pub(super) fn get(&self) -> (Result<Arc<[GpuProcess]>, Absence>, Option<Stamp>) {
        (self.merged.clone(), self.listed)
    }

    /// The boot time at which the last list had been read.
    pub(super) fn read(&self) -> Option<Nanoseconds> {
        self.read
    }

    /// Whether the lists are known to be empty at that time.
    pub(super) fn is_known_empty(&self, at: Stamp) -> bool {
        self.confirmed == Some(at) && self.merged.as_ref().is_ok_and(|list| list.is_empty())
    }

    /// Reads the lists that are due with at most `room` calls; a list that needs more waits for the next tick.
    pub(super) fn read_due(
        &mut self,
        (api, devices): (&mut DriverApi, &ListDevices),
        inputs: &ScheduleInputs<'_>,
        at: Stamp,
        mut room: usize,
    ) {
        let mut due = self.schedule.select_lists(inputs, &self.known());
        let has_clients = self.mps.as_ref().is_ok_and(|clients| !clients.is_empty());
        let has_room = due.compute && take_calls(&mut room, 1 + usize::from(has_clients));
        // Under presence the compute list decides who holds, so it is read even if the tick has no calls left.
        let compute = due.compute && (has_room || self.schedule.presence);
        if compute {
            self.compute = self.read_list(api, devices, ListKind::Compute);
            if has_clients {
                self.mps = self.read_list(api, devices, ListKind::Mps);
            }
            (self.listed, self.confirmed) = (Some(at), Some(at));
            due.graphics |=
                self.schedule.needs_graphics_too(inputs.samples.unwrap_or_default(), &self.known());
        }
        let graphics = due.graphics && take_calls(&mut room, 2);
        if graphics {
            self.graphics = self.read_list(api, devices, ListKind::Graphics);
            self.mps = self.read_list(api, devices, ListKind::Mps);
        }
        if compute || graphics {
            self.read = Some(api.clock().now().boottime);
            self.merged = merge([&self.compute, &self.graphics, &self.mps]).map(Into::into);
        }
        self.schedule.note_read(ListsDue { compute, graphics });
        self.schedule
            .postpone(ListsDue { compute: due.compute && !compute, graphics: due.graphics && !graphics });
        let known = self.known();
        self.schedule.note_samples(inputs, &known);
    }

    /// A list that is refused for good is empty; one that failed is unknown. The graphics list is unknown also
    /// while the MPS list failed, so that both are read again at once.
    fn known(&self) -> ListedPids {
        let pids = |list: &ListResult| match list {
            Ok(list) => Some(list.iter().map(|process| process.pid).collect()),
            Err(absence) => absence.is_permanent().then(BTreeSet::new),
        };
        let clients = pids(&self.mps).unwrap_or_default();
        let compute = pids(&self.compute).map(|known| known.union(&clients).copied().collect());
        let lists_compute = !self.compute.as_ref().is_err_and(|absence| absence.is_permanent());
        let clients_failed = self.mps.as_ref().is_err_and(|absence| !absence.is_permanent());
        ListedPids { compute, graphics: pids(&self.graphics).filter(|_| !clients_failed), lists_compute }
    }

    fn last_result(&self, kind: ListKind) -> &ListResult {
        match kind {
            ListKind::Compute => &self.compute,
            ListKind::Graphics => &self.graphics,
            ListKind::Mps => &self.mps,
        }
    }

    /// Reads one list of the GPU, or of each MIG instance where the driver returns the whole GPU's list to
    /// administrators only.
    fn read_list(&mut self, api: &mut DriverApi, devices: &ListDevices, kind: ListKind) -> ListResult {
        if let Err(absence) = self.last_result(kind)
            && absence.is_permanent()
        {
            return Err(*absence);
        }
        if !self.is_whole_refused {
            let list = self.read_list_of(api, devices.whole, kind);
            if devices.instances.is_empty() || list != Err(Absence::NoPermission) {
                return list;
            }
            self.is_whole_refused = true;
        }
        let mut all = Vec::new();
        for (id, device) in &devices.instances {
            let list = self.read_list_of(api, *device, kind)?;
            let on_instance = |process: GpuProcess| GpuProcess {
                gpu_instance: process.gpu_instance.or(Some(*id)),
                ..process
            };
            all.extend(list.into_iter().map(on_instance));
        }
        Ok(all)
    }

    /// Reads one list in the newest form that the library has.
    fn read_list_of(&mut self, api: &mut DriverApi, device: Handle, kind: ListKind) -> ListResult {
        loop {
            let answer = match self.form {
                ListForm::Third | ListForm::Second => self.read_with_instance_ids(api, device, kind),
                ListForm::First => read_first_form(api, device, kind),
            };
            if kind == ListKind::Mps {
                // The MPS list may be missing in a library that has the newest form of the others.
                return answer;
            }
            self.form = match (answer, self.form) {
                (Err(Absence::NoSymbol), ListForm::Third) => ListForm::Second,
                (Err(Absence::NoSymbol), ListForm::Second) => ListForm::First,
                (answer, _) => return answer,
            };
        }
    }

    fn read_with_instance_ids(
        &mut self,
        api: &mut DriverApi,
        Handle(device): Handle,
        kind: ListKind,
    ) -> ListResult {
        let count = loop {
            let announced = self.infos.len() * size_of::<sys::nvmlProcessInfo_t>() / LARGEST_INFO;
            let mut count = u32::try_from(announced).unwrap_or(u32::MAX);
            let (number, buffer) = (&raw mut count, self.infos.as_mut_ptr());
            let second = buffer.cast::<sys::nvmlProcessInfo_v2_t>();
            let answer = match (self.form, kind) {
                (ListForm::Third, ListKind::Compute) => {
                    call!(api, nvmlDeviceGetComputeRunningProcesses_v3(device, number, buffer))
                }
                (ListForm::Third, ListKind::Graphics) => {
                    call!(api, nvmlDeviceGetGraphicsRunningProcesses_v3(device, number, buffer))
                }
                (ListForm::Third, ListKind::Mps) => {
                    call!(api, nvmlDeviceGetMPSComputeRunningProcesses_v3(device, number, buffer))
                }
                (_, ListKind::Compute) => {
                    call!(api, nvmlDeviceGetComputeRunningProcesses_v2(device, number, second))
                }
                (_, ListKind::Graphics) => {
                    call!(api, nvmlDeviceGetGraphicsRunningProcesses_v2(device, number, second))
                }
                (_, ListKind::Mps) => {
                    call!(api, nvmlDeviceGetMPSComputeRunningProcesses_v2(device, number, second))
                }
            };
            match answer {
                Ok(()) => break (count as usize).min(announced),
                Err(CallError::Code(INSUFFICIENT_SIZE)) => {
                    let room = (count as usize * LARGEST_INFO).div_ceil(size_of::<sys::nvmlProcessInfo_t>());
                    let wanted = api.grow(self.infos.len(), room, MOST)?;
                    self.infos.resize(wanted, NO_INFO);
                }
                Err(error) => return Err(error.into()),
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

// The second form is the third under another name, so one buffer serves both.
const _: () = assert!(
    size_of::<sys::nvmlProcessInfo_v2_t>() == size_of::<sys::nvmlProcessInfo_t>()
        && align_of::<sys::nvmlProcessInfo_v2_t>() == align_of::<sys::nvmlProcessInfo_t>()
);

/// Takes calls out of the remaining room, if there are enough.
fn take_calls(room: &mut usize, calls: usize) -> bool {
    let left = room.checked_sub(calls);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// Reads the first form, which has no instance ids; for drivers before 460.
fn read_first_form(api: &mut DriverApi, Handle(device): Handle, kind: ListKind) -> ListResult {
    let none = sys::nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 };
    let mut infos = vec![none; 32];
    let count = loop {
        let room = infos.len();
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        let (number, buffer) = (&raw mut count, infos.as_mut_ptr());
        let answer = match kind {
            ListKind::Compute => call!(api, nvmlDeviceGetComputeRunningProcesses(device, number, buffer)),
            ListKind::Graphics => call!(api, nvmlDeviceGetGraphicsRunningProcesses(device, number, buffer)),
            ListKind::Mps => call!(api, nvmlDeviceGetMPSComputeRunningProcesses(device, number, buffer)),
        };
        match answer {
            Ok(()) => break (count as usize).min(room),
            Err(CallError::Code(INSUFFICIENT_SIZE)) => {
                let wanted = api.grow(room, count as usize, MOST)?;
                infos.resize(wanted, none);
            }
            Err(error) => return Err(error.into()),
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

/// Merges the lists by pid. A process on several lists counts once, with the larger memory, since all show the
/// same allocation. If a list failed for now there is no result, since a part of the processes would be missing.
fn merge(lists: [&ListResult; 3]) -> ListResult {
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

    const NONE: ListResult = Err(Absence::NoSymbol);

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
        let some: ListResult = Ok(vec![process(7, None)]);
        assert_eq!(merge([&some, &Err(Absence::Failed), &NONE]), Err(Absence::Failed));
        assert_eq!(merge([&some, &Err(Absence::NotSupported), &NONE]), some);
        assert_eq!(merge([&Err(Absence::NoPermission), &NONE, &NONE]), Err(Absence::NoPermission));
    }
}
