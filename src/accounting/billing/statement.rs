//! Statements and credits: documents that never change, in one JSON form for one content.
//!
//! Keys are sorted, and the digest is SHA-256 over the document without it. What follows from other fields is computed again
//! when a document is verified, so that a field which was changed by hand is named.

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::bill::{Bill, BillLine, BillRate};
use super::day::ExportedFile;
use super::explanation::RulesVersion;
use super::json;
use super::money::{ExactMoney, MoneyOverflow};
use crate::model::{HolderId, Money, RESERVED, Utc, hexadecimal};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Document {
    Statement(Box<Statement>),
    Credit(Box<Credit>),
}

/// The bill of a period, as it was when that was closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its number, which no other document of its directory has.
    pub number: String,
    /// The document before it in the chain; none of the first, and of documents from before gpumeter noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<DocumentId>,
    pub issued: Issued,
    pub bill: Bill,
    /// The versions of the tenant rules that held in the period; none for a fleet, whose nodes have their own.
    pub rules: Vec<RulesVersion>,
    /// The files of exports that it was made from; none for one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ExportedFile>,
    /// What is missing in the files, each in words; accepted when it was closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
    /// Credits for earlier statements, below the total of the bill.
    pub credits: Vec<GrantedCredit>,
    /// The digests of the excerpts of tenants; none of documents from before gpumeter made excerpts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub excerpts: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    pub by: String,
    /// The time; of a statement, account time.
    #[serde(with = "json::time")]
    pub at: Utc,
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentId {
    pub number: String,
    pub digest: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// Its number, which no other document of its directory has.
    pub number: String,
    /// The document before it in the chain; none of the first, and of documents from before gpumeter noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<DocumentId>,
    pub issued: Issued,
    pub node: String,
    pub cluster: Option<String>,
    pub statement: DocumentId,
    pub tenant: String,
    /// The amount, above 0.
    #[serde(with = "json::money")]
    pub amount: Money,
    pub currency: String,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedCredit {
    pub credit: DocumentId,
    pub statement: String,
    pub tenant: String,
    #[serde(with = "json::money")]
    pub amount: Money,
    pub currency: String,
    pub reason: String,
}

#[derive(Debug, Error)]
pub enum DocumentError {
    #[error("it is no statement and no credit: {0}")]
    Foreign(#[from] serde_json::Error),
    #[error("it has no digest")]
    NoDigest,
}

/// A field whose value differs from what the rest of its document yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedField {
    /// Its path, such as `bill.lines[3].money`.
    pub path: String,
    pub found: String,
    pub expected: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDocument {
    pub document: Document,
    pub digest: String,
    /// Whether the digest is that of the document, and the text has the one form of it.
    pub is_unchanged: bool,
}

impl Document {
    pub fn number(&self) -> &str {
        match self {
            Self::Statement(statement) => &statement.number,
            Self::Credit(credit) => &credit.number,
        }
    }

    pub const fn before(&self) -> Option<&DocumentId> {
        match self {
            Self::Statement(statement) => statement.before.as_ref(),
            Self::Credit(credit) => credit.before.as_ref(),
        }
    }

    /// The document with its digest, and the one text of both.
    ///
    /// # Errors
    /// The document cannot be written as JSON.
    pub fn with_digest(self) -> Result<(String, StoredDocument), serde_json::Error> {
        let (text, digest) = seal(serde_json::to_value(&self)?);
        Ok((text, StoredDocument { document: self, digest, is_unchanged: true }))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// The text is no document.
    pub fn read(text: &str) -> Result<StoredDocument, DocumentError> {
        let (value, digest, is_unchanged) = open(text, serde_json::from_str(text)?)?;
        Ok(StoredDocument { document: serde_json::from_value(value)?, digest, is_unchanged })
    }
}

impl StoredDocument {
    pub fn id(&self) -> DocumentId {
        DocumentId { number: self.document.number().to_owned(), digest: self.digest.clone() }
    }

    /// A credit as the next statement names it; none of a statement.
    pub fn granted(&self) -> Option<GrantedCredit> {
        let Document::Credit(credit) = &self.document else { return None };
        Some(GrantedCredit {
            credit: self.id(),
            statement: credit.statement.number.clone(),
            tenant: credit.tenant.clone(),
            amount: credit.amount,
            currency: credit.currency.clone(),
            reason: credit.reason.clone(),
        })
    }
}

/// The fields of a document that do not follow from the others; `text` is the document.
///
/// # Errors
/// The text is no document; a sum of money does not fit.
pub fn changed_fields(text: &str, document: &Document) -> Result<Vec<ChangedField>, String> {
    let Document::Statement(statement) = document else { return Ok(Vec::new()) };
    let found: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut derived = statement.clone();
    derive(&mut derived.bill).map_err(|error| error.to_string())?;
    if !statement.excerpts.is_empty() {
        derived.excerpts = derived.excerpt_digests().map_err(|error| error.to_string())?;
    }
    let derived = Document::Statement(derived);
    let mut expected = serde_json::to_value(&derived).map_err(|error| error.to_string())?;
    // The digest is judged by itself.
    if let (Value::Object(expected), Some(digest)) = (&mut expected, found.get("digest")) {
        expected.insert("digest".to_owned(), digest.clone());
    }
    let mut changed = Vec::new();
    compare("", &found, &expected, &mut changed);
    Ok(changed)
}

/// Sets what follows from other fields: of each line the exact money from time, energy and prices, and all rounded money and sums.
fn derive(bill: &mut Bill) -> Result<(), MoneyOverflow> {
    let rates = rates_by_id(bill);
    if bill.currency.is_some() {
        for line in &mut bill.lines {
            derive_line(line, &rates)?;
        }
        bill.round_lines(|line| line.energy_money.is_some())?;
    }
    let line_money = ExactMoney::sum(bill.lines.iter().map(|line| line.exact))?.floor();
    let gpu_money: Money = bill.gpus.iter().filter_map(|gpu| gpu.money).sum();
    let (slot, held) = (bill.gpu_time(), bill.held_time());
    let proof = &mut bill.reconciliation;
    (proof.slot, proof.held, proof.gpu_money, proof.line_money) = (slot, held, gpu_money, line_money);
    proof.imbalance = slot.difference(held);
    proof.imbalance_money = Money(gpu_money.0 - line_money.0);
    Ok(())
}

pub(super) fn rates_by_id(bill: &Bill) -> BTreeMap<i64, BillRate> {
    bill.rates.iter().map(|rate| (rate.id, rate.clone())).collect()
}

/// Sets the exact money of a line under one rate. Under terms, its present price is kept if that is a whole number.
pub(super) fn derive_line(line: &mut BillLine, rates: &BTreeMap<i64, BillRate>) -> Result<(), MoneyOverflow> {
    let rate = |id: Option<i64>| id.and_then(|id| rates.get(&id));
    if let Some(energy) = rate(line.rates.energy).filter(|_| line.energy_money.is_some()) {
        line.exact_energy = ExactMoney::of_energy(energy.nano()?, line.energy());
    }
    if [HolderId::TERMS, HolderId::RATE_VARIANCE].contains(&&*line.tenant) {
        return Ok(());
    }
    let time = match (rate(line.rates.time), line.rates.terms) {
        (None, _) => ExactMoney::ZERO,
        (Some(rate), None) => {
            ExactMoney::of_time(rate.nano_per_gpu_hour(line.slot.profile.as_ref())?, line.charged.0)
        }
        (Some(_), Some(_)) => {
            let money = line.exact.minus(line.exact_energy)?.parts();
            let time = i128::from(line.charged.0);
            ExactMoney::of_parts(if time == 0 { 0 } else { money - money % time })
        }
    };
    line.exact = time.plus(line.exact_energy)?;
    Ok(())
}

pub(super) fn compare(path: &str, found: &Value, expected: &Value, changed: &mut Vec<ChangedField>) {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let names = found.keys().chain(expected.keys().filter(|name| !found.contains_key(*name)));
            for name in names {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let value =
                    |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                compare(&inner, &value(found), &value(expected), changed);
            }
        }
        (Value::Array(found), Value::Array(expected)) if found.len() == expected.len() => {
            for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                compare(&format!("{path}[{place}]"), found, expected, changed);
            }
        }
        _ if found != expected => {
            let print = |value: &Value| match value {
                Value::String(text) => text.clone(),
                Value::Array(items) => format!("a list of {}", items.len()),
                Value::Object(fields) => format!("an object of {}", fields.len()),
                other => other.to_string(),
            };
            let (found, expected) = (print(found), print(expected));
            changed.push(ChangedField { path: path.to_owned(), found, expected });
        }
        _ => {}
    }
}

/// The one text of a document with its digest, and the digest.
pub(super) fn seal(mut value: Value) -> (String, String) {
    let digest = digest_of(&value);
    if let Value::Object(fields) = &mut value {
        fields.insert("digest".to_owned(), digest.as_str().into());
    }
    (canonical(&value), digest)
}

/// The document of a text without its digest, the digest, and whether that is its own and the text its one form.
pub(super) fn open(text: &str, mut value: Value) -> Result<(Value, String, bool), DocumentError> {
    let is_canonical = canonical(&value) == text;
    let digest = value.as_object_mut().and_then(|fields| fields.remove("digest"));
    let digest =
        digest.and_then(|digest| digest.as_str().map(str::to_owned)).ok_or(DocumentError::NoDigest)?;
    let is_unchanged = is_canonical && digest == digest_of(&value);
    Ok((value, digest, is_unchanged))
}

pub(super) fn digest_of(value: &Value) -> String {
    let digest = digest(&SHA256, canonical(value).as_bytes());
    format!("sha256:{}", hexadecimal(digest.as_ref()))
}

/// JSON with sorted keys, two blanks per level and a newline at the end.
fn canonical(value: &Value) -> String {
    let mut sorted = value.clone();
    // The order of keys depends on features of serde_json.
    sorted.sort_all_objects();
    format!("{sorted:#}\n")
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StatementError {
    #[error("the period ends at {to}, and the account is closed up to {closed}; close it when that is over")]
    NotOver {
        /// The end of the period, local time.
        to: String,
        closed: Utc,
    },
    #[error("the bill does not reconcile: {0}; nothing was closed")]
    Unbalanced(String),
    #[error("the bill has only the lines of some tenants; nothing was closed")]
    Partial,
    #[error("the account has no time in the period; nothing was closed")]
    Empty,
    #[error(
        "statement {number} covers {} from {from} to {to} already; a correction is a credit (gpumeter statement credit)",
        if node.is_empty() { "the node" } else { node }
    )]
    Overlap {
        number: String,
        /// The node that both cover, possibly as one of a fleet.
        node: String,
        from: Utc,
        to: Utc,
    },
    #[error("statement {number} charges {tenant:?} nothing; gpumeter statement show lists its tenants")]
    NoTenant { number: String, tenant: String },
    #[error(
        "{tenant} was charged {} in statement {number}, of which {} is credited already, so at most {} can be",
        json::print_money(*.charged), json::print_money(*.credited), json::print_money(Money(.charged.0 - .credited.0))
    )]
    TooMuch { number: String, tenant: String, charged: Money, credited: Money },
    #[error("{0:?} is not an amount above 0; write it like 12.50")]
    Amount(String),
    #[error("give a reason of 1 to 1000 characters")]
    Reason,
}

/// Checks that the period of a bill can be closed.
///
/// # Errors
/// The period is not over, its sums do not agree, or it has no time.
pub fn check_closable(bill: &Bill) -> Result<(), StatementError> {
    if let Some(to) = &bill.asked_to {
        return Err(StatementError::NotOver { to: to.clone(), closed: bill.closed_until });
    }
    if bill.partial {
        return Err(StatementError::Partial);
    }
    if bill.gpus.is_empty() {
        return Err(StatementError::Empty);
    }
    if !bill.is_balanced() {
        let proof = &bill.reconciliation;
        return Err(StatementError::Unbalanced(format!(
            "held {} ns of {} ns, money {} of {}",
            proof.held.0,
            proof.slot.0,
            json::print_money(proof.line_money),
            json::print_money(proof.gpu_money)
        )));
    }
    Ok(())
}

/// The credits for statements of a node that no statement names yet.
pub fn open_credits(bill: &Bill, documents: &[StoredDocument]) -> Vec<GrantedCredit> {
    let named: Vec<&DocumentId> = documents
        .iter()
        .filter_map(|stored| match &stored.document {
            Document::Statement(statement) => Some(&statement.credits),
            Document::Credit(_) => None,
        })
        .flatten()
        .map(|granted| &granted.credit)
        .collect();
    let open = documents.iter().filter(|stored| match &stored.document {
        Document::Credit(credit) => credit.node == bill.node && credit.cluster == bill.cluster,
        Document::Statement(_) => false,
    });
    open.filter_map(StoredDocument::granted).filter(|granted| !named.contains(&&granted.credit)).collect()
}

/// Reads an amount above 0, such as `12.50`.
///
/// # Errors
/// It is none.
pub fn parse_amount(text: &str) -> Result<Money, StatementError> {
    let wrong = || StatementError::Amount(text.to_owned());
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    if places.is_empty() || places.len() > 9 {
        return Err(wrong());
    }
    match json::parse_money(format!("{whole}.{places:0<9}")) {
        Ok(money) if money.0 > 0 => Ok(money),
        _ => Err(wrong()),
    }
}

/// Checks that a tenant was charged at least this amount and the earlier credits in a statement.
///
/// # Errors
/// It was not.
pub fn check_credit<'a>(
    stored: &StoredDocument,
    statement: &Statement,
    tenant: &str,
    amount: Money,
    documents: impl IntoIterator<Item = &'a StoredDocument>,
) -> Result<(), StatementError> {
    let number = statement.number.clone();
    let lines = statement.bill.lines.iter().filter(|line| line.tenant == tenant);
    let charged: Money = lines.filter_map(|line| line.money).sum();
    if tenant.starts_with(RESERVED) || charged.0 <= 0 {
        return Err(StatementError::NoTenant { number, tenant: tenant.to_owned() });
    }
    let id = stored.id();
    let credits = documents.into_iter().filter_map(|document| match &document.document {
        Document::Credit(credit) if credit.statement == id && credit.tenant == tenant => Some(credit.amount),
        _ => None,
    });
    let credited: Money = credits.sum();
    match amount.0.checked_add(credited.0) {
        Some(sum) if sum <= charged.0 => Ok(()),
        _ => Err(StatementError::TooMuch { number, tenant: tenant.to_owned(), charged, credited }),
    }
}

/// Checks the reason of a credit.
///
/// # Errors
/// It is empty, too long, or has control characters.
pub fn check_reason(reason: &str) -> Result<(), StatementError> {
    let is_good =
        !reason.trim().is_empty() && reason.chars().count() <= 1_000 && !reason.contains(char::is_control);
    if is_good { Ok(()) } else { Err(StatementError::Reason) }
}
