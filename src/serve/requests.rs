//! Counts responses by status; the tick loop reads the counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Every status that the server may answer; all are counted from 0, so that a first error is an increase.
const CODES: [u16; 14] = [200, 400, 401, 403, 404, 405, 408, 413, 414, 429, 431, 500, 503, 504];

/// Requests answered since the start, by status.
#[derive(Debug, Default)]
pub struct Requests {
    counts: [AtomicU64; CODES.len()],
}

impl Requests {
    /// Counts a response.
    pub fn count(&self, code: u16) {
        let position = CODES.iter().position(|known| *known == code);
        if let Some(count) = position.and_then(|position| self.counts.get(position)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Statuses, ascending, and how often each was answered.
    pub fn by_code(&self) -> impl Iterator<Item = (u16, u64)> {
        CODES.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_status_and_statuses_are_there_before_their_first_request() {
        let requests = Requests::default();
        requests.count(200);
        requests.count(200);
        requests.count(504);
        let counts: Vec<_> = requests.by_code().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(200, 2), (504, 1)]);
        assert_eq!(requests.by_code().count(), CODES.len());
    }
}
