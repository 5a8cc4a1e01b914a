//! Writes a recording: a line for every result that changed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use super::{RecordedAnswer, RecordedValue, RecordingHead};

pub struct RecordingWriter<W> {
    to: W,
    /// The last result of every call: code and outputs.
    last: HashMap<CallKey, (Option<u32>, Vec<RecordedValue>)>,
    written: u64,
    /// The first failure; after it nothing is written.
    failed: Option<io::Error>,
}

type CallKey = (Cow<'static, str>, Vec<RecordedValue>);

impl<W: Write> RecordingWriter<W> {
    pub fn begin(mut to: W, head: &RecordingHead) -> io::Result<Self> {
        line(&mut to, head)?;
        Ok(Self { to, last: HashMap::new(), written: 0, failed: None })
    }

    /// Adds a result, which is written if it changed. A failure is returned by [`end`](Self::end), since a sampler
    /// must not stop for a full disk.
    pub fn answer(&mut self, answer: RecordedAnswer) {
        let call = (answer.call.clone(), answer.arguments.clone());
        let result = (answer.code, answer.out.clone());
        if self.failed.is_some() || self.last.get(&call) == Some(&result) {
            return;
        }
        match line(&mut self.to, &answer) {
            Ok(()) => self.written += 1,
            Err(error) => self.failed = Some(error),
        }
        self.last.insert(call, result);
    }

    /// Adds an event, which is written every time.
    pub fn event(&mut self, event: RecordedAnswer) {
        self.last.remove(&(event.call.clone(), event.arguments.clone()));
        self.answer(event);
    }

    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Ends the recording; returns the first error.
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
    use crate::driver::record::FORMAT;

    fn head() -> RecordingHead {
        RecordingHead {
            gpumeter_recording: FORMAT,
            utc_ns: 7,
            interval_ns: 1_000_000_000,
            driver_version: "580.105.08".into(),
            simulated: true,
        }
    }

    fn answer(at: u64, device: u32, watts: u64) -> RecordedAnswer {
        RecordedAnswer {
            at,
            call: "nvmlDeviceGetPowerUsage".into(),
            arguments: vec![RecordedValue::Handle(device)],
            code: Some(0),
            out: vec![RecordedValue::Number(watts)],
        }
    }

    #[test]
    fn what_has_not_changed_is_not_written_again() {
        let mut writer = RecordingWriter::begin(Vec::new(), &head()).unwrap();
        for (at, watts) in [(1, 70), (2, 70), (3, 71), (4, 70)] {
            writer.answer(answer(at, 0, watts));
        }
        // Another device is another call.
        writer.answer(answer(5, 1, 70));
        let text = String::from_utf8(writer.end().unwrap()).unwrap();
        let times: Vec<u64> = text
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str::<RecordedAnswer>(line).unwrap().at)
            .collect();
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
        let mut writer = RecordingWriter::begin(Full(200), &head()).unwrap();
        for at in 0..100 {
            writer.answer(answer(at, 0, at));
        }
        assert_eq!(writer.end().map(|_| ()).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
