//! Reads the query of a request for a bill: `from` and `to`, each at most once, and nothing else, so that a
//! mistyped name is an error and not a bill of another month.

/// What was asked; what the times mean is the ledger's matter.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Start of the bill.
    pub(super) from: Option<String>,
    /// End of the bill.
    pub(super) to: Option<String>,
}

/// Reads the part of the address behind the question mark.
pub(super) fn parse(text: Option<&str>) -> Result<Query, String> {
    let mut query = Query::default();
    for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            "from" => &mut query.from,
            "to" => &mut query.to,
            _ => return Err(format!("{name:?} is not asked for here; give from and to")),
        };
        let value = decode(value)
            .ok_or_else(|| format!("{name}={value} is not percent-encoded UTF-8; encode it anew"))?;
        if slot.replace(value).is_some() {
            return Err(format!("{name} is given twice; give it once"));
        }
    }
    // An empty field of a form means that nothing was chosen.
    query.from = query.from.filter(|value| !value.is_empty());
    query.to = query.to.filter(|value| !value.is_empty());
    Ok(query)
}

/// Undoes the encoding. A `+` stays: it stands before a zone's offset far oftener than for a space.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            bytes.push(high << 4 | low);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_with_its_encoding_undone() {
        let query = parse(Some("from=2026-10-01T00%3A00%3A00+02:00&to=")).unwrap();
        assert_eq!(query, Query { from: Some("2026-10-01T00:00:00+02:00".to_owned()), to: None });
        assert_eq!(parse(None).unwrap(), Query::default());
        assert_eq!(parse(Some("&&")).unwrap(), Query::default());
    }

    #[test]
    fn a_broken_query_is_named() {
        let error = |text| parse(Some(text)).unwrap_err();
        assert_eq!(error("form=1"), r#""form" is not asked for here; give from and to"#);
        assert_eq!(error("from=1&from=2"), "from is given twice; give it once");
        for broken in ["from=%", "from=%4", "from=%zz", "from=%ff", "from=%+1"] {
            assert!(error(broken).contains("encode it anew"), "{broken}");
        }
    }
}
