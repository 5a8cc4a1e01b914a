//! The costs of a fleet from its cache are the sums of the bill over its exports, and a hostile or half-copied directory changes
//! no more than its own part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gpumeter::accounting::billing::costs::{CostReport, CostRequest};
use gpumeter::accounting::billing::{Bill, BillRequest, LineDetail, only_bill};
use gpumeter::accounting::day_files::{CostCache, DayFile, ExportSource, LookScope, make_bills};
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{Utc, VisibleAccount};
use gpumeter::runtime::clock::Stop;
use jiff::tz::TimeZone;
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
        let place = tempfile::tempdir().unwrap();
        copy(&FLEET.exports(), &place.path().join("exports"));
        let cache = open(place.path(), &zone);
        let mut fleet = Self { place, zone, cache };
        fleet.look();
        fleet
    }

    fn exports(&self) -> PathBuf {
        self.place.path().join("exports")
    }

    fn look(&mut self) -> usize {
        self.cache.look(LookScope::All, END, &Stop::default(), |_, _| {}).unwrap().filled
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
    let (directory, expected) = (exports.as_path(), Vec::new());
    let source = ExportSource { directory, expected, skip_damaged: false, digests: false };
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
