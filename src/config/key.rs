//! What a row of a key table is.
//!
//! A [`Key`] says what a key is called, what it accepts, where its value goes, what holds without it, and one
//! sentence of help; a [`KeyDescription`] is the same for people. Parsing, the printed default configuration and the
//! documentation all follow from it. It does not know YAML beyond handing on the entries of a list.

use super::problem::{Complaint, ProblemCollector};
use super::settings::Config;
use super::time::{duration, in_words};
use super::tree::YamlNode;
use super::values::{count, flag, one_of, put, word};
use crate::model::Nanoseconds;

/// The keys of a mapping that fills a `T`, and the mappings within it, each with its path and one sentence.
pub(crate) struct Table<T: 'static> {
    pub(crate) keys: &'static [Key<T>],
    pub(crate) mappings: &'static [(&'static str, &'static str)],
}

/// A key of a mapping that fills a `T`.
pub(crate) struct Key<T> {
    /// Dotted path within the mapping.
    pub(crate) path: &'static str,
    /// What it accepts, and where that goes.
    pub(crate) field: KeyType<T>,
    /// What holds without it.
    pub(crate) absent: Absent,
    /// What a changed value means to an agent that runs.
    pub(crate) change: ChangeEffect,
    /// The unit where the value does not carry it, else "".
    pub(crate) unit: &'static str,
    /// One sentence.
    pub(crate) help: &'static str,
}

/// What holds where a key is not given.
#[derive(Clone, Copy)]
pub(crate) enum Absent {
    /// This text does.
    Default(&'static str),
    /// Nothing does; an example.
    Optional(&'static str),
    /// It must be given; an example.
    Required(&'static str),
}

/// What a changed value means to an agent that runs.
#[derive(Clone, Copy)]
pub(crate) enum ChangeEffect {
    /// A reload takes it.
    Reload,
    /// The next start takes it. Copies the value from the second configuration to the first, and says
    /// whether it was another one.
    Restart(fn(&mut Config, &Config) -> bool),
}

/// What a key accepts, and where the value goes.
pub(crate) enum KeyType<T> {
    /// True or false.
    Flag(fn(&mut T) -> &mut bool),
    /// A whole number within bounds.
    Count { least: u32, most: u32, place: fn(&mut T) -> &mut u32 },
    /// A duration within bounds.
    Duration { least: Nanoseconds, most: Nanoseconds, place: fn(&mut T) -> &mut Nanoseconds },
    /// One of some words, handed on by position.
    Word { words: &'static [&'static str], set: fn(&mut T, usize) },
    /// Any other scalar.
    Text { accepts: &'static str, set: fn(&mut T, &str) -> Result<(), Complaint> },
    /// A scalar or a list of scalars, handed on one by one.
    Texts { accepts: &'static str, set: fn(&mut T, &str) -> Result<(), Complaint> },
    /// A mapping of names to scalars or lists of scalars, handed on one by one.
    Pairs { accepts: &'static str, set: fn(&mut T, &str, &str) -> Result<(), Complaint> },
    /// A list of mappings with keys of their own.
    Maps { set: fn(&mut T, &[YamlNode], &str, &mut ProblemCollector), rows: fn(&str) -> Vec<KeyDescription> },
}

impl<T> KeyType<T> {
    /// Puts one scalar in its place.
    pub(crate) fn set(&self, target: &mut T, text: &str) -> Result<(), Complaint> {
        match self {
            Self::Flag(place) => put(place(target), flag(text)),
            Self::Count { least, most, place } => put(place(target), count(text, *least, *most)),
            Self::Duration { least, most, place } => put(place(target), duration(text, *least, *most)),
            Self::Word { words, set } => {
                set(target, word(text, words)?);
                Ok(())
            }
            Self::Text { set, .. } | Self::Texts { set, .. } => set(target, text),
            // The walk has refused a scalar here.
            Self::Maps { .. } | Self::Pairs { .. } => Ok(()),
        }
    }

    /// What may be written, in words.
    pub(crate) fn accepts(&self) -> String {
        match self {
            Self::Flag(_) => "true or false".to_owned(),
            Self::Count { least, most, .. } => format!("a whole number from {least} to {most}"),
            Self::Duration { least, most, .. } => {
                format!("a duration from {} to {}", in_words(*least), in_words(*most))
            }
            Self::Word { words, .. } => one_of(words),
            Self::Text { accepts, .. } => (*accepts).to_owned(),
            Self::Texts { accepts, .. } => format!("{accepts}, or a list of them"),
            Self::Pairs { accepts, .. } => format!("a mapping of {accepts}"),
            Self::Maps { .. } => "a list".to_owned(),
        }
    }
}

impl<T> Key<T> {
    /// The row for people, its path below a prefix, followed by the rows of its entries if it is a list.
    pub(crate) fn rows(&self, prefix: &str) -> Vec<KeyDescription> {
        let path = format!("{prefix}{}", self.path);
        let (default, example, required) = match self.absent {
            Absent::Default(text) => (Some(text), text, false),
            Absent::Optional(text) => (None, text, false),
            Absent::Required(text) => (None, text, true),
        };
        let nested = match self.field {
            KeyType::Maps { rows, .. } => rows(&format!("{path}[].")),
            _ => Vec::new(),
        };
        let is_list = !nested.is_empty();
        let needs_restart = matches!(self.change, ChangeEffect::Restart(_));
        let (accepts, unit, help) = (self.field.accepts(), self.unit, self.help);
        let row =
            KeyDescription { path, accepts, default, example, required, needs_restart, is_list, unit, help };
        let mut rows = vec![row];
        rows.extend(nested);
        rows
    }
}

/// A key as people read about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// Dotted path; `[]` stands for each entry of a list.
    pub path: String,
    /// What may be written, in words.
    pub accepts: String,
    /// What holds without it, if anything does.
    pub default: Option<&'static str>,
    /// A value that is accepted, "" for a list of mappings.
    pub example: &'static str,
    /// Whether it must be given where its entry is.
    pub required: bool,
    /// Whether a changed value waits for the next start of the agent; all others are taken by a reload.
    pub needs_restart: bool,
    /// Whether it is a list of mappings, whose keys follow.
    pub is_list: bool,
    /// The unit where the value does not carry it, else "".
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
}
