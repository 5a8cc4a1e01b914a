//! What a file says of itself in its metadata: the header of the day, and digests that show that it was changed.

use std::fs::File;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::columns::{Cell, SUMS, SumNumbers};
use crate::accounting::billing::{DayHeader, ExactMoney};
use crate::model::hexadecimal;

/// The format of the files that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

pub(super) const FORMAT_KEY: &str = "gpumeter.format";
pub(super) const HEADER_KEY: &str = "gpumeter.header";
pub(super) const DIGEST_KEY: &str = "gpumeter.header_sha256";

pub(super) const MICROSECOND: u64 = 1_000;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileHeader {
    #[serde(flatten)]
    pub(super) day: DayHeader,
    /// The digest of the rows.
    pub(super) rows: String,
}

/// SHA-256 over the columns that a bill reads, to notice what was changed: the cells that tell rows apart, where they change, and
/// the numbers of each row.
pub(super) struct RowDigest {
    context: ring::digest::Context,
    /// What is not in it yet: many small pieces take longer than few large ones.
    waiting: Vec<u8>,
    /// The last cells.
    keys: Vec<u8>,
}

impl Default for RowDigest {
    fn default() -> Self {
        Self {
            context: ring::digest::Context::new(&ring::digest::SHA256),
            waiting: Vec::new(),
            keys: Vec::new(),
        }
    }
}

impl RowDigest {
    pub(super) fn add_keys<'a>(&mut self, cells: impl Iterator<Item = &'a Cell<'a>>) {
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
        if self.keys != bytes {
            self.update(&bytes);
            self.keys = bytes;
        }
    }

    /// Adds a row with the last cells.
    pub(super) fn add_row(&mut self, quarter: i64, sums: &SumNumbers, money: [ExactMoney; 2]) {
        let mut bytes = [0; 8 * (2 + SUMS.len()) + 32];
        // No cell begins so.
        bytes[0] = 3;
        bytes[8..16].copy_from_slice(&quarter.to_be_bytes());
        for (place, number) in bytes[16..].chunks_exact_mut(8).zip(sums) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        for (place, money) in bytes[16 + 8 * SUMS.len()..].chunks_exact_mut(16).zip(money) {
            place.copy_from_slice(&money.parts().to_be_bytes());
        }
        self.update(&bytes);
    }

    fn update(&mut self, bytes: &[u8]) {
        const MOST: usize = 1 << 13;
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= MOST {
            self.context.update(&self.waiting);
            self.waiting.clear();
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.context.update(&self.waiting);
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
