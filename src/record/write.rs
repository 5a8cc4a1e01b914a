//! Writing a recording: answers go in, lines come out for those that changed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use super::{Entry, Head, Value};

/// Writes a recording to a file or whatever takes bytes.
pub struct Writer<W> {
    to: W,
    /// The last answer to every question.
    last: HashMap<Question, Answer>,
    /// How many answers were written.
    written: u64,
    /// The first failure; after it nothing is written any more.
    failed: Option<io::Error>,
}

type Question = (&'static str, Vec<Value>);
type Answer = (Option<u32>, Vec<Value>);

impl<W: Write> Writer<W> {
    /// Begins a recording.
    pub fn begin(mut to: W, head: &Head) -> io::Result<Self> {
        line(&mut to, head)?;
        Ok(Self { to, last: HashMap::new(), written: 0, failed: None })
    }

    /// An answer to a question, `at` nanoseconds after the beginning; written if it is another one than last
    /// time. What could not be written is told at the [end](Self::end): a lane must not stop for a full disk.
    pub fn answer(&mut self, at: u64, question: Question, answer: Answer) {
        if self.failed.is_some() || self.last.get(&question) == Some(&answer) {
            return;
        }
        let (call, arguments) = question.clone();
        let (code, out) = answer.clone();
        let entry = Entry { at, call: Cow::Borrowed(call), arguments, code, out };
        match line(&mut self.to, &entry) {
            Ok(()) => self.written += 1,
            Err(error) => self.failed = Some(error),
        }
        self.last.insert(question, answer);
    }

    /// Something that happens rather than is, such as an event: written every time.
    pub fn event(&mut self, at: u64, question: Question, answer: Answer) {
        self.last.remove(&question);
        self.answer(at, question, answer);
    }

    /// How many answers were written.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Ends the recording; the error is the first that occurred.
    pub fn end(mut self) -> io::Result<W> {
        match self.failed {
            Some(error) => Err(error),
            None => self.to.flush().map(|()| self.to),
        }
    }
}

fn line(to: &mut impl Write, content: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, content)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FORMAT;

    fn head() -> Head {
        Head {
            gpumeter_recording: FORMAT,
            utc_ns: 7,
            interval_ns: 1_000_000_000,
            driver_version: "580.105.08".into(),
            simulated: true,
        }
    }

    #[test]
    fn what_has_not_changed_is_not_written_again() {
        let mut writer = Writer::begin(Vec::new(), &head()).unwrap();
        let question = || ("nvmlDeviceGetPowerUsage", vec![Value::Handle(0)]);
        for (at, watts) in [(1, 70), (2, 70), (3, 71), (4, 70)] {
            writer.answer(at, question(), (Some(0), vec![Value::Number(watts)]));
        }
        // Another device is another question.
        writer.answer(5, ("nvmlDeviceGetPowerUsage", vec![Value::Handle(1)]), (Some(15), Vec::new()));
        let text = String::from_utf8(writer.end().unwrap()).unwrap();
        let times: Vec<u64> =
            text.lines().skip(1).map(|line| serde_json::from_str::<Entry>(line).unwrap().at).collect();
        assert_eq!(times, [1, 3, 4, 5]);
    }

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = Writer::begin(Full(200), &head()).unwrap();
        for at in 0..100 {
            writer.answer(at, ("nvmlDeviceGetIndex", Vec::new()), (Some(0), vec![Value::Number(at)]));
        }
        assert_eq!(writer.end().map(|_| ()).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
