//! The declaration of a configuration key.
//!
//! A [`Key`] has a path, what it accepts, where its value is stored, its default, and one sentence of help; a
//! [`KeyDescription`] has the same for users. Parsing, the printed default configuration and the documentation follow
//! from it.

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
    /// What it accepts, and where the value is stored.
    pub(crate) field: KeyType<T>,
    /// The value if the key is not given.
    pub(crate) absent: Absent,
    /// When a running agent applies a changed value.
    pub(crate) change: ChangeEffect,
    /// The unit where the value does not carry it, else "".
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
}

/// The value of a key that is not given.
#[derive(Clone, Copy)]
pub(crate) enum Absent {
    /// This text is parsed.
    Default(&'static str),
    /// None; the text is an example.
    Optional(&'static str),
    /// The key must be given; the text is an example.
    Required(&'static str),
}

/// When a running agent applies a changed value.
#[derive(Clone, Copy)]
pub(crate) enum ChangeEffect {
    Reload,
    /// At the next start. The function copies the value from the second configuration to the first and returns whether
    /// they differed.
    Restart(fn(&mut Config, &Config) -> bool),
}

/// What a key accepts, and where the value goes.
pub(crate) enum KeyType<T> {
    Flag(fn(&mut T) -> &mut bool),
    /// A whole number within bounds.
    Count {
        least: u32,
        most: u32,
        place: fn(&mut T) -> &mut u32,
    },
    /// A duration within bounds.
    Duration {
        least: Nanoseconds,
        most: Nanoseconds,
        place: fn(&mut T) -> &mut Nanoseconds,
    },
    /// One of some words, passed on by position.
    Word {
        words: &'static [&'static str],
        set: fn(&mut T, usize),
    },
    /// Any other scalar.
    Text {
        accepts: &'static str,
        set: fn(&mut T, &str) -> Result<(), Complaint>,
    },
    /// A scalar or a list of scalars, passed on one by one.
    Texts {
        accepts: &'static str,
        set: fn(&mut T, &str) -> Result<(), Complaint>,
    },
    /// A mapping of names to scalars or lists of scalars, passed on one by one.
    Pairs {
        accepts: &'static str,
        set: fn(&mut T, &str, &str) -> Result<(), Complaint>,
    },
    /// A mapping of names to mappings of names to scalars, passed on one by one.
    NestedPairs {
        accepts: &'static str,
        set: fn(&mut T, &str, &str, &str) -> Result<(), Complaint>,
    },
    /// A list of mappings with keys of their own.
    Maps {
        set: fn(&mut T, &[YamlNode], &str, &mut ProblemCollector),
        rows: fn(&str) -> Vec<KeyDescription>,
    },
}

impl<T> KeyType<T> {
    /// Parses and stores a scalar.
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
            // `read_mapping` has refused a scalar for these.
            Self::Maps { .. } | Self::Pairs { .. } | Self::NestedPairs { .. } => Ok(()),
        }
    }

    /// The accepted values, in words.
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
            Self::Pairs { accepts, .. } | Self::NestedPairs { accepts, .. } => {
                format!("a mapping of {accepts}")
            }
            Self::Maps { .. } => "a list".to_owned(),
        }
    }
}

impl<T> Key<T> {
    /// The description for users, with its path below a prefix, followed by those of its entries if it is a list.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// Dotted path; `[]` stands for each entry of a list.
    pub path: String,
    /// The accepted values, in words.
    pub accepts: String,
    /// The value if the key is not given.
    pub default: Option<&'static str>,
    /// A value that is accepted, "" for a list of mappings.
    pub example: &'static str,
    /// Whether each entry must have it.
    pub required: bool,
    /// Whether a changed value needs a restart of the agent; others are applied by a reload.
    pub needs_restart: bool,
    /// Whether it is a list of mappings, whose keys follow.
    pub is_list: bool,
    /// The unit where the value does not carry it, else "".
    pub unit: &'static str,
    pub help: &'static str,
}
