//! ECC, row remapping, retired pages: the health of memory.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEccCounterType_t, nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_v1_t,
    nvmlEccSramUniqueUncorrectedErrorCounts_v1_t, nvmlEccSramUniqueUncorrectedErrorEntry_v1_t,
    nvmlEnableState_t, nvmlMemoryErrorType_t, nvmlMemoryLocation_t, nvmlPageRetirementCause_t,
    nvmlRowRemapperHistogramValues_t,
};

use super::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused};
use super::buffers::{Out, expect_version, fill};
use super::{Device, device_calls, gpu_calls};
use crate::board::family::{self, Ecc};
use crate::channel::incidents::ErrorKind::{
    self, DramCorrected, DramUncorrected, PageRetiredCorrected, PageRetiredUncorrected, SramCorrected,
    SramThreshold, SramUncorrectedParity, SramUncorrectedSecded,
};
use crate::condition::HBM_BANKS;
use crate::surprise::{FormerRemaps, Surprise};

/// `nvmlRemappedRowsInfo_v2_t`, which the bindings lack: active and inactive rows of each cause.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RemappedRows {
    correctable: [c_uint; 2],
    uncorrectable: [c_uint; 2],
    pending: c_uint,
    failed: c_uint,
}

/// The memory locations of NVML that are counted since Turing.
const DRAM: nvmlMemoryLocation_t = 2;
const SRAM: nvmlMemoryLocation_t = 7;

const SRAM_UNCORRECTED: [ErrorKind; 2] = [SramUncorrectedParity, SramUncorrectedSecded];

impl Device<'_> {
    /// Elapsed nanoseconds of the last load of the driver, and of now.
    pub(super) fn since_load(&self) -> (u64, u64) {
        (self.gpu.timeline.loaded(self.now.elapsed), self.now.elapsed)
    }

    /// Errors of these kinds since the driver was loaded (volatile), or in the board's life.
    fn errors(&self, kinds: &[ErrorKind], volatile: bool) -> u64 {
        let span = if volatile { self.since_load() } else { (0, self.now.elapsed) };
        let scripted =
            self.gpu.condition.health.errors(kinds, self.instance.map(|instance| instance.entry), span);
        let before =
            if span.0 == 0 && kinds.contains(&DramCorrected) { self.remapped_before().errors } else { 0 };
        scripted.saturating_add(before)
    }

    /// What a misleading board had before the script.
    fn remapped_before(&self) -> FormerRemaps {
        self.gpu.surprise.map(Surprise::remapped).unwrap_or_default()
    }

    /// Fails without ECC, and for counters that a MIG instance lacks: it has only the uncorrected errors of its
    /// SRAM since the driver was loaded.
    fn counts(&self, shown_by_instances: bool) -> Answer {
        let on = family::ecc(self.gpu.board) == Ecc::On;
        if on && (self.instance.is_none() || shown_by_instances) { Ok(()) } else { Err(NOT_SUPPORTED) }
    }
}

/// All errors of a type (0 corrected, 1 uncorrected) and counter (0 volatile, 1 aggregate).
pub(super) fn total(at: &Device<'_>, kind: c_uint, counter: c_uint) -> Result<u64, Refused> {
    let kinds: &[ErrorKind] = match kind {
        0 => &[DramCorrected, SramCorrected],
        1 if at.instance.is_some() => &SRAM_UNCORRECTED,
        1 => &[DramUncorrected, SramUncorrectedParity, SramUncorrectedSecded],
        _ => return Err(INVALID_ARGUMENT),
    };
    if counter > 1 {
        return Err(INVALID_ARGUMENT);
    }
    at.counts(kind == 1 && counter == 0)?;
    Ok(at.errors(kinds, counter == 0))
}

/// Errors of one place in memory.
pub(super) fn located(at: &Device<'_>, kind: c_uint, counter: c_uint, place: c_uint) -> Result<u64, Refused> {
    if kind > 1 || counter > 1 || place > SRAM {
        return Err(INVALID_ARGUMENT);
    }
    at.counts(kind == 1 && counter == 0 && place == SRAM)?;
    // Since Turing there are these two places; before, caches, registers and textures were separate.
    let kinds: &[ErrorKind] = match (place, kind) {
        (DRAM, 0) => &[DramCorrected],
        (DRAM, _) => &[DramUncorrected],
        (SRAM, 0) => &[SramCorrected],
        (SRAM, _) => &SRAM_UNCORRECTED,
        _ => return Err(NOT_SUPPORTED),
    };
    Ok(at.errors(kinds, counter == 0))
}

/// Whether ECC is on, now and after the next boot.
pub(super) fn mode(at: &Device<'_>) -> Result<c_uint, Refused> {
    match family::ecc(at.gpu.board) {
        Ecc::Absent => Err(NOT_SUPPORTED),
        Ecc::Off => Ok(0),
        Ecc::On => Ok(1),
    }
}

/// FormerRemaps rows: correctable, uncorrectable, pending, failed. Not supported in MIG mode, unlike the histogram.
pub(super) fn remapped(at: &Device<'_>) -> Result<[c_uint; 4], Refused> {
    at.undivided()?;
    if !family::remaps_rows(at.gpu.board) {
        return Err(NOT_SUPPORTED);
    }
    let (loaded, now) = at.since_load();
    let rows = at.gpu.condition.health.remaps(loaded, now);
    let before = at.remapped_before();
    let pending = rows.pending || before.pending && loaded == 0;
    Ok([
        rows.correctable.saturating_add(before.rows),
        rows.uncorrectable,
        pending.into(),
        rows.failure.into(),
    ])
}

/// Addresses and elapsed times of the pages retired for a cause.
pub(super) fn retired(at: &Device<'_>, cause: c_uint) -> Result<Vec<(u64, u64)>, Refused> {
    let kind = match cause {
        0 => PageRetiredCorrected,
        1 => PageRetiredUncorrected,
        _ => return Err(INVALID_ARGUMENT),
    };
    if !family::retires_pages(at.gpu.board) {
        return Err(NOT_SUPPORTED);
    }
    Ok(at.gpu.condition.health.pages(kind, at.now.elapsed))
}

/// Whether pages of a cause wait for the next load of the driver.
pub(super) fn retirement_pending(at: &Device<'_>, causes: &[ErrorKind]) -> Result<c_uint, Refused> {
    if !family::retires_pages(at.gpu.board) {
        return Err(NOT_SUPPORTED);
    }
    Ok(c_uint::from(at.errors(causes, true) > 0))
}

gpu_calls! {
    fn nvmlDeviceGetEccMode(at, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>) {
        pending.pointer()?;
        current.put(mode(at)?)?;
        pending.put(mode(at)?)
    }

    fn nvmlDeviceGetDefaultEccMode(at, default: Out<nvmlEnableState_t>) {
        default.put(mode(at)?)
    }

    fn nvmlDeviceGetRemappedRows(
        at,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>
    ) {
        for (place, value) in [corrected, uncorrected, pending, failed].into_iter().zip(remapped(at)?) {
            place.put(value)?;
        }
        Ok(())
    }

    // It is unknown when a row is inactive: all are active.
    fn nvmlDeviceGetRemappedRows_v2(at, info: Out<RemappedRows>) {
        info.pointer()?;
        let [correctable, uncorrectable, pending, failed] = remapped(at)?;
        let (correctable, uncorrectable) = ([correctable, 0], [uncorrectable, 0]);
        info.put(RemappedRows { correctable, uncorrectable, pending, failed })
    }

    fn nvmlDeviceGetRowRemapperHistogram(at, values: Out<nvmlRowRemapperHistogramValues_t>) {
        if !family::remaps_rows(at.gpu.board) {
            return Err(NOT_SUPPORTED);
        }
        let mut banks = at.gpu.condition.health.histogram(at.now.elapsed);
        // Only HBM boards change it; the rows from before the script are in another bank.
        let moved = if at.gpu.board.remap_banks >= HBM_BANKS { at.remapped_before().rows } else { 0 };
        (banks.max, banks.high) = (banks.max.saturating_sub(moved), banks.high + moved);
        values.put(nvmlRowRemapperHistogramValues_t {
            max: banks.max,
            high: banks.high,
            partial: banks.partial,
            low: banks.low,
            none: banks.none,
        })
    }

    fn nvmlDeviceGetRetiredPages(
        at,
        cause: nvmlPageRetirementCause_t,
        count: Out<c_uint>,
        addresses: Out<c_ulonglong>
    ) {
        let pages: Vec<c_ulonglong> = retired(at, cause)?.into_iter().map(|(address, _)| address).collect();
        fill(count, addresses, &pages)
    }

    // Times are UTC microseconds.
    fn nvmlDeviceGetRetiredPages_v2(
        at,
        cause: nvmlPageRetirementCause_t,
        count: Out<c_uint>,
        addresses: Out<c_ulonglong>,
        times: Out<c_ulonglong>
    ) {
        let begun = at.now.utc.saturating_sub(at.now.elapsed);
        let pages = retired(at, cause)?;
        let places: Vec<c_ulonglong> = pages.iter().map(|(address, _)| *address).collect();
        fill(count, addresses, &places)?;
        let stamped = pages.iter().enumerate();
        stamped.into_iter().try_for_each(|(index, (_, when))| times.put_at(index, (begun + when) / 1_000))
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(at, pending: Out<nvmlEnableState_t>) {
        pending.put(retirement_pending(at, &[PageRetiredCorrected, PageRetiredUncorrected])?)
    }

    // Before Ampere parity and SEC-DED are not separate. Boards without ECC answer zeros.
    fn nvmlDeviceGetSramEccErrorStatus(at, status: Out<nvmlEccSramErrorStatus_v1_t>) {
        let version = status.version()?;
        expect_version::<nvmlEccSramErrorStatus_v1_t>(version, 1)?;
        if !family::splits_sram(at.gpu.board) {
            return Err(NOT_SUPPORTED);
        }
        status.put(sram_status(at, version))
    }

    fn nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(
        at,
        request: Out<nvmlEccSramUniqueUncorrectedErrorCounts_v1_t>
    ) {
        expect_version::<nvmlEccSramUniqueUncorrectedErrorCounts_v1_t>(request.version()?, 1)?;
        let mut asked = request.get()?;
        if !family::splits_sram(at.gpu.board) || at.counts(false).is_err() {
            return Err(NOT_SUPPORTED);
        }
        let filled = fill(Out::at(&raw mut asked.entryCount), Out::at(asked.entries), &unique(at));
        request.put(asked)?;
        filled
    }

    // Which places Ampere and later report is unknown: assumed are DRAM, and L2 for all caches.
    fn nvmlDeviceGetDetailedEccErrors(
        at,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        counts: Out<nvmlEccErrorCounts_t>
    ) {
        let all = total(at, kind, counter)?;
        let deviceMemory = located(at, kind, counter, DRAM)?;
        let l2Cache = all.saturating_sub(deviceMemory);
        counts.put(nvmlEccErrorCounts_t { l1Cache: 0, l2Cache, deviceMemory, registerFile: 0 })
    }
}

device_calls! {
    fn nvmlDeviceGetTotalEccErrors(
        at,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: Out<c_ulonglong>
    ) {
        count.put(total(at, kind, counter)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        at,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        location: nvmlMemoryLocation_t,
        count: Out<c_ulonglong>
    ) {
        count.put(located(at, kind, counter, location)?)
    }
}

fn sram_status(at: &Device<'_>, version: c_uint) -> nvmlEccSramErrorStatus_v1_t {
    let parity = at.errors(&[SramUncorrectedParity], false);
    let secded = at.errors(&[SramUncorrectedSecded], false);
    nvmlEccSramErrorStatus_v1_t {
        version,
        aggregateUncParity: parity,
        aggregateUncSecDed: secded,
        aggregateCor: at.errors(&[SramCorrected], false),
        volatileUncParity: at.errors(&[SramUncorrectedParity], true),
        volatileUncSecDed: at.errors(&[SramUncorrectedSecded], true),
        volatileCor: at.errors(&[SramCorrected], true),
        // Parity protects the SMs' registers, SEC-DED the L2 cache.
        aggregateUncBucketL2: secded,
        aggregateUncBucketSm: parity,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: c_uint::from(at.errors(&[SramThreshold], false) > 0),
    }
}

/// One entry for each kind of uncorrected error that has occurred.
fn unique(at: &Device<'_>) -> Vec<nvmlEccSramUniqueUncorrectedErrorEntry_v1_t> {
    let entry = |kind: ErrorKind, unit: c_uint| nvmlEccSramUniqueUncorrectedErrorEntry_v1_t {
        unit,
        location: 0,
        sublocation: 0,
        extlocation: 0,
        address: 0x100 * unit,
        isParity: c_uint::from(kind == SramUncorrectedParity),
        count: u32::try_from(at.errors(&[kind], false)).unwrap_or(u32::MAX),
    };
    let all = [entry(SramUncorrectedParity, 1), entry(SramUncorrectedSecded, 2)];
    all.into_iter().filter(|entry| entry.count > 0).collect()
}
