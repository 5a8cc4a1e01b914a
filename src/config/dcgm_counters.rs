//! Reads a file of counters in dcgm-exporter's format: DCGM field, Prometheus type and help in each line, as CSV.

use std::path::Path;

use super::problem::{Complaint, FilePosition, ProblemCollector, Problems};
use crate::model::catalogue::DEFAULT_COUNTERS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterLine {
    /// Its number, from 1.
    pub line: u64,
    /// The field, such as `DCGM_FI_DEV_GPU_UTIL`.
    pub name: String,
    /// The Prometheus type, or `label`.
    pub kind: String,
    pub help: String,
}

/// What dcgm-exporter accepts as a type.
const KINDS: [&str; 5] = ["gauge", "counter", "histogram", "summary", "label"];

/// Reads a file.
///
/// # Errors
/// All lines that dcgm-exporter would refuse too.
pub(super) fn read(path: &Path) -> Result<Vec<CounterLine>, Problems> {
    parse(&super::read_text(path)?, &path.display().to_string())
}

/// The counters without a file.
pub(super) fn built_in() -> Vec<CounterLine> {
    parse(DEFAULT_COUNTERS, "default-counters.csv").unwrap_or_default()
}

fn parse(text: &str, file: &str) -> Result<Vec<CounterLine>, Problems> {
    let (mut lines, mut report) = (Vec::<CounterLine>::new(), ProblemCollector::default());
    let read = (1..).zip(text.lines()).filter(|(_, text)| !text.starts_with('#') && !text.trim().is_empty());
    for (line, text) in read {
        // A reader of its own for each line, so that a quote without an end spoils no other.
        let mut reader = csv::ReaderBuilder::new();
        reader.has_headers(false).flexible(true).trim(csv::Trim::All);
        let record = match reader.from_reader(text.as_bytes()).records().next() {
            Some(Ok(record)) => record,
            // Of text that is UTF-8 every line is a record; one without any has no parts.
            Some(Err(_)) | None => csv::StringRecord::new(),
        };
        let complaint = match record.iter().collect::<Vec<_>>()[..] {
            [name, kind, help] if KINDS.contains(&kind) && is_name(name) => {
                // As in dcgm-exporter, the first of several lines counts.
                if lines.iter().all(|known| known.name != name) {
                    let [name, kind, help] = [name, kind, help].map(str::to_owned);
                    lines.push(CounterLine { line, name, kind, help });
                }
                continue;
            }
            [name, _, _] if !is_name(name) => Complaint::about(
                name,
                "is no name of a metric",
                "give a DCGM field such as DCGM_FI_DEV_GPU_UTIL",
            ),
            [_, kind, _] => {
                Complaint::about(kind, "is no type of Prometheus", "give gauge, counter or label")
            }
            _ => Complaint::about(
                record.as_slice(),
                "has not three parts",
                "give field, type and help between two commas; a help text with commas belongs in double quotes",
            ),
        };
        report.add(Some(FilePosition { line, column: 1 }), "", complaint);
    }
    report.finish(file)?;
    Ok(lines)
}

/// Whether it may be the name of a metric and of a label.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_dcgm_exporter_reads_them() {
        let text = "# Format\n\nDCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\n\
                    DCGM_FI_DRIVER_VERSION,label,\"Driver, version\"\n";
        let lines = parse(text, "counters.csv").unwrap();
        assert_eq!(lines[0].name, "DCGM_FI_DEV_DEC_UTIL");
        assert_eq!(
            (lines[0].line, &*lines[0].kind, &*lines[0].help),
            (3, "gauge", "Decoder utilization (in %).")
        );
        assert_eq!((lines[1].line, &*lines[1].help), (4, "Driver, version"));
        let twice = "DCGM_FI_DEV_FB_FREE, gauge, a\nDCGM_FI_DEV_FB_FREE, counter, b\n";
        let lines = parse(twice, "counters.csv").unwrap();
        assert_eq!((lines.len(), &*lines[0].help), (1, "a"));
        assert!(built_in().len() > 20);
    }

    #[test]
    fn every_line_that_cannot_be_read_is_named() {
        let text = "DCGM_FI_DEV_GPU_UTIL, gauge, GPU, busy\nDCGM_FI_DEV_GPU_TEMP, gauge\nDCGM_FI_DEV_FB_USED, number, x\n\
                    x{y=, gauge, x\nDCGM_FI_DEV_FB_FREE, gauge, a\n";
        let problems = parse(text, "counters.csv").unwrap_err().to_string();
        let lines: Vec<&str> = problems.lines().collect();
        assert_eq!(lines.len(), 4, "{problems}");
        assert!(
            lines[0].starts_with("counters.csv:1:1: ") && lines[0].contains("has not three parts"),
            "{problems}"
        );
        assert!(lines[2].contains("\"number\" is no type of Prometheus"), "{problems}");
        assert!(
            lines[3].starts_with("counters.csv:4:1: ") && lines[3].contains("no name of a metric"),
            "{problems}"
        );
    }
}
