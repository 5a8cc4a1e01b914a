//! The screens of `gpumeter top` as text, compared with `tests/golden/top`; `UPDATE=1 cargo test --lib cli::top` writes them.

use jiff::tz::TimeZone;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::screen::{Theme, draw, lines_of, text};
use super::source::{TenantMoney, TopData};
use super::state::{AfterKey, TopState};
use crate::accounting::billing::JobUsage;
use crate::cli::tests::compare_golden;
use crate::model::{Money, WorkloadClass};
use crate::output::render::*;

const AT: &str = "2026-11-26T12:00:00Z";
const WATCHED: &str = "2026-11-26T08:00:00Z";

fn verdict(state: &str) -> ReportedVerdict {
    ReportedVerdict { state: state.to_owned(), action: "none".to_owned(), reasons: Vec::new() }
}

fn holder(tenant: &str, title: &str, gpu_instance: &str, since: &str) -> SummaryHolder {
    SummaryHolder {
        workload: format!("k8s:{title}/{gpu_instance}"),
        title: title.to_owned(),
        tenant: tenant.to_owned(),
        gpu_instance: gpu_instance.to_owned(),
        share: 1.0,
        source: "kubernetes".to_owned(),
        since: Some(since.to_owned()),
    }
}

fn user(holder: &SummaryHolder, processes: usize) -> SummaryUser {
    SummaryUser {
        workload: holder.workload.clone(),
        title: holder.title.clone(),
        tenant: holder.tenant.clone(),
        gpu_instance: holder.gpu_instance.clone(),
        processes,
        memory: Some(20 << 30),
        sm: Some(0.8),
    }
}

fn gpu(index: u32, activity: f64, limit: &str) -> SummaryGpu {
    SummaryGpu {
        gpu: index,
        uuid: format!("GPU-{index}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        status: "up".to_owned(),
        health: verdict("ok"),
        limit: limit.to_owned(),
        readings: GpuReadings {
            activity: Some(activity),
            memory_used: Some((20 + u64::from(index)) << 30),
            memory_total: Some(80 << 30),
            power: Some(100.0 + 500.0 * activity),
            power_limit: Some(700.0),
            temperature: Some(40.0 + 30.0 * activity),
            temperature_limit: Some(89.0),
            ..GpuReadings::default()
        },
        per_hour: Some("2.5".to_owned()),
        ..SummaryGpu::default()
    }
}

/// A GPU that works, one that is held and idle, one with an ECC error, and one with MIG.
fn gpus() -> Vec<SummaryGpu> {
    let training = holder("ml", "ml/train-0/main", "", "2026-11-26T10:30:00Z");
    let notebook = holder("alice", "user alice", "", WATCHED);
    let [small, large] = [("1", "carol"), ("2", "team-b")].map(|(instance, tenant)| {
        holder(tenant, "team-b/serve-7d9c/triton", instance, "2026-11-25T23:00:00Z")
    });
    let instance = |id: &str, profile: &str, start, slices| SummaryInstance {
        gpu_instance: id.to_owned(),
        profile: profile.to_owned(),
        start: Some(start),
        slices,
        activity: Some(0.5),
        memory_used: Some(10 << 30),
        memory_total: Some((slices * 10) << 30),
    };
    vec![
        SummaryGpu {
            users: vec![user(&training, 8)],
            holders: vec![training],
            ..gpu(0, 0.97, "power limit: 698 of 700 W")
        },
        SummaryGpu {
            idle_since: Some("2026-11-26T09:00:00Z".to_owned()),
            idle_seconds: Some(10_800),
            holders: vec![notebook],
            ..gpu(1, 0.0, "nothing: its processes do no work")
        },
        SummaryGpu { health: verdict("degraded"), ..gpu(2, 0.4, "its program: idle 60 % of the time") },
        SummaryGpu {
            mig: Some(SummaryMig {
                slices: 8,
                free: 2,
                stranded: 0,
                instances: vec![instance("1", "2g.20gb", 0, 2), instance("2", "3g.40gb", 4, 4)],
            }),
            users: vec![user(&small, 1), user(&large, 2)],
            holders: vec![small, large],
            ..gpu(3, 0.5, "its program: idle 50 % of the time")
        },
    ]
}

fn tenant(name: &str, held: f64, idle: f64) -> SummaryTenant {
    SummaryTenant {
        tenant: name.to_owned(),
        remainder: name.starts_with("__"),
        held,
        held_recently: Some(held),
        used: Some(held - idle),
        idle: (!name.starts_with("__")).then_some(idle),
        per_hour: (!name.starts_with("__")).then(|| (2.5 * held).to_string()),
        budget: (name == "ml").then(|| "1500".to_owned()),
        spent: (name == "ml").then(|| "1512.5".to_owned()),
        over_budget: name == "ml",
        gpus: [0, 3].into(),
    }
}

fn problem(level: &str, gpu: u32, title: &str, text: &str, command: Option<&str>) -> SummaryProblem {
    SummaryProblem {
        level: level.to_owned(),
        gpu: Some(format!("GPU-{gpu}")),
        title: format!("GPU {gpu} {title}"),
        text: text.to_owned(),
        since: Some("2026-11-26T11:30:00Z".to_owned()),
        advice: "drain the node, then reset the GPU".to_owned(),
        command: command.map(str::to_owned),
        ..SummaryProblem::default()
    }
}

fn history(uuids: impl Iterator<Item = String>) -> HistoryReport {
    let series = |most: f32| {
        let point = |number: usize| (number >= 20).then_some(most * (number % 60) as f32 / 60.0);
        ReportedSeries { mean: (0..120).map(point).collect(), max: (0..120).map(point).collect() }
    };
    let gpu = |uuid| {
        let series = [("activity", 1.0), ("memory", 8e10), ("power", 700.0), ("temperature", 89.0)]
            .map(|(name, most)| (name.to_owned(), series(most)));
        ReportedHistory { uuid, series: series.into() }
    };
    HistoryReport { at: Some(AT.to_owned()), step_seconds: 5.0, gpus: uuids.map(gpu).collect() }
}

fn workload(holder: &SummaryHolder) -> SummaryWorkload {
    SummaryWorkload {
        workload: holder.workload.clone(),
        title: holder.title.clone(),
        kind: "k8s".to_owned(),
        tenant: holder.tenant.clone(),
        class: WorkloadClass::Unknown,
        labels: [("k8s_pod_name".to_owned(), "train-0".to_owned())].into(),
        held: holder.share,
        since: holder.since.clone(),
        gpus: [0].into(),
        processes: 3,
        memory: Some(20 << 30),
        sm: Some(0.8),
        per_hour: Some("2.5".to_owned()),
    }
}

fn process(pid: u32, name: &str) -> SummaryProcess {
    SummaryProcess {
        gpu: pid % 4,
        pid: pid.to_string(),
        name: name.to_owned(),
        title: "ml/train-0/main".to_owned(),
        workload: "k8s:1".to_owned(),
        tenant: "ml".to_owned(),
        memory: Some(u64::from(pid) << 24),
        sm: Some(0.9),
        ..SummaryProcess::default()
    }
}

fn node() -> SummaryNode {
    SummaryNode {
        name: "node-7".to_owned(),
        account: "ok".to_owned(),
        ok: 3,
        held: 2.75,
        used: Some(1.87),
        power: Some(1_335.0),
        power_limit: Some(2_800.0),
        currency: Some("USD".to_owned()),
        per_hour: Some("10".to_owned()),
        held_per_hour: Some("6.875".to_owned()),
        ..SummaryNode::default()
    }
}

fn data() -> TopData {
    let gpus = gpus();
    let reset = "sudo gpumeter quiesce -- nvidia-smi --gpu-reset -i 2";
    let summary = Summary {
        at: Some(AT.to_owned()),
        watched_since: Some(WATCHED.to_owned()),
        processes_listed: true,
        node: node(),
        tenants: vec![
            tenant("ml", 1.0, 0.03),
            tenant("alice", 1.0, 1.0),
            tenant("__unallocated__", 1.25, 0.0),
        ],
        workloads: gpus.iter().flat_map(|gpu| &gpu.holders).map(workload).collect(),
        problems: vec![
            problem("degraded", 2, "degraded", "memory had uncorrectable errors", Some(reset)),
            problem("cost", 1, "idle", "held by alice and idle, 2.5 USD per hour for nothing", None),
        ],
        gpus,
        ..Summary::default()
    };
    let money =
        |tenants: &[(&str, i128)]| tenants.iter().map(|(name, nano)| ((*name).to_owned(), *nano)).collect();
    let hostile = process(4_102, "\u{1b}[2Jpwned\n\u{202e}x");
    TopData {
        history: history(summary.gpus.iter().map(|gpu| gpu.uuid.clone())),
        processes: ProcessList {
            total: 3,
            processes_listed: true,
            processes: vec![process(4_101, "python3"), hostile, process(97, "ffmpeg")],
            ..ProcessList::default()
        },
        money: Some(TenantMoney {
            today: money(&[("ml", 30_000_000_000), ("alice", 30_005_000_000)]),
            month: money(&[("ml", 1_512_500_000_000)]),
            // The screens of workloads are compared in a real terminal too, where there are no bills.
            workloads: std::collections::BTreeMap::new(),
            has_several_currencies: false,
        }),
        summary,
    }
}

/// Two thirds of what was held.
fn worked() -> JobUsage {
    JobUsage { efficiency: Some(0.667), money: Some(Money(12_340_000_000)), ..JobUsage::default() }
}

fn state(data: TopData, keys: &str) -> TopState {
    let mut state = TopState::new(TimeZone::UTC);
    state.receive(Ok(Box::new(data)));
    press(&mut state, keys);
    state
}

/// Presses keys: `v` is down, `^` is Esc, `\n` Enter, others themselves.
fn press(state: &mut TopState, keys: &str) -> AfterKey {
    let mut after = AfterKey::GoOn;
    for key in keys.chars() {
        let code = match key {
            'v' => KeyCode::Down,
            '^' => KeyCode::Esc,
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        after = state.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    after
}

fn terminal(state: &TopState, (width, height): (u16, u16), has_colors: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, Theme { has_colors })).unwrap();
    terminal
}

fn screen(state: &TopState, size: (u16, u16)) -> String {
    lines_of(terminal(state, size, true).backend().buffer())
}

fn compare(name: &str, shown: &str) {
    compare_golden(&format!("top/{name}"), shown);
}

#[test]
fn every_view_in_both_sizes_is_as_committed() {
    for (name, keys) in [
        ("gpus", "vvvf"),
        ("processes", "2"),
        ("tenants", "3"),
        ("workloads", "4 "),
        ("problems", "5f"),
        ("history", "vh"),
        ("help", "?"),
    ] {
        let state = state(data(), keys);
        compare(&format!("{name}-80x24.txt"), &screen(&state, (80, 24)));
        compare(&format!("{name}-200x60.txt"), &screen(&state, (200, 60)));
    }
}

#[test]
fn sums_that_a_change_of_currency_leaves_out_are_explained() {
    let mut data = data();
    data.money = Some(TenantMoney { has_several_currencies: true, ..TenantMoney::default() });
    let shown = screen(&state(data, "3"), (200, 60));
    assert!(shown.contains("no sum over a change of the currency"), "{shown}");
    assert!(!screen(&state(self::data(), "3"), (200, 60)).contains("currency of prices"));
}

/// `tests/interop/terminal.py` serves them to a `gpumeter top` in a terminal.
#[test]
fn the_documents_of_the_screens_are_as_committed() {
    let TopData { summary, history, processes, .. } = data();
    let documents = serde_json::json!({ "summary": summary, "history": history, "processes": processes });
    compare("documents.json", &format!("{documents}\n"));
}

#[test]
fn what_once_prints_is_as_committed() {
    for width in [80, 120] {
        compare(&format!("once-{width}.txt"), &text(&data(), TimeZone::UTC, width));
    }
}

fn rows(state: &TopState) -> Vec<String> {
    let table = state.table();
    table.rows.iter().map(|row| row.cells[0].text.clone()).collect()
}

#[test]
fn rows_are_filtered_sorted_and_reversed_by_keys() {
    let first =
        |keys: &str| rows(&state(data(), keys)).first().map_or(String::new(), |row| row[..1].to_owned());
    assert_eq!([first(""), first("s"), first("sr"), first("sss"), first("sssr")], ["0", "3", "0", "0", "1"]);
    let mut state = state(data(), "/ALI");
    assert_eq!(rows(&state).len(), 1, "typed in whatever case");
    press(&mut state, "q\n");
    assert_eq!((rows(&state).len(), &*state.filter), (0, "ALIq"));
    press(&mut state, "^");
    assert_eq!((rows(&state).len(), &*state.filter), (4, ""));
    assert_eq!((press(&mut state, "v"), press(&mut state, "q")), (AfterKey::GoOn, AfterKey::Quit));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(ctrl_c), AfterKey::Quit);
}

#[test]
fn the_selected_row_stays_selected_when_rows_move() {
    let mut state = state(data(), "vv");
    let selected = |state: &TopState| {
        let table = state.table();
        table.rows[state.selected(&table)].key.clone()
    };
    assert_eq!(selected(&state), "GPU-2");
    let mut next = data();
    next.summary.gpus.remove(0);
    state.receive(Ok(Box::new(next)));
    assert_eq!(selected(&state), "GPU-2");
    press(&mut state, "p");
    state.receive(Ok(Box::new(data())));
    assert_eq!(state.data.summary.gpus.len(), 3, "paused");
}

#[test]
fn an_agent_that_does_not_answer_is_named_above_its_last_data() {
    let mut state = state(data(), "");
    state.receive(Err("http://127.0.0.1:9855: connection refused".to_owned()));
    let shown = screen(&state, (80, 24));
    assert!(shown.contains("STALE: http://127.0.0.1:9855") && shown.contains("97 %"), "{shown}");
}

#[test]
fn without_colors_no_cell_has_one() {
    let has_color = |has_colors| {
        let terminal = terminal(&state(data(), "hf"), (200, 60), has_colors);
        let cells = terminal.backend().buffer().content().iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(has_color(true) > 0);
    assert_eq!(has_color(false), 0);
}

#[test]
fn the_largest_node_fits_on_every_screen() {
    let mut data = data();
    let instance = |number: usize| SummaryInstance {
        gpu_instance: number.to_string(),
        slices: 1,
        ..SummaryInstance::default()
    };
    let gpu = |index: u32| {
        let holders: Vec<_> = (0..7)
            .map(|number| holder("a tenant with a long name", "a/pod/container", &number.to_string(), AT))
            .collect();
        SummaryGpu {
            mig: Some(SummaryMig {
                slices: 8,
                free: 1,
                instances: (0..7).map(instance).collect(),
                ..SummaryMig::default()
            }),
            users: holders.iter().map(|holder| user(holder, 29)).collect(),
            holders,
            ..gpu(index, 0.5, "its work")
        }
    };
    data.summary.gpus = (0..16).map(gpu).collect();
    data.history = history(data.summary.gpus.iter().map(|gpu| gpu.uuid.clone()));
    let one = data.processes.processes[0].clone();
    data.processes.processes =
        (0..50).map(|pid| SummaryProcess { pid: pid.to_string(), ..one.clone() }).collect();
    // 15 of the 50 processes fit below the head.
    let shown = screen(&state(data.clone(), "2"), (80, 24));
    assert!(shown.contains("  35 more lines below"), "{shown}");
    for view in 1..=5 {
        for size in [(1, 1), (20, 5), (80, 24), (200, 60), (400, 150)] {
            let mut state = state(data.clone(), &format!("{view}fh"));
            press(&mut state, &"v".repeat(60));
            let shown = screen(&state, size);
            let table = state.table();
            let last = table.rows.len() - 1;
            assert_eq!(state.selected(&table), last);
            assert!(size.1 < 24 || shown.contains(&table.rows[last].cells[0].text), "{size:?}\n{shown}");
        }
    }
}

#[test]
fn a_command_that_is_longer_than_the_screen_is_folded_at_its_words() {
    let command =
        "$ kubectl drain n1 --ignore-daemonsets && sudo gpumeter quiesce -- nvidia-smi --gpu-reset -i 8";
    let lines = crate::cli::fold(command, 40);
    assert_eq!(lines.join(" "), command);
    assert!(lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
    assert_eq!(crate::cli::fold("", 40), [""]);
}

#[test]
fn a_workload_has_its_efficiency_and_its_cost_so_far() {
    let mut data = data();
    let workloads = std::iter::once(("k8s:ml/train-0/main/".to_owned(), worked())).collect();
    data.money = data.money.map(|money| TenantMoney { workloads, ..money });
    let shown = screen(&state(data, "4"), (200, 60));
    let row = shown.lines().find(|line| line.contains("train-0")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.contains("67 %") && row.contains("12.34"), "{shown}");
}
