//! What a tenant pays for: held or used time, at the full rate or less.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::json;
use super::schedule::Dated;
use crate::model::{Amounts, Decimal, RESERVED, Utc, matches_pattern};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// The name of a tenant, or a pattern with `*` and `?`. Remainders have no terms.
    pub tenant: String,
    /// Begin, on a quarter hour; without it, they begin at the quarter hour after they were first recorded.
    #[serde(skip_serializing_if = "Option::is_none", with = "json::optional_time")]
    pub from: Option<Utc>,
    pub basis: Basis,
    /// What is taken off the rate of time, in billionths of it. Energy has no discount.
    pub discount: u32,
    /// Whether use outside a holding and beyond the own share is charged too, for terms of held time.
    pub charges_outside_use: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    #[default]
    Held,
    /// What it used, and what it held while use could not be measured.
    Used,
}

const HELD: &str = "held time";
const HELD_AND_OUTSIDE: &str = "held time, and use outside it";
const USED: &str = "used time";
const OFF: &str = " % off";

/// The whole of a rate, in the units of [`Terms::discount`].
pub const WHOLE_RATE: u32 = 1_000_000_000;

pub fn charges_unheld(terms: Option<&Terms>) -> bool {
    terms.is_some_and(|terms| terms.basis == Basis::Used)
}

impl Terms {
    pub(super) fn is_for(&self, tenant: &str) -> bool {
        !tenant.starts_with(RESERVED) && matches_pattern(&self.tenant, tenant)
    }

    /// The time that is charged for what a holder held and used, where `full_time` is charged without terms.
    pub(super) fn charged_time(&self, amounts: &Amounts, full_time: u64) -> u64 {
        let used = &amounts.used;
        match self.basis {
            Basis::Held if self.charges_outside_use => full_time + used.outside + used.beyond,
            Basis::Held => full_time,
            Basis::Used => used.total() + amounts.parts.unmeasured,
        }
    }

    /// What an hour of idle held time costs where an hour costs that at the full rate.
    pub fn of_idle(terms: Option<&Self>, nano: i64) -> i64 {
        match terms {
            Some(Self { basis: Basis::Used, .. }) => 0,
            Some(terms) => terms.discounted(nano),
            None => nano,
        }
    }

    /// A rate less the discount, rounded to the nearest nano-unit.
    pub(super) fn discounted(&self, nano: i64) -> i64 {
        let whole = i128::from(WHOLE_RATE);
        let left = i128::from(nano) * (whole - i128::from(self.discount));
        i64::try_from((left + whole / 2).div_euclid(whole)).unwrap_or(nano)
    }

    /// In words, as `used time, 10 % off`.
    pub fn describe(&self) -> Arc<str> {
        let charged = match (self.basis, self.charges_outside_use) {
            (Basis::Held, false) => HELD,
            (Basis::Held, true) => HELD_AND_OUTSIDE,
            (Basis::Used, _) => USED,
        };
        match self.discount {
            0 => charged.into(),
            discount => {
                let percent = Decimal { units: discount.into(), scale: 7 };
                format!("{charged}, {percent}{OFF}").into()
            }
        }
    }

    /// The terms of any tenant that are described so; none where no terms are.
    pub fn described(words: &str) -> Option<Self> {
        let (charged, discount) = match words.strip_suffix(OFF).map(|words| words.rsplit_once(", ")) {
            Some(split) => {
                let (charged, percent) = split?;
                let (whole, rest) = percent.split_once('.').unwrap_or((percent, ""));
                (
                    charged,
                    format!("{whole}{rest:0<7}").parse().ok().filter(|discount| *discount <= WHOLE_RATE)?,
                )
            }
            None => (words, 0),
        };
        let (basis, charges_outside_use) = match charged {
            HELD => (Basis::Held, false),
            HELD_AND_OUTSIDE => (Basis::Held, true),
            USED => (Basis::Used, false),
            _ => return None,
        };
        let terms = Self { basis, discount, charges_outside_use, ..Self::default() };
        Some(terms).filter(|terms| *terms.describe() == *words)
    }
}

impl Dated for Terms {
    fn from(&self) -> Option<Utc> {
        self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Parts, Use};

    #[test]
    fn used_time_counts_use_of_every_kind_and_unmeasured_held_time() {
        let amounts = Amounts {
            parts: Parts { within: 1, lent: 2, idle: 4, unmeasured: 8, unavailable: 16 },
            used: Use { within: 100, beyond: 200, outside: 400, unheld: 800 },
            ..Amounts::default()
        };
        let time = |basis, charges_outside_use| {
            Terms { basis, charges_outside_use, ..Terms::default() }.charged_time(&amounts, 15)
        };
        assert_eq!(
            [time(Basis::Held, false), time(Basis::Held, true), time(Basis::Used, false)],
            [15, 615, 1508]
        );
    }

    #[test]
    fn a_discounted_rate_is_whole_nano_units_and_described_in_percent() {
        let terms = |discount| Terms { discount, ..Terms::default() };
        assert_eq!(terms(100_000_000).discounted(2_400_000_001), 2_160_000_001);
        assert_eq!(terms(WHOLE_RATE).discounted(5), 0);
        assert_eq!(terms(0).discounted(i64::MAX), i64::MAX);
        assert_eq!(&*terms(125_000_000).describe(), "held time, 12.5 % off");
        assert_eq!(&*Terms { basis: Basis::Used, ..terms(0) }.describe(), "used time");
    }

    #[test]
    fn terms_are_read_back_from_their_description_and_from_no_other_words() {
        for discount in [0, 1, 10, 125_000_000, 333_333_333, WHOLE_RATE - 1, WHOLE_RATE] {
            for (basis, charges_outside_use) in
                [(Basis::Held, false), (Basis::Held, true), (Basis::Used, false)]
            {
                let terms = Terms { basis, discount, charges_outside_use, ..Terms::default() };
                let words = terms.describe();
                assert_eq!(Terms::described(&words), Some(terms), "{words}");
            }
        }
        for words in
            ["", "free", "held time, 200 % off", "held time,  % off", "held time, 1.50 % off", " % off"]
        {
            assert_eq!(Terms::described(words), None, "{words}");
        }
    }
}
