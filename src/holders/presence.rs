//! Holdings by presence (`attribution.presence`): all holders with processes on a GPU hold equal shares of it.
//!
//! In: the holders present on a GPU without other holdings. Out: their holdings, granted again at each change.

use std::collections::BTreeSet;

use crate::model::{Fraction, Holder, HolderId, Holding, HoldingSource};

/// One holding per holder, by holder; the GPU system and other remainders hold nothing.
pub(super) fn holdings<'a>(present: impl Iterator<Item = &'a Holder>) -> Vec<Holding> {
    let present: BTreeSet<&HolderId> =
        present.map(|holder| &holder.id).filter(|id| !id.is_remainder()).collect();
    // A GPU never has more holders than fit in 32 bits.
    let denominator = u32::try_from(present.len()).unwrap_or(u32::MAX);
    let fraction = Fraction { numerator: 1, denominator };
    let source = HoldingSource::Presence;
    (0..)
        .zip(present)
        .map(|(rank, id)| Holding { holder: id.clone(), fraction, source, rank: Some(rank) })
        .collect()
}
