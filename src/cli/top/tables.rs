//! The tables of `gpumeter top`: one per view, each made of columns and rows of text.

use super::source::TopData;
use super::words::{
    DASH, Moments, bars, cents, fit, gib, gpus, memory, money, of_limit, pad, percent, tenant,
};
use crate::export::{SummaryGpu, SummaryHolder, SummaryProblem, SummaryUser};

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopView {
    Gpus,
    Processes,
    Tenants,
    Workloads,
    Problems,
}

impl TopView {
    pub(super) const ALL: [Self; 5] =
        [Self::Gpus, Self::Processes, Self::Tenants, Self::Workloads, Self::Problems];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gpus => "GPUs",
            Self::Processes => "Processes",
            Self::Tenants => "Tenants",
            Self::Workloads => "Workloads",
            Self::Problems => "Problems",
        }
    }
}

/// How a row stands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Emphasis {
    #[default]
    None,
    Muted,
    Cost,
    Degraded,
    Failed,
}

/// A column.
pub(super) struct TopColumn {
    pub(super) name: &'static str,
    /// Its least width.
    width: usize,
    is_number: bool,
    /// Columns with a higher number are left out first where the screen is narrow.
    rank: u8,
    /// Whether it takes what others leave.
    is_flexible: bool,
}

/// A row.
pub(super) struct TopRow {
    /// Identifies what it is of, in all its versions.
    pub(super) key: String,
    /// By column: its text, and the number by which it is sorted.
    cells: Vec<(String, Option<f64>)>,
    pub(super) emphasis: Emphasis,
    /// Lines below it, unless it is folded.
    pub(super) children: Vec<String>,
    /// What is said of it while it is selected.
    pub(super) notes: Vec<String>,
}

/// The table of a view.
pub(super) struct TopTable {
    pub(super) columns: Vec<TopColumn>,
    pub(super) rows: Vec<TopRow>,
    /// Said in place of rows.
    pub(super) empty: &'static str,
}

const fn column(name: &'static str, width: usize, rank: u8) -> TopColumn {
    TopColumn { name, width, is_number: true, rank, is_flexible: false }
}

const fn text(name: &'static str, width: usize, rank: u8) -> TopColumn {
    TopColumn { name, width, is_number: false, rank, is_flexible: false }
}

const fn flexible(name: &'static str, width: usize, rank: u8) -> TopColumn {
    TopColumn { name, width, is_number: false, rank, is_flexible: true }
}

fn plain(text: impl Into<String>) -> (String, Option<f64>) {
    (text.into(), None)
}

impl TopTable {
    pub(super) fn of(view: TopView, data: &TopData, moments: &Moments) -> Self {
        match view {
            TopView::Gpus => gpu_table(data, moments),
            TopView::Processes => process_table(data),
            TopView::Tenants => tenant_table(data),
            TopView::Workloads => workload_table(data, moments),
            TopView::Problems => problem_table(data, moments),
        }
    }

    /// Shows the model of each GPU in whatever width, before its line: who reads a text later does not know the node.
    pub(super) fn prefer_models(&mut self) {
        for column in &mut self.columns {
            column.rank = match column.name {
                MODEL => 0,
                LINE_NAME => u8::MAX,
                _ => column.rank,
            };
        }
    }

    /// Keeps the rows that contain the text, in whatever case.
    pub(super) fn filter(&mut self, wanted: &str) {
        let wanted = wanted.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        self.rows.retain(|row| {
            let mut texts = row.cells.iter().map(|(text, _)| text).chain(&row.children).chain(&row.notes);
            texts.any(|text| has(text))
        });
    }

    /// Sorts by a column; numbers begin with the largest, and what is not known comes last.
    pub(super) fn sort(&mut self, column: usize, is_reverse: bool) {
        let Some(TopColumn { is_number, .. }) = self.columns.get(column) else { return };
        let is_descending = *is_number != is_reverse;
        self.rows.sort_by(|one, other| {
            let order = match (one.cells.get(column), other.cells.get(column)) {
                (Some((_, Some(left))), Some((_, Some(right)))) => left.total_cmp(right),
                (Some((_, None)), Some((_, Some(_)))) if *is_number => return std::cmp::Ordering::Greater,
                (Some((_, Some(_))), Some((_, None))) if *is_number => return std::cmp::Ordering::Less,
                (left, right) => left.map(|(text, _)| text).cmp(&right.map(|(text, _)| text)),
            };
            if is_descending { order.reverse() } else { order }
        });
    }

    /// The widths of the columns on a screen of that width; 0 for one that is left out.
    pub(super) fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.width).collect();
        let sum = |widths: &[usize]| {
            widths.iter().filter(|width| **width > 0).map(|width| width + 1).sum::<usize>()
        };
        while sum(&widths) > width + 1 {
            let shown = self.columns.iter().enumerate().filter(|(place, _)| widths[*place] > 0);
            match shown.max_by_key(|(_, column)| column.rank) {
                Some((place, column)) if column.rank > 0 => widths[place] = 0,
                _ => break,
            }
        }
        let left = (width + 1).saturating_sub(sum(&widths));
        let is_shown = |place: &usize| widths[*place] > 0 && self.columns[*place].is_flexible;
        let flexible: Vec<usize> = (0..widths.len()).filter(is_shown).collect();
        for (number, place) in flexible.iter().enumerate() {
            widths[*place] += left / flexible.len() + usize::from(number < left % flexible.len());
        }
        widths
    }

    pub(super) fn head(&self, widths: &[usize]) -> String {
        join(self.columns.iter().zip(widths).map(|(column, width)| (column.name, *width, column.is_number)))
    }

    pub(super) fn line(&self, row: &TopRow, widths: &[usize]) -> String {
        let cells = row.cells.iter().zip(&self.columns).zip(widths);
        join(cells.map(|(((text, _), column), width)| (&**text, *width, column.is_number)))
    }
}

fn join<'a>(cells: impl Iterator<Item = (&'a str, usize, bool)>) -> String {
    let shown = cells.filter(|(_, width, _)| *width > 0);
    let padded: Vec<String> = shown.map(|(text, width, is_right)| pad(text, width, is_right)).collect();
    padded.join(" ")
}

/// Points of the line of a GPU.
const LINE: usize = 20;
const LINE_NAME: &str = "last ten minutes";
const MODEL: &str = "model";

fn gpu_table(data: &TopData, moments: &Moments) -> TopTable {
    let rows = data.summary.gpus.iter().map(|gpu| {
        let history = data.history.gpus.iter().find(|one| one.uuid == gpu.uuid);
        let activity = history.and_then(|history| history.series.get("activity"));
        let state = if gpu.status == "up" { &gpu.health.state } else { &gpu.status };
        let readings = &gpu.readings;
        let power = readings.power;
        let heat = readings.temperature;
        TopRow {
            key: gpu.uuid.clone(),
            cells: vec![
                (gpu.gpu.to_string(), Some(f64::from(gpu.gpu))),
                plain(state.as_str()),
                (percent(readings.activity), readings.activity),
                plain(activity.map(|series| bars(&series.mean, 1.0, LINE)).unwrap_or_default()),
                (
                    memory(readings.memory_used, readings.memory_total),
                    readings.memory_used.map(|used| used as f64),
                ),
                (of_limit(power, readings.power_limit), power),
                (of_limit(heat, readings.temperature_limit), heat),
                plain(gpu.model.trim_start_matches("NVIDIA ")),
                plain(who(gpu)),
                plain(gpu.limit.as_str()),
            ],
            emphasis: emphasis(gpu, &data.summary.problems),
            children: gpu_children(gpu, moments),
            notes: gpu_notes(gpu, data, moments),
        }
    });
    TopTable {
        columns: vec![
            column("GPU", 3, 0),
            text("state", 8, 0),
            column("active", 6, 0),
            text(LINE_NAME, LINE, 3),
            column("mem GiB", 7, 1),
            column("power W", 7, 2),
            column("°C", 5, 2),
            text(MODEL, 18, 5),
            flexible("held by", 14, 0),
            flexible("limited by", 30, 4),
        ],
        rows: rows.collect(),
        empty: "no GPU",
    }
}

fn emphasis(gpu: &SummaryGpu, problems: &[SummaryProblem]) -> Emphasis {
    let own = problems.iter().filter(|problem| problem.gpu.as_deref() == Some(&*gpu.uuid));
    let levels = own.map(level);
    levels.max_by_key(|level| *level as u8).unwrap_or_default()
}

pub(super) fn level(problem: &SummaryProblem) -> Emphasis {
    match &*problem.level {
        "failed" => Emphasis::Failed,
        "degraded" => Emphasis::Degraded,
        _ => Emphasis::Cost,
    }
}

/// The tenants that hold a GPU, in a few words.
fn who(gpu: &SummaryGpu) -> String {
    if gpu.withheld && gpu.holders.is_empty() {
        return DASH.to_owned();
    }
    let mut names: Vec<&str> = gpu.holders.iter().map(|holder| tenant(&holder.tenant)).collect();
    names.dedup();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

fn gpu_children(gpu: &SummaryGpu, moments: &Moments) -> Vec<String> {
    let mut lines = Vec::new();
    let add_of = |slot: &str, indent: &str, lines: &mut Vec<String>| {
        let held = gpu.holders.iter().filter(|one| one.gpu_instance == slot);
        lines.extend(held.map(|one| format!("{indent}{}", held_line(one, moments))));
        let used = gpu.users.iter().filter(|one| one.gpu_instance == slot);
        lines.extend(used.map(|one| format!("{indent}{}", used_line(one))));
    };
    add_of("", "", &mut lines);
    let Some(mig) = &gpu.mig else { return lines };
    for one in &mig.instances {
        let size = format!("{}/{}", one.slices, mig.slices);
        let of = memory(one.memory_used, one.memory_total);
        lines.push(format!("{} {size}: active {}, {of} GiB", one.profile, percent(one.activity)));
        add_of(&one.gpu_instance, "  ", &mut lines);
    }
    if mig.free + mig.stranded > 0 {
        lines.push(format!(
            "free: {} of {} slices, {} of them for no profile",
            mig.free + mig.stranded,
            mig.slices,
            mig.stranded
        ));
    }
    lines
}

fn held_line(one: &SummaryHolder, moments: &Moments) -> String {
    let share = percent(Some(one.share));
    format!(
        "held: {share} by {} ({}) {}",
        tenant(&one.tenant),
        one.title,
        moments.since(one.since.as_deref())
    )
}

fn used_line(one: &SummaryUser) -> String {
    let what = if one.title.is_empty() { String::new() } else { format!(" ({})", one.title) };
    let processes = if one.processes == 1 { "process" } else { "processes" };
    let kernels = one.sm.map(|sm| format!(", kernels {}", percent(Some(sm)))).unwrap_or_default();
    let memory = gib(one.memory);
    format!("used: by {}{what}: {} {processes}, {memory} GiB{kernels}", tenant(&one.tenant), one.processes)
}

fn gpu_notes(gpu: &SummaryGpu, data: &TopData, moments: &Moments) -> Vec<String> {
    let idle = moments.since(gpu.idle_since.as_deref());
    let idle = if idle.is_empty() { String::new() } else { format!("; idle {idle}") };
    let first = format!("GPU {}: limited by {}{idle}", gpu.gpu, gpu.limit);
    let own = data.summary.problems.iter().filter(|problem| problem.gpu.as_deref() == Some(&*gpu.uuid));
    let fault = own.map(|problem| sentence(problem, moments)).next();
    [Some(first), fault].into_iter().flatten().collect()
}

/// What is wrong, and what to do.
pub(super) fn sentence(problem: &SummaryProblem, moments: &Moments) -> String {
    let since = moments.since(problem.since.as_deref());
    let since = if since.is_empty() { since } else { format!(", {since}") };
    let advice =
        if problem.advice.is_empty() { String::new() } else { format!(". To do: {}", problem.advice) };
    let command = problem.command.as_ref().map(|command| format!(": {command}")).unwrap_or_default();
    let text = if problem.text.is_empty() { String::new() } else { format!(": {}", problem.text) };
    format!("{}{text}{since}{advice}{command}", problem.title)
}

fn process_table(data: &TopData) -> TopTable {
    let rows = data.processes.processes.iter().map(|one| {
        let gpu = if one.gpu_instance.is_empty() {
            one.gpu.to_string()
        } else {
            format!("{}.{}", one.gpu, one.gpu_instance)
        };
        TopRow {
            key: format!("{}/{}/{}", one.gpu, one.gpu_instance, one.pid),
            cells: vec![
                (one.pid.clone(), one.pid.parse().ok()),
                (gpu, Some(f64::from(one.gpu))),
                (gib(one.memory), one.memory.map(|bytes| bytes as f64)),
                (percent(one.sm), one.sm),
                (percent(one.encoder), one.encoder),
                (percent(one.decoder), one.decoder),
                plain(tenant(&one.tenant)),
                plain(one.name.as_str()),
                plain(one.title.as_str()),
            ],
            emphasis: if one.workload.is_empty() { Emphasis::Cost } else { Emphasis::None },
            children: Vec::new(),
            notes: Vec::new(),
        }
    });
    TopTable {
        columns: vec![
            column("pid", 8, 0),
            column("GPU", 5, 0),
            column("mem GiB", 7, 0),
            column("kernels", 7, 0),
            column("encoder", 7, 3),
            column("decoder", 7, 3),
            text("tenant", 16, 0),
            text("process", 16, 0),
            flexible("workload", 10, 1),
        ],
        rows: rows.collect(),
        empty: "no process, or they are being listed",
    }
}

fn tenant_table(data: &TopData) -> TopTable {
    let of_period = |period: Option<&std::collections::BTreeMap<String, i128>>, name: &str| {
        let nano = period.and_then(|sums| sums.get(name).copied());
        let amount = nano.map(|nano| nano as f64 / 1e9);
        (amount.map_or_else(|| DASH.to_owned(), cents), amount)
    };
    let bills = data.money.as_ref();
    let change = "no sum over a change of the currency of prices; gpumeter bill has a table for each";
    let notes = bills.filter(|bills| bills.has_several_currencies).map(|_| change.to_owned());
    let rows = data.summary.tenants.iter().map(|one| {
        let held = if one.remainder { one.held_recently } else { Some(one.held) };
        let indices: Vec<String> = one.gpus.iter().map(u32::to_string).collect();
        let per_hour = one.per_hour.as_deref();
        let emphasis = match one.idle {
            _ if one.remainder => Emphasis::Muted,
            Some(idle) if idle >= 0.5 => Emphasis::Cost,
            _ => Emphasis::None,
        };
        TopRow {
            key: one.tenant.clone(),
            cells: vec![
                plain(tenant(&one.tenant)),
                (gpus(held), held.filter(|_| !one.remainder)),
                (gpus(one.used), one.used.filter(|_| !one.remainder)),
                (gpus(one.idle), one.idle),
                (money(per_hour), per_hour.and_then(|amount| amount.parse().ok())),
                of_period(bills.map(|bills| &bills.today), &one.tenant),
                of_period(bills.map(|bills| &bills.month), &one.tenant),
                (money(one.budget.as_deref()), one.budget.as_ref().and_then(|amount| amount.parse().ok())),
                plain(indices.join(",")),
            ],
            emphasis,
            children: Vec::new(),
            notes: notes.iter().cloned().collect(),
        }
    });
    TopTable {
        columns: vec![
            flexible("tenant", 16, 0),
            column("held", 6, 0),
            column("used", 6, 0),
            column("idle", 6, 0),
            column("cost/h", 8, 0),
            column("today", 9, 1),
            column("month", 9, 1),
            column("budget", 9, 3),
            text("GPUs", 10, 2),
        ],
        rows: rows.collect(),
        empty: "no tenant holds or uses a GPU",
    }
}

fn workload_table(data: &TopData, moments: &Moments) -> TopTable {
    let rows = data.summary.workloads.iter().map(|one| {
        let indices: Vec<String> = one.gpus.iter().map(u32::to_string).collect();
        let per_hour = one.per_hour.as_deref();
        TopRow {
            key: one.workload.clone(),
            cells: vec![
                plain(one.title.as_str()),
                plain(one.kind.as_str()),
                plain(tenant(&one.tenant)),
                (gpus(Some(one.held)), Some(one.held)),
                (one.processes.to_string(), Some(one.processes as f64)),
                (gib(one.memory), one.memory.map(|bytes| bytes as f64)),
                (percent(one.sm), one.sm),
                (money(per_hour), per_hour.and_then(|amount| amount.parse().ok())),
                plain(indices.join(",")),
                plain(moments.since(one.since.as_deref()).trim_start_matches("since ")),
            ],
            emphasis: Emphasis::None,
            children: one.labels.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
            notes: vec![format!("{}: {}", one.title, one.workload)],
        }
    });
    TopTable {
        columns: vec![
            flexible("workload", 18, 0),
            text("kind", 9, 4),
            text("tenant", 14, 0),
            column("held", 5, 0),
            column("procs", 5, 3),
            column("mem GiB", 7, 0),
            column("kernels", 7, 0),
            column("cost/h", 6, 1),
            text("GPUs", 6, 1),
            text("held since", 20, 5),
        ],
        rows: rows.collect(),
        empty: "no workload holds or uses a GPU",
    }
}

fn problem_table(data: &TopData, moments: &Moments) -> TopTable {
    let rows = data.summary.problems.iter().map(|problem| TopRow {
        key: format!("{:?} {}", problem.gpu, problem.title),
        cells: vec![
            plain(problem.level.as_str()),
            plain(problem.title.as_str()),
            plain(problem.text.as_str()),
        ],
        emphasis: level(problem),
        children: [
            (!problem.advice.is_empty()).then(|| format!("to do: {}", problem.advice)),
            problem.command.as_ref().map(|command| format!("$ {command}")),
        ]
        .into_iter()
        .flatten()
        .collect(),
        notes: vec![sentence(problem, moments)],
    });
    TopTable {
        columns: vec![text("level", 8, 0), text("what", 26, 0), flexible("observed", 20, 0)],
        rows: rows.collect(),
        empty: "nothing needs attention",
    }
}

/// The sums of the node in one line, as far as they fit.
pub(super) fn totals(data: &TopData, width: usize) -> String {
    let (node, gpu_count) = (&data.summary.node, data.summary.gpus.len());
    let mut idle: Vec<_> =
        data.summary.tenants.iter().filter(|one| !one.remainder && one.idle > Some(0.005)).collect();
    idle.sort_by(|one, other| other.idle.partial_cmp(&one.idle).unwrap_or(std::cmp::Ordering::Equal));
    let idle_gpus = idle.iter().filter_map(|one| one.idle).fold(0.0, |sum, one| sum + one);
    let most = idle
        .first()
        .map(|one| format!(" (most {} {})", tenant(&one.tenant), gpus(one.idle)))
        .unwrap_or_default();
    let kilowatts =
        |watts: Option<f64>| watts.map_or_else(|| DASH.to_owned(), |watts| format!("{:.1}", watts / 1e3));
    let mut parts = vec![
        format!("ok {}/{gpu_count}", node.ok),
        format!("held {:.2}", node.held),
        format!("used {}", gpus(node.used)),
    ];
    parts.push(format!("idle {idle_gpus:.2}{most}"));
    if let Some(currency) = &node.currency {
        parts.push(format!("{} {currency}/h", money(node.held_per_hour.as_deref())));
    }
    parts.push(format!("{}/{} kW", kilowatts(node.power), kilowatts(node.power_limit)));
    parts.push(format!("account {}", node.account));
    let mut line = String::new();
    for part in parts {
        let next = if line.is_empty() { part } else { format!("{line}  {part}") };
        if super::words::width_of(&next) > width {
            break;
        }
        line = next;
    }
    fit(&line, width)
}

/// The node's name and its marks.
pub(super) fn title(data: &TopData, moments: &Moments) -> String {
    let node = &data.summary.node;
    let mut marks = Vec::new();
    if node.simulated {
        marks.push("SIMULATED".to_owned());
    }
    if let Some(quiesced) = &node.quiesced {
        marks.push(format!("QUIESCED {quiesced}"));
    }
    if node.account == "none" {
        marks.push("NO ACCOUNT".to_owned());
    }
    if data.summary.partial {
        marks.push("PARTIAL".to_owned());
    }
    let clock = data.summary.at.as_deref().map(|at| moments.clock(at)).unwrap_or_default();
    let marks = if marks.is_empty() { String::new() } else { format!("  {}", marks.join("  ")) };
    format!("gpumeter  {}  {clock}{marks}", node.name)
}
