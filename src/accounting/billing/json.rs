//! The JSON form of a bill: times in RFC 3339, money as decimal text, times and energy in integers with their unit.

use std::str::FromStr;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::bill::{Bill, BillLine, LineRates};
use super::money::{ExactMoney, SumOverflow};
pub(super) use crate::model::json::{IntegerJson, integer, optional_integer};
use crate::model::{
    AMOUNTS, AmountKind, Amounts, Decimal, GpuId, HolderId, MigProfile, Money, NodeIdentity, SlotId, Use, Utc,
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

#[derive(Serialize, Deserialize)]
#[serde(remote = "GpuId")]
pub(super) struct GpuIdJson {
    #[serde(rename = "gpu")]
    index: u32,
    uuid: Arc<str>,
}

impl Serialize for BillLine {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut json = Fields(to.serialize_map(None)?);
        json.put("tenant", &self.tenant)?;
        json.put("holder", self.holder.to_string())?;
        json.put_some("labels", Some(&self.labels).filter(|labels| !labels.is_empty()))?;
        json.put("gpu", self.gpu.index)?;
        json.put("uuid", &self.gpu.uuid)?;
        json.put_some("gpu_instance", self.slot.gpu_instance)?;
        json.put_some("mig_profile", self.slot.profile.as_ref().map(|profile| &profile.name))?;
        json.put_some("mig_slices", self.slot.profile.as_ref().map(|it| [it.size, it.total]))?;
        json.put_some("node", self.node.as_ref().map(|node| &node.name))?;
        json.put_some("cluster", self.node.as_ref().and_then(|node| node.cluster.as_ref()))?;
        json.put_some("pool", self.node.as_ref().and_then(|node| node.pool.as_ref()))?;
        json.put_some("day", self.day.as_ref())?;
        json.put_some("rate", self.rates.time.map(|id| id.to_string()))?;
        json.put_some("energy_rate", self.rates.energy.map(|id| id.to_string()))?;
        json.put_some("carbon_rate", self.rates.carbon.map(|id| id.to_string()))?;
        json.put_some("terms", self.rates.terms.map(|id| id.to_string()))?;
        json.put("held_ns", self.amounts.parts.held().to_string())?;
        json.put("used_ns", self.amounts.used.total().to_string())?;
        for (amount, name) in AMOUNTS.iter().filter_map(|amount| Some((amount, amount.json?))) {
            let is_known = self.has_energy || amount.kind != AmountKind::Reported;
            json.put(name, is_known.then(|| amount.of(&self.amounts).to_string()))?;
        }
        json.put("grade", self.grade)?;
        json.put("method", self.method)?;
        json.put("sources", &self.sources)?;
        json.put_some("granted_by", Some(&self.granted_by).filter(|one| !one.is_empty()))?;
        json.put("charged_ns", self.charged.to_string())?;
        json.put("unpriced_ns", self.unpriced.to_string())?;
        json.put("money", self.money.map(print_money))?;
        json.put_some("energy_money", self.energy_money.map(print_money))?;
        // Before they were rounded, in parts of a nano-unit of which 3.6e12 make one.
        json.put_some("exact_money", self.money.map(|_| self.exact.parts().to_string()))?;
        json.put_some(
            "exact_energy_money",
            self.energy_money.map(|_| self.exact_energy.parts().to_string()),
        )?;
        json.put_some("co2e_grams", self.emissions.map(print_money))?;
        json.put_some("spread", self.spread.map(print_money))?;
        json.0.end()
    }
}

struct Fields<M>(M);

impl<M: SerializeMap> Fields<M> {
    fn put(&mut self, name: &str, value: impl Serialize) -> Result<(), M::Error> {
        self.0.serialize_entry(name, &value)
    }

    fn put_some(&mut self, name: &str, value: Option<impl Serialize>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(name, value))
    }
}

impl<'de> Deserialize<'de> for BillLine {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        LineFields(Map::deserialize(from)?).line().map_err(D::Error::custom)
    }
}

struct LineFields(Map<String, Value>);

impl LineFields {
    fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, String> {
        serde_json::from_value(self.0.remove(name).unwrap_or_default())
            .map_err(|error| format!("{name}: {error}"))
    }

    fn needed<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        self.optional(name)?.ok_or_else(|| format!("missing field `{name}`"))
    }

    fn integer<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        self.optional::<IntegerJson>(name)?.map(IntegerJson::parse).transpose()
    }

    fn needed_integer<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
        self.integer(name)?.ok_or_else(|| format!("missing field `{name}`"))
    }

    fn money(&mut self, name: &str) -> Result<Option<Money>, String> {
        self.optional(name)?.map(parse_money).transpose()
    }

    /// Money and what it was before it was rounded, which a text that a person wrote may lack.
    fn exact_money(&mut self, name: &str) -> Result<(Option<Money>, ExactMoney), String> {
        let money = self.money(name)?;
        let exact = match self.integer(&format!("exact_{name}"))? {
            Some(parts) => ExactMoney::of_parts(parts),
            None => {
                ExactMoney::from_parts(money.unwrap_or_default(), 0).map_err(|error| error.to_string())?
            }
        };
        Ok((money, exact))
    }

    fn amounts(&mut self) -> Result<(Amounts, bool), String> {
        let (mut amounts, mut has_energy) = (Amounts::default(), true);
        for (amount, name) in AMOUNTS.iter().filter_map(|amount| Some((amount, amount.json?))) {
            let number = match self.integer(name)? {
                None if amount.kind == AmountKind::Reported => {
                    has_energy = false;
                    0
                }
                number => number.ok_or_else(|| format!("missing field `{name}`"))?,
            };
            *amount.of_mut(&mut amounts) = number;
        }
        let too_large = || SumOverflow::Gpu.to_string();
        let Use { beyond, outside, unheld, .. } = amounts.used;
        let beside =
            [outside, unheld].into_iter().try_fold(beyond, u64::checked_add).ok_or_else(too_large)?;
        amounts.used.within = self.needed_integer::<u64>("used_ns")?.saturating_sub(beside);
        Amounts::default().checked_add(&amounts).map(|amounts| (amounts, has_energy)).ok_or_else(too_large)
    }

    fn slot(&mut self) -> Result<SlotId, String> {
        let name: Option<String> = self.optional("mig_profile")?;
        let slices: Option<[u64; 2]> = self.optional("mig_slices")?;
        let profile =
            name.zip(slices).map(|(name, [size, total])| MigProfile { name: name.into(), size, total });
        Ok(SlotId { gpu_instance: self.optional("gpu_instance")?, profile })
    }

    fn node(&mut self) -> Result<Option<Arc<NodeIdentity>>, String> {
        let (cluster, pool) = (self.optional("cluster")?, self.optional("pool")?);
        let node = |name| NodeIdentity { name, cluster, pool, ..NodeIdentity::default() };
        Ok(self.optional("node")?.map(node).map(Arc::new))
    }

    fn line(mut self) -> Result<BillLine, String> {
        let uuid: String = self.needed("uuid")?;
        let gpu = GpuId { index: self.needed("gpu")?, uuid: uuid.into() };
        let holder: String = self.needed("holder")?;
        let (amounts, has_energy) = self.amounts()?;
        let (money, exact) = self.exact_money("money")?;
        let (energy_money, exact_energy) = self.exact_money("energy_money")?;
        Ok(BillLine {
            tenant: self.needed("tenant")?,
            labels: self.optional("labels")?.unwrap_or_default(),
            slot: self.slot()?,
            node: self.node()?,
            day: self.optional("day")?,
            rates: LineRates {
                time: self.integer("rate")?,
                energy: self.integer("energy_rate")?,
                carbon: self.integer("carbon_rate")?,
                terms: self.integer("terms")?,
            },
            amounts,
            has_energy,
            grade: self.needed("grade")?,
            method: self.needed("method")?,
            sources: self.needed("sources")?,
            granted_by: self.optional("granted_by")?.unwrap_or_default(),
            charged: self.integer("charged_ns")?.unwrap_or_default(),
            unpriced: self.integer("unpriced_ns")?.unwrap_or_default(),
            money,
            exact,
            energy_money,
            exact_energy,
            emissions: self.money("co2e_grams")?,
            spread: self.money("spread")?,
            ..BillLine::empty(gpu, HolderId::new(holder))
        })
    }
}

/// Modules for `#[serde(with)]`: a value, and one that may be null, as the text that `print` makes of it and `parse` reads.
macro_rules! as_text {
    ($name:ident, $optional:ident, $value:ty, $print:path, $parse:path) => {
        pub(crate) mod $name {
            use serde::{Deserialize, Deserializer, Serializer};

            pub(crate) fn serialize<S: Serializer>(value: &$value, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&$print(*value))
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$value, D::Error> {
                $parse(Deserialize::deserialize(from)?).map_err(serde::de::Error::custom)
            }
        }

        pub(crate) mod $optional {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub(crate) fn serialize<S: Serializer>(value: &Option<$value>, to: S) -> Result<S::Ok, S::Error> {
                value.map($print).serialize(to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<Option<$value>, D::Error> {
                let text = Option::deserialize(from)?;
                text.map($parse).transpose().map_err(serde::de::Error::custom)
            }
        }
    };
}

// A time in RFC 3339, and money as a decimal with nine places.
as_text!(time, optional_time, crate::model::Utc, super::print_time, super::parse_time);
as_text!(money, optional_money, crate::model::Money, super::print_money, super::parse_money);

fn print_time(at: Utc) -> String {
    at.to_string()
}

fn parse_time(text: String) -> Result<Utc, String> {
    let time = text.parse::<jiff::Timestamp>().ok();
    let time = time.and_then(|time| Utc::try_from(time).ok());
    time.ok_or_else(|| format!("{text:?} is not a time in RFC 3339"))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::accounting::billing::made;

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
