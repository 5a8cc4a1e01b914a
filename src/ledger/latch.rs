//! What only a reset of a GPU ends: so much of a verdict outlives the agent.
//!
//! In: what the pulse tells when it changes, whole for each GPU. Out, at the next start in the same boot: the
//! same, with what shows whether the GPU was reset since. Whether it was is for those to say who see the GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, params};

use super::column::clamped;
use super::error::Cause;
use crate::model::{Microjoules, StickyFault, Utc};

/// The name under which the account's own latch is stored; rules have no such names.
const UNAVAILABLE: &str = "__unavailable__";

/// What only a reset ends on one GPU, and by what one is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latched {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// Its verdict's latched reasons; with none, and nothing failed, nothing is latched any more.
    pub latches: Vec<StickyFault>,
    /// Since when its time is unavailable because its hardware failed, by the wall clock.
    pub failed: Option<Utc>,
    /// Which loading of the driver's module it was; none where that cannot be told.
    pub module: Option<u64>,
    /// The driver's energy counter, which a reset takes back; none where the board has none.
    pub energy_counter: Option<Microjoules>,
}

/// Stores all that is latched on a GPU in place of what was; a GPU that was never introduced has nothing.
pub(super) fn store(connection: &Connection, latched: &Latched, boot_id: &str) -> Result<(), Cause> {
    connection
        .prepare_cached("DELETE FROM latch WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)")?
        .execute([&latched.gpu])?;
    let failed =
        latched.failed.map(|since| StickyFault { rule: UNAVAILABLE.into(), since, ..StickyFault::default() });
    for latch in latched.latches.iter().chain(&failed) {
        connection
            .prepare_cached(
                "INSERT INTO latch SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM gpu WHERE uuid = ?1",
            )?
            .execute(params![
                latched.gpu,
                latch.rule,
                clamped(latch.since.0),
                clamped(latch.count),
                serde_json::to_string(&latch.xids)?,
                boot_id,
                latched.module.map(u64::cast_signed),
                latched.energy_counter.map(|counter| clamped(counter.0)),
            ])?;
    }
    Ok(())
}

/// What was latched in this boot; a reboot has reset all GPUs, and without a boot id each start is one.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<Latched>, Cause> {
    connection.execute("DELETE FROM latch WHERE boot_id <> ?1 OR boot_id = ''", [boot_id])?;
    let mut statement = connection.prepare(
        "SELECT uuid, rule, since_ns, count, xids, module, latch.energy_counter_uj
         FROM latch JOIN gpu ON gpu.id = latch.gpu",
    )?;
    let mut rows = statement.query([])?;
    let mut known = BTreeMap::<Arc<str>, Latched>::new();
    while let Some(row) = rows.next()? {
        let gpu: Arc<str> = row.get::<_, String>(0)?.into();
        let number = |index: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(index)?.unsigned_abs());
        let latch = StickyFault {
            // No rule has an empty name: what cannot be read is passed over by the judge.
            rule: row.get_ref(1)?.as_str().unwrap_or_default().into(),
            since: Utc(number(2)?),
            count: number(3)?,
            // The verdict stands without its words.
            xids: row
                .get_ref(4)?
                .as_str()
                .ok()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
        };
        let latched = known.entry(Arc::clone(&gpu)).or_insert_with(|| Latched { gpu, ..Latched::default() });
        latched.module = row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned);
        let counter = row.get::<_, Option<i64>>(6)?.map(|counter| Microjoules(counter.unsigned_abs()));
        latched.energy_counter = latched.energy_counter.max(counter);
        if &*latch.rule == UNAVAILABLE {
            latched.failed = Some(latch.since);
        } else {
            latched.latches.push(latch);
        }
    }
    Ok(known.into_values().collect())
}
