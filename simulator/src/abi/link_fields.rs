//! NVLink fields: traffic, speeds, states, and each generation's errors.
//!
//! In: a field id and a scope, which is a link or all links. Out: the driver's answer for the board. Which fields a
//! board has follows NVML's change log: 525 removed those of single links for Hopper, 565 removed the data link's
//! errors for Blackwell, whose links count packets, recoveries and uncorrected errors instead.

use std::ffi::c_uint;

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused};
use super::fields::FieldValue;
use super::{Device, links};
use crate::board::family;
use crate::channel::incidents::LinkErrorKind::{
    self, BufferOverrun, CrcData, CrcFlit, EccData, Effective, LocalIntegrity, MalformedPacket, Receive,
    ReceiveGeneral, ReceiveRemote, Recovery, RecoveryFailed, Replay, Symbol, TransmitDiscard,
};
use crate::surprise::Surprise;

/// The scope that means all links.
const ALL: c_uint = c_uint::MAX;
/// NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS.
const EFFECTIVE_ERRORS: c_uint = 219;
/// Bytes of a packet: 120 to 215 in the counters of two GB200 (NVIDIA/DCGM#265).
const PACKET: u64 = 200;
/// The bit error rate of a link without errors: 15e-255 (DCGM's health tests).
const NO_ERRORS: u64 = (15 << 8) | 255;

/// Reads an NVLink field; not supported in MIG mode.
pub(super) fn link(at: &Device<'_>, field: c_uint, scope: c_uint) -> Result<FieldValue, Refused> {
    // Older boards do not know this field (DataDog/datadog-agent, nvlink_fields.go).
    if field == EFFECTIVE_ERRORS && !family::is_blackwell(at.gpu.board) {
        return Err(INVALID_ARGUMENT);
    }
    at.undivided()?;
    if matches!(field, 138..=141) && scope == ALL && at.gpu.surprise == Some(Surprise::LinkTotalsZero) {
        return Ok(FieldValue::Long(0));
    }
    let links = at.gpu.board.nvlinks;
    if links == 0 || is_withdrawn(at, field) {
        return Err(NOT_SUPPORTED);
    }
    if let Some((kind, which)) = error_field(field) {
        if which.is_some_and(|link| link >= links) {
            return Err(NOT_SUPPORTED);
        }
        return Ok(FieldValue::Long(if forgets_totals(at) { 0 } else { links::errors(at, kind, which) }));
    }
    let scoped = match scope {
        ALL if field < 200 => None,
        link if link < links => Some(link),
        _ if matches!(field, 138..=141 | 161..=166 | 201..) => return Err(INVALID_ARGUMENT),
        _ => None,
    };
    let speed = |link: Option<u32>| {
        let up = link.is_none_or(|link| links::up(at, link)) && (0..links).any(|link| links::up(at, link));
        FieldValue::Unsigned(if up { at.gpu.board.nvlink_speed } else { 0 })
    };
    match field {
        84..=89 => Ok(speed(Some(field - 84))),
        132..=137 => Ok(speed(Some(field - 132 + 6))),
        90 => Ok(speed(None)),
        91 => Ok(FieldValue::Unsigned(links)),
        // Those that lead to a switch.
        147 => Ok(FieldValue::Unsigned(if at.gpu.board.bridged.is_some() { 0 } else { links })),
        138..=141 => Ok(FieldValue::Long(kibibytes(at, field, scoped))),
        // By the change log the last one is the flits' CRC errors.
        161..=163 => {
            let kinds = [Replay, Recovery, CrcFlit];
            let kind = kinds.get(field as usize - 161).ok_or(NOT_SUPPORTED)?;
            Ok(FieldValue::Long(links::errors(at, *kind, scoped)))
        }
        164 => Ok(speed(scoped)),
        165 => Ok(FieldValue::Unsigned(scoped.map_or(1, |link| links::up(at, link).into()))),
        166 => Ok(FieldValue::Unsigned(at.gpu.board.nvlink_version)),
        201.. if family::counts_packets(at.gpu.board) => {
            by_packet(at, field, scoped.ok_or(INVALID_ARGUMENT)?)
        }
        // The bandwidth counters before Ampere, and fields that Hopper lacks.
        _ => Err(NOT_SUPPORTED),
    }
}

/// Whether the driver has removed the field for boards of this generation.
fn is_withdrawn(at: &Device<'_>, field: c_uint) -> bool {
    let of_single_links = matches!(
        field,
        32..=37 | 46..=51 | 53..=58 | 84..=89 | 96..=101 | 108..=119 | 132..=137
    );
    (of_single_links && forgets_totals(at))
        || (matches!(field, 161..=163) && family::counts_packets(at.gpu.board))
}

/// Where the scope selects the link, the remaining older error fields are always 0 (DataDog/datadog-agent#55966).
fn forgets_totals(at: &Device<'_>) -> bool {
    family::scopes_links(at.gpu.board) && at.node.driver_major() >= 525
}

/// The errors and the link that a field counts; without a link the sum of all. Only the first twelve links have
/// fields.
fn error_field(field: c_uint) -> Option<(LinkErrorKind, Option<u32>)> {
    let kinds = [CrcFlit, CrcData, Replay, Recovery];
    match field {
        32..=59 => {
            let (kind, link) = ((field - 32) / 7, (field - 32) % 7);
            kinds.get(kind as usize).map(|kind| (*kind, (link < 6).then_some(link)))
        }
        96..=119 => {
            let (kind, link) = ((field - 96) / 6, (field - 96) % 6 + 6);
            kinds.get(kind as usize).map(|kind| (*kind, Some(link)))
        }
        148..=159 => Some((EccData, Some(field - 148))),
        160 => Some((EccData, None)),
        _ => None,
    }
}

/// Counters of one NVLink 5 link.
fn by_packet(at: &Device<'_>, field: c_uint, link: u32) -> Result<FieldValue, Refused> {
    let carried = links::counted(at).get(link as usize).copied().unwrap_or_default();
    let errors =
        |kinds: &[LinkErrorKind]| kinds.iter().map(|kind| links::errors(at, *kind, Some(link))).sum::<u64>();
    Ok(FieldValue::Long(match field {
        201 => carried.sent / PACKET,
        202 => carried.sent,
        203 => carried.received / PACKET,
        204 => carried.received,
        206 => errors(&[MalformedPacket]),
        207 => errors(&[BufferOverrun]),
        // The header's total of packets received with errors.
        208 => errors(&[Receive, MalformedPacket, BufferOverrun, ReceiveRemote, ReceiveGeneral]),
        209 => errors(&[ReceiveRemote]),
        210 => errors(&[ReceiveGeneral]),
        211 => errors(&[LocalIntegrity]),
        212 => errors(&[TransmitDiscard]),
        213 => errors(&[Recovery]),
        214 => errors(&[RecoveryFailed]),
        215 => errors(&[Recovery, RecoveryFailed]),
        EFFECTIVE_ERRORS => errors(&[Effective]),
        220 => error_rate(errors(&[Effective]), carried.received),
        221 => errors(&[Symbol]),
        222 => error_rate(errors(&[Symbol]), carried.received),
        // Deprecated ones, and the history of corrections.
        _ => return Err(NOT_SUPPORTED),
    }))
}

/// Errors per bit as the header packs it: the mantissa above eight bits of the negative power of ten.
fn error_rate(errors: u64, bytes: u64) -> u64 {
    if errors == 0 {
        return NO_ERRORS;
    }
    let bits = u128::from(bytes.max(1)) * 8;
    let mut scaled = u128::from(errors);
    let mut power = 0;
    while scaled < bits {
        scaled *= 10;
        power += 1;
    }
    (u64::try_from((scaled / bits).min(15)).unwrap_or(15) << 8) | power
}

/// KiB of data (138, 139) or with protocol overhead (140, 141); sent and received alternate.
fn kibibytes(at: &Device<'_>, field: c_uint, link: Option<u32>) -> u64 {
    let of = |bytes: u64| {
        // Protocol overhead is about a sixteenth.
        let bytes = if field < 140 { bytes } else { bytes + bytes / 16 };
        bytes / 1_024
    };
    let mut sum = 0;
    for (number, carried) in (0..).zip(links::counted(at)) {
        if link.is_none_or(|link| link == number) {
            sum += of(if field.is_multiple_of(2) { carried.sent } else { carried.received });
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_errors_is_a_mantissa_and_a_power_of_ten() {
        assert_eq!(error_rate(0, 1 << 40), 4095);
        // 3 errors in 10^12 bits, and more errors than bits.
        assert_eq!(error_rate(3, 125_000_000_000), (3 << 8) | 12);
        assert_eq!(error_rate(1_000, 1), 15 << 8);
        assert_eq!(error_rate(1, 125), (1 << 8) | 3);
    }
}
