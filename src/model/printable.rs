//! Text from outside as people see it: in a terminal, a line of the log, a cell of CSV or an HTML file.
//!
//! Users, pods, jobs and documents choose names, and a name may hold what a terminal acts upon, what breaks a line, or what
//! shows the words around it in another order. JSON and the labels of series keep names whole.

use std::borrow::Cow;

const LONGEST_NAME: usize = 120;

/// Whether a terminal would act on the character, or show what stands around it in another order or not at all.
const fn is_dangerous(character: char) -> bool {
    character.is_ascii_control()
        || matches!(character, '\u{80}'..='\u{9f}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text as one line that a terminal only shows: dangerous characters, line breaks among them, are escaped as `\n` or
/// `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_dangerous(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

pub fn printable_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|character| is_dangerous(character) && character != '\n') {
        return text.into();
    }
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n").into()
}

/// A name from outside: [`printable`], and cut at 120 characters, the last one then being an ellipsis.
pub fn shown(name: &str) -> Cow<'_, str> {
    let name = printable(name);
    match name.char_indices().nth(LONGEST_NAME) {
        None => name,
        Some(_) => name.chars().take(LONGEST_NAME - 1).chain(['…']).collect::<String>().into(),
    }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_one_line_that_a_terminal_only_shows() {
        assert_eq!(
            shown("a\u{1b}[31mred\u{7}\r\n\u{202e}x\u{9b}"),
            "a\\u{1b}[31mred\\u{7}\\r\\n\\u{202e}x\\u{9b}"
        );
        assert_eq!(shown("dev-\\x2d.slice \"ärger\" 日本語"), "dev-\\x2d.slice \"ärger\" 日本語");
        assert_eq!(printable_lines("one\u{8}\ntwo\t\n"), "one\\u{8}\ntwo\\t\n");
    }

    #[test]
    fn a_name_of_4_kilobytes_is_cut_at_120_characters_with_an_ellipsis() {
        assert_eq!(shown(&"ä".repeat(120)), "ä".repeat(120));
        let cut = shown(&"ä".repeat(4_096)).into_owned();
        assert_eq!(cut, "ä".repeat(119) + "…");
        assert_eq!(shown(&"\u{1b}".repeat(4_096)).chars().count(), 120);
    }
}
