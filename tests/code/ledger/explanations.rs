//! Explanations: what the ledger tells of the lines of a bill, and to whom.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumeter::accounting::batches::{ClosedWindow, LedgerBatch, XidSum, XidSums};
use gpumeter::accounting::billing::{
    BillRequest, ExplainedLine, Explanation, GpuEventKind, LineFilter, PriceBook, Tenancy, TenantBasis,
};
use gpumeter::accounting::ledger::{Ledger, Reader};
use gpumeter::accounting::tenants::{ClassRule, TenantRule, TenantRules};
use gpumeter::model::{
    Fact, Facts, Holder, HolderId, HolderKind, HoldingSource, Method, Money, Nanoseconds, Parts,
    QUARTER_HOUR, Use, VisibleAccount, WorkloadClass,
};

use super::world::*;

const EURO: i128 = 1_000_000_000;
const QUARTER: u64 = QUARTER_HOUR.0 / SECOND;
const JOB: &str = "slurm:alpha/7";

fn job(number: &str, user: &str) -> Holder {
    let known = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, number), (Fact::SlurmAccount, "phys")];
    let mut facts = Facts::new(known.into_iter().chain([(Fact::SlurmUser, user)]));
    facts.started = Some(START.0 / SECOND + 7);
    Holder::new(HolderKind::Slurm, facts)
}

/// A window in which two jobs hold half of the GPU each.
fn halves(from: u64) -> ClosedWindow {
    let half = 15 * SECOND / 2;
    let idle = Parts { idle: half, ..Parts::default() };
    let rows = vec![row(JOB, idle, Use::default()), row("slurm:alpha/8", idle, Use::default())];
    closed(0, (after(from), after(from + 15)), rows)
}

fn commit(ledger: &mut Ledger, to: u64, closed: ClosedWindow) {
    ledger.commit(&LedgerBatch { now: after(to), closed: vec![closed], ..LedgerBatch::default() }).unwrap();
}

fn explain(world: &World, parameters: &[(&str, &str)], visible: &VisibleAccount) -> Explanation {
    let filter = LineFilter::of(parameters.iter().copied()).unwrap();
    let request = BillRequest { filter, visible: visible.clone(), ..BillRequest::default() };
    Reader::open(&world.path()).unwrap().explain(&request).unwrap()
}

/// A ledger in which job 7 held a whole GPU for a quarter hour, and half of it for another one.
fn two_quarters() -> (World, Ledger) {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4 * EURO), (QUARTER, 8 * EURO)]));
    register_gpus(&mut ledger, 1);
    let holders = vec![job("7", "ada"), job("8", "mallory")];
    ledger.commit(&LedgerBatch { now: START, holders, ..LedgerBatch::default() }).unwrap();
    settle(&mut ledger, 0, 0..QUARTER, JOB);
    for from in (QUARTER..2 * QUARTER).step_by(15) {
        commit(&mut ledger, from + 16, halves(from));
    }
    (world, ledger)
}

#[test]
fn a_job_is_explained_by_its_shares_its_rates_and_the_rules_that_named_its_tenant() {
    let (world, mut ledger) = two_quarters();
    let rule = TenantRule {
        patterns: BTreeMap::from([("slurm_account".to_owned(), "phys*".to_owned())]),
        tenant: "physics".to_owned(),
        ..TenantRule::default()
    };
    let warm = ClassRule {
        patterns: BTreeMap::from([("slurm_job_id".to_owned(), "7".to_owned())]),
        class: WorkloadClass::Warm,
    };
    let rules = TenantRules { rules: vec![rule], classes: vec![warm], ..TenantRules::default() };
    ledger.replace_tenant_rules(&Arc::new(rules), boottime(2 * QUARTER + 5)).unwrap();
    settle(&mut ledger, 0, 2 * QUARTER..4 * QUARTER, JOB);
    let found = explain(&world, &[("job", "7")], &VisibleAccount::Everything);
    let [first, before, after_rule] = &found.lines[..] else {
        panic!("a line for each rate and tenant: {found:?}")
    };
    assert_eq!(
        [&*first.line.tenant, &*before.line.tenant, &*after_rule.line.tenant],
        ["phys", "phys", "physics"]
    );
    let spans = |line: &ExplainedLine| {
        line.spans
            .iter()
            .map(|span| (span.from, span.to, span.held.held(), span.others.0))
            .collect::<Vec<_>>()
    };
    let quarter = QUARTER_HOUR.0;
    assert_eq!(spans(first), [(START, after(QUARTER), quarter, 0)]);
    let halved = (after(QUARTER), after(2 * QUARTER), quarter / 2, quarter / 2);
    assert_eq!(spans(before), [halved, (after(2 * QUARTER), after(3 * QUARTER), quarter, 0)]);
    let priced = |line: &ExplainedLine| {
        let rate = found.bill.rates.iter().find(|rate| Some(rate.id) == line.line.rates.time).unwrap();
        (rate.price.0 / EURO, line.line.charged.0, line.line.money)
    };
    assert_eq!(priced(first), (4, quarter, Some(Money(EURO))));
    assert_eq!(priced(before), (8, quarter * 3 / 2, Some(Money(3 * EURO))));
    let bases: Vec<_> = before.tenancies.iter().map(|tenancy| (&tenancy.basis, &tenancy.version)).collect();
    assert_eq!(bases, [(&TenantBasis::Label("slurm_account".to_owned()), &None)]);
    let class = |tenancy: &Tenancy| (tenancy.class, tenancy.class_rule);
    assert_eq!(class(&before.tenancies[0]), (WorkloadClass::Batch, None));
    let [tenancy] = &after_rule.tenancies[..] else { panic!("{after_rule:?}") };
    assert!(matches!(&tenancy.basis, TenantBasis::Rule { number: 1, tenant, .. } if tenant == "physics"));
    assert_eq!((tenancy.from, tenancy.to), (after(3 * QUARTER), after(4 * QUARTER)));
    assert_eq!(class(tenancy), (WorkloadClass::Warm, Some(1)));
    assert_eq!(
        tenancy.version.as_ref().map(|version| (version.id, version.begin)),
        Some((1, after(3 * QUARTER)))
    );
    assert_eq!(before.started, Some(after(7)));
    assert_eq!(before.first_seen, Some(START));
    assert!(found.bill.lines.is_empty() && found.bill.gpus.is_empty());
}

#[test]
fn faults_gaps_remarks_and_grants_are_told_without_the_names_of_others() {
    let (world, mut ledger) = two_quarters();
    let start = 2 * QUARTER;
    let unmeasured = Parts { unmeasured: 15 * SECOND, ..Parts::default() };
    let unavailable = Parts { unavailable: 15 * SECOND, ..Parts::default() };
    for (from, parts) in [(0, unmeasured), (15, unmeasured), (30, unavailable), (45, unavailable)] {
        let mut row = row(JOB, parts, Use::default());
        row.method = if from == 0 { Method::Bridged } else { Method::Observed };
        row.granted_by = Some(if from == 0 { HoldingSource::Presence } else { HoldingSource::Slurm });
        let mut window = closed(0, (after(start + from), after(start + from + 15)), vec![row]);
        let remarks = [
            "gpu: conflict slurm:alpha/8",
            "gpu: conflict slurm:alpha/7",
            "3: conflict slurm:alpha/9",
            "gpu: yield slurm:alpha/7 to k8s:uid/main, slurm:alpha/8",
            "gpu: yield user:mallory to slurm:alpha/7",
            "gpu: health degraded (check_airflow): hot",
        ];
        window.settlement.flags = remarks.map(str::to_owned).into();
        commit(&mut ledger, start + from + 16, window);
    }
    let xid = XidSum { count: 3, last: after(start + 40), ..XidSum::default() };
    let early = XidSum { count: 1, last: gpumeter::model::Utc(START.0 - 1), ..XidSum::default() };
    let xids =
        vec![XidSums { gpu: uuid(0), codes: BTreeMap::from([(31, xid), (79, early)]), ..XidSums::default() }];
    let batch = LedgerBatch { now: after(start + 63), xids, ..LedgerBatch::default() };
    ledger.commit(&batch).unwrap();
    let found = explain(&world, &[("job", "7")], &VisibleAccount::Everything);
    let [gpu] = &found.gpus[..] else { panic!("{found:?}") };
    let events: Vec<_> = gpu.events.iter().map(|event| (event.kind, event.time.0 / SECOND)).collect();
    let expected =
        [(GpuEventKind::Unavailable, 30), (GpuEventKind::Unmeasured, 30), (GpuEventKind::Bridged, 60)];
    assert_eq!(events, expected);
    let remarks: Vec<&str> = gpu.remarks.iter().map(|remark| &*remark.text).collect();
    assert_eq!(
        remarks,
        [
            "a claim of others does not fit beside that of slurm:alpha/7, which comes first: it yields and holds nothing",
            "claims of others conflict",
            "health degraded (check_airflow): hot",
            "the claim of slurm:alpha/7 conflicts with another",
            "the claim of slurm:alpha/7 does not fit beside that of a job of Slurm and a pod, which comes first: it yields and \
             holds nothing",
        ]
    );
    assert_eq!(gpu.xids.iter().map(|xid| (xid.xid, xid.count)).collect::<Vec<_>>(), [(31, 3)]);
    let spans = || found.lines.iter().flat_map(|line| &line.spans);
    let mut grants: Vec<_> = spans().map(|span| (span.granted_by.clone(), [span.from, span.to])).collect();
    let last = grants.pop().unwrap();
    let of_last = vec![HoldingSource::Slurm, HoldingSource::Presence];
    assert_eq!(last, (of_last, [after(start), after(start + 60)]), "both granted in that minute");
    assert!(grants.iter().all(|(granted_by, _)| *granted_by == [HoldingSource::Slurm]), "{grants:?}");
    let text = serde_json::to_string(&found).unwrap();
    let read: Explanation = serde_json::from_str(&text).unwrap();
    let grants = |all: &Explanation| -> Vec<_> {
        let lines = all.lines.iter();
        lines.map(|line| (line.line.granted_by.clone(), line.spans.clone())).collect()
    };
    assert_eq!(grants(&read), grants(&found));
    assert!(!text.contains("alpha/8") && !text.contains("mallory"), "{text}");
    assert_eq!(serde_json::from_str::<Explanation>(&text).unwrap().gpus, found.gpus);
    let of_tenant = VisibleAccount::Tenants(vec![found.lines[0].line.tenant.to_string()]);
    let own = explain(&world, &[("job", "7")], &of_tenant);
    assert_eq!((own.lines.len(), own.gpus.len(), own.gpus[0].xids.len()), (found.lines.len(), 1, 0));
    assert!(
        own.gpus[0].remarks.iter().all(|remark| !remark.text.contains("health")),
        "others may hold it, too"
    );
}

#[test]
fn a_reader_is_told_of_his_lines_only() {
    let (world, _ledger) = two_quarters();
    let lines = |parameters: &[(&str, &str)], visible| explain(&world, parameters, &visible).lines.len();
    let mallory = || VisibleAccount::OfUser("mallory".into());
    assert_eq!(lines(&[("gpu", "0")], VisibleAccount::Everything), 3);
    assert_eq!((lines(&[("gpu", "0")], mallory()), lines(&[("job", "7")], mallory())), (1, 0));
    assert_eq!(lines(&[], VisibleAccount::Tenants(vec!["other".to_owned()])), 0);
    let nothing = explain(&world, &[("job", "7")], &mallory());
    assert!(nothing.gpus.is_empty() && nothing.usage.is_empty() && nothing.bill.partial);
}

#[test]
fn the_use_of_a_job_is_that_of_its_steps_too() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 1);
    for from in (0..300).step_by(15) {
        let busy = if from < 120 { 5 } else { 10 };
        let held = Parts { within: busy * SECOND, idle: (15 - busy) * SECOND, ..Parts::default() };
        let used = Use { within: busy * SECOND, ..Use::default() };
        let mut rows = vec![row(JOB, held, Use::default()), row("slurm:alpha/7.0", Parts::default(), used)];
        (rows[0].amounts.memory_byte_seconds, rows[0].amounts.memory_peak) = (0, 0);
        (rows[1].amounts.memory_byte_seconds, rows[1].amounts.memory_peak) = (from * 15, (from + 1) << 10);
        commit(&mut ledger, from + 16, closed(0, (after(from), after(from + 15)), rows));
    }
    let found = explain(&world, &[("job", "7")], &VisibleAccount::Everything);
    let usage = |workload: &str| {
        let one = found.usage.iter().find(|usage| usage.workload == HolderId::new(workload)).unwrap();
        (one.from, one.to, one.memory_peak_bytes, one.busy, one.measured_slot)
    };
    let seconds = Nanoseconds::from_seconds;
    // The last tick has the most memory; minutes 1 to 3 are between two others.
    let expected = (START, after(300), 286 << 10, seconds(20 + 40 + 40), seconds(180));
    assert_eq!((usage(JOB), usage("slurm:alpha/7.0")), (expected, expected));
}
