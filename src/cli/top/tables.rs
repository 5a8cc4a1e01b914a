//! The tables of `gpumeter top`: one per view, each made of columns and rows of text.

use std::collections::{BTreeMap, BTreeSet};

use ratatui::text::Line;
use ratatui::widgets::Row;

use super::source::{TenantMoney, TopData};
use super::words::{
    DASH, Moments, amount, bars, cents, fit, gib, gpus, memory, of_limit, percent, tenant, whole, width_of,
};
use crate::output::render::{
    SummaryGpu, SummaryHolder, SummaryProblem, SummaryProcess, SummaryTenant, SummaryUser, SummaryWorkload,
};

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Emphasis {
    #[default]
    None,
    Muted,
    Cost,
    Degraded,
    Failed,
}

pub(super) struct TopHeading {
    pub(super) name: &'static str,
    /// Its least width.
    width: u16,
    is_number: bool,
    /// Columns with a higher number are left out first where the screen is narrow.
    rank: u8,
    /// Whether it shares what others leave.
    is_flexible: bool,
}

/// A column of a table whose rows are made from `R`.
struct TopColumn<'a, R> {
    heading: TopHeading,
    of: Box<dyn Fn(&R) -> TopCell + 'a>,
}

pub(super) struct TopCell {
    pub(super) text: String,
    value: Option<f64>,
}

#[derive(Default)]
pub(super) struct TopRow {
    /// Identifies the thing that the row shows, in all its versions.
    pub(super) key: String,
    pub(super) cells: Vec<TopCell>,
    pub(super) emphasis: Emphasis,
    /// Lines below it, unless it is folded.
    pub(super) children: Vec<String>,
    /// What is said of it while it is selected.
    pub(super) notes: Vec<String>,
}

pub(super) struct TopTable {
    pub(super) columns: Vec<TopHeading>,
    pub(super) rows: Vec<TopRow>,
    /// Said in place of rows.
    pub(super) empty: &'static str,
}

impl<'a, R> TopColumn<'a, R> {
    /// Numbers, each with its own text.
    fn new(name: &'static str, width: u16, rank: u8, of: impl Fn(&R) -> TopCell + 'a) -> Self {
        let heading = TopHeading { name, width, is_number: true, rank, is_flexible: false };
        Self { heading, of: Box::new(of) }
    }

    fn number(
        name: &'static str,
        width: u16,
        rank: u8,
        print: fn(Option<f64>) -> String,
        value: impl Fn(&R) -> Option<f64> + 'a,
    ) -> Self {
        Self::new(name, width, rank, move |row| TopCell { text: print(value(row)), value: value(row) })
    }

    fn text(name: &'static str, width: u16, rank: u8, of: impl Fn(&R) -> String + 'a) -> Self {
        let mut column = Self::new(name, width, rank, move |row| TopCell { text: of(row), value: None });
        column.heading.is_number = false;
        column
    }

    /// A text that shares what other columns leave.
    fn flexible(name: &'static str, width: u16, rank: u8, of: impl Fn(&R) -> String + 'a) -> Self {
        let mut column = Self::text(name, width, rank, of);
        column.heading.is_flexible = true;
        column
    }
}

impl TopTable {
    fn new<'a, R: 'a>(
        columns: impl Into<Vec<TopColumn<'a, R>>>,
        of: &[R],
        row: impl Fn(&R) -> TopRow,
        empty: &'static str,
    ) -> Self {
        let columns = columns.into();
        let cells = |one: &R| columns.iter().map(|column| (column.of)(one)).collect();
        let rows = of.iter().map(|one| TopRow { cells: cells(one), ..row(one) }).collect();
        Self { columns: columns.into_iter().map(|column| column.heading).collect(), rows, empty }
    }

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
            let mut texts = row.cells.iter().map(|cell| &cell.text).chain(&row.children).chain(&row.notes);
            texts.any(|text| has(text))
        });
    }

    /// Sorts by a column; numbers begin with the largest, and what is not known comes last.
    pub(super) fn sort(&mut self, column: usize, is_reverse: bool) {
        let Some(TopHeading { is_number, .. }) = self.columns.get(column) else { return };
        let is_descending = *is_number != is_reverse;
        self.rows.sort_by(|one, other| {
            let (one, other) = (&one.cells[column], &other.cells[column]);
            let order = match (one.value, other.value) {
                (Some(left), Some(right)) => left.total_cmp(&right),
                (None, Some(_)) if *is_number => return std::cmp::Ordering::Greater,
                (Some(_), None) if *is_number => return std::cmp::Ordering::Less,
                _ => one.text.cmp(&other.text),
            };
            if is_descending { order.reverse() } else { order }
        });
    }

    /// The widths of the columns on a screen of that width; 0 for one that is left out.
    pub(super) fn widths(&self, width: u16) -> Vec<u16> {
        let mut widths: Vec<u16> = self.columns.iter().map(|column| column.width).collect();
        let sum =
            |widths: &[u16]| widths.iter().filter(|width| **width > 0).map(|width| width + 1).sum::<u16>();
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
        for (number, place) in (0..).zip(&flexible) {
            let count = flexible.len() as u16;
            widths[*place] += left / count + u16::from(number < left % count);
        }
        widths
    }

    pub(super) fn row<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[u16]) -> Row<'static> {
        let shown = cells.zip(&self.columns).zip(widths).filter(|(_, width)| **width > 0);
        Row::new(shown.map(|((text, column), width)| {
            let line = Line::raw(fit(text, (*width).into()));
            if column.is_number { line.right_aligned() } else { line }
        }))
    }
}

/// Points of the line of a GPU.
const LINE: u16 = 20;
const LINE_NAME: &str = "last ten minutes";
const MODEL: &str = "model";

fn gpu_table(data: &TopData, moments: &Moments) -> TopTable {
    type GpuColumn<'a> = TopColumn<'a, SummaryGpu>;
    let line = |gpu: &SummaryGpu| {
        let history = data.history.gpus.iter().find(|one| one.uuid == gpu.uuid);
        let activity = history.and_then(|history| history.series.get("activity"));
        activity.map(|series| bars(&series.mean, 1.0, LINE.into())).unwrap_or_default()
    };
    let columns = [
        GpuColumn::number("GPU", 3, 0, whole, |gpu| Some(gpu.gpu.into())),
        GpuColumn::text("state", 8, 0, |gpu| {
            if gpu.status == "up" { &gpu.health.state } else { &gpu.status }.clone()
        }),
        GpuColumn::number("active", 6, 0, percent, |gpu| gpu.readings.activity),
        GpuColumn::text(LINE_NAME, LINE, 3, line),
        GpuColumn::new("mem GiB", 7, 1, |gpu| TopCell {
            text: memory(gpu.readings.memory_used, gpu.readings.memory_total),
            value: gpu.readings.memory_used.map(|used| used as f64),
        }),
        GpuColumn::new("power W", 7, 2, |gpu| TopCell {
            text: of_limit(gpu.readings.power, gpu.readings.power_limit),
            value: gpu.readings.power,
        }),
        GpuColumn::new("°C", 5, 2, |gpu| TopCell {
            text: of_limit(gpu.readings.temperature, gpu.readings.temperature_limit),
            value: gpu.readings.temperature,
        }),
        GpuColumn::text(MODEL, 18, 5, |gpu| gpu.model.trim_start_matches("NVIDIA ").to_owned()),
        GpuColumn::flexible("held by", 14, 0, who),
        GpuColumn::flexible("limited by", 30, 4, |gpu| gpu.limit.clone()),
    ];
    let row = |gpu: &SummaryGpu| TopRow {
        key: gpu.uuid.clone(),
        emphasis: emphasis(gpu, &data.summary.problems),
        children: gpu_children(gpu, moments),
        notes: gpu_notes(gpu, data, moments),
        ..TopRow::default()
    };
    TopTable::new(columns, &data.summary.gpus, row, "no GPU")
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
    let memory = gib(one.memory.map(|bytes| bytes as f64));
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
    type ProcessColumn<'a> = TopColumn<'a, SummaryProcess>;
    let gpu = |one: &SummaryProcess| match &*one.gpu_instance {
        "" => one.gpu.to_string(),
        instance => format!("{}.{instance}", one.gpu),
    };
    let columns = [
        ProcessColumn::number("pid", 8, 0, whole, |one| one.pid.parse().ok()),
        ProcessColumn::new("GPU", 5, 0, move |one| TopCell { text: gpu(one), value: Some(one.gpu.into()) }),
        ProcessColumn::number("mem GiB", 7, 0, gib, |one| one.memory.map(|bytes| bytes as f64)),
        ProcessColumn::number("kernels", 7, 0, percent, |one| one.sm),
        ProcessColumn::number("encoder", 7, 3, percent, |one| one.encoder),
        ProcessColumn::number("decoder", 7, 3, percent, |one| one.decoder),
        ProcessColumn::text("tenant", 16, 0, |one| tenant(&one.tenant).to_owned()),
        ProcessColumn::text("process", 16, 0, |one| one.name.clone()),
        ProcessColumn::flexible("workload", 10, 1, |one| one.title.clone()),
    ];
    let row = |one: &SummaryProcess| TopRow {
        key: format!("{}/{}/{}", one.gpu, one.gpu_instance, one.pid),
        emphasis: if one.workload.is_empty() { Emphasis::Cost } else { Emphasis::None },
        ..TopRow::default()
    };
    TopTable::new(columns, &data.processes.processes, row, "no process, or they are being listed")
}

fn tenant_table(data: &TopData) -> TopTable {
    type TenantColumn<'a> = TopColumn<'a, SummaryTenant>;
    let bills = data.money.as_ref();
    let spent = |period: fn(&TenantMoney) -> &BTreeMap<String, i128>| {
        move |one: &SummaryTenant| Some(*period(bills?).get(&one.tenant)? as f64 / 1e9)
    };
    // Remainders have a text, and come last.
    let of_tenant = |name, value: fn(&SummaryTenant) -> Option<f64>| {
        TenantColumn::new(name, 6, 0, move |one: &SummaryTenant| TopCell {
            text: gpus(value(one)),
            value: value(one).filter(|_| !one.remainder),
        })
    };
    let columns = [
        TenantColumn::flexible("tenant", 16, 0, |one| tenant(&one.tenant).to_owned()),
        of_tenant("held", |one| if one.remainder { one.held_recently } else { Some(one.held) }),
        of_tenant("used", |one| one.used),
        TenantColumn::number("idle", 6, 0, gpus, |one| one.idle),
        TenantColumn::number("cost/h", 8, 0, cents, |one| amount(one.per_hour.as_ref())),
        TenantColumn::number("today", 9, 1, cents, spent(|bills| &bills.today)),
        TenantColumn::number("month", 9, 1, cents, spent(|bills| &bills.month)),
        TenantColumn::number("budget", 9, 3, cents, |one| amount(one.budget.as_ref())),
        TenantColumn::text("GPUs", 10, 2, |one| indices(&one.gpus)),
    ];
    let change = "no sum over a change of the currency of prices; gpumeter bill has a table for each";
    let notes = bills.filter(|bills| bills.has_several_currencies).map(|_| change.to_owned());
    let row = |one: &SummaryTenant| TopRow {
        key: one.tenant.clone(),
        emphasis: match one.idle {
            _ if one.remainder => Emphasis::Muted,
            Some(idle) if idle >= 0.5 => Emphasis::Cost,
            _ => Emphasis::None,
        },
        notes: notes.iter().cloned().collect(),
        ..TopRow::default()
    };
    TopTable::new(columns, &data.summary.tenants, row, "no tenant holds or uses a GPU")
}

fn workload_table(data: &TopData, moments: &Moments) -> TopTable {
    type WorkloadColumn<'a> = TopColumn<'a, SummaryWorkload>;
    let bills = data.money.as_ref();
    let columns = [
        WorkloadColumn::flexible("workload", 18, 0, |one| one.title.clone()),
        WorkloadColumn::text("kind", 9, 4, |one| one.kind.clone()),
        WorkloadColumn::text("tenant", 14, 0, |one| tenant(&one.tenant).to_owned()),
        WorkloadColumn::number("held", 5, 0, gpus, |one| Some(one.held)),
        WorkloadColumn::number("procs", 5, 3, whole, |one| Some(one.processes as f64)),
        WorkloadColumn::number("mem GiB", 7, 0, gib, |one| one.memory.map(|bytes| bytes as f64)),
        WorkloadColumn::number("kernels", 7, 0, percent, |one| one.sm),
        WorkloadColumn::number("cost/h", 6, 1, cents, |one| amount(one.per_hour.as_ref())),
        WorkloadColumn::number("effic.", 6, 2, percent, move |one| {
            bills?.workloads.get(&one.workload)?.efficiency
        }),
        WorkloadColumn::number("so far", 8, 2, cents, move |one| {
            Some(bills?.workloads.get(&one.workload)?.money?.0 as f64 / 1e9)
        }),
        WorkloadColumn::text("GPUs", 6, 1, |one| indices(&one.gpus)),
        WorkloadColumn::text("held since", 20, 5, |one| {
            moments.since(one.since.as_deref()).trim_start_matches("since ").to_owned()
        }),
    ];
    let row = |one: &SummaryWorkload| TopRow {
        key: one.workload.clone(),
        children: one.labels.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
        notes: vec![format!("{}: {}", one.title, one.workload)],
        ..TopRow::default()
    };
    TopTable::new(columns, &data.summary.workloads, row, "no workload holds or uses a GPU")
}

fn indices(gpus: &BTreeSet<u32>) -> String {
    gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn problem_table(data: &TopData, moments: &Moments) -> TopTable {
    type ProblemColumn<'a> = TopColumn<'a, SummaryProblem>;
    let columns = [
        ProblemColumn::text("level", 8, 0, |one| one.level.clone()),
        ProblemColumn::text("what", 26, 0, |one| one.title.clone()),
        ProblemColumn::flexible("observed", 20, 0, |one| one.text.clone()),
    ];
    let row = |problem: &SummaryProblem| {
        let advice = (!problem.advice.is_empty()).then(|| format!("to do: {}", problem.advice));
        let command = problem.command.as_ref().map(|command| format!("$ {command}"));
        TopRow {
            key: format!("{:?} {}", problem.gpu, problem.title),
            emphasis: level(problem),
            children: advice.into_iter().chain(command).collect(),
            notes: vec![sentence(problem, moments)],
            ..TopRow::default()
        }
    };
    TopTable::new(columns, &data.summary.problems, row, "nothing needs attention")
}

/// The sums of the node in one line, as far as they fit.
pub(super) fn totals(data: &TopData, width: usize) -> String {
    let node = &data.summary.node;
    let tenants = data.summary.tenants.iter().filter(|one| !one.remainder);
    let idle: Vec<_> =
        tenants.filter_map(|one| Some((one.idle.filter(|idle| *idle > 0.005)?, one))).collect();
    let most = idle.iter().rev().max_by(|(one, _), (other, _)| one.total_cmp(other));
    let most = most.map(|(idle, one)| format!(" (most {} {idle:.2})", tenant(&one.tenant)));
    let idle: f64 = idle.iter().map(|(idle, _)| idle).fold(0.0, |sum, one| sum + one);
    let kilowatts =
        |watts: Option<f64>| watts.map_or_else(|| DASH.to_owned(), |watts| format!("{:.1}", watts / 1e3));
    let money = |currency| format!("{} {currency}/h", cents(amount(node.held_per_hour.as_ref())));
    let parts = [
        Some(format!("ok {}/{}", node.ok, data.summary.gpus.len())),
        Some(format!("held {:.2}", node.held)),
        Some(format!("used {}", gpus(node.used))),
        Some(format!("idle {idle:.2}{}", most.unwrap_or_default())),
        node.currency.as_ref().map(money),
        Some(format!("{}/{} kW", kilowatts(node.power), kilowatts(node.power_limit))),
        Some(format!("account {}", node.account)),
    ];
    let mut line = String::new();
    for part in parts.into_iter().flatten() {
        let next = if line.is_empty() { part } else { format!("{line}  {part}") };
        if width_of(&next) > width {
            break;
        }
        line = next;
    }
    fit(&line, width)
}

pub(super) fn title(data: &TopData, moments: &Moments) -> String {
    let node = &data.summary.node;
    let marks = [
        node.simulated.then(|| "SIMULATED".to_owned()),
        node.quiesced.as_ref().map(|quiesced| format!("QUIESCED {quiesced}")),
        (node.account == "none").then(|| "NO ACCOUNT".to_owned()),
        data.summary.partial.then(|| "PARTIAL".to_owned()),
    ];
    let marks: String = marks.into_iter().flatten().map(|mark| format!("  {mark}")).collect();
    let clock = data.summary.at.as_deref().map(|at| moments.clock(at)).unwrap_or_default();
    format!("gpumeter  {}  {clock}{marks}", node.name)
}
