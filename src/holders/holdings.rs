//! Who holds what on one GPU now, and whom each holding covers besides its own holder.
//!
//! In: the GPU, the configured standing holdings, whether presence holds where nothing else does, and the
//! holders present. Out: holdings by holder, and user to the holding's holder. The order in which holders
//! come never changes either. It knows no time: a change of the answer is what cuts a segment.

use std::collections::BTreeMap;

use super::presence;
use super::standing::{Grants, SessionGpu, Standing};
use crate::model::{Holder, HolderId, Holding};

/// The holdings of a GPU, and by whose holding the holders present are covered.
pub fn holdings<'a>(
    gpu: &SessionGpu,
    standing: &[Standing],
    presence: bool,
    present: impl IntoIterator<Item = &'a Holder>,
) -> (Vec<Holding>, BTreeMap<HolderId, HolderId>) {
    let grants = Grants::on(gpu, standing);
    let present = present.into_iter();
    if grants.is_empty() {
        let held = if presence { presence::holdings(present) } else { Vec::new() };
        return (held, BTreeMap::new());
    }
    let mut covered_by: BTreeMap<HolderId, HolderId> = BTreeMap::new();
    for holder in present {
        let Some(cover) = grants.cover(holder) else { continue };
        covered_by
            .entry(holder.id.clone())
            // Two sets of facts of one holder: any fixed choice, so that their order does not make it.
            .and_modify(|known| *known = known.clone().max(cover.clone()))
            .or_insert(cover);
    }
    (grants.holdings(), covered_by)
}
