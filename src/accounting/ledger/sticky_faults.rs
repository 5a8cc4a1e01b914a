//! Sticky faults: health reasons that only a reset of the GPU ends. They survive a restart of the agent in the same boot,
//! with the values that show whether the GPU was reset meanwhile. The table `sticky_fault` holds them.
//! The most NVLinks that were up since the driver was loaded hold as long, and are a row too.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, params};

use super::column::clamped;
use super::error::Cause;
use crate::accounting::batches::StickyFaults;
use crate::model::{Microjoules, StickyFault, Utc};

/// The rule name under which the hardware failure of the account is stored; no health rule has this name.
const UNAVAILABLE: &str = "__unavailable__";

/// The rule name under which the most NVLinks that were up are stored, as a count; no health rule has this name.
const MOST_LINKS_UP: &str = "__most_links_up__";

/// Replaces the stored faults of a GPU; a GPU that was never registered gets none.
pub(super) fn store(connection: &Connection, faults: &StickyFaults, boot_id: &str) -> Result<(), Cause> {
    connection
        .prepare_cached("DELETE FROM sticky_fault WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)")?
        .execute([&faults.gpu])?;
    let failed =
        faults.failed.map(|since| StickyFault { rule: UNAVAILABLE.into(), since, ..StickyFault::default() });
    let most_links_up = (faults.most_links_up > 0).then(|| StickyFault {
        rule: MOST_LINKS_UP.into(),
        count: faults.most_links_up.into(),
        ..StickyFault::default()
    });
    for fault in faults.faults.iter().chain(&failed).chain(&most_links_up) {
        connection
            .prepare_cached(
                "INSERT INTO sticky_fault SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM gpu WHERE uuid = ?1",
            )?
            .execute(params![
                faults.gpu,
                fault.rule,
                clamped(fault.since.0),
                clamped(fault.count),
                serde_json::to_string(&fault.xids)?,
                boot_id,
                faults.module.map(u64::cast_signed),
                faults.energy_counter.map(|counter| clamped(counter.0)),
            ])?;
    }
    Ok(())
}

/// Loads the faults of this boot. A reboot resets all GPUs, and without a boot id every start counts as a reboot.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<StickyFaults>, Cause> {
    connection.execute("DELETE FROM sticky_fault WHERE boot_id <> ?1 OR boot_id = ''", [boot_id])?;
    let mut statement = connection.prepare(
        "SELECT uuid, rule, since_ns, count, xids, module, sticky_fault.energy_counter_uj
         FROM sticky_fault JOIN gpu ON gpu.id = sticky_fault.gpu",
    )?;
    let mut rows = statement.query([])?;
    let mut known = BTreeMap::<Arc<str>, StickyFaults>::new();
    while let Some(row) = rows.next()? {
        let gpu: Arc<str> = row.get::<_, String>(0)?.into();
        let number = |index: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(index)?.unsigned_abs());
        let fault = StickyFault {
            // No rule has an empty name, so the health rules ignore a name that cannot be read.
            rule: row.get_ref(1)?.as_str().unwrap_or_default().into(),
            since: Utc(number(2)?),
            count: number(3)?,
            // The verdict is valid without the list of XIDs.
            xids: row
                .get_ref(4)?
                .as_str()
                .ok()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
        };
        let faults =
            known.entry(Arc::clone(&gpu)).or_insert_with(|| StickyFaults { gpu, ..StickyFaults::default() });
        faults.module = row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned);
        let counter = row.get::<_, Option<i64>>(6)?.map(|counter| Microjoules(counter.unsigned_abs()));
        faults.energy_counter = faults.energy_counter.max(counter);
        match &*fault.rule {
            UNAVAILABLE => faults.failed = Some(fault.since),
            MOST_LINKS_UP => faults.most_links_up = u32::try_from(fault.count).unwrap_or(0),
            _ => faults.faults.push(fault),
        }
    }
    Ok(known.into_values().collect())
}
