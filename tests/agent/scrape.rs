//! A strict parser of a metrics page: a syntax error fails the test.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Scrape {
    pub(crate) series: BTreeMap<String, String>,
}

impl Scrape {
    pub(crate) fn parse(page: &str) -> Self {
        let mut series = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
            assert!(value.parse::<f64>().is_ok(), "{line:?}");
            assert!(series.insert(name.to_owned(), value.to_owned()).is_none(), "twice: {name}");
        }
        Self { series }
    }

    /// The series of a family that carry all of these labels, written `name="value"`.
    pub(crate) fn series_of<'a>(
        &'a self,
        family: &'a str,
        labels: &'a [&'a str],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.series
            .iter()
            .filter(move |(name, _)| {
                let (base, rest) = name.split_once('{').unwrap_or((name, ""));
                base == family && labels.iter().all(|label| rest.contains(label))
            })
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn has(&self, family: &str, labels: &[&str]) -> bool {
        self.series_of(family, labels).next().is_some()
    }

    pub(crate) fn value<'a>(&'a self, family: &'a str, labels: &'a [&'a str]) -> Option<&'a str> {
        self.series_of(family, labels).next().map(|(_, value)| value)
    }

    /// A sum as an exact integer of nano-units.
    pub(crate) fn nano_sum(&self, family: &str, labels: &[&str]) -> i128 {
        self.series_of(family, labels).map(|(_, value)| nano(value)).sum()
    }
}

/// An exact decimal with up to nine places, in billionths.
pub(crate) fn nano(text: &str) -> i128 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= 9, "{text}");
    format!("{whole}{fraction:0<9}").parse().unwrap()
}
