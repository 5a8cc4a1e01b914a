//! The page about the ledger: its queries and their results, and the tables that it lists.

use gpumeter::accounting::batches::{ClosedWindow, LedgerBatch};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::evidence::{Tick, windows_of};
use super::month::MONTH;
use super::world::{World, fill, register_gpus, uuid};
use crate::generated::check::{Outcome, check};

const PAGE: &str = include_str!("../../../docs/ledger.md");

/// A demo with pods.
const DEMO: &str = include_str!("../../fixtures/ledger/version-7.sql");

/// What `sqlite3 -header` prints.
fn run(connection: &Connection, sql: &str) -> Result<String, rusqlite::Error> {
    let mut statement = connection.prepare(sql)?;
    let mut printed = statement.column_names().collect::<Vec<_>>().join("|") + "\n";
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let text = |index| -> Result<String, rusqlite::Error> {
            Ok(match row.get(index)? {
                Value::Null => String::new(),
                Value::Integer(number) => number.to_string(),
                Value::Real(number) => format!("{number:?}"),
                Value::Text(text) => text,
                Value::Blob(_) => "a blob".to_owned(),
            })
        };
        printed += &((0..columns).map(text).collect::<Result<Vec<_>, _>>()?.join("|") + "\n");
    }
    Ok(printed)
}

#[test]
fn the_page_about_the_ledger_shows_what_its_queries_return() -> Outcome {
    let demo = Connection::open_in_memory()?;
    fill(&demo, DEMO);
    let month = Connection::open(MONTH.path())?;
    let mut parts = PAGE.split("```sql\n");
    let mut page = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (sql, rest) = part.split_once("```\n\n```text\n").ok_or("a query without a result")?;
        let (_, rest) = rest.split_once("```").ok_or("a result without an end")?;
        let ledger = if sql.starts_with("-- month.db\n") { &month } else { &demo };
        page += &format!("```sql\n{sql}```\n\n```text\n{}```{rest}", run(ledger, sql)?);
    }
    check("docs/ledger.md", &page)
}

#[test]
fn the_query_of_idle_stretches_on_the_page_about_autoscaling_counts_those_of_pods_between_two_uses() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let tick =
        |seconds, busy, is_present: bool| Tick { seconds, busy, present: [is_present, false], sm: None };
    // Before the first use and after the last it counts none.
    let mut ticks = vec![tick(600, 0, true), tick(15, 10_000, true)];
    for idle in [100, 400, 899, 1_000, 4_000, 20_000] {
        ticks.extend([tick(idle, 0, true), tick(15, 10_000, true)]);
    }
    ticks.extend([tick(600, 0, true), tick(301, 0, false)]);
    let (pod, user) = (windows_of(["k8s:11/main", ""], &ticks), windows_of(["user:a", ""], &ticks));
    for (pod, user) in pod.into_iter().zip(user) {
        let now = pod.settlement.to;
        let closed = vec![pod, ClosedWindow { gpu: uuid(1), ..user }];
        ledger.commit(&LedgerBatch { now, closed, ..LedgerBatch::default() }).unwrap();
    }
    let page = include_str!("../../../docs/autoscaling.md");
    let sql = page.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let found = run(&Connection::open(world.path()).unwrap(), sql).unwrap();
    assert_eq!(found, "name|1 to 5 min|5 to 15 min|15 to 60 min|longer\nk8s:11/main|1|2|1|2\n");
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM run"), 2, "the user's is there, and left out");
}

#[test]
fn the_page_about_the_ledger_has_every_table_and_column() {
    let world = World::new();
    drop(world.open(0, Default::default()));
    let connection = Connection::open(world.path()).unwrap();
    let mut columns = connection
        .prepare(
            "SELECT t.name, c.name FROM sqlite_master t JOIN pragma_table_info(t.name) c
             WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'",
        )
        .unwrap();
    let columns =
        columns.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
    let missing: Vec<_> = columns
        .map(Result::unwrap)
        .filter(|(table, column)| {
            let of_table =
                |line: &&str| line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{table}`")));
            !PAGE.lines().filter(of_table).any(|row| row.contains(&format!("`{column}`")))
        })
        .collect();
    assert_eq!(missing, [], "tables and columns that the page does not list");
}
