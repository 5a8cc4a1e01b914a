//! Conversions between the account's values and SQLite's. An INTEGER has 63 bits and a sign, so every conversion is checked.
//! Grades and methods are stored as ranks, the worst as the highest, so that `max` keeps it, and sources of activity and of holdings
//! as sets of bits.

use rusqlite::types::Type;
use rusqlite::{Connection, Params, Row};

use crate::accounting::billing::ExactMoney;
use crate::model::{ActivitySource, Grade, HolderId, HoldingSource, Method, Money};

/// Executes a statement, which is prepared once.
pub(super) fn put(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

/// What `read` makes of each row of a query, which is prepared once.
pub(super) fn rows<T, All: FromIterator<T>>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<All> {
    connection.prepare_cached(sql)?.query_map(values, read)?.collect()
}

/// A value for a column; fails above 2^63 - 1 (292 years in nanoseconds).
pub(super) fn stored(value: u64) -> rusqlite::Result<i64> {
    i64::try_from(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// A value that the driver reports (memory, energy) for a column. A value above the largest INTEGER becomes the largest,
/// since one absurd reading must not keep the rest of the account from being stored.
pub(super) fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn loaded(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}

/// The value of column `index` of a row; none where it is NULL.
pub(super) fn loaded_optional(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Option<u64>> {
    let value: Option<i64> = row.get(index)?;
    value.map(|_| loaded(row, index)).transpose()
}

/// The id of a version of a holder from columns `index` (name) and `index + 1` (version).
pub(super) fn loaded_id(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<HolderId> {
    Ok(HolderId::new(row.get::<_, String>(index)?).with_version(loaded(row, index + 1)?))
}

pub(super) fn stored_instance(id: Option<u32>) -> i64 {
    id.map_or(-1, i64::from)
}

/// The GPU instance id from column `index` of a row; none where it is negative.
pub(super) fn loaded_instance(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Option<u32>> {
    Ok(u32::try_from(row.get::<_, i64>(index)?).ok())
}

const NANOS: i128 = 1_000_000_000;

/// Money for three columns: whole units, billionths, and the rest.
pub(super) fn stored_money(money: ExactMoney) -> rusqlite::Result<[i64; 3]> {
    let (nano, rest) = money.into_parts();
    let number = |value: i128| {
        i64::try_from(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    };
    Ok([number(nano.0.div_euclid(NANOS))?, number(nano.0.rem_euclid(NANOS))?, rest])
}

/// Money from the columns that begin at `index`: units, billionths and the rest.
pub(super) fn loaded_money(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<ExactMoney> {
    let (units, nanos): (i64, i64) = (row.get(index)?, row.get(index + 1)?);
    ExactMoney::from_parts(Money(i128::from(units) * NANOS + i128::from(nanos)), row.get(index + 2)?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Integer, error.into()))
}

pub(super) fn loaded_json<T: serde::de::DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    index: usize,
) -> rusqlite::Result<T> {
    let text = row.get_ref(index)?.as_str().map_err(rusqlite::Error::from)?;
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, error.into()))
}

/// The activity sources, in the order of their bits.
const SOURCES: [ActivitySource; 4] =
    [ActivitySource::Gpm, ActivitySource::Utilization, ActivitySource::None, ActivitySource::Samples];

/// Bit of an activity source in a set of them; the bits are part of the schema.
pub(super) const fn source_bit(source: ActivitySource) -> i64 {
    match source {
        ActivitySource::Gpm => 1,
        ActivitySource::Utilization => 2,
        ActivitySource::None => 4,
        ActivitySource::Samples => 8,
    }
}

fn ranked<T: Copy>(all: &[T], row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<T> {
    let rank: i64 = row.get(index)?;
    usize::try_from(rank)
        .ok()
        .and_then(|rank| all.get(rank).copied())
        .ok_or(rusqlite::Error::IntegralValueOutOfRange(index, rank))
}

pub(super) fn loaded_grade(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Grade> {
    ranked(&Grade::ALL, row, index)
}

pub(super) fn sources_of(bits: i64) -> Vec<ActivitySource> {
    SOURCES.into_iter().filter(|source| bits & source_bit(*source) != 0).collect()
}

/// The set of bits of one source of holdings, or of none.
pub(super) fn grantor_bit(source: Option<HoldingSource>) -> i64 {
    source.map_or(0, |source| 1 << source as i64)
}

pub(super) fn grantors_of(bits: i64) -> Vec<HoldingSource> {
    HoldingSource::ALL.into_iter().filter(|source| bits & grantor_bit(Some(*source)) != 0).collect()
}

pub(super) fn loaded_method(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Method> {
    ranked(&Method::ALL, row, index)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_bits_are_those_of_the_schema() {
        let grades = [
            "measured",
            "split_by_activity",
            "split_by_holding",
            "split_by_memory",
            "split_equally",
            "unknown",
        ];
        assert_eq!(Grade::ALL.map(Grade::name), grades);
        assert_eq!(Method::ALL.map(Method::name), ["observed", "bridged"]);
        for (place, source) in SOURCES.iter().enumerate() {
            assert_eq!(source_bit(*source), 1 << place);
        }
        assert_eq!(
            HoldingSource::ALL.map(HoldingSource::name),
            ["standing", "kubernetes", "slurm", "presence"]
        );
        assert_eq!(HoldingSource::ALL.map(|one| grantor_bit(Some(one))), [1, 2, 4, 8]);
    }

    #[test]
    fn money_beyond_64_bits_of_nano_units_is_kept() {
        let stored = |nano, rest| stored_money(ExactMoney::from_parts(Money(nano), rest).unwrap()).unwrap();
        assert_eq!(stored(12 * NANOS + 5, 7), [12, 5, 7]);
        assert_eq!(stored(-1, 0), [-1, 999_999_999, 0]);
        let many = 40_000_000_000_000_000;
        assert_eq!(stored(NANOS * i128::from(many), 0), [many, 0, 0]);
    }
}
