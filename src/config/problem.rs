//! The problems of a configuration file, each with its position and what to do.

use std::fmt;

use crate::model::shown;

/// What is wrong with a value, and what to do: `"5" is not a duration; give a number with its unit`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Complaint(pub(crate) String);

impl Complaint {
    /// A complaint about a text, which it quotes.
    pub(crate) fn about(text: &str, wrong: &str, remedy: &str) -> Self {
        // A value may be a whole pasted file, so only its beginning is shown.
        Self(format!("\"{}\" {wrong}; {remedy}", shown(text)))
    }
}

/// A position in a file; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    pub line: u64,
    pub column: u64,
}

/// `3:5`, as editors take it.
impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Its position; absent if the problem is the file as a whole.
    pub place: Option<FilePosition>,
    /// Key path such as `attribution.standing[1].gpu`, "" of syntax errors.
    pub path: String,
    pub text: String,
}

/// Everything that is wrong with a file, in its order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// The file as the operator named it.
    pub file: String,
    /// At least one.
    pub list: Vec<ConfigProblem>,
}

impl Problems {
    pub(crate) fn one(file: &str, place: Option<FilePosition>, text: impl Into<String>) -> Self {
        let problem = ConfigProblem { place, path: String::new(), text: text.into() };
        Self { file: file.to_owned(), list: vec![problem] }
    }
}

/// One line per problem: `config.yaml:3:13: sampling.interval: what is wrong; what to do`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:", self.file)?;
            if let Some(place) = problem.place {
                write!(f, "{place}:")?;
            }
            if !problem.path.is_empty() {
                write!(f, " {}:", problem.path)?;
            }
            write!(f, " {}", problem.text)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct ProblemCollector {
    list: Vec<ConfigProblem>,
}

impl ProblemCollector {
    pub(crate) fn add(&mut self, place: Option<FilePosition>, path: impl Into<String>, complaint: Complaint) {
        self.list.push(ConfigProblem { place, path: path.into(), text: complaint.0 });
    }

    /// Fails with all problems in the order of the file, if there are any.
    pub(crate) fn finish(mut self, file: &str) -> Result<(), Problems> {
        self.list.sort_by_key(|problem| problem.place);
        match self.list.is_empty() {
            true => Ok(()),
            false => Err(Problems { file: file.to_owned(), list: self.list }),
        }
    }
}
