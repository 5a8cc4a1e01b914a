//! Excerpts of bills and statements: what one tenant, or another group, may be shown of what all have.
//!
//! A statement has the digest of the excerpt of each tenant. That digest does not cover the statement's own, which is made
//! later; the excerpt names it, and has a digest of all that it says.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bill::{Bill, BillLine, Fleet};
use super::money::MoneyOverflow;
use super::statement::{
    ChangedField, DocumentError, DocumentId, GrantedCredit, Issued, Statement, compare, derive_line,
    digest_of, open, rates_by_id, seal,
};
use crate::model::Money;

/// What a statement says of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    pub kind: ExcerptKind,
    pub statement: DocumentId,
    pub issued: Issued,
    pub tenant: String,
    pub bill: Bill,
    pub credits: Vec<GrantedCredit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExcerptKind {
    Excerpt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredExcerpt {
    pub excerpt: Excerpt,
    pub digest: String,
    /// Whether the digest is that of the excerpt, and the text has the one form of it.
    pub is_unchanged: bool,
}

impl Bill {
    /// The bill of each group of lines; `groups` has the group of each line. It has the sums of these lines, the rates and terms
    /// that they are priced by, and nothing of other lines.
    pub fn divide<G: Ord>(mut self, groups: Vec<G>) -> BTreeMap<G, Self> {
        let mut parts = BTreeMap::<G, Vec<BillLine>>::new();
        for (line, group) in std::mem::take(&mut self.lines).into_iter().zip(groups) {
            parts.entry(group).or_default().push(line);
        }
        self.parts(parts)
    }

    /// The bill of each of these parts of its lines.
    fn parts<G: Ord>(mut self, parts: BTreeMap<G, Vec<BillLine>>) -> BTreeMap<G, Self> {
        // A fleet has too much of these to copy all for each part.
        let note = |fleet: Fleet| Fleet {
            notes: fleet.note_without_names().into_iter().collect(),
            ..Fleet::default()
        };
        self.fleet = self.fleet.take().map(note);
        let whole = Self {
            gpus: std::mem::take(&mut self.gpus),
            tenant_attributes: std::mem::take(&mut self.tenant_attributes),
            tenant_budgets: std::mem::take(&mut self.tenant_budgets),
            ..Self::default()
        };
        parts.into_iter().map(|(group, lines)| (group, self.with_only(lines, &whole))).collect()
    }

    /// This bill with some lines, and what `whole` has of their GPUs and tenants.
    fn with_only(&self, lines: Vec<BillLine>, whole: &Self) -> Self {
        let uuids: BTreeSet<&str> = lines.iter().map(|line| &*line.gpu.uuid).collect();
        let tenants: BTreeSet<&String> = lines.iter().map(|line| &line.tenant).collect();
        let mut own = Self {
            gpus: whole.gpus.iter().filter(|gpu| uuids.contains(&*gpu.gpu.uuid)).cloned().collect(),
            tenant_attributes: entries(&whole.tenant_attributes, &tenants),
            tenant_budgets: entries(&whole.tenant_budgets, &tenants),
            ..self.clone()
        };
        own.lines = lines;
        own.keep_own();
        own
    }
}

fn entries<V: Clone>(all: &BTreeMap<String, V>, tenants: &BTreeSet<&String>) -> BTreeMap<String, V> {
    tenants.iter().filter_map(|&tenant| Some((tenant.clone(), all.get(tenant)?.clone()))).collect()
}

impl Statement {
    /// The excerpts of all tenants that have lines or credits; `digest` is that of the statement.
    pub fn excerpts(&self, digest: &str) -> BTreeMap<String, Excerpt> {
        let mut bill = self.bill.clone();
        // A bill that was read from JSON has none.
        if let Some(fleet) = &mut bill.fleet {
            fleet.gaps.clone_from(&self.gaps);
        }
        let mut parts = BTreeMap::<String, Vec<BillLine>>::new();
        for line in std::mem::take(&mut bill.lines) {
            parts.entry(line.tenant.clone()).or_default().push(line);
        }
        for credit in &self.credits {
            parts.entry(credit.tenant.clone()).or_default();
        }
        let excerpt = |(tenant, bill): (String, Bill)| {
            let credits = self.credits.iter().filter(|credit| credit.tenant == tenant).cloned().collect();
            let excerpt = Excerpt {
                kind: ExcerptKind::Excerpt,
                statement: DocumentId { number: self.number.clone(), digest: digest.to_owned() },
                issued: self.issued.clone(),
                tenant: tenant.clone(),
                bill,
                credits,
            };
            (tenant, excerpt)
        };
        bill.parts(parts).into_iter().map(excerpt).collect()
    }

    /// The digests of the excerpts, by tenant.
    ///
    /// # Errors
    /// An excerpt cannot be written as JSON.
    pub fn excerpt_digests(&self) -> Result<BTreeMap<String, String>, serde_json::Error> {
        let excerpts = self.excerpts("").into_iter();
        excerpts.map(|(tenant, excerpt)| Ok((tenant, excerpt.digest_in_statement()?))).collect()
    }
}

impl Excerpt {
    /// Reads an excerpt; none where the text is another document.
    ///
    /// # Errors
    /// The text is an excerpt that has no digest, or whose fields are none of an excerpt.
    pub fn read(text: &str) -> Option<Result<StoredExcerpt, DocumentError>> {
        let value: Value = serde_json::from_str(text).ok()?;
        (value.get("kind")? == "excerpt").then(|| {
            let (value, digest, is_unchanged) = open(text, value)?;
            Ok(StoredExcerpt { excerpt: serde_json::from_value(value)?, digest, is_unchanged })
        })
    }

    /// Its one text, and the digest in it.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn with_digest(&self) -> Result<(String, String), serde_json::Error> {
        Ok(seal(serde_json::to_value(self)?))
    }

    /// Its digest in the statement, which does not cover the statement's own.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn digest_in_statement(&self) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(self)?;
        if let Some(Value::Object(statement)) = value.get_mut("statement") {
            statement.remove("digest");
        }
        Ok(digest_of(&value))
    }

    /// The fields that do not follow from its lines; `text` is the excerpt.
    ///
    /// # Errors
    /// The text is no excerpt; a sum of money does not fit.
    pub fn changed_fields(&self, text: &str) -> Result<Vec<ChangedField>, String> {
        let mut derived = self.clone();
        derived.derive().map_err(|error| error.to_string())?;
        derived.differences(text)
    }

    /// The fields in which `text` is another one than this excerpt.
    ///
    /// # Errors
    /// The text is no JSON.
    pub fn differences(&self, text: &str) -> Result<Vec<ChangedField>, String> {
        let mut found: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // The digest is judged by itself.
        if let Value::Object(fields) = &mut found {
            fields.remove("digest");
        }
        let expected = serde_json::to_value(self).map_err(|error| error.to_string())?;
        let mut changed = Vec::new();
        compare("", &found, &expected, &mut changed);
        Ok(changed)
    }

    /// Sets what follows from other fields. Money of a line was rounded with all lines of the statement, so that it is its exact
    /// money rounded down, or one digit more.
    fn derive(&mut self) -> Result<(), MoneyOverflow> {
        let rounded = |given: Money, floor: Money| if given.0 == floor.0 + 1 { given } else { floor };
        let rates = rates_by_id(&self.bill);
        let mut tenants = self.bill.lines.iter().map(|line| &line.tenant);
        if let Some(tenant) = tenants.next().filter(|first| tenants.all(|other| other == *first)) {
            self.tenant.clone_from(tenant);
        }
        for line in &mut self.bill.lines {
            line.tenant.clone_from(&self.tenant);
            if self.bill.currency.is_some() {
                derive_line(line, &rates)?;
                line.money = line.money.map(|money| rounded(money, line.exact.floor()));
                line.energy_money = line.energy_money.map(|money| rounded(money, line.exact_energy.floor()));
            }
        }
        for credit in &mut self.credits {
            credit.tenant.clone_from(&self.tenant);
        }
        self.bill.keep_lines(|_| true);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::super::made;
    use super::*;

    #[test]
    fn a_part_of_a_fleets_bill_has_its_own_nodes_rates_and_gpus_and_names_no_others() {
        let line = |tenant: &str, node: &str, rate: u32| {
            made::line(
                &json!({"tenant": tenant, "holder": tenant, "node": node, "cluster": format!("of-{node}"),
                "uuid": format!("GPU-{node}"), "rate": rate, "held_ns": 5, "idle_ns": 5, "money": "2.000000000"}),
            )
        };
        let rate = |id: u32| {
            json!({"id": id, "unit": "gpu_hour", "price": "1.000000000", "class": format!("class-{id}"), "slot_ns": 9,
                "money": "7.000000000"})
        };
        let gpu = |node: &str| {
            json!({"gpu": 0, "uuid": format!("GPU-{node}"), "model": format!("model-{node}"), "slot_ns": 24,
                "settled_until": "2026-11-01T01:00:00Z", "money": "24.000000000"})
        };
        let conflict = json!({"gpu": "GPU-b", "date": "2026-11-01", "ledgers": []});
        let bill = made::bill(
            &json!({"node": "", "currency": "EUR", "rates": [rate(1), rate(2)], "gpus": [gpu("a"), gpu("b")],
            "fleet": {"nodes": 2, "clusters": ["of-a", "of-b"], "notes": ["exports end: b"], "conflicts": [conflict]},
            "lines": [line("ml", "a", 1), line("bio", "b", 2), line("ml", "a", 1)]}),
        );
        let parts = bill.divide(vec!["x", "y", "x"]);
        assert!(parts.keys().eq(&["x", "y"]));
        let text = serde_json::to_string(&parts["x"]).unwrap();
        for foreign in
            ["bio", "of-b", "GPU-b", "model-b", "class-2", "7.000000000", "24.000000000", "exports end"]
        {
            assert!(!text.contains(foreign), "{foreign}: {text}");
        }
        let fleet = parts["x"].fleet.as_ref().unwrap();
        assert_eq!(
            (fleet.nodes, &*fleet.notes),
            (
                1,
                &["MAY BE INCOMPLETE: time of some nodes is missing, in conflict, or not checked".to_owned()]
                    [..]
            )
        );
        assert_eq!(parts["x"].reconciliation.line_money, Money(4_000_000_000));
    }
}
