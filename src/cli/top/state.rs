//! What a user of `gpumeter top` has chosen, and how keys change it.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::source::TopData;
use super::tables::{TopTable, TopView};
use super::words::Moments;

pub(super) struct TopState {
    pub(super) data: TopData,
    zone: TimeZone,
    /// Why there is no newer data.
    pub(super) problem: Option<String>,
    pub(super) view: TopView,
    choices: [ViewChoice; TopView::ALL.len()],
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_typing: bool,
    pub(super) shows_history: bool,
    pub(super) shows_help: bool,
    is_paused: bool,
}

#[derive(Clone, Default)]
struct ViewChoice {
    /// The key of the selected row; empty for the first.
    selected: String,
    /// The column to sort by; none for the agent's order.
    sort: Option<usize>,
    is_reverse: bool,
    /// Whether rows show what is below them.
    is_unfolded: bool,
    /// Rows that differ from that.
    exceptions: BTreeSet<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterKey {
    GoOn,
    Quit,
}

impl TopState {
    pub(super) fn new(zone: TimeZone) -> Self {
        let mut choices: [ViewChoice; TopView::ALL.len()] = Default::default();
        // Who leaves most idle comes first.
        choices[TopView::Tenants as usize].sort = Some(3);
        Self {
            data: TopData::default(),
            zone,
            problem: Some("asking the agent".to_owned()),
            view: TopView::Gpus,
            choices,
            filter: String::new(),
            is_typing: false,
            shows_history: false,
            shows_help: false,
            is_paused: false,
        }
    }

    /// Shows newer data, unless the user has paused.
    pub(super) fn receive(&mut self, read: Result<Box<TopData>, String>) {
        match read {
            _ if self.is_paused => {}
            Ok(data) => (self.data, self.problem) = (*data, None),
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn moments(&self) -> Moments {
        Moments::of(&self.data.summary, self.zone.clone())
    }

    pub(super) fn table(&self) -> TopTable {
        let mut table = TopTable::of(self.view, &self.data, &self.moments());
        let choice = self.choice();
        table.filter(&self.filter);
        if let Some(column) = choice.sort {
            table.sort(column, choice.is_reverse);
        }
        table
    }

    pub(super) fn is_unfolded(&self, key: &str) -> bool {
        let choice = self.choice();
        choice.is_unfolded != choice.exceptions.contains(key)
    }

    pub(super) fn selected(&self, table: &TopTable) -> usize {
        table.rows.iter().position(|row| row.key == self.choice().selected).unwrap_or(0)
    }

    fn choice(&self) -> &ViewChoice {
        &self.choices[self.view as usize]
    }

    fn choice_mut(&mut self) -> &mut ViewChoice {
        &mut self.choices[self.view as usize]
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> AfterKey {
        let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if key.kind == KeyEventKind::Release {
            return AfterKey::GoOn;
        }
        if is_ctrl_c {
            return AfterKey::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return AfterKey::GoOn;
        }
        match key.code {
            KeyCode::Char('q') => return AfterKey::Quit,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return AfterKey::Quit,
            KeyCode::Char('?') => self.shows_help = !self.shows_help,
            KeyCode::Char('h') => self.shows_history = !self.shows_history,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(TopView::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.view = TopView::ALL[digit as usize - '1' as usize],
            code => self.change_view(code),
        }
        AfterKey::GoOn
    }

    fn turn(&mut self, by: usize) {
        self.view = TopView::ALL[(self.view as usize + by) % TopView::ALL.len()];
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => {}
        }
    }

    fn change_view(&mut self, code: KeyCode) {
        const PAGE: usize = 10;
        let table = self.table();
        let (last, at) = (table.rows.len().saturating_sub(1), self.selected(&table));
        let to = match code {
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::PageDown => at + PAGE,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => at,
        };
        let key = table.rows.get(to.min(last)).map(|row| row.key.clone()).unwrap_or_default();
        let columns = table.columns.len();
        let choice = self.choice_mut();
        choice.selected.clone_from(&key);
        match code {
            KeyCode::Char('s') => {
                choice.sort =
                    choice.sort.map_or(Some(0), |column| Some(column + 1)).filter(|column| *column < columns)
            }
            KeyCode::Char('r') => choice.is_reverse = !choice.is_reverse,
            KeyCode::Char('f') => {
                choice.is_unfolded = !choice.is_unfolded;
                choice.exceptions.clear();
            }
            KeyCode::Enter | KeyCode::Char(' ') if !choice.exceptions.remove(&key) => {
                choice.exceptions.insert(key);
            }
            _ => {}
        }
    }
}
