//! The JSON form of a bill: times in RFC 3339, money as decimal text, times and energy in integers with their unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::bill::{Bill, BillLine, LineRates};
use super::money::{ExactMoney, MoneyOverflow, SumOverflow};
use crate::model::{
    ActivitySource, Amounts, Decimal, GpuId, Grade, HolderId, Method, Microjoules, MigProfile, Money,
    Nanoseconds, NodeIdentity, Parts, SlotId, Use, Utc,
};

/// The bills of a period as JSON: an array, or the bill itself where all prices are in one currency.
#[derive(Debug)]
pub struct BillsJson<'a>(pub &'a [Bill]);

impl Serialize for BillsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [bill] => bill.serialize(serializer),
            bills => bills.serialize(serializer),
        }
    }
}

/// The bills of a period from such JSON.
///
/// # Errors
/// A text that is no such JSON.
pub fn bills_from_json(text: &str) -> serde_json::Result<Vec<Bill>> {
    if text.starts_with('[') {
        return serde_json::from_str(text);
    }
    serde_json::from_str(text).map(|bill| vec![bill])
}

/// The names of a GPU.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GpuId")]
pub(super) struct GpuIdJson {
    #[serde(rename = "gpu")]
    index: u32,
    uuid: Arc<str>,
}

/// A line of a bill.
#[derive(Serialize, Deserialize)]
pub(super) struct LineJson {
    tenant: String,
    holder: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    gpu: u32,
    uuid: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_instance: Option<u32>,
    /// The profile of the instance, and its part of the GPU in memory slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mig_profile: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mig_slices: Option<[u64; 2]>,
    /// Its node, in bills over exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    day: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    rate: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    energy_rate: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    carbon_rate: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    terms: Option<i64>,
    #[serde(with = "integer")]
    held_ns: u64,
    #[serde(with = "integer")]
    within_ns: u64,
    #[serde(with = "integer")]
    lent_ns: u64,
    #[serde(with = "integer")]
    idle_ns: u64,
    #[serde(with = "integer")]
    unmeasured_ns: u64,
    #[serde(with = "integer")]
    unavailable_ns: u64,
    #[serde(with = "integer")]
    used_ns: u64,
    #[serde(with = "integer")]
    beyond_share_ns: u64,
    #[serde(with = "integer")]
    outside_holding_ns: u64,
    #[serde(with = "integer")]
    unheld_ns: u64,
    /// None where the GPU's energy was not measured.
    #[serde(default, with = "optional_integer")]
    energy_static_uj: Option<u64>,
    #[serde(default, with = "optional_integer")]
    energy_dynamic_uj: Option<u64>,
    grade: Grade,
    #[serde(with = "integer")]
    measured_ns: u64,
    method: Method,
    sources: Vec<ActivitySource>,
    #[serde(default, with = "integer")]
    charged_ns: u64,
    #[serde(default, with = "integer")]
    unpriced_ns: u64,
    #[serde(default, with = "optional_money")]
    money: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_money")]
    energy_money: Option<Money>,
    /// `money` before it was rounded, in parts of a nano-unit of which 3.6e12 make one.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    exact_money: Option<i128>,
    /// The part of it that is for energy.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_integer")]
    exact_energy_money: Option<i128>,
    #[serde(
        default,
        rename = "co2e_grams",
        skip_serializing_if = "Option::is_none",
        with = "optional_money"
    )]
    emissions: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_money")]
    spread: Option<Money>,
}

impl From<BillLine> for LineJson {
    fn from(line: BillLine) -> Self {
        let Amounts { parts, used, energy_static, energy_dynamic, measured, .. } = line.amounts;
        Self {
            tenant: line.tenant,
            holder: line.holder.to_string(),
            labels: line.labels,
            gpu: line.gpu.index,
            uuid: line.gpu.uuid,
            gpu_instance: line.slot.gpu_instance,
            mig_slices: line.slot.profile.as_ref().map(|profile| [profile.size, profile.total]),
            mig_profile: line.slot.profile.map(|profile| profile.name),
            cluster: line.node.as_ref().and_then(|node| node.cluster.clone()),
            pool: line.node.as_ref().and_then(|node| node.pool.clone()),
            node: line.node.map(|node| node.name.clone()),
            day: line.day,
            rate: line.rates.time,
            energy_rate: line.rates.energy,
            carbon_rate: line.rates.carbon,
            terms: line.rates.terms,
            held_ns: parts.held(),
            within_ns: parts.within,
            lent_ns: parts.lent,
            idle_ns: parts.idle,
            unmeasured_ns: parts.unmeasured,
            unavailable_ns: parts.unavailable,
            used_ns: used.total(),
            beyond_share_ns: used.beyond,
            outside_holding_ns: used.outside,
            unheld_ns: used.unheld,
            energy_static_uj: line.has_energy.then_some(energy_static.0),
            energy_dynamic_uj: line.has_energy.then_some(energy_dynamic.0),
            grade: line.grade,
            measured_ns: measured,
            method: line.method,
            sources: line.sources,
            charged_ns: line.charged.0,
            unpriced_ns: line.unpriced.0,
            exact_money: line.money.map(|_| line.exact.parts()),
            exact_energy_money: line.energy_money.map(|_| line.exact_energy.parts()),
            money: line.money,
            energy_money: line.energy_money,
            emissions: line.emissions,
            spread: line.spread,
        }
    }
}

impl LineJson {
    /// Its times and energy; none where they have more than 64 bits.
    fn amounts(&self) -> Option<Amounts> {
        let beside = [self.outside_holding_ns, self.unheld_ns];
        let beside = beside.into_iter().try_fold(self.beyond_share_ns, u64::checked_add)?;
        let amounts = Amounts {
            parts: Parts {
                within: self.within_ns,
                lent: self.lent_ns,
                idle: self.idle_ns,
                unmeasured: self.unmeasured_ns,
                unavailable: self.unavailable_ns,
            },
            used: Use {
                within: self.used_ns.saturating_sub(beside),
                beyond: self.beyond_share_ns,
                outside: self.outside_holding_ns,
                unheld: self.unheld_ns,
            },
            energy_static: Microjoules(self.energy_static_uj.unwrap_or(0)),
            energy_dynamic: Microjoules(self.energy_dynamic_uj.unwrap_or(0)),
            memory_byte_seconds: 0,
            measured: self.measured_ns,
        };
        Amounts::default().checked_add(&amounts)
    }
}

impl TryFrom<LineJson> for BillLine {
    type Error = SumOverflow;

    fn try_from(line: LineJson) -> Result<Self, SumOverflow> {
        // Earlier agents send rounded money only.
        let exact = |parts: Option<i128>, money: Option<Money>| -> Result<_, MoneyOverflow> {
            match parts {
                Some(parts) => Ok(ExactMoney::of_parts(parts)),
                None => ExactMoney::from_parts(money.unwrap_or_default(), 0),
            }
        };
        let amounts = line.amounts().ok_or(SumOverflow::Gpu)?;
        let gpu = GpuId { index: line.gpu, uuid: line.uuid };
        let profile = line.mig_profile.zip(line.mig_slices).map(|(name, [size, total])| MigProfile {
            name,
            size,
            total,
        });
        Ok(Self {
            tenant: line.tenant,
            labels: line.labels,
            slot: SlotId { gpu_instance: line.gpu_instance, profile },
            node: line.node.map(|name| {
                NodeIdentity { name, cluster: line.cluster, pool: line.pool, ..NodeIdentity::default() }
                    .into()
            }),
            day: line.day,
            rates: LineRates {
                time: line.rate,
                energy: line.energy_rate,
                carbon: line.carbon_rate,
                terms: line.terms,
            },
            amounts,
            has_energy: line.energy_static_uj.is_some() && line.energy_dynamic_uj.is_some(),
            grade: line.grade,
            method: line.method,
            sources: line.sources,
            charged: Nanoseconds(line.charged_ns),
            unpriced: Nanoseconds(line.unpriced_ns),
            money: line.money,
            exact: exact(line.exact_money, line.money)?,
            energy_money: line.energy_money,
            exact_energy: exact(line.exact_energy_money, line.energy_money)?,
            emissions: line.emissions,
            spread: line.spread,
            ..Self::empty(gpu, HolderId::new(line.holder))
        })
    }
}

/// A module for `#[serde(with)]`: a value as the text that `print` makes of it and `parse` reads.
macro_rules! as_text {
    ($(#[$doc:meta])* $name:ident, $value:ty, $print:path, $parse:path) => {
        $(#[$doc])*
        pub(crate) mod $name {
            use serde::{Deserialize, Deserializer, Serializer};

            pub(crate) fn serialize<S: Serializer>(value: &$value, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_some(&$print(*value))
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$value, D::Error> {
                $parse(Deserialize::deserialize(from)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(/// A time in RFC 3339.
    time, crate::model::Utc, super::print_time, super::parse_time);
as_text!(/// A time in RFC 3339, or null.
    optional_time, Option<crate::model::Utc>, super::print_optional_time, super::parse_optional_time);
as_text!(/// Money as a decimal with nine places.
    money, crate::model::Money, super::print_money, super::parse_money);
as_text!(/// Money as a decimal, or null.
    optional_money, Option<crate::model::Money>, super::print_optional_money, super::parse_optional_money);
/// An integer, written as text, since other languages read only 53 bits of a number exactly. Both are read.
#[derive(Deserialize)]
#[serde(untagged)]
enum IntegerJson {
    Text(String),
    Number(u64),
}

impl IntegerJson {
    fn parse<T: std::str::FromStr>(self) -> Result<T, String> {
        let text = match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        };
        text.parse().map_err(|_| format!("{text:?} is not an integer in range"))
    }
}

/// An integer.
pub(super) mod integer {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::billing) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in crate::billing) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        super::IntegerJson::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// An integer, or null.
pub(super) mod optional_integer {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::billing) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(in crate::billing) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let value = Option::<super::IntegerJson>::deserialize(from)?;
        value.map(super::IntegerJson::parse).transpose().map_err(D::Error::custom)
    }
}

fn print_time(at: Utc) -> String {
    at.to_string()
}

fn parse_time(text: String) -> Result<Utc, String> {
    let time = text.parse::<jiff::Timestamp>().ok();
    let time = time.and_then(|time| Utc::try_from(time).ok());
    time.ok_or_else(|| format!("{text:?} is not a time in RFC 3339"))
}

fn print_optional_time(at: Option<Utc>) -> Option<String> {
    at.map(print_time)
}

fn parse_optional_time(text: Option<String>) -> Result<Option<Utc>, String> {
    text.map(parse_time).transpose()
}

/// Money as a decimal with nine places.
pub fn print_money(money: Money) -> String {
    format!("{:.9}", Decimal::of_nano(money.0))
}

pub(super) fn parse_money(text: String) -> Result<Money, String> {
    let (sign, amount) = text.strip_prefix('-').map_or((1, &*text), |amount| (-1, amount));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let nano = match amount.split_once('.') {
        Some((whole, places)) if digits(whole) && digits(places) && places.len() == 9 => {
            format!("{whole}{places}").parse::<i128>().ok()
        }
        _ => None,
    };
    nano.map(|nano| Money(sign * nano)).ok_or_else(|| {
        format!("{text:?} is not an amount of money; amounts have nine decimals, as 1.500000000")
    })
}

fn print_optional_money(money: Option<Money>) -> Option<String> {
    money.map(print_money)
}

fn parse_optional_money(text: Option<String>) -> Result<Option<Money>, String> {
    text.map(parse_money).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::billing::made;

    #[test]
    fn a_line_with_more_time_than_64_bits_is_refused() {
        let line = |idle_ns: u64, lent_ns: u64| made::line(&json!({"idle_ns": idle_ns, "lent_ns": lent_ns}));
        let read = |line: Value| serde_json::from_value::<BillLine>(line).map_err(|error| error.to_string());
        assert_eq!(read(line(u64::MAX, 0)).unwrap().amounts.parts.held(), u64::MAX);
        assert!(read(line(u64::MAX, 1)).unwrap_err().contains("exceeds 64 bits"));
        let beyond = made::line(&json!({"beyond_share_ns": u64::MAX, "unheld_ns": 1}));
        assert!(read(beyond).unwrap_err().contains("exceeds 64 bits"));
    }

    #[test]
    fn money_is_a_decimal_with_nine_places_and_anything_else_is_refused() {
        for (nano, text) in [(2_500_000_000, "2.500000000"), (-1, "-0.000000001"), (0, "0.000000000")] {
            assert_eq!(print_money(Money(nano)), text);
            assert_eq!(parse_money(text.to_owned()), Ok(Money(nano)));
        }
        for text in ["", "2.5", "2", "2,500000000", "1.-00000000", "+1.000000000", "x.000000000"] {
            assert!(parse_money(text.to_owned()).is_err(), "{text}");
        }
    }
}
