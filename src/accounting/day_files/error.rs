//! Errors of exports.

use std::path::{Path, PathBuf};

use crate::accounting::billing::{MoneyOverflow, OtherCurrency, SumOverflow};
use crate::model::Utc;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: FileProblem },
    #[error("{}: there is no file cluster=*/date=*/ledger=*/day.parquet below it; name the directory of ledger.export.directory", .0.display())]
    Empty(PathBuf),
    #[error("{0} is not on a quarter hour; exports have quarter hours")]
    Grid(String),
    #[error("prices are in {first}, and in {second} in {}; choose a shorter period or exports of fewer clusters", path.display())]
    Currencies { first: String, second: String, path: PathBuf, day: Utc },
    /// Another node writes the file of this ledger.
    #[error("{} is of node {node}, which this node never was: a ledger was copied with its id; remove ledger.db on one of the nodes", path.display())]
    Copied { path: PathBuf, node: String },
    #[error("{0}")]
    Expected(String),
    /// A request to which there is no answer.
    #[error("{0}")]
    Request(String),
    #[error("nobody waits for the bill any more")]
    Cancelled,
    #[error(transparent)]
    Ledger(#[from] crate::accounting::ledger::Error),
    #[error(transparent)]
    Book(#[from] OtherCurrency),
    #[error(transparent)]
    Money(#[from] MoneyOverflow),
    #[error(transparent)]
    Sum(#[from] SumOverflow),
}

#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("is damaged or no Parquet file: {0}; copy it again, or leave it out with --skip-damaged")]
    Parquet(#[from] parquet::errors::ParquetError),
    #[error("is no regular file, and links are not followed")]
    Irregular,
    /// It is a Parquet file without the metadata of an export.
    #[error("is no export of gpumeter; remove it, or leave it out with --skip-damaged")]
    Foreign,
    #[error("has format {0}, which only a later gpumeter reads; use that one")]
    Newer(u32),
    #[error(
        "has {rows} rows and {bytes} bytes when decompressed, above the 20 million rows and 4 GiB that a file may have; copy it again, or leave it out with --skip-damaged"
    )]
    TooLarge {
        rows: i64,
        /// Bytes of all columns, decompressed.
        bytes: i64,
    },
    #[error("is damaged: {0}; copy it again, or leave it out with --skip-damaged")]
    Sum(#[from] SumOverflow),
    #[error("is damaged: {0}; copy it again, or leave it out with --skip-damaged")]
    Damaged(String),
}

impl From<MoneyOverflow> for FileProblem {
    fn from(overflow: MoneyOverflow) -> Self {
        Self::Sum(overflow.into())
    }
}

impl FileProblem {
    pub(super) fn at(self, path: &Path) -> ExportError {
        ExportError::File { path: path.to_owned(), problem: self }
    }

    /// What is wrong, without the advice to a command that reads all files at once.
    pub(super) fn without_option(&self) -> String {
        self.to_string().replace(", or leave it out with --skip-damaged", "")
    }

    /// Whether the file itself is at fault, and may be left out on request.
    pub(super) const fn is_damage(&self) -> bool {
        !matches!(self, Self::Newer(_))
    }
}
