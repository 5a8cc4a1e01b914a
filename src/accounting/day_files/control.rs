//! What a file says of itself in its metadata: the header of the day, and sums and digests that tell that it was changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::columns::Cell;
use crate::accounting::billing::DayHeader;
use crate::model::hexadecimal;

/// The format of the files that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

/// Keys of the file's metadata.
pub(super) const FORMAT_KEY: &str = "gpumeter.format";
pub(super) const HEADER_KEY: &str = "gpumeter.header";
pub(super) const DIGEST_KEY: &str = "gpumeter.header_sha256";

/// Nanoseconds in the microseconds of a Parquet timestamp.
pub(super) const MICROSECOND: u64 = 1_000;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileHeader {
    #[serde(flatten)]
    pub(super) day: DayHeader,
    /// The sum of each column that is added up, by name.
    pub(super) sums: BTreeMap<String, String>,
    /// SHA-256 over the cells that tell rows apart, where they change.
    pub(super) keys: String,
    /// A sum over the quarter hours that changes with the place of any row.
    pub(super) places: i64,
}

/// Sums of columns, to notice numbers that were changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ColumnSums {
    pub(super) sums: BTreeMap<String, String>,
}

impl ColumnSums {
    pub(super) fn add(&mut self, name: &str, numbers: impl Iterator<Item = i128>) {
        let sum = numbers.fold(0_i128, i128::wrapping_add);
        self.sums.insert(name.to_owned(), sum.to_string());
    }
}

/// A digest of the cells that tell rows apart, where they change, to notice texts that were changed.
pub(super) struct KeyDigest {
    context: ring::digest::Context,
    last: Option<Vec<u8>>,
    changes: i64,
    /// The sum of quarter hour x number of the change over all rows, modulo 2^64.
    pub(super) places: i64,
}

impl Default for KeyDigest {
    fn default() -> Self {
        Self { context: ring::digest::Context::new(&ring::digest::SHA256), last: None, changes: 0, places: 0 }
    }
}

impl KeyDigest {
    pub(super) fn add<'a>(&mut self, cells: impl Iterator<Item = Cell<'a>>) {
        let mut bytes = Vec::new();
        for cell in cells {
            match cell {
                Cell::Text(Some(text)) => {
                    bytes.push(1);
                    bytes.extend((text.len() as u64).to_be_bytes());
                    bytes.extend(text.as_bytes());
                }
                Cell::Integer(Some(number)) => {
                    bytes.push(2);
                    bytes.extend(number.to_be_bytes());
                }
                Cell::Text(None) | Cell::Integer(None) => bytes.push(0),
            }
        }
        if self.last.as_ref() != Some(&bytes) {
            self.context.update(&bytes);
            self.last = Some(bytes);
            self.changes += 1;
        }
    }

    /// Adds a row of that quarter hour with the last cells.
    pub(super) const fn add_row(&mut self, quarter: i64) {
        self.places = self.places.wrapping_add(quarter.wrapping_mul(self.changes));
    }

    pub(super) fn finish(self) -> String {
        hexadecimal(self.context.finish().as_ref())
    }
}

/// SHA-256 in hexadecimal digits.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    hexadecimal(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// The same of a file on disk, read piece by piece.
pub(super) fn digest_of_file(file: &mut File) -> io::Result<String> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hexadecimal(context.finish().as_ref())),
            length => context.update(&piece[..length]),
        }
    }
}
