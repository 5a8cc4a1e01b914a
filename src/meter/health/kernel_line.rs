//! The XID and SXID lines that NVIDIA's driver writes to the kernel's log.
//!
//! In: the text of one record, which may contain any process name. Out: the XID, or nothing for other lines. The shapes
//! are those of kernel_rc.c in NVIDIA's open kernel modules and of older drivers: `NVRM: Xid (PCI:0000:0f:00 GPU-I:02
//! GPU-CI:00): 13, pid=4711, name=python3, Graphics Exception: ...`, with or without `PCI:`, instances, process id and
//! process name.

use crate::model::{PciAddress, Sxid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidLine {
    pub pci: PciAddress,
    /// The GPU instance, on a MIG GPU.
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    pub xid: u32,
}

/// Parses a record's text; none where it is not an XID line.
pub fn parse(record: &str) -> Option<XidLine> {
    let rest = record.trim_start().strip_prefix("NVRM: Xid (")?;
    let (place, rest) = rest.split_once("):")?;
    let mut words = place.split_ascii_whitespace();
    let address = words.next()?;
    let pci = PciAddress::parse(address.strip_prefix("PCI:").unwrap_or(address))?;
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for word in words {
        if let Some(id) = word.strip_prefix("GPU-I:") {
            gpu_instance = Some(number(id)?);
        } else if let Some(id) = word.strip_prefix("GPU-CI:") {
            compute_instance = Some(number(id)?);
        }
    }
    // The process and what happened follow the code.
    let code = rest.split_once(',').map_or(rest, |(code, _)| code);
    Some(XidLine { pci, gpu_instance, compute_instance, xid: number(code.trim())? })
}

/// Parses the first line of an SXID, `nvidia-nvswitch0: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 32 …`; none where it
/// is another line. The lines after it have the same code, and the engine or data in place of the severity.
pub fn parse_sxid(record: &str) -> Option<Sxid> {
    let rest = record
        .trim_start()
        .strip_prefix("nvidia-nvswitch")?
        .trim_start_matches(|one: char| one.is_ascii_digit());
    let (place, rest) = rest.strip_prefix(": SXid (PCI:")?.split_once("):")?;
    let mut words = rest.split(',');
    let code = number(words.next()?.trim())?;
    let is_fatal = match words.next()?.trim() {
        "Fatal" => true,
        "Non-fatal" => false,
        _ => return None,
    };
    Some(Sxid { switch: PciAddress::parse(place)?, code, is_fatal })
}

fn number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const AT: PciAddress = PciAddress { domain: 0, bus: 0x0f, device: 0 };

    #[test]
    fn every_shape_of_every_driver_is_read() {
        for (line, instances) in [
            ("NVRM: Xid (PCI:0000:0f:00): 13, pid=4711, name=python3, ", (None, None)),
            ("NVRM: Xid (PCI:0000:0f:00): 13, pid='<unknown>', name=<unknown>, ", (None, None)),
            ("NVRM: Xid (PCI:0000:0f:00): 13, pid=4711, ", (None, None)),
            ("NVRM: Xid (PCI:0000:0f:00): 13, ", (None, None)),
            ("NVRM: Xid (0000:0f:00): 13, ", (None, None)),
            ("NVRM: Xid (PCI:0000:0f:00 GPU-I:02): 13, pid=1, name=a, ", (Some(2), None)),
            ("NVRM: Xid (PCI:0000:0f:00 GPU-I:02 GPU-CI:01): 13, ", (Some(2), Some(1))),
        ] {
            let read = parse(&format!("{line}Graphics Exception: ESR 0x515648=0x1")).unwrap();
            assert_eq!((read.pci, read.xid), (AT, 13), "{line}");
            assert_eq!((read.gpu_instance, read.compute_instance), instances, "{line}");
        }
    }

    #[test]
    fn what_drivers_really_wrote_is_read() {
        for (line, xid) in [
            ("NVRM: Xid (PCI:0000:3b:00): 62, 0cb5(2d50) 8503d428 ffffff80", 62),
            ("NVRM: Xid (PCI:0009:01:00): 79, GPU has fallen off the bus.", 79),
            ("NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=a, b, Timeout after 45s of waiting", 119),
            ("NVRM: Xid (PCI:0018:01:00): 145, RLW Nonfatal XC0 i0 Link 12 (0x0 0x0 0x0 0x0)", 145),
            ("NVRM: Xid (PCI:0000:3b:00): 43", 43),
        ] {
            assert_eq!(parse(line).map(|read| read.xid), Some(xid), "{line}");
        }
    }

    #[test]
    fn a_process_name_cannot_make_up_a_code_or_a_place() {
        let line =
            "NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=): 79, NVRM: Xid (PCI:0000:10:00): 48, MMU Fault";
        let read = parse(line).unwrap();
        assert_eq!((read.xid, read.pci), (31, AT));
    }

    #[test]
    fn an_sxid_is_counted_by_the_line_that_tells_its_severity() {
        let switch = PciAddress { domain: 0, bus: 0x84, device: 0 };
        let head = "nvidia-nvswitch0: SXid (PCI:0000:84:00.0): ";
        for (line, expected) in [
            ("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", Some((12_028, false))),
            ("20034, Fatal, Link 30 LTSSM Fault Up", Some((20_034, true))),
            ("12028, Severity 0 Engine instance 32 Sub-engine instance 00", None),
            ("12028, Data {0x00140004, 0x00100000, 0x00140004}", None),
            ("12028", None),
            ("-1, Fatal, Link 1", None),
        ] {
            let read = parse_sxid(&format!("{head}{line}"));
            let expected = expected.map(|(code, is_fatal)| Sxid { switch, code, is_fatal });
            assert_eq!(read, expected, "{line}");
        }
        for line in [
            "NVRM: Xid (PCI:0000:0f:00): 13, x",
            "nvidia-nvswitch: SXid",
            "nvidia-nvswitch3: SXid (PCI:x): 1, Fatal",
        ] {
            assert_eq!(parse_sxid(line), None, "{line}");
        }
    }

    #[test]
    fn other_lines_say_nothing() {
        for line in [
            "",
            "NVRM: Xid",
            "NVRM: Xid (",
            "NVRM: Xid (PCI:0000:0f:00): ",
            "NVRM: Xid (PCI:0000:0f:00): -1, x",
            "NVRM: Xid (PCI:0000:0f:00): 99999999999, x",
            "NVRM: Xid (PCI:garbage): 13, x",
            "NVRM: Xid (PCI:0000:0f:00 GPU-I:x): 13, x",
            "NVRM: GPU at PCI:0000:0f:00: GPU-0123",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
            "usb 1-1: NVRM: Xid (PCI:0000:0f:00): 13, x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
