//! A small parser of the page, written from the format's description alone.

/// A sample line: name, labels, the text of the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: String,
}

/// The sample lines of a page; comment lines are checked and left out.
pub fn lines(page: &str) -> Vec<Line> {
    assert!(page.is_empty() || page.ends_with('\n'), "a page ends in a newline");
    page.lines().filter(|line| !is_comment(line)).map(line).collect()
}

fn is_comment(line: &str) -> bool {
    assert!(!line.is_empty());
    if !line.starts_with('#') {
        return false;
    }
    assert!(["# HELP ", "# TYPE ", "# UNIT ", "# EOF"].iter().any(|start| line.starts_with(start)), "{line}");
    true
}

fn line(text: &str) -> Line {
    let end = text.find(['{', ' ']).unwrap();
    let (name, mut rest) = text.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (value, after) = quoted(after);
            labels.push((label.to_string(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    Line { name: name.into(), labels, value: rest.strip_prefix(' ').unwrap().into() }
}

/// The unescaped text up to the closing quote, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((position, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[position + 1..]),
            '\\' => value.push(match letters.next().unwrap().1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    panic!("no closing quote in {text}");
}
