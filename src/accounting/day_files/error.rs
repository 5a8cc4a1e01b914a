//! Errors of exports.

use std::path::{Path, PathBuf};

use crate::accounting::billing::{MoneyOverflow, OtherCurrency, SumOverflow};
use crate::model::Utc;

/// A bill over exports that cannot be made, or a day that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be read or is damaged.
    #[error("{}: {problem}", path.display())]
    File {
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// There is no export below the directory.
    #[error("{}: there is no file cluster=*/date=*/ledger=*/day.parquet below it; name the directory of ledger.export.directory", .0.display())]
    Empty(PathBuf),
    /// The period does not begin and end on quarter hours.
    #[error("{0} is not on a quarter hour; exports have quarter hours")]
    Grid(String),
    #[error("prices are in {first}, and in {second} in {}; choose a shorter period or exports of fewer clusters", path.display())]
    Currencies {
        first: String,
        /// Another one.
        second: String,
        /// The first file with the other one.
        path: PathBuf,
        day: Utc,
    },
    /// Another node writes the file of this ledger.
    #[error("{} is of node {node}, which this node never was: a ledger was copied with its id; remove ledger.db on one of the nodes", path.display())]
    Copied {
        path: PathBuf,
        /// The other node.
        node: String,
    },
    /// Nodes that are expected are not in the exports at all.
    #[error("{0}")]
    Expected(String),
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] crate::accounting::ledger::Error),
    /// The book is in another currency.
    #[error(transparent)]
    Book(#[from] OtherCurrency),
    /// A sum of money is too large.
    #[error(transparent)]
    Money(#[from] MoneyOverflow),
    /// A sum of money, or the time or energy of a GPU, is too large.
    #[error(transparent)]
    Sum(#[from] SumOverflow),
}

#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// The system refuses it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is no Parquet file, or a damaged one.
    #[error("is damaged or no Parquet file: {0}; copy it again, or leave it out with --skip-damaged")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// It is a Parquet file without the metadata of an export.
    #[error("is no export of gpumeter; remove it, or leave it out with --skip-damaged")]
    Foreign,
    /// It is of a later gpumeter.
    #[error("has format {0}, which only a later gpumeter reads; use that one")]
    Newer(u32),
    /// It has more than a day of a node has.
    #[error(
        "has {rows} rows and {bytes} bytes when decompressed, above the 20 million rows and 4 GiB that a file may have; copy it again, or leave it out with --skip-damaged"
    )]
    TooLarge {
        rows: i64,
        /// Bytes of all columns, decompressed.
        bytes: i64,
    },
    /// A sum of its rows is too large.
    #[error("is damaged: {0}; copy it again, or leave it out with --skip-damaged")]
    Sum(#[from] SumOverflow),
    /// What it contains contradicts itself.
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

    /// Whether the file itself is at fault, and may be left out on request.
    pub(super) const fn is_damage(&self) -> bool {
        !matches!(self, Self::Newer(_))
    }
}
