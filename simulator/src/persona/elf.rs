//! Removes symbols from a library file, so that `dlsym` does not find them.
//!
//! In: the bytes of a 64-bit little-endian ELF and names. Out: a copy in which the first byte of each name in the
//! dynamic string table is changed.

/// The first byte of a removed name.
const GONE: u8 = b'#';
const DYNAMIC_SYMBOLS: u32 = 11;

/// Copies a library without these symbols; names that it lacks are ignored.
///
/// # Errors
///
/// The bytes are not a 64-bit little-endian ELF with section headers, or a table lies outside of them.
pub fn without(library: &[u8], symbols: &[&str]) -> Result<Vec<u8>, String> {
    if !library.starts_with(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".to_owned());
    }
    let outside = || "a table lies outside of the file; it is cut short".to_owned();
    let sections = sections(library).ok_or_else(outside)?;
    let table = sections.iter().find(|section| section.kind == DYNAMIC_SYMBOLS);
    let table = table.ok_or("no dynamic symbols; give a shared library")?;
    let strings = sections.get(table.link).ok_or_else(outside)?;
    let mut copy = library.to_vec();
    for entry in (0..table.length / 24).map(|number| table.offset.saturating_add(number * 24)) {
        let name =
            word(library, entry, 4).and_then(|name| strings.offset.checked_add(name)).ok_or_else(outside)?;
        let rest = library.get(name..).ok_or_else(outside)?;
        let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        if symbols.iter().any(|symbol| symbol.as_bytes() == text) {
            *copy.get_mut(name).ok_or_else(outside)? = GONE;
        }
    }
    Ok(copy)
}

struct Section {
    kind: u32,
    offset: usize,
    length: usize,
    link: usize,
}

fn sections(library: &[u8]) -> Option<Vec<Section>> {
    let (begin, size, count) = (word(library, 40, 8)?, word(library, 58, 2)?, word(library, 60, 2)?);
    let one = |number: usize| {
        let at = begin.checked_add(number.checked_mul(size)?)?;
        Some(Section {
            kind: u32::try_from(word(library, at.checked_add(4)?, 4)?).ok()?,
            offset: word(library, at.checked_add(24)?, 8)?,
            length: word(library, at.checked_add(32)?, 8)?.min(library.len()),
            link: word(library, at.checked_add(40)?, 4)?,
        })
    };
    (0..count).map(one).collect()
}

/// A little-endian number of `length` bytes.
fn word(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    let number = part.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_libraries_and_truncated_ones_are_refused() {
        assert!(without(b"hello", &[]).is_err());
        let Ok(program) = std::env::current_exe().and_then(std::fs::read) else { unreachable!() };
        for length in [6, 64, 100, 1_000, program.len() / 2] {
            let cut = program.get(..length).unwrap_or_default();
            assert!(without(cut, &["nvmlInit"]).is_err(), "{length}");
        }
    }
}
