//! Why the lines of a bill are what they are, from the rows and headers of its files: shares, parts, gaps and use from the rows,
//! rules and faults from the headers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::quarters::{GpuQuarter, OwnRow};
use crate::accounting::billing::{
    BillDraft, DayHeader, DayReasons, ExplainedLine, FleetReasons, GpuIncident, GpuMinute, GpuRecord,
    HistoryDraft, LineKey, MinuteRow, Tenancy,
};
use crate::model::{GpuId, HolderId, Nanoseconds, Utc};

/// What the header of a file says about its rows.
#[derive(Debug)]
pub(super) struct FileReasons {
    node: String,
    /// Up to where its account is settled.
    pub(super) settled_until: Utc,
    reasons: DayReasons,
    /// Places of the tenancies of each holder, in order of time.
    tenancies: HashMap<HolderId, Vec<usize>>,
}

impl FileReasons {
    pub(super) fn take(header: &mut DayHeader) -> Self {
        let reasons = header.reasons.take().unwrap_or_default();
        let mut tenancies = HashMap::<HolderId, Vec<usize>>::new();
        for (place, tenancy) in reasons.tenancies.iter().enumerate() {
            for holder in &tenancy.holders {
                tenancies.entry(holder.clone()).or_default().push(place);
            }
        }
        Self { node: header.node.clone(), settled_until: header.revision.settled_until, reasons, tenancies }
    }

    /// What decided on the tenant of a holder in a quarter hour, in which no rule begins or ends.
    fn tenancy(&self, holder: &HolderId, from: Utc, to: Utc) -> Option<Tenancy> {
        let mut known =
            self.tenancies.get(holder)?.iter().map(|place| &self.reasons.tenancies[*place].tenancy);
        let known = known.find(|known| known.from < to && from < known.to)?;
        Some(Tenancy { from: from.max(known.from), to: to.min(known.to), ..known.clone() })
    }
}

/// The reasons of the lines of a bill while its files are read, in order of time.
#[derive(Default)]
pub(super) struct ReasonsDraft {
    history: HistoryDraft,
    places: BTreeMap<LineKey, usize>,
    /// By place in the history; without what that has.
    lines: Vec<ExplainedLine>,
    /// The GPUs of the lines, by UUID.
    gpus: BTreeMap<Arc<str>, GpuId>,
    incidents: BTreeMap<Arc<str>, Vec<GpuIncident>>,
    /// The GPUs of the lines that have energy, whichever line has it.
    pub(super) measured: BTreeSet<Arc<str>>,
}

impl ReasonsDraft {
    /// Adds a quarter hour from a file, whose rates have the numbers of the bill.
    pub(super) fn add(&mut self, quarter: GpuQuarter, file: &FileReasons, bill: &mut BillDraft<'_>) {
        let GpuQuarter { gpu, from, to, rows, own } = quarter;
        let mut places = BTreeMap::new();
        for OwnRow { place, run } in own {
            let mut line = run.line;
            let key = bill.key_of(run.from, Some(&run.node), &mut line);
            let of_line = *self.places.entry(key).or_insert_with(|| {
                self.lines.push(ExplainedLine::new(line.clone(), Vec::new()));
                self.history.add_line(line.clone())
            });
            places.extend(place.map(|place| (place, of_line)));
            match file.tenancy(&line.holder, from, to) {
                Some(tenancy) => self.lines[of_line].add_tenancy(tenancy),
                None => self.lines[of_line].add_missing(&file.node, from, to),
            }
            self.gpus.insert(Arc::clone(&line.gpu.uuid), line.gpu);
        }
        let has_energy = |row: &MinuteRow| row.amounts.energy_static.max(row.amounts.energy_dynamic).0 > 0;
        if rows.iter().any(has_energy) {
            self.measured.insert(Arc::clone(&gpu.uuid));
        }
        let slot = Nanoseconds(rows.iter().map(|row| row.amounts.parts.held()).sum());
        let minute = GpuMinute { uuid: &gpu.uuid, minute: from, to, slot, coarse: false, rows: &rows };
        self.history.add(&minute, |place| places.get(&place).copied());
    }

    /// Adds the incidents of a file on the GPUs of the lines up to now.
    pub(super) fn add_incidents(&mut self, file: &FileReasons) {
        for incident in file.reasons.incidents.iter().filter(|one| self.gpus.contains_key(&one.uuid)) {
            let known = self.incidents.entry(Arc::clone(&incident.uuid)).or_default();
            known.push(incident.incident.clone());
        }
    }

    pub(super) fn finish(self, bill: &BillDraft<'_>) -> FleetReasons {
        let Self { history, places, mut lines, gpus, mut incidents, .. } = self;
        let (spans, usage, mut events) = history.finish();
        for (line, spans) in lines.iter_mut().zip(spans) {
            line.spans = spans.spans;
        }
        let mut records = Vec::new();
        for (uuid, gpu) in gpus {
            let spans =
                || lines.iter().filter(|line| line.line.gpu.uuid == uuid).flat_map(|line| &line.spans);
            let ends = (spans().map(|span| span.from).min(), spans().map(|span| span.to).max());
            let (Some(from), Some(to)) = ends else { continue };
            records.push(GpuRecord {
                model: bill.model(&uuid).to_owned(),
                memory: bill.memory(&uuid),
                events: events.remove(&*uuid).unwrap_or_default(),
                remarks: Vec::new(),
                incidents: joined(incidents.remove(&uuid).unwrap_or_default(), from, to),
                xids: Vec::new(),
                gpu,
            });
        }
        records.sort_by(|one, other| one.gpu.cmp(&other.gpu));
        let mut lines: Vec<Option<ExplainedLine>> = lines.into_iter().map(Some).collect();
        let lines = places.into_iter().filter_map(|(key, place)| Some((key, lines[place].take()?)));
        FleetReasons { lines: lines.collect(), usage, gpus: records, ..FleetReasons::default() }
    }
}

/// Incidents between two times. One that went on at midnight is in two files.
fn joined(mut incidents: Vec<GpuIncident>, from: Utc, to: Utc) -> Vec<GpuIncident> {
    incidents.sort();
    incidents.dedup();
    let mut joined = Vec::<GpuIncident>::new();
    for incident in incidents.into_iter().filter_map(|incident| incident.between(from, to)) {
        let is_same = |last: &&mut GpuIncident| {
            (&last.kind, last.code, last.to) == (&incident.kind, incident.code, incident.from)
        };
        match joined.iter_mut().find(is_same) {
            Some(last) => last.to = incident.to,
            None => joined.push(incident),
        }
    }
    joined.sort_by(|one, other| (one.from, &one.kind, one.code).cmp(&(other.from, &other.kind, other.code)));
    joined
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use parquet::file::metadata::KeyValue;
    use serde_json::{Value, json};

    use super::super::control::{DIGEST_KEY, FORMAT, FORMAT_KEY, FileHeader, HEADER_KEY, digest_of};
    use super::super::parquet_column::write_parquet;
    use super::super::{ExportDirectory, ExportSource, make_bills};
    use super::*;
    use crate::accounting::billing::{BillRequest, DayTenancy, RulesVersion, TenantBasis};
    use crate::model::WorkloadClass;

    const DAY: Utc = Utc(1_790_812_800_000_000_000);

    fn header() -> FileHeader {
        let version = Some(RulesVersion { id: 3, begin: DAY, recorded: DAY });
        let tenancy = Tenancy {
            from: DAY,
            to: Utc(DAY.0 + 9),
            version,
            basis: TenantBasis::Workload,
            class: WorkloadClass::Batch,
            class_rule: None,
        };
        let holders = vec![HolderId::new("user:a").with_version(2)];
        let reasons =
            DayReasons { tenancies: vec![DayTenancy { tenancy, holders }], ..DayReasons::default() };
        let day = DayHeader { ledger: "x".into(), day: DAY, reasons: Some(reasons), ..DayHeader::default() };
        FileHeader { day, rows: String::new() }
    }

    /// The error of a bill over a file with that format and header.
    fn problem(format: u32, header: &str) -> String {
        let metadata = vec![
            KeyValue::new(FORMAT_KEY.to_owned(), format.to_string()),
            KeyValue::new(DIGEST_KEY.to_owned(), digest_of(header.as_bytes())),
            KeyValue::new(HEADER_KEY.to_owned(), header.to_owned()),
        ];
        let bytes = write_parquet("message day { optional int64 a; }", "x", [Vec::new()], metadata).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = ExportDirectory(directory.path()).path_of(None, DAY, "x");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let source = ExportSource::of(directory.path());
        let error = make_bills(&source, &BillRequest::default(), |_, _| {}).unwrap_err().to_string();
        let (named, problem) = error.split_once(": ").unwrap();
        assert_eq!(named, path.display().to_string());
        problem.to_owned()
    }

    #[test]
    fn reasons_are_read_as_they_were_written_and_may_be_absent() {
        let written = header();
        let text = serde_json::to_string(&written).unwrap();
        let read: FileHeader = serde_json::from_str(&text).unwrap();
        assert_eq!(read.day, written.day);
        let mut reasons = FileReasons::take(&mut { read.day });
        let holder = HolderId::new("user:a").with_version(2);
        let found = reasons.tenancy(&holder, Utc(DAY.0 + 3), Utc(DAY.0 + 12)).unwrap();
        assert_eq!([found.from, found.to], [3, 9].map(|at| Utc(DAY.0 + at)));
        assert_eq!(reasons.tenancy(&HolderId::new("user:a"), DAY, Utc(DAY.0 + 3)), None, "another version");
        let mut old = serde_json::from_str::<Value>(&text).unwrap();
        old.as_object_mut().unwrap().remove("reasons");
        let mut old: FileHeader = serde_json::from_value(old).unwrap();
        reasons = FileReasons::take(&mut old.day);
        assert_eq!(reasons.tenancy(&holder, DAY, Utc(DAY.0 + 3)), None);
    }

    #[test]
    fn a_header_that_no_agent_writes_is_an_error_that_names_the_file() {
        let json = serde_json::to_value(header()).unwrap();
        let hostile = [
            ("/reasons", json!(7)),
            ("/reasons/tenancies", json!({})),
            ("/reasons/tenancies/0/from", json!("yesterday")),
            ("/reasons/tenancies/0/version/id", json!("x")),
            ("/reasons/tenancies/0/basis", json!("by_lot")),
            ("/reasons/tenancies/0/holders", json!([1])),
            ("/reasons/incidents", json!([{ "uuid": "GPU-0" }])),
            (
                "/reasons/incidents",
                json!([{ "uuid": "GPU-0", "from": "2026-10-01T00:00:00Z", "to": "2026-10-01T00:00:00Z", "kind": "xid", "code": -1 }]),
            ),
        ];
        for (place, value) in hostile {
            let mut header = json.clone();
            *header.pointer_mut(place).unwrap() = value;
            let problem = problem(FORMAT, &header.to_string());
            assert!(problem.starts_with("is damaged: its header cannot be read: "), "{place}: {problem}");
        }
        let text = json.to_string();
        assert!(problem(FORMAT + 1, &text).contains("which only a later gpumeter reads"));
        let huge = format!("{text}{}", " ".repeat(65 << 20));
        assert!(problem(FORMAT, &huge).contains("its footer has"));
    }

    #[test]
    fn a_fault_over_midnight_is_one_and_two_ledgers_tell_it_once() {
        let incident = |from: u64, to: u64, code: Option<u32>| GpuIncident {
            from: Utc(from),
            to: Utc(to),
            kind: if code.is_some() { "xid" } else { "gpu_lost" }.to_owned(),
            code,
        };
        let found = [
            incident(24, 48, None),
            incident(3, 24, None),
            incident(3, 24, None),
            incident(24, 24, Some(79)),
            incident(30, 31, Some(79)),
            incident(60, 61, None),
        ];
        let expected = [incident(5, 40, None), incident(24, 24, Some(79)), incident(30, 31, Some(79))];
        assert_eq!(joined(found.into(), Utc(5), Utc(40)), expected);
    }
}
