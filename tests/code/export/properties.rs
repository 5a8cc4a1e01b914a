//! What holds for any snapshot, in any order of snapshots.

use std::sync::Arc;

use gpumeter::agent::policy::dcgm_options;
use gpumeter::config::Config;
use gpumeter::model::catalogue::Level;
use gpumeter::model::snapshot::{Roster, Snapshot};
use gpumeter::model::{Absence, Fact, Facts, VisibleAccount};
use gpumeter::output::render::{PageCache, PageFormat, json};
use proptest::prelude::*;

use super::fixture;
use super::parse::{self, Line};
use super::record::{Shown, Visit, visits};

/// Labels of any size with any text.
fn rosters() -> impl Strategy<Value = Arc<Roster>> {
    let texts = prop::collection::vec(any::<String>(), 4);
    (0_usize..4, 0_usize..5, any::<bool>(), texts).prop_map(|(gpus, processes, priced, texts)| {
        let mut roster = fixture::roster(gpus, if gpus == 0 { 0 } else { processes });
        for (process, text) in Arc::make_mut(&mut roster.processes).iter_mut().zip(&texts) {
            process.process = text.as_str().into();
        }
        Arc::make_mut(&mut roster.workloads)[0].facts = Facts::new([(Fact::User, texts[3].as_str())]);
        for account in Arc::make_mut(&mut roster.accounts) {
            account.owner = texts[2].as_str().into();
        }
        if !priced {
            roster.prices = Arc::default();
        }
        Arc::new(roster)
    })
}

/// Values for those labels, some of them absent: bit n of `absent` for the nth kind of absence.
fn snapshot(roster: &Arc<Roster>, scale: i64, absent: u8) -> Snapshot {
    let mut snapshot = fixture::values(Arc::clone(roster), scale);
    let has = |bit: u8| absent & (1 << bit) != 0;
    if let Some(gpu) = snapshot.gpus.first_mut() {
        gpu.fresh[usize::from(absent % 3)] = !has(0);
        if has(1) {
            gpu.frame = None;
        }
        if has(2) {
            gpu.busy = Err(Absence::NotYet);
            gpu.integrals[1] = Err(Absence::Failed);
        }
    }
    if let Some(process) = snapshot.processes.first_mut()
        && has(3)
    {
        process.values[0] = Err(Absence::NotSupported);
    }
    for account in Arc::make_mut(&mut snapshot.accounts).iter_mut().filter(|_| has(4)) {
        account.values[usize::from(absent % 12)] = None;
    }
    if has(5) {
        snapshot.ledger_started = None;
    }
    snapshot
}

/// The expected decimal text.
fn plain(number: i128, decimals: u8) -> String {
    if decimals == 0 {
        return number.to_string();
    }
    let width = usize::from(decimals) + 1;
    let digits = format!("{:0width$}", number.unsigned_abs());
    let (whole, fraction) = digits.split_at(digits.len() - usize::from(decimals));
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{whole}.{fraction}").trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The sample lines of a visit, without start times.
fn expected(visit: &Visit, format: PageFormat) -> Vec<Line> {
    let line = |suffix: &str, labels: &[(String, String)], value: String| Line {
        name: format!("{}{suffix}", visit.family.name),
        labels: labels.to_vec(),
        value,
    };
    match &visit.value {
        Shown::Number(number) => {
            vec![line("", &visit.labels, plain(*number, visit.family.unit.decimals()))]
        }
        Shown::Histogram(histogram) => {
            let mut lines = Vec::new();
            // The bounds of the fixture as both formats write them.
            let whole = if format == PageFormat::Text { ["1", "10"] } else { ["1.0", "10.0"] };
            let bounds = ["1e-05", "0.001", "0.0025", whole[0], whole[1], "+Inf"];
            let counts = histogram.cumulative.iter().chain([&histogram.count]);
            for (bound, count) in bounds.iter().zip(counts) {
                let mut labels = visit.labels.clone();
                labels.push(("le".into(), (*bound).into()));
                lines.push(line("_bucket", &labels, count.to_string()));
            }
            let sum = format!("{}", histogram.sum);
            lines.push(line("_sum", &visit.labels, sum));
            lines.push(line("_count", &visit.labels, histogram.count.to_string()));
            lines
        }
    }
}

fn text(cache: &PageCache, snapshot: &Snapshot, format: PageFormat) -> String {
    String::from_utf8(cache.render(snapshot, format).to_vec()).unwrap()
}

/// The formats of the page with our names.
fn variants() -> impl Strategy<Value = PageFormat> {
    prop::sample::select(vec![PageFormat::Text, PageFormat::OpenMetrics])
}

fn every_format() -> impl Strategy<Value = PageFormat> {
    prop::sample::select(PageFormat::ALL.to_vec())
}

fn levels() -> impl Strategy<Value = Level> {
    prop::sample::select(Level::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_page_has_exactly_the_visited_series(
        roster in rosters(), absent in any::<u8>(), scale in -3_i64..1_000_000, level in levels(), format in variants(),
    ) {
        let snapshot = snapshot(&roster, scale, absent);
        let page = text(&PageCache::new(level, false, Arc::default()), &snapshot, format);
        let wanted: Vec<Line> =
            visits(&snapshot, level).iter().flat_map(|visit| expected(visit, format)).collect();
        let mut lines = parse::lines(&page);
        for line in lines.iter_mut().filter(|line| line.name.ends_with("duration_seconds_sum")) {
            // A double has several valid spellings.
            line.value = line.value.parse::<f64>().unwrap().to_string();
        }
        prop_assert_eq!(lines, wanted);
        prop_assert_eq!(page.ends_with("# EOF\n"), format == PageFormat::OpenMetrics);
    }

    #[test]
    fn a_warm_page_is_a_cold_page_byte_for_byte_whatever_came_before(
        rosters in prop::collection::vec(rosters(), 1..3),
        ticks in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 1_i64..1_000_000), 1..8),
        created in any::<bool>(), level in levels(), format in every_format(),
    ) {
        let dcgm = dcgm_options(&Config::default());
        let cache = PageCache::new(level, created, Arc::clone(&dcgm));
        for (roster, absent, scale) in ticks {
            let snapshot = snapshot(roster.get(&rosters), scale, absent);
            let cold = text(&PageCache::new(level, created, Arc::clone(&dcgm)), &snapshot, format);
            prop_assert_eq!(text(&cache, &snapshot, format), cold);
        }
    }

    #[test]
    fn start_times_add_lines_and_change_none(roster in rosters(), absent in any::<u8>(), format in variants()) {
        let snapshot = snapshot(&roster, 1, absent);
        let mut lines = parse::lines(&text(&PageCache::new(Level::Full, true, Arc::default()), &snapshot, format));
        lines.retain(|line| !line.name.ends_with("_created"));
        prop_assert_eq!(lines, parse::lines(&text(&PageCache::new(Level::Full, false, Arc::default()), &snapshot, format)));
    }

    #[test]
    fn json_has_exactly_the_visited_series(roster in rosters(), absent in any::<u8>(), level in levels()) {
        let snapshot = snapshot(&roster, 3, absent);
        let body = json(&snapshot, level, &VisibleAccount::Everything);
        let text = String::from_utf8(body).unwrap();
        // Inside a string the quotes would be escaped.
        let mut values = text.split("},\"value\":").skip(1);
        let body: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut series = body["families"].as_array().unwrap().iter().flat_map(|family| {
            family["series"].as_array().unwrap().iter().map(move |series| (&family["name"], series))
        });
        for visit in visits(&snapshot, level) {
            let (name, series) = series.next().unwrap();
            prop_assert_eq!(name, visit.family.name);
            let labels: serde_json::Map<_, _> =
                visit.labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            prop_assert_eq!(series["labels"].as_object().unwrap(), &labels);
            let value = values.next().unwrap();
            match visit.value {
                Shown::Number(number) => {
                    let exact = plain(number, visit.family.unit.decimals());
                    prop_assert!(value.starts_with(&format!("{exact}}}")), "{} is not {}", value, exact);
                    prop_assert!(series["value"].is_number());
                }
                Shown::Histogram(histogram) => prop_assert_eq!(&series["value"]["count"], histogram.count),
            }
        }
        prop_assert!(series.next().is_none());
        prop_assert_eq!(&body["simulated"], true);
        prop_assert_eq!(&body["at"], "2026-09-21T14:13:20.25Z");
    }
}

#[test]
fn the_visited_series_depend_only_on_the_labels() {
    use gpumeter::output::render::{Sample, Sink, walk};
    struct Names(Vec<String>);
    impl Sink for Names {
        fn family(&mut self, family: &'static gpumeter::model::catalogue::Family) {
            self.0.push(family.name.into());
        }
        fn sample(&mut self, sample: Sample<'_>) {
            self.0.push(format!("{:?}", sample.labels));
        }
    }
    let names = |snapshot: &Snapshot| {
        let mut names = Names(Vec::new());
        walk(snapshot, Level::Full, &mut names);
        names.0
    };
    let full = fixture::node(3, 5);
    let empty = Snapshot {
        gpus: Vec::new(),
        processes: Vec::new(),
        accounts: Arc::default(),
        holdings: Vec::new(),
        agent: Vec::new(),
        roster: Arc::clone(&full.roster),
        ..fixture::node(3, 5)
    };
    assert_eq!(names(&full), names(&empty));
}
