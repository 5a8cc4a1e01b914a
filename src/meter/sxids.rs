//! SXIDs, the errors of NVSwitches, since the agent's start. They are of the node: a switch belongs to no GPU.

use std::collections::BTreeMap;

use super::Services;
use crate::model::catalogue::AgentFamily;
use crate::model::{Sxid, SxidCount, Utc};

/// No node has more kinds; further ones are garbage.
const MOST_KINDS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Sxids(BTreeMap<Sxid, (u64, Utc)>);

impl Sxids {
    pub(super) fn add(&mut self, received: &[SxidCount]) {
        for SxidCount { sxid, count, last } in received {
            if self.0.len() < MOST_KINDS || self.0.contains_key(sxid) {
                let seen = self.0.entry(*sxid).or_default();
                *seen = (seen.0.saturating_add(*count), *last);
            }
        }
    }

    /// The counts, by switch and code.
    pub(super) fn list(&self) -> Vec<SxidCount> {
        self.0
            .iter()
            .map(|(sxid, (count, last))| SxidCount { sxid: *sxid, count: *count, last: *last })
            .collect()
    }

    pub(super) fn add_to(&self, numbers: &mut Services) {
        for (sxid, (count, last)) in &self.0 {
            let labels = vec![
                ("pci_bus_id", sxid.switch.to_string().into()),
                ("sxid", sxid.code.to_string().into()),
                ("severity", sxid.severity().into()),
            ];
            numbers.add(AgentFamily::NvswitchSxidErrors, labels.clone(), *count);
            numbers.add(AgentFamily::NvswitchSxidLastTimestamp, labels, last.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PciAddress;

    #[test]
    fn sxids_are_counted_by_kind_and_kinds_are_bounded() {
        let count = |code, count, last| {
            let switch = PciAddress { domain: 0, bus: 0x84, device: 0 };
            SxidCount { sxid: Sxid { switch, code, is_fatal: false }, count, last: Utc(last) }
        };
        let mut sxids = Sxids::default();
        sxids.add(&[count(12_028, 2, 5), count(20_034, 1, 5)]);
        sxids.add(&[count(12_028, 1, 9)]);
        assert_eq!(sxids.list(), [count(12_028, 3, 9), count(20_034, 1, 5)]);
        (0..1_000).for_each(|code| sxids.add(&[count(code, 1, 10)]));
        sxids.add(&[count(12_028, 1, 11)]);
        assert_eq!(sxids.list().len(), MOST_KINDS);
        assert!(sxids.list().contains(&count(12_028, 4, 11)));
    }
}
