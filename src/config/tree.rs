//! Parses YAML to a tree in which every key and value has its position.
//!
//! Duplicate keys are kept, and scalars are the characters that were written, so `1.10` stays `1.10` and no price passes
//! through floating point. Size, depth and alias expansion are bounded.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options, Spanned};

use super::problem::{FilePosition, Problems};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct YamlNode {
    /// Absent if the file is empty.
    pub(crate) place: Option<FilePosition>,
    pub(crate) shape: YamlValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum YamlValue {
    /// Nothing, `~` or `null`.
    Empty,
    /// A scalar as it was written, without its quotes.
    Scalar(String),
    List(Vec<YamlNode>),
    /// A mapping in the order of the file, duplicates included.
    Map(Vec<(YamlNode, YamlNode)>),
}

pub(crate) fn read(text: &str, file: &str) -> Result<YamlNode, Problems> {
    match serde_yaml::from_str_with_options::<Option<Spanned<Raw>>>(text, options()) {
        Ok(Some(raw)) => Ok(node(raw, text)),
        Ok(None) => Ok(YamlNode { place: None, shape: YamlValue::Empty }),
        Err(error) => Err(syntax_error(&error, file)),
    }
}

/// Of the policies for duplicate keys only last-wins passes all of them to the visitor, so that a problem can name both
/// lines.
fn options() -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_events: 100_000,
            max_nodes: 50_000,
            max_depth: 16,
            flow_nesting_limit: 16,
            max_aliases: 1_000,
            max_anchors: 1_000,
        },
        alias_limits: serde_yaml::alias_limits! { max_total_replayed_events: 100_000, max_replay_stack_depth: 8 },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    }
}

fn syntax_error(error: &serde_yaml::Error, file: &str) -> Problems {
    let error = error.without_snippet();
    let place = error.location().and_then(place);
    let whole = error.to_string();
    // The parser appends the position, which a problem has in front.
    let line = whole.lines().next().unwrap_or_default();
    let reason = line.split_once(" at line ").map_or(line, |(reason, _)| reason);
    // An exceeded limit inside an alias is wrapped in another error, so it is recognised by the text.
    let limits = ["budget breached", "recursion limit", "alias replay limit"];
    let reason = match error {
        _ if limits.iter().any(|limit| reason.contains(limit)) => {
            "the file is too long, too deep, or expands too far"
        }
        serde_yaml::Error::MultipleDocuments { .. } => "a second document begins; keep one",
        _ => reason,
    };
    Problems::one(file, place, format!("not valid YAML: {reason}"))
}

/// A value whose numbers and booleans are not replaced by their text yet.
enum Raw {
    Empty,
    /// A number or boolean for the parser; its text is taken from the file.
    Source,
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

fn place(at: serde_yaml::Location) -> Option<FilePosition> {
    (at.line() > 0).then(|| FilePosition { line: at.line(), column: at.column() })
}

fn node(raw: Spanned<Raw>, text: &str) -> YamlNode {
    let place = place(raw.referenced);
    let shape = match raw.value {
        Raw::Empty => YamlValue::Empty,
        Raw::Source => YamlValue::Scalar(source(raw.defined, text)),
        Raw::Text(scalar) => YamlValue::Scalar(scalar),
        Raw::List(items) => YamlValue::List(items.into_iter().map(|item| node(item, text)).collect()),
        Raw::Map(entries) => YamlValue::Map(
            entries.into_iter().map(|(key, value)| (node(key, text), node(value, text))).collect(),
        ),
    };
    YamlNode { place, shape }
}

/// The characters at a location; the parser reports byte offsets for a text in memory.
fn source(at: serde_yaml::Location, text: &str) -> String {
    let bytes = at.span().byte_offset().zip(at.span().byte_len()).and_then(|(start, length)| {
        let start = usize::try_from(start).ok()?;
        text.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    });
    bytes.unwrap_or_default().trim().to_owned()
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Empty)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Raw, E> {
        Ok(Raw::Source)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Raw, E> {
        Ok(Raw::Source)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Raw, E> {
        Ok(Raw::Source)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
        Ok(Raw::Source)
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(node: &YamlNode) -> String {
        let line = node.place.map_or(0, |place| place.line);
        match &node.shape {
            YamlValue::Empty => format!("{line}:~"),
            YamlValue::Scalar(text) => format!("{line}:{text}"),
            YamlValue::List(items) => {
                format!("[{}]", items.iter().map(outline).collect::<Vec<_>>().join(" "))
            }
            YamlValue::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| format!("{}={}", outline(key), outline(value)))
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
        }
    }

    fn read_outline(text: &str) -> String {
        match read(text, "f") {
            Ok(tree) => outline(&tree),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn scalars_stay_as_they_were_written() {
        let cases = [
            ("a: 1.10", "{1:a=1:1.10}"),
            ("ü: '1.10' # why", "{1:ü=1:1.10}"),
            ("ü: -2.1\nb: 0x10 # c", "{1:ü=1:-2.1 2:b=2:0x10}"),
            ("a: True\nb: no", "{1:a=1:True 2:b=2:no}"),
            (
                "[1e999, .nan, -.inf, 99999999999999999999, !!int 5]",
                "[1:1e999 1:.nan 1:-.inf 1:99999999999999999999 1:5]",
            ),
            ("a: ~\nb:\nc: null", "{1:a=1:~ 2:b=2:~ 3:c=3:~}"),
            ("a: 1\r\nb: 2\r\n", "{1:a=1:1 2:b=2:2}"),
        ];
        for (text, expected) in cases {
            assert_eq!(read_outline(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_and_values_begin_at_their_first_character() {
        let tree = read("a: 1\nb:\n  - {cc: x}\n", "f").unwrap();
        let YamlValue::Map(entries) = tree.shape else { panic!("no mapping") };
        let [(a, one), (b, list)] = entries.as_slice() else { panic!("not two entries") };
        let YamlValue::List(items) = &list.shape else { panic!("no list") };
        let places = [a, one, b, &items[0]].map(|node| node.place.unwrap().to_string());
        assert_eq!(places, ["1:1", "1:4", "2:1", "3:5"]);
    }

    #[test]
    fn an_empty_file_is_an_empty_tree() {
        for text in ["", "# only\n# comments\n", "---\n"] {
            assert_eq!(read_outline(text), "0:~", "{text:?}");
        }
    }

    #[test]
    fn duplicate_keys_are_kept_and_merged_ones_overridden() {
        assert_eq!(read_outline("a: 1\nb: {c: 1, c: 2}\na: 2"), "{1:a=1:1 2:b={2:c=2:1 2:c=2:2} 3:a=3:2}");
        assert_eq!(
            read_outline("m: &m {x: 1, y: 2}\nn:\n  <<: *m\n  x: 3"),
            "{1:m={1:x=1:1 1:y=1:2} 2:n={4:x=4:3 3:y=3:2}}"
        );
        assert_eq!(read_outline("a: &b 1.50\nc: *b"), "{1:a=1:1.50 2:c=2:1.50}");
    }

    #[test]
    fn a_syntax_error_has_line_and_column() {
        let cases = [
            ("a:\n\tb: 1", "f:2:2: not valid YAML: tabs disallowed within this context (block indentation)"),
            ("a: b: c", "f:1:5: not valid YAML: mapping values are not allowed in this context"),
            ("a: *nope", "f:1:4: not valid YAML: alias references unknown anchor"),
            ("a: 1\n---\nb: 2", "f:3:1: not valid YAML: a second document begins; keep one"),
        ];
        for (text, expected) in cases {
            assert_eq!(read_outline(text), expected, "{text}");
        }
    }

    #[test]
    fn a_file_that_would_use_too_much_memory_is_refused() {
        let nines = |name: &str| [name; 9].join(",");
        let mut bomb = format!("a: &a [{}]\n", nines("x"));
        for (outer, inner) in [("b", "*a"), ("c", "*b"), ("d", "*c"), ("e", "*d"), ("f", "*e")] {
            bomb.push_str(&format!("{outer}: &{outer} [{}]\n", nines(inner)));
        }
        for text in [bomb, "- ".repeat(1000), "[".repeat(100_000), "- x\n".repeat(60_000)] {
            assert!(read_outline(&text).ends_with("the file is too long, too deep, or expands too far"));
        }
    }
}
