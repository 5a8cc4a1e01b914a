//! Advice from the ledger of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use gpumeter::accounting::advice::{Advice, AdviceFinding, AdviceRequest, Dismissal, FindingKind};
use gpumeter::accounting::billing::{BillRequest, ExactMoney, RateKind};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::meter::health::RULES;
use gpumeter::model::{DAY, HOUR, HealthState, Money, Nanoseconds, Remedy, STOPS_WORK, Utc, VisibleAccount};

use super::{explaining, found, scenario};
use crate::history::{END, Written};

/// The scenario, with faults from 09:30 of the last day but one on: links that were down for two hours, transfers that were repeated
/// as long, an error of an application, links that went down when the job had ended, and GPUs that were too hot for two hours and for
/// half of one.
static WRITTEN: LazyLock<Written> = LazyLock::new(|| {
    let written = Written::new(&scenario::scenario(), HistoryExtent { days: 14, nodes: 1, seed: 5 });
    let half_hour = HOUR.0 / 2;
    let at = |half_hours: u64| (END.0 - DAY.0 + half_hours * half_hour) as i64;
    let faults = [
        (10, "nvlink_down", 0, at(19), at(23)),
        (11, "pcie_replays", 0, at(19), at(23)),
        (11, "xid", 31, at(21), at(21)),
        (20, "nvlink_down", 0, at(19), at(23)),
        (21, "nvlink_down", 0, at(19), at(23)),
        (11, "nvlink_down", 0, at(33), at(37)),
        (14, "hw_thermal", 0, at(19), at(23)),
        (14, "sw_thermal", 0, at(20), at(22)),
        (15, "hw_thermal", 0, at(19), at(20)),
    ];
    let connection = rusqlite::Connection::open(written.ledger()).unwrap();
    for (gpu, kind, code, from, to) in faults {
        let sql = "INSERT INTO incident (from_ns, to_ns, gpu, kind, code)
                   SELECT ?1, ?2, id, ?3, ?4 FROM gpu WHERE gpu_index = ?5";
        connection.execute(sql, rusqlite::params![from, to, kind, code, gpu]).unwrap();
    }
    written
});

pub fn ledger() -> &'static Written {
    &WRITTEN
}

fn advice(request: &AdviceRequest) -> Advice {
    Reader::open(&WRITTEN.ledger()).unwrap().advice(request).unwrap()
}

fn all() -> Advice {
    advice(&AdviceRequest::default())
}

fn of(tenant: &str) -> AdviceFinding {
    let all = all().findings.into_iter().filter(|finding| finding.tenant == tenant);
    <[AdviceFinding; 1]>::try_from(all.collect::<Vec<_>>()).map(|[finding]| finding).unwrap()
}

#[test]
fn every_true_case_is_found_and_no_near_or_silent_one() {
    let expected = [
        ("a1-true", "A1"),
        ("a10-true", "A10"),
        ("a11-true", "A11"),
        ("a2-true", "A2"),
        ("a3-true", "A3"),
        ("a3-true-open", "A3"),
        ("a8-true", "A8"),
    ];
    let expected: BTreeSet<(String, String)> =
        expected.into_iter().map(|(tenant, code)| (tenant.to_owned(), code.to_owned())).collect();
    assert_eq!(found(&all()), expected);
}

#[test]
fn findings_say_what_was_counted_and_what_it_cost_under_the_terms_of_the_tenant() {
    let hours = |finding: &AdviceFinding| finding.time.0 / (HOUR.0 / 10);
    let euros = |finding: &AdviceFinding| finding.amount.unwrap().0 / 10_000_000;
    // 14 nights, of which the last ends with the history: 2.5 h beyond the grace of each, at half of 2.00.
    let process = of("a1-true");
    assert_eq!((hours(&process), euros(&process)), (350, 3_500));
    assert_eq!(
        process.what,
        "held 35.0 h of GPU time without a process, on 1 GPU in 14 runs; at most 2.5 h at a time"
    );
    // 14 nights of 8 h. Who pays for what he uses pays nothing for what he does not.
    let unused = of("a2-true");
    assert_eq!((hours(&unused), euros(&unused), unused.runs), (1_120, 0, 14));
    assert_eq!(unused.what, "1 of 2 GPUs were never used, in 14 runs");
    // 13 nights that ended, of which the first began in the history.
    let tail = of("a3-true");
    assert_eq!((hours(&tail), euros(&tail)), (325, 6_500));
    assert_eq!(tail.what, "used nothing in the last 2.5 h (median) of 13 of 13 runs");
    // 14 days of 8.5 h after the last use, less 2 h.
    assert_eq!(hours(&of("a3-true-open")), 910);
    let fault = of("a8-true");
    assert_eq!((hours(&fault), euros(&fault), fault.is_credit), (15, 300, true));
    assert_eq!(fault.what, "idle for 1.5 h beside a fault (nvlink_down), on 1 GPU in 1 run");
    let slowed = of("a10-true");
    assert_eq!((slowed.time, slowed.amount), (Nanoseconds(0), None));
    assert_eq!(slowed.what, "slowed down for heat or power supply for 2.0 h of 8.0 h on 1 GPU, in 1 run");
    let shallow = of("a11-true");
    assert_eq!(
        shallow.what,
        "busy, but with at most 20 % of the multiprocessors, over 112.0 h alone on the GPU; memory is hardly read either: small \
         kernels, or kernels that wait for data or for the CPU"
    );
    assert_eq!((shallow.amount, shallow.runs, shallow.gpu_count), (None, 14, 1));
    assert!(!process.is_credit && process.organisation.unwrap().amount == Some(Money(0)));
    assert_eq!(process.organisation.unwrap().returned, process.time);
}

#[test]
fn the_stretches_of_a_finding_are_idle_time_of_lines_of_the_bill_at_their_rates() {
    check_stretches(&WRITTEN.ledger());
}

/// Checks that each stretch is at most what a line of the bill was idle, or of a smaller instance what it held, at its rate; and that
/// no time is in two findings.
pub fn check_stretches(ledger: &Path) {
    let advice = |request: &AdviceRequest| Reader::open(ledger).unwrap().advice(request).unwrap();
    let listed = advice(&AdviceRequest::default());
    let request = BillRequest { from: Some(listed.from), to: Some(listed.to), ..BillRequest::default() };
    let bill = Reader::open(ledger).unwrap().bill(&request).unwrap();
    let mut claimed = BTreeMap::<(String, String), [u64; 2]>::new();
    let rates = bill.rates.iter().filter(|rate| rate.unit == RateKind::GpuHour);
    let rate = rates.map(|rate| rate.nano().unwrap()).max().unwrap();
    for AdviceFinding { id, kind, time, amount, .. } in
        listed.findings.iter().filter(|one| one.amount.is_some())
    {
        let [explained] = <[AdviceFinding; 1]>::try_from(advice(&explaining(id)).findings).unwrap();
        let sum: Nanoseconds = explained.stretches.iter().map(|stretch| stretch.time).sum();
        let money: i128 = explained.stretches.iter().map(|stretch| stretch.amount.unwrap().0).sum();
        assert_eq!(sum, *time);
        assert!((amount.unwrap().0 - money).abs() <= explained.stretches.len() as i128);
        for stretch in &explained.stretches {
            let own = bill.lines.iter().filter(|line| {
                line.gpu.uuid == stretch.gpu.uuid
                    && (line.holder.name() == stretch.workload
                        || line.holder.outer().is_some_and(|outer| outer.name() == stretch.workload))
            });
            let idle: u64 = own.clone().map(|line| line.amounts.parts.idle).sum();
            let held: u64 = own.map(|line| line.amounts.parts.held()).sum();
            let is_held = *kind == FindingKind::SmallerInstance;
            let limit = if is_held { held } else { idle };
            let most = ExactMoney::of_time(rate, limit).floor();
            assert!(stretch.time.0 <= limit && stretch.amount.unwrap() <= most, "{stretch:?} of {limit}");
            let key = (stretch.workload.clone(), stretch.gpu.uuid.to_string());
            let [of_idle, of_all] = claimed.entry(key).or_default();
            *of_idle += if is_held { 0 } else { stretch.time.0 };
            *of_all += stretch.time.0;
            assert!(*of_idle <= idle && *of_all <= held, "time is in two findings: {stretch:?}");
        }
    }
    assert!(!claimed.is_empty());
}

#[test]
fn a_reader_of_one_tenant_sees_his_findings_and_nothing_of_the_organisation() {
    let visible = VisibleAccount::Tenants(vec!["a1-true".to_owned(), "a8-true".to_owned()]);
    let own = advice(&AdviceRequest { visible, ..AdviceRequest::default() });
    assert!(own.partial && own.findings.iter().all(|finding| finding.organisation.is_none()));
    let tenants: Vec<&str> = own.findings.iter().map(|finding| &*finding.tenant).collect();
    assert_eq!(tenants, ["a1-true", "a8-true"]);
    let text = serde_json::to_string(&own).unwrap();
    for other in ["a2-", "a3-", "near", "silent"] {
        assert!(!text.contains(other), "{other} in {text}");
    }
    assert_eq!(serde_json::from_str::<Advice>(&text).unwrap(), own);
    let nobody = VisibleAccount::OfUser("eve".into());
    assert!(advice(&AdviceRequest { visible: nobody, ..AdviceRequest::default() }).findings.is_empty());
}

#[test]
fn a_dismissed_finding_stays_away_until_there_is_twice_as_much_of_it() {
    let finding = of("a3-true");
    let without = |text: &str| {
        let dismissed = vec![Dismissal::parse(text).unwrap()].into();
        let advice = advice(&AdviceRequest { dismissed, ..AdviceRequest::default() });
        (advice.dismissed, advice.findings.len())
    };
    assert!(finding.dismiss.ends_with(":32h"), "{}", finding.dismiss);
    assert_eq!(without(&finding.dismiss), (1, 6));
    assert_eq!(without(&format!("{}:17h", finding.id)), (1, 6));
    assert_eq!(without(&format!("{}:16h", finding.id)), (0, 7));
    assert_eq!(without("A3-00000000:99h"), (0, 7));
    for wrong in ["", "A3-00000000", "A3-00000000:7", "x y:7h", "A3-0:-7h"] {
        assert_eq!(Dismissal::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn advice_looks_at_four_weeks_and_at_what_is_there_of_them() {
    let all = all();
    assert_eq!((all.from, all.to), (Utc(END.0 - 14 * DAY.0), END));
    assert!(all.source.simulated && all.source.node.as_deref() == Some("advised"));
}

#[test]
fn a_fault_beside_which_time_is_credited_is_a_finding_of_hardware_driver_or_fabric() {
    for name in STOPS_WORK {
        let rule = RULES.iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("{name}"));
        assert!(matches!(rule.state, HealthState::Failed | HealthState::Degraded), "{name}");
        assert_ne!(rule.remedy, Remedy::RestartApp, "{name}");
    }
}
