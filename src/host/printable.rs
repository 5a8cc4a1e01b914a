//! Names that others choose, made safe to print.
//!
//! In: text. Out: the same text with every character replaced that would control a terminal, break a line or reverse
//! the text around it. Such names stand in labels, in logs and on terminals.

/// The text with unprintable characters replaced by U+FFFD.
pub(super) fn printable(text: &str) -> String {
    text.replace(is_unprintable, "\u{fffd}")
}

fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}
