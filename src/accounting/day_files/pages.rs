//! A Parquet file that is refused where a page or the footer says that it needs much memory: the Parquet reader takes that much
//! before it reads on.

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

/// The most bytes of a page when it is decompressed. Agents write pages of 1 MiB.
const MOST_OF_PAGE: u64 = 16 << 20;

/// The most bytes of the footer: a header with 100,000 GPUs and tenants has some 20 MB.
const MOST_OF_FOOTER: u32 = 64 << 20;

/// The bytes at the end of a file: the length of the footer, and a mark.
const END: u64 = 8;

/// The bytes of a page's header up to its decompressed size: two fields of Thrift's compact protocol.
const HEADER: u64 = 16;

/// Begins the next field of a header, an integer.
const NEXT_INTEGER: u8 = 0x15;

pub(super) struct CheckedPages<R>(pub(super) R);

impl<R: Length> Length for CheckedPages<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for CheckedPages<R> {
    type T = R::T;

    /// The Parquet reader reads the end of the file and page headers by this, and all else by [`ChunkReader::get_bytes`].
    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let left = self.len().saturating_sub(start);
        let bytes = self.0.get_bytes(start, usize::try_from(left.min(HEADER))?)?;
        let problem = if left == END {
            footer_length(&bytes)
                .filter(|length| *length > MOST_OF_FOOTER)
                .map(|length| format!("its footer has {length} bytes"))
        } else {
            match decompressed_size(&bytes) {
                Some(size) if size <= MOST_OF_PAGE => None,
                Some(size) => Some(format!("a page has {size} bytes when decompressed")),
                None => Some("a page has no header".to_owned()),
            }
        };
        problem.map_or_else(|| self.0.get_read(start), |problem| Err(ParquetError::General(problem)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.0.get_bytes(start, length)
    }
}

fn footer_length(end: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*end.first_chunk()?))
}

/// The decompressed size in a page's header: its second field, after the type of the page.
fn decompressed_size(header: &[u8]) -> Option<u64> {
    let rest = header.strip_prefix(&[NEXT_INTEGER])?;
    let [kind, NEXT_INTEGER, rest @ ..] = rest else { return None };
    let mut number = 0_u64;
    for (place, byte) in rest.iter().take(5).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            // Zigzag: odd numbers are negative.
            return (kind & 0x80 == 0 && number.is_multiple_of(2)).then_some(number / 2);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_page_is_read_from_its_header_and_nothing_else_is() {
        assert_eq!(decompressed_size(&[0x15, 0x00, 0x15, 0x06, 0x15, 0x0a]), Some(3));
        assert_eq!(decompressed_size(&[0x15, 0x04, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f]), Some(0x7fff_ffff));
        for other in [
            &[][..],
            &[0x15],
            &[0x15, 0x00, 0x25, 0x06],
            &[0x15, 0x00, 0x15, 0x07],
            &[0x15, 0x00, 0x15, 0xff],
        ] {
            assert_eq!(decompressed_size(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_page_or_a_footer_that_needs_much_memory_is_refused_before_it_is_read() {
        let refused = |bytes: &[u8], start: u64| {
            let file = CheckedPages(Bytes::copy_from_slice(bytes));
            file.get_read(start).err().map(|error| error.to_string())
        };
        let page = [&[0x15, 0x00, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f][..], &[0; 20]].concat();
        assert!(refused(&page, 0).unwrap().contains("a page has 2147483647 bytes"));
        assert!(refused(&[0; 20], 0).unwrap().contains("a page has no header"));
        assert_eq!(refused(&[&[0x15, 0x00, 0x15, 0x06][..], &[0; 20]].concat(), 0), None);
        assert!(refused(b"....\xff\xff\xff\x7fPAR1", 4).unwrap().contains("its footer has 2147483647 bytes"));
        assert_eq!(refused(b"....\x00\x01\x00\x00PAR1", 4), None);
    }
}
