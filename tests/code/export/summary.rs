//! The summary for people: what it says of a node, and what a reader with a part of the account sees of it.

use std::sync::Arc;

use gpumeter::model::catalogue::{Level, first_point, point};
use gpumeter::model::snapshot::*;
use gpumeter::model::*;
use gpumeter::output::render::{
    HISTORY_POINTS, MOST_LISTED, PageCache, ProcessList, PublishedSnapshot, ReportedVerdict, Summary,
    SummaryProblem, SummarySource, health, list_processes, report_history, summarize,
};
use gpumeter::output::serve::LatestSnapshot;

use super::fixture::{self, AT, HOSTILE};

const SECOND: u64 = 1_000_000_000;

fn published(snapshot: Snapshot) -> Arc<PublishedSnapshot> {
    let cache = Arc::new(PageCache::new(Level::Full, false, Arc::default()));
    Arc::new(PublishedSnapshot::new(Arc::new(snapshot), cache))
}

fn seen_by(visible: &VisibleAccount, snapshot: Snapshot) -> Summary {
    let latest = LatestSnapshot::default();
    latest.publish(published(snapshot));
    let snapshot = &latest.get().unwrap().snapshot;
    let history = &latest.history();
    summarize(&SummarySource { snapshot, visible, history, release: None, no_account: None })
}

fn seen(snapshot: Snapshot) -> Summary {
    seen_by(&VisibleAccount::Everything, snapshot)
}

/// A node whose first GPU has these readings instead.
fn with_readings(gpus: usize, readings: &[(usize, i64)]) -> Snapshot {
    let mut snapshot = fixture::node(gpus, 2 * gpus);
    let mut frame = (**snapshot.gpus[0].frame.as_ref().unwrap()).clone();
    readings.iter().for_each(|(place, value)| frame.readings[*place] = Ok(*value));
    snapshot.gpus[0].frame = Some(Arc::new(frame));
    snapshot
}

/// A GPU with no reason to throttle but these.
fn throttled(reasons: &[&str], others: &[(usize, i64)]) -> Snapshot {
    let all = [
        "sw_power_cap",
        "hw_other_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake",
    ];
    let active = |reason: &&str| (point("gpu_throttle_active", reason), i64::from(reasons.contains(reason)));
    let readings: Vec<_> = all.iter().map(active).chain(others.iter().copied()).collect();
    with_readings(1, &readings)
}

#[test]
fn a_gpu_has_its_readings_in_base_units_and_absent_ones_are_null() {
    let summary = seen(with_readings(
        2,
        &[
            (first_point("gpu_power_watts"), 512_500),
            (point("gpu_power_limit_watts", "enforced"), 700_000),
            (point("gpu_temperature_celsius", "gpu"), 71_000),
            (first_point("gpu_temperature_limit_celsius") + 1, 89_000),
        ],
    ));
    let readings = &summary.gpus[0].readings;
    assert_eq!((readings.power, readings.power_limit), (Some(512.5), Some(700.0)));
    assert_eq!((readings.temperature, readings.temperature_limit), (Some(71.0), Some(89.0)));
    assert_eq!(readings.activity, Some(0.25));
    assert_eq!(summary.node.currency.as_deref(), Some("EUR"));
    // A third of each GPU at 2.10 per hour.
    assert_eq!((&*summary.node.per_hour.unwrap(), summary.node.held), ("4.2", 0.6667));
    assert_eq!(summary.tenants[0].per_hour.as_deref(), Some("1.4"));
    let mut gone = fixture::node(1, 0);
    gone.gpus[0].fresh = [false; 3];
    let gone = seen(gone);
    assert_eq!((gone.gpus[0].readings.power, gone.gpus[0].readings.activity), (None, None));
    assert_eq!((&*gone.gpus[0].status, &*gone.gpus[0].limit), ("silent", "it does not answer"));
    assert_eq!(gone.node.power, None, "no sum of nothing");
}

#[test]
fn what_limits_a_gpu_is_named_with_its_numbers() {
    let limit = |snapshot| {
        let gpu = seen(snapshot).gpus.remove(0);
        format!("{}: {}", gpu.limit_kind, gpu.limit)
    };
    let power =
        [(first_point("gpu_power_watts"), 698_400), (point("gpu_power_limit_watts", "enforced"), 700_000)];
    assert_eq!(limit(throttled(&["sw_power_cap"], &power)), "throttled: power limit: 698 of 700 W");
    let heat = [(point("gpu_temperature_celsius", "gpu"), 90_000)];
    assert_eq!(
        limit(throttled(&["sw_power_cap", "hw_thermal_slowdown"], &heat)),
        "throttled: heat: the hardware slows it down at 90 °C",
        "heat comes first"
    );
    assert_eq!(
        limit(throttled(&["sync_boost"], &[])),
        "throttled: sync boost: another GPU of its group is slower"
    );
    let busy = |activity, dram, processes: usize| {
        let mut snapshot = throttled(&[], &[(first_point("gpu_dram_active_ratio"), dram)]);
        snapshot.gpus[0].activity = activity;
        if processes == 0 {
            let roster = Roster { processes: Arc::default(), ..fixture::roster(1, 0) };
            (snapshot.roster, snapshot.processes) = (Arc::new(roster), Vec::new());
        }
        limit(snapshot)
    };
    assert_eq!(busy(Ok(970_000_000), 100_000_000, 1), "busy: compute: busy 97 % of the time");
    assert_eq!(busy(Ok(890_000_000), 100_000_000, 1), "waiting: its program: idle 11 % of the time");
    assert_eq!(busy(Ok(970_000_000), 910_000_000, 1), "busy: memory bandwidth: busy 91 % of the time");
    assert_eq!(busy(Ok(430_000_000), 100_000_000, 1), "waiting: its program: idle 57 % of the time");
    assert_eq!(busy(Ok(0), 0, 1), "idle: nothing: its processes do no work");
    assert_eq!(busy(Ok(0), 0, 0), "idle: nothing: nobody uses it");
    assert_eq!(busy(Err(Absence::NotYet), 0, 1), "unknown: its activity is not measured");
}

#[test]
fn a_remedy_comes_with_the_command_that_begins_it() {
    let command = |remedy| {
        let mut snapshot = fixture::node(1, 0);
        let verdict = Verdict { state: HealthState::Failed, remedy, reasons: Vec::new() };
        snapshot.gpus[0].health = Arc::new(verdict);
        seen(snapshot).gpus.remove(0).command
    };
    let reset = command(Remedy::ResetGpu);
    assert_eq!(reset.as_deref(), Some("sudo gpumeter quiesce -- nvidia-smi --gpu-reset -i 0"));
    assert_eq!(command(Remedy::RebootNode).as_deref(), Some("sudo systemctl reboot"));
    assert_eq!(
        (command(Remedy::Replace), command(Remedy::Drain)),
        (None, None),
        "nobody schedules this node"
    );
}

#[test]
fn a_gpu_with_jobs_or_pods_is_drained_before_it_is_reset_and_another_is_not() {
    let command = |kind: HolderKind, position: usize| {
        let mut snapshot = shared_node();
        let shared = shared_node().roster;
        let pods = shared.workloads.iter().map(|one| WorkloadEntry { kind, ..one.clone() }).collect();
        snapshot.roster = Arc::new(Roster {
            workloads: pods,
            gpus: shared.gpus.clone(),
            holdings: shared.holdings[..1].into(),
            processes: Arc::default(),
            ..fixture::roster(2, 0)
        });
        snapshot.holdings.truncate(1);
        snapshot.processes.clear();
        let remedy = Remedy::ResetGpu;
        let verdict = Verdict { state: HealthState::Degraded, remedy, reasons: Vec::new() };
        snapshot.gpus[position].health = Arc::new(verdict);
        seen(snapshot).gpus.swap_remove(position).command.unwrap()
    };
    let reset = |index: u32| format!("sudo gpumeter quiesce -- nvidia-smi --gpu-reset -i {index}");
    let drained = command(HolderKind::Pod, 0);
    assert!(
        drained.starts_with("kubectl drain ") && drained.ends_with(&format!(" && {}", reset(0))),
        "{drained}"
    );
    let drained = command(HolderKind::Slurm, 0);
    assert!(
        drained.starts_with("scontrol update NodeName=") && drained.contains(" State=DRAIN "),
        "{drained}"
    );
    assert!(drained.ends_with(&format!("; done && {}", reset(0))), "{drained}");
    assert_eq!([command(HolderKind::Pod, 1), command(HolderKind::Unit, 0)], [reset(1), reset(0)]);
}

/// The processes of a job are those of its steps.
#[test]
fn the_row_of_a_slurm_job_sums_those_of_its_steps() {
    let workload = |id: &str| WorkloadEntry {
        workload: id.into(),
        kind: HolderKind::Slurm,
        tenant: "bio".into(),
        class: WorkloadClass::Unknown,
        facts: HolderId::new(id).facts(),
    };
    let process = |gpu: usize, step: &str| ProcessEntry {
        gpu,
        gpu_instance: Arc::default(),
        pid: step.into(),
        process: "python3".into(),
        workload: format!("slurm:alpha/211.{step}").into(),
        tenant: "bio".into(),
    };
    let holding =
        HoldingEntry { workload: "slurm:alpha/211".into(), ..shared_node().roster.holdings[0].clone() };
    let roster = Roster {
        holdings: [holding].into(),
        workloads: ["slurm:alpha/211", "slurm:alpha/211.0", "slurm:alpha/211.1"].map(workload).into(),
        processes: [process(0, "0"), process(0, "0"), process(1, "1")].into(),
        agent: Arc::default(),
        ..fixture::roster(2, 0)
    };
    let rows = seen(fixture::values(Arc::new(roster), 1)).workloads;
    let [job, first, second] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!([job.processes, first.processes, second.processes], [3, 2, 1]);
    let sum = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one + other);
    assert!(job.memory.is_some() && job.memory == sum(first.memory, second.memory));
    assert!(job.gpus == [0, 1].into() && job.held > 0.0 && first.held == 0.0);
}

#[test]
fn a_node_name_that_a_shell_would_read_is_not_in_a_command() {
    let command = |name: &str| {
        let mut snapshot = fixture::node(1, 0);
        let verdict = Verdict { state: HealthState::Degraded, remedy: Remedy::Drain, reasons: Vec::new() };
        snapshot.gpus[0].health = Arc::new(verdict);
        let mut roster = fixture::roster(1, 0);
        let agent = roster.agent.iter().map(|entry| {
            let mut entry = entry.clone();
            entry
                .labels
                .iter_mut()
                .filter(|(label, _)| *label == "node_name")
                .for_each(|(_, text)| *text = name.into());
            entry
        });
        roster.agent = agent.collect();
        let pod = WorkloadEntry { kind: HolderKind::Pod, ..roster.workloads[0].clone() };
        roster.workloads = [pod].into();
        snapshot.roster = Arc::new(roster);
        seen(snapshot).gpus.remove(0).command.unwrap()
    };
    assert!(command("gpu-7.example").starts_with("kubectl drain gpu-7.example --"));
    assert!(command("$(reboot)").starts_with("kubectl drain NODE --"));
}

#[test]
fn hostile_names_stay_text() {
    let text =
        serde_json::to_string(&list_processes(&fixture::node(1, 1), &VisibleAccount::Everything, None))
            .unwrap();
    let list: ProcessList = serde_json::from_str(&text).unwrap();
    assert_eq!(list.processes[0].name, HOSTILE);
}

#[test]
fn the_50_largest_processes_are_listed_of_all_gpus_or_of_one() {
    let snapshot = fixture::node(4, 200);
    let list = list_processes(&snapshot, &VisibleAccount::Everything, None);
    assert_eq!((list.total, list.processes.len()), (200, MOST_LISTED));
    assert_eq!(list.processes[0].pid, "4199", "the fixture's last has the most memory");
    let uuid = &*snapshot.roster.gpus[1].id.uuid;
    let list = list_processes(&snapshot, &VisibleAccount::Everything, Some(uuid));
    assert_eq!((list.total, list.processes.iter().all(|process| process.gpu == 1)), (50, true));
    let list = list_processes(&snapshot, &VisibleAccount::Everything, Some("GPU-none"));
    assert_eq!(list.total, 0);
}

/// Two GPUs: ada's job holds the first alone, and the second is shared with bob's.
fn shared_node() -> Snapshot {
    let workload = |user: &str| WorkloadEntry {
        workload: format!("slurm:c/{user}").into(),
        kind: HolderKind::Slurm,
        tenant: format!("account-{user}").into(),
        class: WorkloadClass::Unknown,
        facts: Facts::new([(Fact::SlurmUser, user)]),
    };
    let holding = |gpu, user: &str| HoldingEntry {
        gpu,
        gpu_instance: Arc::default(),
        workload: workload(user).workload,
        tenant: workload(user).tenant,
        source: HoldingSource::Slurm,
        since: Utc(AT.0 - 60 * SECOND),
    };
    let process = |gpu, user: &str, pid: &str| ProcessEntry {
        gpu,
        gpu_instance: Arc::default(),
        pid: pid.into(),
        process: "python3".into(),
        workload: workload(user).workload,
        tenant: workload(user).tenant,
    };
    let roster = Roster {
        holdings: [holding(0, "ada"), holding(1, "ada"), holding(1, "bob")].into(),
        workloads: [workload("ada"), workload("bob")].into(),
        processes: [process(0, "ada", "1"), process(1, "ada", "2"), process(1, "bob", "3")].into(),
        gpus: fixture::roster(3, 0).gpus[..2]
            .iter()
            .map(|gpu| GpuEntry { absence: None, ..gpu.clone() })
            .collect(),
        agent: Arc::default(),
        unused: Arc::default(),
        ..fixture::roster(2, 0)
    };
    fixture::values(Arc::new(roster), 1)
}

fn readers() -> [VisibleAccount; 2] {
    [VisibleAccount::Tenants(vec!["account-ada".to_owned()]), VisibleAccount::OfUser("ada".into())]
}

#[test]
fn a_reader_sees_its_own_holdings_and_the_values_of_gpus_that_it_holds_alone() {
    for visible in readers() {
        let mut snapshot = shared_node();
        Arc::get_mut(&mut snapshot.roster).unwrap().unused = unused();
        let summary = seen_by(&visible, snapshot);
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(summary.gpus[1].unused.len(), 1);
        assert!(summary.partial && !text.contains("bob"), "{text}");
        let [own, shared] = &summary.gpus[..] else { panic!("{text}") };
        assert_eq!((own.withheld, own.readings.activity), (false, Some(0.25)));
        assert_eq!(
            (shared.withheld, shared.readings.activity, shared.idle_since.is_some()),
            (true, None, false)
        );
        assert_eq!((own.holders.len(), shared.holders.len(), shared.users.len()), (1, 1, 1));
        assert_eq!(summary.node.used, Some(0.25));
        assert_eq!(summary.workloads.len(), 1);
        let list = list_processes(&shared_node(), &visible, None);
        assert_eq!(list.total, 2);
    }
    let tenants = |visible: &VisibleAccount| seen_by(visible, shared_node()).tenants.len();
    let [of_tenant, of_user] = readers();
    assert_eq!((tenants(&of_tenant), tenants(&of_user)), (1, 0), "a tenant's sums are of all its users");
    assert_eq!(tenants(&VisibleAccount::Tenants(Vec::new())), 0);
}

#[test]
fn a_reader_sees_xids_and_evidence_of_gpus_that_it_holds_alone_since_its_last_holder_came() {
    let faulty = |before: u64| {
        let mut snapshot = shared_node();
        let at = Utc(AT.0 - before * SECOND);
        for state in &mut snapshot.gpus {
            let reason = Reason {
                rule: "xid",
                state: HealthState::Degraded,
                remedy: Remedy::ResetGpu,
                what: "an XID that needs a reset",
                evidence: "XID 48".into(),
                since: at,
                clears: "a reset",
            };
            state.health = Arc::new(Verdict { reasons: vec![reason], ..(*state.health).clone() });
            state.xids.iter_mut().for_each(|seen| seen.last = at);
        }
        snapshot
    };
    let evidence = |health: &ReportedVerdict| {
        let reason = &health.reasons[0];
        assert_eq!((&*reason.what, &*reason.action), ("an XID that needs a reset", "reset_gpu"));
        (reason.evidence == "XID 48", reason.since.is_some())
    };
    for visible in readers() {
        let summary = seen_by(&visible, faulty(60));
        let [own, shared] = &summary.gpus[..] else { panic!() };
        assert_eq!((evidence(&own.health), evidence(&shared.health)), ((true, true), (false, false)));
        assert_eq!((own.xids[0].1, shared.xids.len()), (None, 0), "a count is a sum over all holders");
        let earlier = &seen_by(&visible, faulty(61)).gpus[0];
        assert_eq!((evidence(&earlier.health), earlier.xids.len()), ((false, false), 0));
        let text = String::from_utf8(health(&faulty(60), None, &visible)).unwrap();
        assert_eq!(text.matches("XID 48").count(), 1, "{text}");
    }
    let all = seen(faulty(61));
    assert!(all.gpus.iter().all(|gpu| evidence(&gpu.health) == (true, true) && gpu.xids[0].1.is_some()));
    let text = String::from_utf8(health(&faulty(61), None, &VisibleAccount::Everything)).unwrap();
    assert_eq!(text.matches("XID 48").count(), 2, "{text}");
}

#[test]
fn a_foreign_process_withholds_the_values_of_a_gpu_and_so_do_processes_that_are_not_listed() {
    let withheld = |change: fn(&mut Snapshot)| {
        let mut snapshot = shared_node();
        change(&mut snapshot);
        seen_by(&readers()[0], snapshot).gpus[0].withheld
    };
    assert!(!withheld(|_| {}));
    assert!(withheld(|snapshot| snapshot.processes_listed = false));
    let stranger = |workload: &str| {
        let mut roster = shared_node();
        let first = &roster.roster.processes[0];
        let process = ProcessEntry { workload: workload.into(), ..first.clone() };
        let processes = roster.roster.processes.iter().cloned().chain([process]).collect();
        let shared = shared_node().roster;
        roster.roster = Arc::new(Roster {
            processes,
            gpus: shared.gpus.clone(),
            holdings: Arc::clone(&shared.holdings),
            workloads: Arc::clone(&shared.workloads),
            ..fixture::roster(2, 0)
        });
        roster.processes.push(roster.processes[0]);
        seen_by(&readers()[0], roster).gpus[0].withheld
    };
    assert_eq!(["", "slurm:c/bob", "__system__", "slurm:c/ada"].map(stranger), [true, true, false, false]);
}

#[test]
fn the_history_of_a_gpu_begins_for_a_reader_when_its_last_holder_came() {
    let latest = LatestSnapshot::default();
    for second in 0..600 {
        let mut snapshot = shared_node();
        snapshot.at = fixture::stamp(AT.0 - (599 - second) * SECOND);
        latest.publish(published(snapshot));
    }
    let snapshot = &latest.get().unwrap().snapshot;
    let known = |visible: &VisibleAccount| {
        let report = report_history(snapshot, visible, &latest.history());
        let points = |gpu: &gpumeter::output::render::ReportedHistory| {
            let series = &gpu.series["activity"];
            assert_eq!((series.mean.len(), series.max.len()), (HISTORY_POINTS, HISTORY_POINTS));
            series.mean.iter().flatten().count()
        };
        report.gpus.iter().map(points).collect::<Vec<_>>()
    };
    assert_eq!(known(&VisibleAccount::Everything), [120, 120]);
    let [of_tenant, of_user] = readers();
    assert_eq!(known(&of_tenant), [13], "a minute of the first GPU, nothing of the shared one");
    assert_eq!(known(&of_user), [13]);
}

#[test]
fn recent_use_is_what_the_account_has_grown_by() {
    let latest = LatestSnapshot::default();
    // Of 15 s windows: physics holds one GPU and uses a fifth of it. Its first increments are held back.
    for window in 0..=20 {
        let time = window * 15 * SECOND;
        let mut snapshot = fixture::node(1, 0);
        snapshot.at = fixture::stamp(AT.0 + time);
        snapshot.gpus[0].slot = Ok(time as i64);
        let mut values = [None; 12];
        let held = if window < 4 { 0 } else { i128::from(time) };
        (values[0], values[1], values[2]) = (Some(held), Some(held / 5), Some(held * 4 / 5));
        snapshot.accounts = [AccountState { values }, AccountState::default()].into();
        latest.publish(published(snapshot));
    }
    let snapshot = &latest.get().unwrap().snapshot;
    let recent = latest.history().recent(snapshot);
    let physics = recent["physics"];
    assert_eq!((physics.held, physics.used, physics.idle), (1.0, 0.2, 0.8));
    assert!(physics.span.0 >= 200 * SECOND, "{}", physics.span.0);
    assert!(!recent.contains_key("__unallocated__"));
}

#[test]
fn processes_are_wanted_for_a_while_after_somebody_looked() {
    let latest = LatestSnapshot::default();
    assert!(!latest.wants_processes());
    latest.request_processes();
    let wanted = (0..100).take_while(|_| latest.wants_processes()).count();
    assert_eq!(wanted, 30);
}

/// Titles, levels and commands of the problems of two GPUs after a change to the second.
fn problems(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
    let mut snapshot = shared_node();
    for state in &mut snapshot.gpus {
        state.health = Arc::new(Verdict { state: HealthState::Ok, ..Verdict::default() });
    }
    change(&mut snapshot);
    let line = |one: SummaryProblem| format!("{} {}: {} ({})", one.level, one.title, one.text, one.advice);
    seen(snapshot).problems.into_iter().map(line).collect()
}

#[test]
fn problems_are_faults_then_what_is_not_used_then_unknown_owners_and_what_limits_the_clock_is_none() {
    for throttles in [&[] as &[_], &["hw_thermal_slowdown", "hw_power_brake"]] {
        assert_eq!(problems(|snapshot| set_throttles(snapshot, throttles)), [""; 0]);
    }
    let reason = Reason {
        rule: "ecc_uncorrectable",
        state: HealthState::Degraded,
        remedy: Remedy::ResetGpu,
        what: "memory had uncorrectable errors",
        evidence: "gpu_ecc_errors_total 1".into(),
        since: AT,
        clears: "a reset of the GPU",
    };
    let all = problems(|snapshot| {
        set_throttles(snapshot, &["hw_thermal_slowdown"]);
        snapshot.gpus[1].health = Arc::new(Verdict {
            state: HealthState::Degraded,
            remedy: Remedy::ResetGpu,
            reasons: vec![reason.clone()],
        });
        snapshot.started = Utc(AT.0 - 301 * SECOND);
        snapshot.gpus.iter_mut().for_each(|gpu| gpu.activity = Ok(0));
        let mut roster = Roster { processes: Arc::default(), ..Roster::default() };
        let old = &snapshot.roster;
        roster.gpus.clone_from(&old.gpus);
        (roster.holdings, roster.workloads) = (old.holdings[1..].into(), Arc::clone(&old.workloads));
        roster.unused = unused();
        snapshot.gpus[0].memory_left_since = Some(Utc(AT.0 - 900 * SECOND));
        (roster.prices, roster.agent) = (Arc::clone(&old.prices), Arc::clone(&old.agent));
        let stranger =
            ProcessEntry { gpu: 0, workload: "".into(), tenant: "".into(), ..old.processes[0].clone() };
        roster.processes = [stranger].into();
        snapshot.roster = Arc::new(roster);
        snapshot.holdings.truncate(2);
        snapshot.processes.truncate(1);
    });
    assert_eq!(
        all,
        [
            "degraded GPU 1 degraded: memory had uncorrectable errors: gpu_ecc_errors_total 1 (drain the node, then reset the GPU)",
            "cost GPU 1 held without use: held by account-ada, account-bob and not used: there is no process (ask account-ada, account-bob whether it is needed)",
            "cost GPU 0 has memory that nobody uses: 0.0 GiB of memory in use though nobody holds it and no process is listed (end what is left of the last job (fuser -v /dev/nvidia*), else reset the GPU)",
            "cost GPU 0 used by unknown owners: a process whose use nobody pays for (find out whose they are)",
        ]
    );
}

/// What both leave unused of the second GPU.
fn unused() -> Arc<[UnusedEntry]> {
    let of = |user: &str, minutes: u64| UnusedEntry {
        gpu: 1,
        gpu_instance: Arc::default(),
        workload: format!("slurm:c/{user}").into(),
        tenant: format!("account-{user}").into(),
        kind: UnusedKind::HeldWithoutProcess,
        since: Utc(AT.0 - minutes * 60 * SECOND),
    };
    [of("ada", 31), of("bob", 40)].into()
}

/// Sets what slows down the first GPU; the others are not slowed down.
fn set_throttles(snapshot: &mut Snapshot, reasons: &[&str]) {
    let all = [
        "sw_power_cap",
        "hw_other_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake",
    ];
    for (position, state) in snapshot.gpus.iter_mut().enumerate() {
        let mut frame = (**state.frame.as_ref().unwrap()).clone();
        for reason in all {
            let is_active = position == 0 && reasons.contains(&reason);
            frame.readings[point("gpu_throttle_active", reason)] = Ok(i64::from(is_active));
        }
        frame.readings[point("gpu_temperature_celsius", "gpu")] = Ok(71_000);
        state.frame = Some(Arc::new(frame));
    }
}

#[test]
fn use_that_nobody_holds_is_a_problem_from_a_minute_and_five_percent_of_the_hour_on() {
    let told = |how_held, unheld: u64, used: u64| {
        problems(|snapshot| {
            set_throttles(snapshot, &[]);
            snapshot.how_held = how_held;
            let seconds = Nanoseconds::from_seconds;
            snapshot.last_hour = HourlyUse { used: seconds(used), unheld: seconds(unheld) };
        })
    };
    assert_eq!(told(HowHeld::Grants, 59, 59), [""; 0], "less than a minute");
    assert_eq!(told(HowHeld::Grants, 60, 1_200), [""; 0], "5 %");
    let found = told(HowHeld::Grants, 61, 1_200);
    let expected = "cost use that nobody holds: 61 of 1200 GPU-seconds used in the last hour were used while nobody held the GPU, \
                    so nobody is charged for them; GPUs are held by grants alone: ";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    assert!(
        found[0].ends_with("set attribution.presence: true, or grant the GPUs in attribution.standing)"),
        "{found:?}"
    );
}

#[test]
fn a_gpu_that_two_schedulers_granted_is_a_problem_that_names_the_workloads_its_reader_may_see() {
    let in_conflict = || {
        let mut snapshot = shared_node();
        let workload = Arc::clone(&snapshot.roster.holdings[0].workload);
        snapshot.conflicts =
            vec![HoldingConflict { gpu: 1, workloads: vec![workload, "slurm:alpha/7".into()] }];
        snapshot
    };
    let told = |summary: Summary| {
        let problem = summary.problems.into_iter().find(|one| one.title == "GPU 1 granted twice");
        problem.map(|problem| problem.text)
    };
    let all = told(seen(in_conflict())).unwrap();
    assert!(all.contains(", slurm:alpha/7 do not fit together"), "{all}");
    let own = told(seen_by(&VisibleAccount::Tenants(vec!["nobody".to_owned()]), in_conflict()));
    assert_eq!(own, None);
}
