//! Draws `gpumeter top`: title, sums, tabs, the table of a view, and what is said of the selected row.

use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Widget, Wrap};

use super::source::TopData;
use super::state::TopState;
use super::tables::{Emphasis, TopRow, TopTable, TopView, level, sentence, title, totals};
use super::words::{Moments, fit, means, memory, of_limit, percent};
use crate::cli::fold;
use crate::output::render::SummaryGpu;

/// Colours, or none by `NO_COLOR`.
#[derive(Clone, Copy)]
pub(super) struct Theme {
    pub(super) has_colors: bool,
}

impl Theme {
    fn of(self, emphasis: Emphasis) -> Style {
        let (color, modifier) = match emphasis {
            Emphasis::None => return Style::new(),
            Emphasis::Muted => (Color::DarkGray, Modifier::DIM),
            Emphasis::Cost => (Color::Magenta, Modifier::empty()),
            Emphasis::Degraded => (Color::Yellow, Modifier::empty()),
            Emphasis::Failed => (Color::Red, Modifier::BOLD),
        };
        if self.has_colors { Style::new().fg(color) } else { Style::new().add_modifier(modifier) }
    }

    fn accent(self) -> Style {
        if self.has_colors { Style::new().fg(Color::Cyan) } else { Style::new() }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// From this size on, problems and history are shown beside the table.
const WIDE: (u16, u16) = (150, 40);
const HISTORY_LINES: u16 = 8;

pub(super) fn draw(frame: &mut Frame<'_>, state: &TopState, theme: Theme) {
    let area = frame.area();
    let is_wide = area.width >= WIDE.0 && area.height >= WIDE.1;
    let [head, body, notes, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(3),
        Constraint::Length(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, state, theme);
    let table = state.table();
    let history = if is_wide || state.shows_history { HISTORY_LINES } else { 0 };
    let problems = u16::try_from(state.data.summary.problems.len()).unwrap_or(u16::MAX).saturating_add(1);
    let is_beside = is_wide && state.view != TopView::Problems && problems > 1;
    let beside = if is_beside { problems.min(body.height / 4) } else { 0 };
    let [body, problems, plots] = Layout::vertical([
        Constraint::Min(3),
        Constraint::Length(beside),
        Constraint::Length(history.min(body.height.saturating_sub(4))),
    ])
    .areas(body);
    draw_table(frame, body, &table, state, theme);
    draw_problems(frame, problems, state, theme);
    if let Some(gpu) = selected_gpu(state, &table) {
        draw_history(frame, plots, state, gpu, theme);
    }
    draw_notes(frame, notes, &table, state);
    draw_foot(frame, foot, state);
    if state.shows_help {
        draw_help(frame, area);
    }
}

/// The selected GPU, or the first in another view.
fn selected_gpu<'a>(state: &'a TopState, table: &TopTable) -> Option<&'a SummaryGpu> {
    let gpus = &state.data.summary.gpus;
    let row = table.rows.get(state.selected(table)).filter(|_| state.view == TopView::Gpus);
    row.and_then(|row| gpus.iter().find(|gpu| gpu.uuid == row.key)).or_else(|| gpus.first())
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let width = usize::from(area.width);
    let mut first = title(&state.data, &state.moments());
    if let Some(problem) = &state.problem {
        first = format!("{first}  STALE: {problem}");
    } else if state.is_paused() {
        first += "  PAUSED";
    }
    let style = if state.problem.is_some() { theme.of(Emphasis::Failed) } else { BOLD };
    let tabs = TopView::ALL.iter().enumerate().flat_map(|(number, view)| {
        let count = match view {
            TopView::Problems => format!(" {}", state.data.summary.problems.len()),
            _ => String::new(),
        };
        let style = if *view == state.view { REVERSED } else { Style::new() };
        [Span::styled(format!(" {} {}{count} ", number + 1, view.name()), style), Span::raw(" ")]
    });
    let lines = vec![
        Line::styled(fit(&first, width), style),
        Line::raw(totals(&state.data, width)),
        Line::from_iter(tabs),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, table: &TopTable, state: &TopState, theme: Theme) {
    let width = area.width;
    let selected = state.selected(table);
    let of_row = |row: &TopRow| lines(table, row, width, state.is_unfolded(&row.key), theme);
    let place_of_selected = table.rows.iter().take(selected).map(|row| of_row(row).len()).sum::<usize>();
    let mut rows: Vec<Row<'_>> = table.rows.iter().flat_map(of_row).collect();
    if rows.is_empty() {
        let is_filtered = !state.filter.is_empty();
        rows.push(across(if is_filtered { "nothing matches the filter" } else { table.empty }, width));
    }
    // The selected row is in the middle of a list that is longer than the screen.
    let room = usize::from(area.height).saturating_sub(1);
    let most = rows.len().saturating_sub(room);
    let first = (place_of_selected.saturating_sub(room / 2)).min(most);
    if most > first && room > 1 {
        let more = format!("  {} more lines below", most - first + 1);
        rows[first + room - 1] = across(&more, width).style(theme.of(Emphasis::Muted));
    }
    let mut place = TableState::new().with_offset(first).with_selected(place_of_selected);
    let selected = if table.rows.is_empty() { Style::new() } else { REVERSED };
    let accent = theme.accent().add_modifier(Modifier::UNDERLINED);
    let widget = widget(table, rows, width, accent).row_highlight_style(selected);
    frame.render_stateful_widget(widget, area, &mut place);
}

fn widget(table: &TopTable, lines: Vec<Row<'static>>, width: u16, head_style: Style) -> Table<'static> {
    let widths = table.widths(width);
    let head = table.row(table.columns.iter().map(|column| column.name), &widths);
    let shown = widths.into_iter().filter(|width| *width > 0);
    Table::new(lines, shown.map(Constraint::Length)).header(head.style(head_style))
}

fn lines(table: &TopTable, row: &TopRow, width: u16, is_unfolded: bool, theme: Theme) -> Vec<Row<'static>> {
    let cells = row.cells.iter().map(|cell| &*cell.text);
    let mut lines = vec![table.row(cells, &table.widths(width)).style(theme.of(row.emphasis))];
    let children = if is_unfolded { &row.children[..] } else { &[] };
    for (number, child) in children.iter().enumerate() {
        let is_last = number + 1 == children.len();
        // A command is to be read whole.
        let room = if child.starts_with("$ ") { usize::from(width.saturating_sub(6)) } else { usize::MAX };
        for (part, text) in fold(child, room).into_iter().enumerate() {
            let branch = match (part, is_last) {
                (0, true) => "└",
                (0, false) => "├",
                (_, true) => " ",
                (_, false) => "│",
            };
            lines.push(across(&format!("    {branch} {text}"), width).style(theme.of(Emphasis::Muted)));
        }
    }
    lines
}

fn across(text: &str, width: u16) -> Row<'static> {
    Row::new([Cell::new(fit(text, width.into())).column_span(u16::MAX)])
}

/// The node as text: the tables of the views below each other.
pub(super) fn text(data: &TopData, zone: TimeZone, width: u16) -> String {
    let moments = Moments::of(&data.summary, zone);
    let columns = usize::from(width);
    let mut page = format!("{}\n{}\n", fit(&title(data, &moments), columns), totals(data, columns));
    for problem in &data.summary.problems {
        page += &format!("! {}\n", fit(&sentence(problem, &moments), 4 * columns));
    }
    for view in [TopView::Gpus, TopView::Tenants, TopView::Workloads, TopView::Processes] {
        let mut table = TopTable::of(view, data, &moments);
        table.prefer_models();
        let is_unfolded = view == TopView::Gpus;
        let rows = table.rows.iter();
        let mut rows: Vec<_> = rows
            .flat_map(|row| lines(&table, row, width, is_unfolded, Theme { has_colors: false }))
            .collect();
        if rows.is_empty() {
            rows.push(across(table.empty, width));
        }
        let height = u16::try_from(rows.len() + 1).unwrap_or(u16::MAX);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        Widget::render(widget(&table, rows, width, Style::new()), buffer.area, &mut buffer);
        page += &format!("\n{}\n{}", view.name(), lines_of(&buffer));
    }
    page
}

/// The lines of a buffer without blanks at their ends.
pub(super) fn lines_of(buffer: &Buffer) -> String {
    let lines = buffer.content().chunks(usize::from(buffer.area.width.max(1)));
    lines
        .map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

fn draw_problems(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let moments = state.moments();
    let lines = state.data.summary.problems.iter().map(|problem| {
        Line::styled(fit(&sentence(problem, &moments), usize::from(area.width)), theme.of(level(problem)))
    });
    let block = Block::bordered().title("Needs attention").borders(ratatui::widgets::Borders::TOP);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

/// The last ten minutes of a GPU, as lines of bars up to the board's own limits, or above where a value was.
fn draw_history(frame: &mut Frame<'_>, area: Rect, state: &TopState, gpu: &SummaryGpu, theme: Theme) {
    let Some(history) = state.data.history.gpus.iter().find(|one| one.uuid == gpu.uuid) else { return };
    let readings = &gpu.readings;
    let [top, bottom] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
    let halves = |area| Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas::<2>(area);
    let places = [halves(top), halves(bottom)].concat();
    let power = of_limit(readings.power, readings.power_limit);
    let heat = of_limit(readings.temperature, readings.temperature_limit);
    let used = memory(readings.memory_used, readings.memory_total);
    let series = [
        ("activity", format!("GPU {} activity {}", gpu.gpu, percent(readings.activity)), Some(1.0)),
        ("memory", format!("memory {used} GiB"), readings.memory_total.map(|bytes| bytes as f64)),
        ("power", format!("power {power} W"), readings.power_limit),
        ("temperature", format!("temperature {heat} °C"), readings.temperature_limit),
    ];
    for ((name, title, most), place) in series.into_iter().zip(places) {
        let Some(points) = history.series.get(name) else { continue };
        let block = Block::new().title(Line::styled(fit(&title, usize::from(place.width)), BOLD));
        // Heat and power may be above their limits.
        let largest = points.max.iter().flatten().map(|value| f64::from(*value)).fold(0.0, f64::max);
        let most = most.map_or(largest.max(1.0), |most| most.max(largest));
        let bars =
            means(&points.mean, usize::from(place.width)).map(|mean| Some((mean? / most * 1e3) as u64));
        let bars: Vec<Option<u64>> = bars.collect();
        let plot = Sparkline::default().data(bars).max(1_000).style(theme.accent()).absent_value_symbol(" ");
        frame.render_widget(plot.block(block), place);
    }
}

fn draw_notes(frame: &mut Frame<'_>, area: Rect, table: &TopTable, state: &TopState) {
    let notes = table.rows.get(state.selected(table)).map(|row| row.notes.clone()).unwrap_or_default();
    let lines: Vec<Line<'_>> =
        notes.iter().map(|note| Line::raw(fit(note, 3 * usize::from(area.width)))).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &TopState) {
    let text = if state.is_typing {
        format!("filter: {}_   Enter keeps it, Esc clears it", state.filter)
    } else if state.filter.is_empty() {
        "q quit  Tab view  s r sort  / filter  Enter fold  f fold all  h history  ? help".to_owned()
    } else {
        format!("filter: {}   Esc clears it  / changes it  q quit  ? help", state.filter)
    };
    frame.render_widget(Paragraph::new(fit(&text, usize::from(area.width))), area);
}

const HELP: &str = "\
1 to 5, Tab   GPUs, processes, tenants, workloads, problems
arrows, j k   select a row; also PgUp PgDn Home End
Enter, space  show what is below the row: MIG instances, holders, users
f             the same for all rows
s, r          sort by the next column; reverse
/             filter rows; Esc clears it
h             ten minutes of the selected GPU
p             pause
q, Esc        quit

Used and idle are means of the account over the last minutes, in GPUs.
It only looks: it sends no signals and changes nothing.";

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = area.width.min(78);
    let height = area.height.min(HELP.lines().count() as u16 + 2);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title("Keys")), place);
}
