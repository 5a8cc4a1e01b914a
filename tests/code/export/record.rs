//! The visits of the walk as a list, with which every encoder is compared.

use gpumeter::model::catalogue::{Family, Level};
use gpumeter::model::snapshot::{Histogram, Snapshot};
use gpumeter::output::render::{Sample, Sink, Value, walk};

/// One visit that had a value.
#[derive(Clone, Debug)]
pub struct Visit {
    pub family: &'static Family,
    pub labels: Vec<(String, String)>,
    pub value: Shown,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    Number(i128),
    Histogram(Histogram),
}

/// Every visit of the walk that has a value.
pub fn visits(snapshot: &Snapshot, level: Level) -> Vec<Visit> {
    let mut record = Record::default();
    walk(snapshot, level, &mut record);
    record.visits
}

#[derive(Default)]
struct Record {
    family: Option<&'static Family>,
    visits: Vec<Visit>,
}

impl Sink for Record {
    fn family(&mut self, family: &'static Family) {
        self.family = Some(family);
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let value = match sample.value {
            None => return,
            Some(Value::Number(number)) => Shown::Number(number),
            Some(Value::Histogram(histogram)) => Shown::Histogram(histogram.clone()),
        };
        let labels = sample.labels.pairs().map(|(name, value)| (name.into(), value.into())).collect();
        self.visits.push(Visit { family: self.family.unwrap(), labels, value });
    }
}
