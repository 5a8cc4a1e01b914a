//! `docs/personas.md`: families by driver and board, from the output of `doctor`; compared, or written with `UPDATE`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use gpumeter::cli::doctor::board_sentences;
use nvidia_ml::persona::Persona;

use super::node::{FamilyState, Node};

/// Boards by the name of their column: the scenario's entry, and where its process runs.
const BOARDS: [(&str, &str); 12] = [
    ("t4", r#"{"profile":"t4"}"#),
    ("a100", r#"{"profile":"a100"}"#),
    ("a100 MIG", r#"{"profile":"a100","mig":[{"profile":"3g.40gb","start":4}]}"#),
    ("a30", r#"{"profile":"a30"}"#),
    ("l40s", r#"{"profile":"l40s"}"#),
    ("rtx-4090", r#"{"profile":"rtx-4090"}"#),
    // A single GB200 would be in no fabric.
    ("h100", r#"{"profile":"h100","count":2}"#),
    ("h100 MIG", r#"{"profile":"h100","mig":[{"profile":"3g.40gb","start":4}]}"#),
    ("h200", r#"{"profile":"h200","count":2}"#),
    ("b200", r#"{"profile":"b200","count":2}"#),
    ("gb200", r#"{"profile":"gb200","count":2}"#),
    ("gb10", r#"{"profile":"gb10"}"#),
];

/// The boards that a driver supports.
const COLUMNS: [(Option<&str>, &[&str]); 8] = [
    (Some("r470"), &["t4", "a100"]),
    (Some("early_535"), &["t4", "a100", "h100"]),
    (Some("r535_98"), &["t4", "a100", "h100"]),
    (Some("r545_double_tag"), &["t4", "a100", "h100"]),
    (Some("r580_ids"), &["t4", "a100", "h100", "gb200"]),
    (
        None,
        &["t4", "a100", "a100 MIG", "a30", "l40s", "rtx-4090", "h100", "h100 MIG", "h200", "b200", "gb200"],
    ),
    (Some("r590"), &["t4", "a100", "a100 MIG", "h100", "h100 MIG", "gb200"]),
    (Some("gb10"), &["gb10"]),
];

/// The marks of a cell and the doctor's reasons; of variable sentences the constant part.
const MARKS: [(char, &str, &str); 6] = [
    ('-', "not_supported", "this board does not report it, as said below"),
    ('c', "not_supported", "this board does not report it, or not while MIG mode is on"),
    (
        'g',
        "not_supported",
        "this board has no GPU performance monitoring (GPM); Hopper and later boards do, so only DCGM has DCGM_FI_PROF_* here",
    ),
    ('s', "no_symbol", "the driver has no function for it; a newer one may"),
    ('p', "no_permission", "the driver refuses this user"),
    ('m', "", "MIG mode is off"),
];

const PROCESS: &str = r#"{"pid":4211,"gpu":0,"phases":[
    {"from":0,"to":600,"demand":0.5,"memory_bytes":1073741824,"encoder":0.1,"decoder":0.1}]}"#;

struct Column {
    driver: &'static str,
    board: &'static str,
    cells: BTreeMap<String, char>,
    /// The sentences of `doctor` for the first of [`MARKS`].
    absent: BTreeMap<String, String>,
}

/// The end of a sentence when MIG mode may be the reason too.
const MIG: &str = "; or not while MIG mode is on";

#[test]
fn the_matrix_of_drivers_and_boards_is_up_to_date() {
    let mut order = Vec::new();
    let mut columns = Vec::new();
    for (persona, boards) in COLUMNS {
        for board in boards {
            let states = doctor(persona, board);
            order = states.iter().map(|state| state.family.clone()).collect();
            let version = persona.map_or(Persona::Plain, |name| Persona::named(name).unwrap());
            let cells =
                states.iter().map(|state| (state.family.clone(), mark(state, persona, board))).collect();
            let absent = states
                .iter()
                .filter(|state| state.status != "exported" && mark(state, persona, board) == '-');
            let absent = absent.map(|state| (state.family.clone(), state.why.clone())).collect();
            columns.push(Column { driver: version.driver_version(), board, cells, absent });
        }
    }
    let text = document(&order, &columns);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/personas.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (old, new) in committed.lines().zip(text.lines()) {
        assert_eq!(old, new, "run `UPDATE=1 cargo test generated` if this is right");
    }
    assert_eq!(committed, text);
}

#[test]
fn every_driver_variant_has_a_column() {
    for name in Persona::names() {
        assert!(COLUMNS.iter().any(|(persona, _)| *persona == Some(name)), "{name}");
    }
}

fn doctor(persona: Option<&str>, board: &str) -> Vec<FamilyState> {
    let (_, gpu) = BOARDS.iter().find(|(name, _)| *name == board).unwrap();
    let process = match board.ends_with("MIG") {
        true => PROCESS.replacen(r#""gpu":0"#, r#""gpu":0,"instance":0"#, 1).replacen(
            r#","encoder":0.1,"decoder":0.1"#,
            "",
            1,
        ),
        false => PROCESS.to_owned(),
    };
    Node::new(persona, gpu, &process).doctor().1
}

fn mark(state: &FamilyState, persona: Option<&str>, board: &str) -> char {
    if state.status == "exported" {
        return '+';
    }
    let is_of_board = |why: &str| board_sentences().any(|sentence| sentence == why);
    let why = match state.reason.as_str() {
        "no_symbol" => "the driver has no function for it; a newer one may",
        "no_permission" => "the driver refuses this user",
        "not_supported" if state.why == MARKS[2].2 => MARKS[2].2,
        "not_supported" if state.why.strip_suffix(MIG).is_some_and(is_of_board) => MARKS[1].2,
        "not_supported" if is_of_board(&state.why) => MARKS[0].2,
        _ => &state.why,
    };
    let known = MARKS.iter().find(|(_, reason, known)| *reason == state.reason && *known == why);
    known.map_or_else(|| panic!("{persona:?} on {board}: {state:?}"), |(mark, _, _)| *mark)
}

const HEAD: &str = "\
# Which series exist where

For the person who asks which metrics a board has. This is the output of `gpumeter doctor` for each board and driver, with no metric turned
off by configuration. `+` is exported; every other mark gives the reason. Boards and drivers are simulated ([how](../simulator/README.md)). The
library of an older driver lacks the functions that the real one lacks. On a real node, run `gpumeter doctor`. Generated:
`UPDATE=1 cargo test generated`.

";

fn document(order: &[String], columns: &[Column]) -> String {
    let mut text = HEAD.to_owned();
    text += "| mark | reason | why |\n|---|---|---|\n";
    for (mark, reason, why) in MARKS {
        if columns.iter().any(|column| column.cells.values().any(|cell| *cell == mark)) {
            writeln!(text, "| `{mark}` | {} | {why} |", if reason.is_empty() { "off" } else { reason })
                .unwrap();
        }
    }
    let varies = |family: &String| columns.iter().any(|column| column.cells[family] != '+');
    text += "\n| |";
    columns.iter().for_each(|column| write!(text, " {} |", column.driver).unwrap());
    text += "\n|---|";
    columns.iter().for_each(|_| text += "---|");
    text += "\n| |";
    columns.iter().for_each(|column| write!(text, " {} |", column.board).unwrap());
    for family in order.iter().filter(|family| varies(family)) {
        write!(text, "\n| `{family}` |").unwrap();
        columns.iter().for_each(|column| write!(text, " `{}` |", column.cells[family]).unwrap());
    }
    text += "\n\nWhat the doctor says where a board does not report it:\n\n";
    for family in &order.iter().filter(|family| varies(family)).collect::<Vec<_>>() {
        if let Some(why) = columns.iter().find_map(|column| column.absent.get(*family)) {
            writeln!(text, "- `{family}`: {why}").unwrap();
        }
    }
    text += "\nEverywhere:\n\n";
    for family in order.iter().filter(|family| !varies(family)) {
        writeln!(text, "- `{family}`").unwrap();
    }
    text
}
