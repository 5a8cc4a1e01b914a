//! The costs of a fleet from its cache are the sums of the bill over its exports, and a hostile or half-copied directory changes
//! no more than its own part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gpumeter::accounting::billing::costs::{CostReport, CostRequest};
use gpumeter::accounting::billing::{Bill, BillRequest, LineDetail, only_bill};
use gpumeter::accounting::day_files::{CostCache, DayFile, ExportSource, LookScope, make_bills, write_day};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{DAY, Microjoules, Utc, VisibleAccount};
use gpumeter::runtime::clock::Stop;
use jiff::tz::TimeZone;
use rusqlite::types::FromSql;
use serde_json::Value;

use crate::costs::{GROUPS, ZONES, check_case, priced_scenario, request, zone};
use crate::history::{END, Written};

/// Three nodes, of which two claim one GPU, with gaps, failures, late prices, energy and terms.
static FLEET: LazyLock<Written> =
    LazyLock::new(|| Written::new(&priced_scenario(), HistoryExtent { days: 34, nodes: 3, seed: 7 }));

/// An exports directory with its cache beside it.
struct Fleet {
    place: tempfile::TempDir,
    zone: TimeZone,
    cache: CostCache,
}

impl Fleet {
    fn new(zone: TimeZone) -> Self {
        let mut fleet = Self::empty(zone);
        fleet.look();
        fleet
    }

    /// Nothing was looked at yet.
    fn empty(zone: TimeZone) -> Self {
        let place = tempfile::tempdir().unwrap();
        copy(&FLEET.exports(), &place.path().join("exports"));
        let cache = open(place.path(), &zone);
        Self { place, zone, cache }
    }

    fn exports(&self) -> PathBuf {
        self.place.path().join("exports")
    }

    fn look(&mut self) -> usize {
        self.look_at(END)
    }

    fn look_at(&mut self, now: Utc) -> usize {
        self.cache.look(LookScope::All, now, &Stop::default(), |_, _| {}).unwrap().filled
    }

    fn file_of_cache(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.place.path().join("cache/fleet.db")).unwrap()
    }

    fn query<T: FromSql>(&self, sql: &str) -> T {
        self.file_of_cache().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn execute(&self, sql: &str) {
        assert_eq!(self.file_of_cache().execute(sql, []).unwrap(), 1, "{sql}");
    }

    fn costs(&self, parameters: &[(&str, &str)]) -> CostReport {
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.report(&request(&parameters, &self.zone))
    }

    fn report(&self, request: &CostRequest) -> CostReport {
        self.cache.reader().costs(request, &[], || false).unwrap()
    }

    fn notices(&self, kind: &str) -> Vec<String> {
        let found = self.costs(&[]).notices.into_iter().filter(|notice| notice.kind == kind);
        found.map(|notice| notice.text).collect()
    }

    /// The file of a node on a date.
    fn file(&self, date: &str, node: &str) -> PathBuf {
        let files = self.files(date);
        files[node].clone()
    }

    /// By node.
    fn files(&self, date: &str) -> BTreeMap<String, PathBuf> {
        let mut found = BTreeMap::new();
        for cluster in fs::read_dir(self.exports()).unwrap() {
            let Ok(ledgers) = fs::read_dir(cluster.unwrap().path().join(format!("date={date}"))) else {
                continue;
            };
            for ledger in ledgers {
                let path = ledger.unwrap().path().join("day.parquet");
                let file = DayFile::open(&path).unwrap();
                found.insert(file.header().node.clone(), path);
            }
        }
        found
    }
}

fn open(place: &Path, zone: &TimeZone) -> CostCache {
    CostCache::open(&place.join("cache"), &place.join("exports"), zone.clone(), END).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn bill(period: [Utc; 2], zone: &TimeZone) -> Bill {
    let [from, to] = period.map(Some);
    let detail = LineDetail { day: true, ..LineDetail::whole() };
    let request = BillRequest { from, to, zone: zone.clone(), detail, ..BillRequest::default() };
    let exports = FLEET.exports();
    let source = ExportSource::of(&exports);
    make_bills(&source, &request, |_, _| {}).map(|made| only_bill(made).unwrap()).unwrap()
}

fn json(report: &CostReport) -> Value {
    serde_json::to_value(report).unwrap()
}

#[test]
fn costs_are_the_sums_of_the_bill_over_exports_by_every_grouping_filter_period_and_zone() {
    let fleets: BTreeMap<&str, Fleet> =
        ZONES.into_iter().map(|name| (name, Fleet::new(zone(name)))).collect();
    for case in 0..60 {
        let costs = |request: &CostRequest| fleets[request.zone.iana_name().unwrap()].report(request);
        check_case(case, &costs, &bill);
    }
}

#[test]
fn the_groups_that_cost_most_are_rows_and_all_others_one_that_adds_up() {
    let fleet = Fleet::new(TimeZone::UTC);
    let (mut hidden, asked) =
        (0, ["workload", "k8s_pod_name", "slurm_job_id", "user", "workload,node", "gpu,namespace"]);
    for group in asked {
        for filter in
            [("top", "3"), ("tenant", "web"), ("namespace", "web"), ("gpu", "0"), ("workload", "user:bob")]
        {
            let parameters = [("group", group), filter, ("spread", "__unallocated__")];
            let all = fleet.costs(&parameters.map(|one| if one.0 == "top" { ("top", "10000") } else { one }));
            let few: Vec<_> =
                parameters.into_iter().filter(|one| one.0 != "top").chain([("top", "3")]).collect();
            let few = fleet.costs(&few);
            let shown = few.rows.iter().zip(&all.rows);
            for (few, all) in shown.clone() {
                assert_eq!(
                    (&few.values, &few.amounts.sums),
                    (&all.values, &all.amounts.sums),
                    "{group} {filter:?}"
                );
            }
            assert_eq!(few.total.amounts.sums, all.total.amounts.sums, "{group} {filter:?}");
            let others = all.rows.len() - shown.len();
            let name = few.rest.as_ref().map(|rest| rest.name.clone());
            assert_eq!(name, (others > 0).then(|| format!("{others} others")), "{group} {filter:?}");
            hidden += others;
            let days = |report: &CostReport| json(report)["days"].as_array().unwrap().len();
            assert_eq!(days(&few), days(&all));
        }
    }
    assert!(hidden > 50, "{hidden}");
}

#[test]
fn a_conflict_is_told_and_a_month_is_compared_with_the_same_hours_of_the_one_before() {
    let fleet = Fleet::new(zone("Europe/Zurich"));
    let conflicts = fleet.notices("conflict");
    assert!(conflicts[0].contains("is held in the ledgers"), "{conflicts:?}");
    let report = json(&fleet.costs(&[("period", "2026-11-20..2026-12-04")]));
    assert_eq!(report["before"]["period"]["to"], "2026-11-14T01:00:00+01:00");
    let whole = json(&fleet.costs(&[("period", "2026-11-06..2026-11-14")]));
    let hour = json(&fleet.costs(&[("period", "2026-11-14..2026-11-15"), ("group", "day")]));
    let number = |value: &Value| value.as_str().unwrap().parse::<u128>().unwrap();
    let [before, whole, day] =
        [&report["before"], &whole, &hour].map(|value| number(&value["total"]["held_ns"]));
    assert!(whole < before && before < whole + day, "{whole} {before} {day}");
    let by_node = json(&fleet.costs(&[("period", "2026-11-20..2026-12-04"), ("group", "node")]));
    assert_eq!(by_node["before"], Value::Null, "hours are known of tenants alone");
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_last_sums_while_others_go_on() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let by_node = |fleet: &Fleet| {
        let report = fleet.costs(&[("period", "2026-11-27..2026-11-28"), ("group", "node")]);
        let rows = report.rows.into_iter().map(|row| (row.name, row.amounts.sums));
        // Beside those of the period are rows that only the period before has.
        rows.filter(|(_, sums)| sums.held() > 0).collect::<BTreeMap<_, _>>()
    };
    let before = by_node(&fleet);
    let files = fleet.files("2026-11-27").into_iter().filter(|(name, _)| before.contains_key(name));
    let files: Vec<(String, PathBuf)> = files.collect();
    let gpus = |path: &Path| -> BTreeSet<Arc<str>> {
        let file = DayFile::open(path).unwrap();
        file.header().gpus.iter().map(|gpu| Arc::clone(&gpu.gpu.uuid)).collect()
    };
    // A GPU that both have keeps its sums whole, with what the removed one had of them.
    let pairs = files.iter().flat_map(|one| files.iter().map(move |other| (one, other)));
    let mut apart = pairs.filter(|((_, one), (_, other))| gpus(one).is_disjoint(&gpus(other)));
    let ((damaged, path), (removed, gone)) = apart.next().unwrap();
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(gone).unwrap();
    assert_eq!(fleet.look(), 1);
    let after = by_node(&fleet);
    assert_eq!(after.get(damaged), before.get(damaged));
    assert!(!after.contains_key(removed), "{removed}");

    let told = fleet.notices("unreadable_file");
    assert!(told[0].contains("date=2026-11-27") && !told[0].contains("--skip-damaged"), "{told:?}");
    assert_eq!(fleet.look(), 0, "it is read again when it changes");
    fs::write(path, &bytes).unwrap();
    assert_eq!(fleet.look(), 1);
    assert_eq!(fleet.notices("unreadable_file"), Vec::<String>::new());
    assert_eq!(by_node(&fleet).get(damaged), before.get(damaged));
}

fn noon(date: &str) -> Utc {
    let at: jiff::Timestamp = format!("{date}T12:00:00Z").parse().unwrap();
    Utc(at.as_nanosecond().try_into().unwrap())
}

/// A file of a date, in whose rows is as much energy as a row may have, without a price of it.
fn overflowing(date: &str) -> Vec<u8> {
    let mut account = Reader::open(&FLEET.ledger()).unwrap().day(noon(date).floor(DAY)).unwrap();
    for line in account.rows.iter_mut().map(|row| &mut row.line) {
        line.exact = line.exact.minus(std::mem::take(&mut line.exact_energy)).unwrap();
        (line.rates.energy, line.rates.carbon) = (None, None);
        line.amounts.energy_static = Microjoules((1 << 60) - 1);
    }
    write_day(&account).unwrap()
}

#[test]
fn a_day_that_does_not_fit_keeps_what_it_had_and_others_go_on() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let days = |fleet: &Fleet| {
        let report = fleet.costs(&[("period", "2026-11-26..2026-11-28"), ("group", "day")]);
        let rows = report.rows.into_iter().map(|row| (row.name, row.amounts.sums));
        rows.filter(|(_, sums)| sums.held() > 0).collect::<BTreeMap<_, _>>()
    };
    let before = days(&fleet);
    let path = fleet.file("2026-11-26", "past");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, overflowing("2026-11-26")).unwrap();
    fs::remove_file(fleet.files("2026-11-27").pop_first().unwrap().1).unwrap();
    assert_eq!(fleet.look(), 1);
    let after = days(&fleet);
    assert_eq!(after.get("2026-11-26"), before.get("2026-11-26"));
    assert_ne!(after.get("2026-11-27"), before.get("2026-11-27"));
    let told = fleet.notices("unreadable_file");
    assert!(told[0].contains("the day keeps the sums that it had"), "{told:?}");
    // A file that could not be opened is tried again, whatever becomes of its day.
    let states = |fleet: &Fleet| fleet.query::<u32>("SELECT count(*) FROM file WHERE state = ''");
    assert_eq!(states(&fleet), 0);
    fleet.execute("UPDATE file SET state = '' WHERE path = (SELECT max(path) FROM file WHERE date = 20783)");
    assert_eq!((fleet.look(), states(&fleet)), (0, 1));
    fs::write(&path, bytes).unwrap();
    assert_eq!((fleet.look(), states(&fleet)), (1, 0));
    assert_eq!(days(&fleet).get("2026-11-26"), before.get("2026-11-26"));
}

#[test]
fn a_day_that_never_fitted_is_forgotten_with_its_files() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let files = fleet.files("2026-11-26");
    files.values().for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(fleet.look(), 1);
    let kept = json(&fleet.costs(&[("group", "workload,user")]));
    fs::write(&files["past"], overflowing("2026-11-26")).unwrap();
    assert_eq!(fleet.look(), 0);
    assert_eq!(fleet.notices("unreadable_file").len(), 1);
    fs::remove_file(&files["past"]).unwrap();
    fleet.look();
    assert_eq!(fleet.notices("unreadable_file"), Vec::<String>::new());
    assert_eq!(json(&fleet.costs(&[("group", "workload,user")])), kept);
}

#[test]
fn what_only_days_had_that_are_gone_is_forgotten() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let counts = |fleet: &Fleet| {
        ["name", "cost_key"].map(|table| fleet.query::<u32>(&format!("SELECT count(*) FROM {table}")))
    };
    let whole = counts(&fleet);
    let kept = json(&fleet.costs(&[("period", "2026-11-27..2026-11-28"), ("group", "workload,gpu")]));
    for cluster in fs::read_dir(fleet.exports()).unwrap() {
        for day in fs::read_dir(cluster.unwrap().path()).unwrap().map(Result::unwrap) {
            if day.file_name() < *"date=2026-11-26" {
                fs::remove_dir_all(day.path()).unwrap();
            }
        }
    }
    fleet.look();
    let left = counts(&fleet);
    assert!(left[0] < whole[0] && left[1] <= whole[1], "{left:?} of {whole:?}");
    let after = json(&fleet.costs(&[("period", "2026-11-27..2026-11-28"), ("group", "workload,gpu")]));
    assert_eq!(after["rows"], kept["rows"]);
}

#[test]
fn a_day_that_was_not_over_when_it_was_summed_may_grow_and_later_changes_are_listed() {
    let mut fleet = Fleet::empty(TimeZone::UTC);
    let path = fleet.file("2026-11-20", "past");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fleet.look_at(noon("2026-11-20"));
    fs::write(&path, &bytes).unwrap();
    fleet.look();
    assert_eq!(fleet.notices("changed_day"), Vec::<String>::new(), "the server did not run for days");
    for date in ["2026-11-20", "2026-11-21"] {
        fs::remove_file(fleet.file(date, "past")).unwrap();
    }
    fleet.look();
    let told = fleet.notices("changed_day");
    assert!(["2026-11-20 from ", "2026-11-21 from "].iter().all(|day| told[0].contains(day)), "{told:?}");
    fs::write(&path, &bytes).unwrap();
    fleet.look();
    let told = fleet.notices("changed_day");
    assert!(!told[0].contains("2026-11-20"), "it is again what it was: {told:?}");
}

#[test]
fn a_node_whose_exports_begin_within_the_period_is_named() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let period = ("period", "2026-11-20..2026-11-23");
    let late = |fleet: &Fleet| -> Vec<String> {
        let notices = fleet.costs(&[period]).notices.into_iter().map(|notice| notice.text);
        notices.filter(|text| text.starts_with("Exports begin")).collect()
    };
    assert_eq!(late(&fleet), Vec::<String>::new());
    fs::remove_file(fleet.file("2026-11-20", "past")).unwrap();
    fleet.look();
    assert_eq!(late(&fleet), ["Exports begin after the period does: past (from 2026-11-21)."]);
}

#[test]
fn a_clock_that_is_set_back_removes_nothing() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let before = json(&fleet.costs(&[("group", "day")]));
    for scope in [LookScope::Recent, LookScope::All] {
        let looked = fleet.cache.look(scope, noon("2026-11-20"), &Stop::default(), |_, _| {}).unwrap();
        assert_eq!(looked.filled, 0);
        assert_eq!(json(&fleet.costs(&[("group", "day")])), before);
    }
}

#[test]
fn a_past_day_that_changes_is_listed_with_what_it_was_and_is() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    for date in ["2026-11-27", "2026-11-10"] {
        fs::remove_file(fleet.files(date).pop_first().unwrap().1).unwrap();
    }
    assert_eq!(fleet.look(), 2);
    let told = fleet.notices("changed_day");
    assert!(told[0].starts_with("Past days were changed: 2026-11-10 from "), "{told:?}");
    assert!(told[0].contains(" EUR, ") && !told[0].contains("2026-11-27"), "nodes still write it: {told:?}");
}

#[test]
fn links_special_files_and_files_in_the_place_of_another_are_not_followed_and_named() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let total = fleet.costs(&[]).total.amounts.sums;
    let path = fleet.file("2026-11-27", fleet.files("2026-11-27").keys().next().unwrap());
    let moved = fleet.place.path().join("moved.parquet");
    fs::rename(&path, &moved).unwrap();
    symlink(&moved, &path).unwrap();
    fleet.look();
    let told = fleet.notices("unreadable_file");
    assert!(told[0].contains("is no regular file, and links are not followed"), "{told:?}");
    assert_eq!(fleet.costs(&[]).total.amounts.sums, total);
    fs::remove_file(&path).unwrap();
    fs::rename(&moved, &path).unwrap();
    let cluster = fleet.exports().join("cluster=stolen");
    let folder = path.parent().unwrap();
    let place = cluster.join("date=2026-11-27").join(folder.file_name().unwrap());
    fs::create_dir_all(&place).unwrap();
    fs::copy(&path, place.join("day.parquet")).unwrap();
    symlink(folder, cluster.join("date=2026-11-26")).unwrap();
    let looked = fleet.cache.look(LookScope::All, END, &Stop::default(), |_, _| {}).unwrap();
    assert!(looked.refused[0].ends_with("is no directory, and links are not followed"), "{looked:?}");
    let told = fleet.notices("unreadable_file");
    assert!(told[0].contains("in the folder of another"), "{told:?}");
    assert_eq!(fleet.costs(&[]).total.amounts.sums, total);
}

#[test]
fn a_bill_over_a_directory_of_others_follows_no_link_and_reads_nothing_of_the_future() {
    let fleet = Fleet::empty(TimeZone::UTC);
    let exports = fleet.exports();
    let until = |untrusted_at| {
        let source = ExportSource { untrusted_at, skip_damaged: true, ..ExportSource::of(&exports) };
        let request = BillRequest { from: Some(noon("2026-11-24")), ..BillRequest::default() };
        let bill = only_bill(make_bills(&source, &request, |_, _| {}).unwrap()).unwrap();
        (bill.to, bill.fleet.unwrap().files.len())
    };
    let (now, at_noon) = (Some(END), noon("2026-11-26"));
    assert_eq!(until(now), until(None));
    assert_eq!(until(Some(at_noon)).0, at_noon);
    let all = until(now).1;
    let path = fleet.file("2026-11-27", "past");
    let elsewhere = fleet.place.path().join("elsewhere");
    let folder = path.parent().unwrap();
    fs::rename(folder, &elsewhere).unwrap();
    symlink(&elsewhere, folder).unwrap();
    assert_eq!((until(None).1, until(now).1), (all, all - 1));
    fs::remove_file(folder).unwrap();
    fs::create_dir(folder).unwrap();
    symlink(elsewhere.join("day.parquet"), &path).unwrap();
    assert_eq!((until(None).1, until(now).1), (all, all - 1));
    fs::remove_file(&path).unwrap();
    // A file that goes on after its day would make up the end of all bills.
    let mut account = Reader::open(&FLEET.ledger()).unwrap().day(noon("2026-11-27").floor(DAY)).unwrap();
    account.header.revision.settled_until = Utc(END.0 + 1);
    fs::write(&path, write_day(&account).unwrap()).unwrap();
    let (end, read) = until(None);
    assert!(end <= END && read == all - 1, "{end} {read}");
    assert!(DayFile::open(&path).err().unwrap().to_string().contains("go on after its day"));
}

#[test]
fn a_directory_that_is_gone_changes_nothing() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let total = fleet.costs(&[]).total.amounts.sums;
    fs::rename(fleet.exports(), fleet.place.path().join("elsewhere")).unwrap();
    fs::create_dir(fleet.exports()).unwrap();
    for scope in [LookScope::Recent, LookScope::All] {
        let error = fleet.cache.look(scope, END, &Stop::default(), |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("there is no file cluster=*/date=*/ledger=*/day.parquet below it"), "{error}");
    }
    assert_eq!(fleet.costs(&[]).total.amounts.sums, total);
}

#[test]
fn a_cache_that_is_deleted_damaged_or_of_another_zone_is_filled_again_with_the_same() {
    let mut fleet = Fleet::new(TimeZone::UTC);
    let before = json(&fleet.costs(&[("group", "workload")]));
    let place = fleet.place.path().to_owned();
    assert_eq!(fleet.look(), 0);
    assert!(
        CostCache::open(&place.join("cache"), &place.join("exports"), TimeZone::UTC, END)
            .unwrap_err()
            .to_string()
            .contains("CACHE_DIRECTORY")
    );
    for spoil in [
        (|path: &Path| fs::remove_file(path).unwrap()) as fn(&Path),
        |path| {
            fs::write(path, "no database at all, and longer than a header of one would be, by some bytes")
                .unwrap()
        },
        |_| {},
    ] {
        let zone = fleet.zone.clone();
        drop(fleet.cache);
        spoil(&place.join("cache/fleet.db"));
        fleet = Fleet { cache: open(&place, &zone), place: fleet.place, zone };
        fleet.look();
        assert_eq!(json(&fleet.costs(&[("group", "workload")])), before);
    }
    drop(fleet.cache);
    fleet = Fleet {
        cache: open(&place, &zone("Asia/Kathmandu")),
        place: fleet.place,
        zone: zone("Asia/Kathmandu"),
    };
    assert!(fleet.look() > 30, "its days begin elsewhere");
}

#[test]
fn a_reader_of_some_tenants_gets_nothing_of_other_tenants_and_nodes() {
    let fleet = Fleet::new(TimeZone::UTC);
    let whole = bill([Utc(END.0 - 27 * 86_400_000_000_000), END], &TimeZone::UTC);
    let others = whole.lines.iter().filter(|line| line.tenant != "lab" && !line.tenant.starts_with("__"));
    let own_nodes: Vec<&str> = whole
        .lines
        .iter()
        .filter(|line| line.tenant == "lab")
        .filter_map(|line| line.node.as_ref())
        .map(|node| &*node.name)
        .collect();
    let mut hidden: Vec<&str> = others.flat_map(|line| [&*line.tenant, line.holder.name()]).collect();
    let nodes = whole.lines.iter().filter_map(|line| line.node.as_ref()).map(|node| &*node.name);
    hidden.extend(nodes.filter(|node| !own_nodes.contains(node)));
    hidden.sort_unstable();
    hidden.dedup();
    assert!(hidden.len() > 4, "{hidden:?}");
    for group in GROUPS {
        let parameters = vec![("group".to_owned(), group.to_owned())];
        let visible = VisibleAccount::Tenants(vec!["lab".to_owned()]);
        let report = fleet.report(&CostRequest { visible, ..request(&parameters, &fleet.zone) });
        let text = serde_json::to_string(&report).unwrap();
        assert!(report.partial && report.rows.iter().all(|row| !row.remainder), "by {group}");
        assert!(report.notices.iter().all(|notice| notice.kind != "conflict"), "{:?}", report.notices);
        for name in &hidden {
            assert!(!text.contains(&format!("\"{name}\"")), "by {group}: {name}");
        }
    }
}
