//! Reads the driver's compute, graphics and MPS process lists when `process_schedule` selects them, and keeps
//! them in between.
//!
//! MPS clients are on a list of their own, under their own pids (Volta and later). It is read together with the
//! graphics list, and with the compute list once it names a client. A list that exceeds the calls of a fast tick
//! waits for the next one; meanwhile use is attributed by samples.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{DriverApi, Handle, call};
use super::plan::Plan;
use super::process_schedule::{ListedPids, ListsDue, ProcessSchedule, TickState};
use super::quirks::ListForm;
use crate::model::{Absence, Bytes, GpuProcess, Nanoseconds, Stamp};

/// More processes than any GPU runs; a larger count from the driver is garbage.
pub(super) const MOST: usize = 65_536;

const UNKNOWN_ID: u32 = u32::MAX;

/// More memory than any GPU has: 16 TiB, far below the driver's other markers for "no value".
const MOST_MEMORY: u64 = 1 << 44;

/// Room for one process. The documented structures have 16 or 24 bytes, but 535.54 to 535.97 write 32 (go-nvml issue
/// 75, nvitop issue 79). An older form is used with them, but a driver that does not report its version must not
/// write past the buffer either.
type EntryRoom = [u64; 4];

type ListResult = Result<Vec<GpuProcess>, Absence>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Compute,
    Graphics,
    Mps,
}

pub(super) struct ProcessLists {
    buffer: Vec<EntryRoom>,
    form: ListForm,
    /// Whether this user may not read the lists of the whole GPU.
    is_whole_refused: bool,
    /// By [`ListKind`].
    lists: [ListResult; 3],
    pub(super) schedule: ProcessSchedule,
    /// All processes with a context, by pid.
    pub(super) processes: Result<Arc<[GpuProcess]>, Absence>,
    /// Start of the tick in which the compute list was last read.
    pub(super) listed: Option<Stamp>,
    /// The boot time after the last list calls.
    pub(super) read: Option<Nanoseconds>,
}

impl ProcessLists {
    /// Lists that were never read. Under `presence` they decide who holds the GPU.
    pub(super) fn new(presence: bool, form: ListForm) -> Self {
        Self {
            buffer: vec![[0; 4]; 32],
            form,
            is_whole_refused: false,
            lists: [const { Err(Absence::NotYet) }; 3],
            schedule: ProcessSchedule::new(presence),
            processes: Err(Absence::NotYet),
            listed: None,
            read: None,
        }
    }

    /// Whether no process was there in the tick that began then: the compute list was read in it, or memory is
    /// what it was at the last read, and no list names a process.
    pub(super) fn is_known_empty(&self, begun: Stamp) -> bool {
        (self.listed == Some(begun) || self.schedule.memory.is_unchanged())
            && self.processes.as_ref().is_ok_and(|list| list.is_empty())
    }

    /// Reads the lists that are due with at most `room` calls; a list that needs more waits for the next tick.
    pub(super) fn read_due(
        &mut self,
        api: &mut DriverApi,
        plan: &Plan,
        state: &TickState<'_>,
        mut room: usize,
    ) {
        let mut due = self.schedule.select_lists(state);
        let mut read = ListsDue::default();
        let has_clients = self.list(ListKind::Mps).as_ref().is_ok_and(|clients| !clients.is_empty());
        let has_room = due.compute && take_calls(&mut room, 1 + usize::from(has_clients));
        if due.compute && has_room {
            read.compute = true;
            self.read_list(api, plan, ListKind::Compute);
            if has_clients {
                self.read_list(api, plan, ListKind::Mps);
            }
            self.listed = Some(state.begun);
            self.schedule.listed = self.listed_pids();
            due.graphics |= self.schedule.needs_graphics_too(state);
        }
        if due.graphics && take_calls(&mut room, 2) {
            read.graphics = true;
            self.read_list(api, plan, ListKind::Graphics);
            self.read_list(api, plan, ListKind::Mps);
            self.schedule.listed = self.listed_pids();
        }
        if read != ListsDue::default() {
            self.read = Some(api.clock().now().boottime);
            self.processes = merge(&self.lists).map(Into::into);
        }
        self.schedule.note_tick(state, due, read);
    }

    fn list(&self, kind: ListKind) -> &ListResult {
        &self.lists[kind as usize]
    }

    /// A list that is refused for good is empty; one that failed is unknown. The graphics list is unknown also
    /// while the MPS list failed, so that both are read again at once.
    fn listed_pids(&self) -> ListedPids {
        let is_refused = |kind| self.list(kind).as_ref().is_err_and(|absence| absence.is_permanent());
        let pids = |kind| match self.list(kind) {
            Ok(list) => Some(list.iter().map(|process| process.pid).collect()),
            Err(_) => is_refused(kind).then(BTreeSet::new),
        };
        let clients = pids(ListKind::Mps);
        ListedPids {
            graphics: pids(ListKind::Graphics).filter(|_| clients.is_some()),
            compute: pids(ListKind::Compute).map(|pids| &pids | &clients.unwrap_or_default()),
            is_compute_refused: is_refused(ListKind::Compute),
        }
    }

    /// Reads one list of the GPU, or of each MIG instance where the driver returns the whole GPU's list to
    /// administrators only. A list that was refused for good is not read again.
    fn read_list(&mut self, api: &mut DriverApi, plan: &Plan, kind: ListKind) {
        if self.list(kind).as_ref().is_err_and(|absence| absence.is_permanent()) {
            return;
        }
        let mut list = Err(Absence::NoPermission);
        if !self.is_whole_refused {
            list = self.read_list_of(api, plan.device, kind);
            self.is_whole_refused =
                list == Err(Absence::NoPermission) && plan.instances.iter().any(|one| one.device().is_some());
        }
        if self.is_whole_refused {
            list = self.read_list_of_instances(api, plan, kind);
        }
        self.lists[kind as usize] = list;
    }

    fn read_list_of_instances(&mut self, api: &mut DriverApi, plan: &Plan, kind: ListKind) -> ListResult {
        let mut all = Vec::new();
        for instance in &plan.instances {
            let Some(device) = instance.device() else { continue };
            let id = Some(instance.identity().id.gpu_instance);
            let list = self.read_list_of(api, device, kind)?.into_iter();
            all.extend(
                list.map(|process| GpuProcess { gpu_instance: process.gpu_instance.or(id), ..process }),
            );
        }
        Ok(all)
    }

    fn read_list_of(&mut self, api: &mut DriverApi, device: Handle, kind: ListKind) -> ListResult {
        loop {
            let answer = self.read_in_form(api, device, kind);
            if kind == ListKind::Mps {
                // The MPS list may be missing in a library that has the newest form of the others.
                return answer;
            }
            self.form = match (answer, self.form) {
                (Err(Absence::NoSymbol), ListForm::V3) => ListForm::V2,
                (Err(Absence::NoSymbol), ListForm::V2) => ListForm::V1,
                (answer, _) => return answer,
            };
        }
    }

    fn read_in_form(&mut self, api: &mut DriverApi, Handle(device): Handle, kind: ListKind) -> ListResult {
        let form = self.form;
        let count = api.read_array(&mut self.buffer, [0; 4], MOST, |api, buffer, count| {
            let (v1, v3) = (buffer.cast(), buffer.cast());
            match (form, kind) {
                (ListForm::V3, ListKind::Compute) => {
                    call!(api, nvmlDeviceGetComputeRunningProcesses_v3(device, count, v3))
                }
                (ListForm::V3, ListKind::Graphics) => {
                    call!(api, nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, v3))
                }
                (ListForm::V3, ListKind::Mps) => {
                    call!(api, nvmlDeviceGetMPSComputeRunningProcesses_v3(device, count, v3))
                }
                (ListForm::V2, ListKind::Compute) => {
                    call!(api, nvmlDeviceGetComputeRunningProcesses_v2(device, count, v3))
                }
                (ListForm::V2, ListKind::Graphics) => {
                    call!(api, nvmlDeviceGetGraphicsRunningProcesses_v2(device, count, v3))
                }
                (ListForm::V2, ListKind::Mps) => {
                    call!(api, nvmlDeviceGetMPSComputeRunningProcesses_v2(device, count, v3))
                }
                (ListForm::V1, ListKind::Compute) => {
                    call!(api, nvmlDeviceGetComputeRunningProcesses(device, count, v1))
                }
                (ListForm::V1, ListKind::Graphics) => {
                    call!(api, nvmlDeviceGetGraphicsRunningProcesses(device, count, v1))
                }
                (ListForm::V1, ListKind::Mps) => {
                    call!(api, nvmlDeviceGetMPSComputeRunningProcesses(device, count, v1))
                }
            }
        })?;
        let entries = self.buffer.as_ptr();
        Ok(if form == ListForm::V1 {
            // SAFETY: the buffer has more room than that many entries take, and every bit pattern is an entry.
            let entries =
                unsafe { std::slice::from_raw_parts(entries.cast::<sys::nvmlProcessInfo_v1_t>(), count) };
            entries.iter().map(|entry| process(entry.pid, UNKNOWN_ID, entry.usedGpuMemory)).collect()
        } else {
            // SAFETY: as above.
            let entries =
                unsafe { std::slice::from_raw_parts(entries.cast::<sys::nvmlProcessInfo_t>(), count) };
            let read =
                |entry: &sys::nvmlProcessInfo_t| process(entry.pid, entry.gpuInstanceId, entry.usedGpuMemory);
            entries.iter().map(read).collect()
        })
    }
}

// An entry of either form fits its room.
const _: () = assert!(
    size_of::<sys::nvmlProcessInfo_t>() <= size_of::<EntryRoom>()
        && size_of::<sys::nvmlProcessInfo_v1_t>() <= size_of::<EntryRoom>()
        && align_of::<sys::nvmlProcessInfo_t>() <= align_of::<EntryRoom>()
);

fn take_calls(room: &mut usize, calls: usize) -> bool {
    let left = room.checked_sub(calls);
    *room = left.unwrap_or(*room);
    left.is_some()
}

fn process(pid: u32, gpu_instance: u32, memory: u64) -> GpuProcess {
    GpuProcess {
        pid,
        gpu_instance: (gpu_instance != UNKNOWN_ID).then_some(gpu_instance),
        memory: (memory <= MOST_MEMORY).then_some(Bytes(memory)),
    }
}

/// Merges the lists by pid. A process on several lists counts once, with the larger memory, since all show the
/// same allocation. If a list failed for now there is no result, since a part of the processes would be missing.
fn merge(lists: &[ListResult; 3]) -> ListResult {
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
    for process in lists.iter().flatten().flatten() {
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
        assert_eq!(merge(&[compute, graphics, NONE]), Ok(vec![process(3, None), process(7, Some(9))]));
    }

    #[test]
    fn no_list_is_better_than_a_part_of_one_unless_the_rest_never_comes() {
        let some: ListResult = Ok(vec![process(7, None)]);
        assert_eq!(merge(&[some.clone(), Err(Absence::Failed), NONE]), Err(Absence::Failed));
        assert_eq!(merge(&[some.clone(), Err(Absence::NotSupported), NONE]), some);
        assert_eq!(merge(&[Err(Absence::NoPermission), NONE, NONE]), Err(Absence::NoPermission));
    }
}
