//! The chain of the documents in a directory of statements: each has the next number and names the digest of the one before.
//!
//! What is missing, copied, changed with a new digest, or billed twice is named.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::Bill;
use super::statement::{
    Credit, Document, DocumentId, Statement, StatementError, StoredDocument, check_credit,
};
use crate::model::Utc;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChainError {
    #[error("its number is {0:?}, and documents are numbered 0001, 0002 and so on")]
    Number(String),
    #[error("another document has the number {number} too ({digest}); remove the copy")]
    Copy { number: String, digest: String },
    #[error("{} before it; put the missing files back", missing_numbers(*.first, *.last))]
    Gap { first: u32, last: u32 },
    /// The document before it differs from the one that it names.
    #[error(
        "it was written after {} with {}, and that is {} now: it was changed and given a new digest; a copy from before restores it",
        .named.number, .named.digest, .found.as_ref().map_or("not there", |found| &found.digest)
    )]
    Before { named: DocumentId, found: Option<DocumentId> },
    /// It does not name the document before it, although documents before it do.
    #[error(
        "it does not name the document before it, {0}, as the documents before it do; a copy from before restores it"
    )]
    Unlinked(String),
    #[error(
        "it refers to {} with {}, and that is {} now; a copy from before restores it",
        .named.number, .named.digest, .found.as_ref().map_or("not there", |found| &found.digest)
    )]
    Reference { named: DocumentId, found: Option<DocumentId> },
    /// A statement names a credit that another one names, or not as it was given.
    #[error("it has credit {0}, which statement {1} has already")]
    GrantedTwice(String, String),
    /// The numbers of a credit in a statement are others than in the credit.
    #[error("its credit {0} is not what that document says")]
    Granted(String),
    /// Its time is that of another statement too, or it gives back what was not charged.
    #[error(transparent)]
    Statement(#[from] StatementError),
}

fn missing_numbers(first: u32, last: u32) -> String {
    if first == last {
        format!("document {first:04} is missing")
    } else {
        format!("documents {first:04} to {last:04} are missing")
    }
}

/// The place of a number in a chain, from 1.
fn place_of(number: &str) -> Option<u32> {
    number.parse().ok().filter(|place| *place > 0 && number_of(*place) == number)
}

/// The order of documents in a chain; those without a place come last.
pub fn chain_order(stored: &StoredDocument) -> (u32, &str) {
    let number = stored.document.number();
    (place_of(number).unwrap_or(u32::MAX), number)
}

fn number_of(place: u32) -> String {
    format!("{place:04}")
}

pub fn next_number<'a>(documents: impl IntoIterator<Item = &'a StoredDocument>) -> String {
    let places = documents.into_iter().filter_map(|known| place_of(known.document.number()));
    number_of(places.max().unwrap_or(0).saturating_add(1))
}

/// What is wrong with the chain of these documents, in the order of their numbers: the place of each document at fault, and why.
/// A whole chain has each number from 0001 on; of a part, what the documents refer to may be outside it.
pub fn chain_problems(documents: &[&StoredDocument], is_whole: bool) -> Vec<(usize, ChainError)> {
    let mut problems = link_problems(documents, is_whole);
    let chain = KnownDocuments { documents, is_whole };
    let mut granted = BTreeMap::new();
    for (place, stored) in documents.iter().enumerate() {
        let found = match &stored.document {
            Document::Credit(credit) => chain.credit_problem(place, credit),
            Document::Statement(statement) => chain.granted_problem(place, statement, &mut granted),
        };
        problems.extend(found.err().map(|problem| (place, problem)));
        if let Document::Statement(statement) = &stored.document {
            let earlier = documents.iter().take(place).copied();
            problems
                .extend(check_overlap(&statement.bill, earlier).err().map(|overlap| (place, overlap.into())));
        }
    }
    problems
}

fn link_problems(documents: &[&StoredDocument], is_whole: bool) -> Vec<(usize, ChainError)> {
    let mut problems = Vec::new();
    let mut last: Option<(u32, &StoredDocument)> = None;
    let mut are_linked = false;
    for (place, stored) in documents.iter().enumerate() {
        let (number, before) = (stored.document.number(), stored.document.before());
        let Some(own) = place_of(number) else {
            problems.push((place, ChainError::Number(number.to_owned())));
            continue;
        };
        let expected = last.map_or(1, |(last, _)| last.saturating_add(1));
        let previous =
            last.filter(|(previous, _)| previous.saturating_add(1) == own).map(|(_, stored)| stored);
        if let Some((_, copied)) = last.filter(|(last, _)| *last == own) {
            let digest = copied.digest.clone();
            problems.push((place, ChainError::Copy { number: number.to_owned(), digest }));
            continue;
        }
        if is_whole && own > expected {
            problems.push((place, ChainError::Gap { first: expected, last: own - 1 }));
        }
        match before {
            Some(named) if previous.is_some_and(|found| found.id() != *named) || own == 1 => {
                let found = previous.map(StoredDocument::id);
                problems.push((place, ChainError::Before { named: named.clone(), found }));
            }
            None if are_linked => problems.push((place, ChainError::Unlinked(number_of(own - 1)))),
            _ => {}
        }
        are_linked |= before.is_some();
        last = Some((own, stored));
    }
    problems
}

struct KnownDocuments<'a> {
    documents: &'a [&'a StoredDocument],
    is_whole: bool,
}

impl<'a> KnownDocuments<'a> {
    /// The document before `place` to which a reference leads; none where that may be outside the part.
    fn find(&self, place: usize, named: &DocumentId) -> Result<Option<&'a StoredDocument>, ChainError> {
        let earlier = self.documents.iter().take(place);
        let found = earlier.copied().find(|known| known.document.number() == named.number);
        match found {
            Some(found) if found.id() == *named => Ok(Some(found)),
            None if !self.is_whole && !self.has_number(&named.number) => Ok(None),
            other => {
                Err(ChainError::Reference { named: named.clone(), found: other.map(StoredDocument::id) })
            }
        }
    }

    fn has_number(&self, number: &str) -> bool {
        self.documents.iter().any(|known| known.document.number() == number)
    }

    fn credit_problem(&self, place: usize, credit: &Credit) -> Result<(), ChainError> {
        let Some(stored) = self.find(place, &credit.statement)? else { return Ok(()) };
        let Document::Statement(statement) = &stored.document else {
            let named = credit.statement.clone();
            return Err(ChainError::Reference { found: Some(stored.id()), named });
        };
        let earlier = self.documents.iter().take(place).copied();
        check_credit(stored, statement, &credit.tenant, credit.amount, earlier)?;
        Ok(())
    }

    /// Checks the credits that a statement names; `granted` has the earlier statement that named each credit.
    fn granted_problem<'b>(
        &self,
        place: usize,
        statement: &'b Statement,
        granted: &mut BTreeMap<&'b str, &'b str>,
    ) -> Result<(), ChainError> {
        for own in &statement.credits {
            let number = &own.credit.number;
            if let Some(first) = granted.insert(number, &statement.number) {
                return Err(ChainError::GrantedTwice(number.clone(), first.to_owned()));
            }
            let Some(stored) = self.find(place, &own.credit)? else { continue };
            if stored.granted().as_ref() != Some(own) {
                return Err(ChainError::Granted(number.clone()));
            }
        }
        Ok(())
    }
}

/// Checks that no statement has some of the period of a node of the bill.
///
/// # Errors
/// One has.
pub fn check_overlap<'a>(
    bill: &Bill,
    documents: impl IntoIterator<Item = &'a StoredDocument>,
) -> Result<(), StatementError> {
    check_nodes(&nodes_of(bill), [bill.from, bill.to], documents)
}

/// Checks that no statement has some of a period of a node.
///
/// # Errors
/// One has.
pub fn check_period<'a>(
    name: &str,
    cluster: Option<&str>,
    period: [Utc; 2],
    documents: impl IntoIterator<Item = &'a StoredDocument>,
) -> Result<(), StatementError> {
    check_nodes(&[BilledNode { name, cluster }].into(), period, documents)
}

fn check_nodes<'a>(
    own: &BTreeSet<BilledNode<'_>>,
    [from, to]: [Utc; 2],
    documents: impl IntoIterator<Item = &'a StoredDocument>,
) -> Result<(), StatementError> {
    for stored in documents {
        let Document::Statement(known) = &stored.document else { continue };
        let is_at_one_time = known.bill.from < to && from < known.bill.to;
        if let Some(node) = is_at_one_time.then(|| shared_node(own, &nodes_of(&known.bill))).flatten() {
            return Err(StatementError::Overlap {
                number: known.number.clone(),
                node,
                from: known.bill.from,
                to: known.bill.to,
            });
        }
    }
    Ok(())
}

fn shared_node(own: &BTreeSet<BilledNode<'_>>, others: &BTreeSet<BilledNode<'_>>) -> Option<String> {
    let is_same = |own: &BilledNode<'_>, other: &BilledNode<'_>| {
        // Time that an expected node did not report has no cluster.
        own.name == other.name
            && (own.cluster == other.cluster || own.cluster.is_none() || other.cluster.is_none())
    };
    let node = own.iter().find(|own| {
        let first = BilledNode { name: own.name, cluster: None };
        others.range(first..).take_while(|other| other.name == own.name).any(|other| is_same(own, other))
    })?;
    Some(node.name.to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BilledNode<'a> {
    name: &'a str,
    cluster: Option<&'a str>,
}

/// The nodes of a bill: its own, or those of the lines of a fleet.
fn nodes_of(bill: &Bill) -> BTreeSet<BilledNode<'_>> {
    if bill.fleet.is_none() {
        return [BilledNode { name: &bill.node, cluster: bill.cluster.as_deref() }].into();
    }
    let nodes = bill.lines.iter().filter_map(|line| line.node.as_deref());
    nodes.map(|node| BilledNode { name: &node.name, cluster: node.cluster.as_deref() }).collect()
}
