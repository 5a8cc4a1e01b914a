//! The formats of a page, and the choice between them by a client's `Accept` header. A client that accepts neither gets
//! text 0.0.4, so that no scrape is refused.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageFormat {
    Text,
    OpenMetrics,
    /// The page with dcgm-exporter's names, in text 0.0.4 whatever a client accepts.
    Dcgm,
}

impl PageFormat {
    pub const ALL: [Self; 3] = [Self::Text, Self::OpenMetrics, Self::Dcgm];

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text | Self::Dcgm => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format of the page with our names that an `Accept` header prefers; of equals, the first.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let mut best = (0, Self::Text);
        for range in accept.unwrap_or_default().split(',') {
            if let Some((format, quality)) = parse(range)
                && quality > best.0
            {
                best = (quality, format);
            }
        }
        best.1
    }
}

/// The format of one media range of the header, and its quality in thousandths.
fn parse(range: &str) -> Option<(PageFormat, u32)> {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next()?.to_ascii_lowercase();
    let mut version = None;
    let mut quality = 1_000;
    for parameter in parts {
        let Some((key, value)) = parameter.split_once('=') else { continue };
        let value = value.trim().trim_matches('"');
        match key.trim().to_ascii_lowercase().as_str() {
            "version" => version = Some(value),
            "q" => quality = thousandths(value)?,
            _ => {}
        }
    }
    let format = match (name.as_str(), version) {
        ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => PageFormat::OpenMetrics,
        // Text 1.0.0 differs from 0.0.4 only in names that 0.0.4 does not allow, and there are none.
        ("text/plain", None | Some("0.0.4" | "1.0.0")) | ("text/*" | "*/*", _) => PageFormat::Text,
        _ => return None,
    };
    Some((format, quality))
}

/// A quality between 0 and 1 in thousandths; a media range with any other is ignored.
fn thousandths(text: &str) -> Option<u32> {
    let quality: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&quality).then_some((quality * 1_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::PageFormat::{OpenMetrics, Text};
    use super::*;

    #[test]
    fn prometheus_gets_openmetrics() {
        let accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(PageFormat::negotiate(Some(accept)), OpenMetrics);
    }

    #[test]
    fn the_better_quality_wins_and_of_equals_the_first() {
        for (accept, format) in [
            (None, Text),
            (Some(""), Text),
            (Some("*/*"), Text),
            (Some("application/json"), Text),
            (Some("application/openmetrics-text"), OpenMetrics),
            (Some("application/openmetrics-text; version=\"1.0.0\"; charset=utf-8"), OpenMetrics),
            (Some("Application/OpenMetrics-Text;Version=0.0.1"), OpenMetrics),
            (Some("application/openmetrics-text;version=2.0.0"), Text),
            (Some("text/plain;q=0.9, application/openmetrics-text;q=0.8"), Text),
            (Some("text/plain;q=0.3, application/openmetrics-text;q=0.8"), OpenMetrics),
            (Some("text/plain, application/openmetrics-text"), Text),
            (Some("application/openmetrics-text, */*"), OpenMetrics),
            (Some("application/openmetrics-text;q=0"), Text),
            (Some("application/openmetrics-text;q=nonsense"), Text),
            (Some("application/openmetrics-text;q=7"), Text),
            (Some(",;=,q=1,"), Text),
        ] {
            assert_eq!(PageFormat::negotiate(accept), format, "{accept:?}");
        }
    }
}
