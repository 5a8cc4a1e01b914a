//! `gpumeter bill --focus`: writes the rows of FOCUS as CSV or Parquet.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;

use super::{Failure, print_data};
use crate::accounting::billing::Bill;
use crate::accounting::billing::focus::{
    COLUMNS, FOCUS_VERSION, FocusRow, FocusType, FocusValue, focus_rows,
};
use crate::accounting::day_files::{ParquetCell, write_parquet};
use crate::cli::report::csv::records;
use crate::runtime::file::{self, Durability};

#[derive(Args, Debug)]
pub(super) struct FocusOptions {
    /// Write the rows of FOCUS 1.3, one for each local day, tenant, workload, GPU slot and rate, into a file that ends in
    /// .csv or .parquet; - is CSV to standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "html", "json", "by", "spread", "compare", "compare_book", "split_by", "over_budget", "against", "tenant"])]
    focus: Option<PathBuf>,
    /// BillingAccountId and BillingAccountName of FOCUS, instead of billing.account of the agent.
    #[arg(long, value_name = "NAME", requires = "focus")]
    billing_account: Option<String>,
    /// InvoiceIssuerName and the providers of FOCUS, instead of billing.invoice_issuer of the agent.
    #[arg(long, value_name = "NAME", requires = "focus")]
    invoice_issuer: Option<String>,
}

enum FocusForm<'a> {
    Output,
    Csv(&'a Path),
    Parquet(&'a Path),
}

impl FocusOptions {
    pub(super) const fn is_asked_for(&self) -> bool {
        self.focus.is_some()
    }

    pub(super) fn write(&self, bill: &Bill) -> Result<(), Failure> {
        let Some(path) = &self.focus else { return Ok(()) };
        let form = form_of(path)?;
        let own =
            |given: &Option<String>, of_bill: &Option<String>| given.clone().or_else(|| of_bill.clone());
        let bill = Bill {
            billing_account: own(&self.billing_account, &bill.billing_account),
            invoice_issuer: own(&self.invoice_issuer, &bill.invoice_issuer),
            ..bill.clone()
        };
        let rows = focus_rows(&bill).map_err(|error| Failure::wrong(format!("--focus: {error}")))?;
        match form {
            FocusForm::Output => print_data(&table(&rows)?)?,
            FocusForm::Csv(path) => replace(path, table(&rows)?.as_bytes())?,
            FocusForm::Parquet(path) => {
                let file = parquet(&rows).map_err(|error| {
                    Failure::found(format!("--focus: the rows do not fit into Parquet: {error}"))
                })?;
                replace(path, &file)?;
            }
        }
        Ok(())
    }
}

fn form_of(path: &Path) -> Result<FocusForm<'_>, Failure> {
    match path.extension().and_then(|ending| ending.to_str()) {
        _ if path == Path::new("-") => Ok(FocusForm::Output),
        Some("csv") => Ok(FocusForm::Csv(path)),
        Some("parquet") => Ok(FocusForm::Parquet(path)),
        _ => Err(Failure::wrong(format!(
            "--focus {}: give a file that ends in .csv or .parquet",
            path.display()
        ))),
    }
}

/// Writes a file at once, so that no reader sees a part of it.
fn replace(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    file::replace(path, Path::new(&part), 0o666, Durability::Kill, |file| file.write_all(content)).map_err(
        |error: std::io::Error| {
            Failure::found(format!("--focus {}: cannot be written: {error}", path.display()))
        },
    )
}

fn table(rows: &[FocusRow<'_>]) -> Result<String, Failure> {
    let heads = COLUMNS.iter().map(|column| column.name.to_owned()).collect();
    let cell = |value| match value {
        FocusValue::Null => String::new(),
        // Programs read it, and join its names with those of Parquet: they are whole, and without an apostrophe before formulas.
        FocusValue::Text(text) => text,
        FocusValue::Time(at) => at.to_string(),
        FocusValue::Decimal(number) => number.to_string(),
    };
    let lines = rows.iter().map(|row| COLUMNS.iter().map(|column| cell((column.value)(row))).collect());
    records([heads].into_iter().chain(lines))
}

/// The rows as a Parquet file.
fn parquet(rows: &[FocusRow<'_>]) -> Result<Vec<u8>, ParquetError> {
    let cell = |value| match value {
        FocusValue::Null => ParquetCell::Null,
        FocusValue::Text(text) => ParquetCell::Text(text.as_str().into()),
        FocusValue::Time(at) => i64::try_from(at.0 / 1_000).map_or(ParquetCell::Null, ParquetCell::Integer),
        FocusValue::Decimal(number) => ParquetCell::Decimal(number.units),
    };
    let columns = COLUMNS.iter().map(|column| rows.iter().map(|row| cell((column.value)(row))).collect());
    let version = KeyValue::new("focus_version".to_owned(), FOCUS_VERSION.to_owned());
    let created_by = concat!("gpumeter version ", env!("CARGO_PKG_VERSION"));
    write_parquet(&message_type(), created_by, columns, vec![version])
}

fn message_type() -> String {
    let field = |kind, name: &str| match kind {
        FocusType::Text => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
        FocusType::Time => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));"),
        FocusType::Decimal(digits, places) => {
            format!("OPTIONAL FIXED_LEN_BYTE_ARRAY(16) {name} (DECIMAL({digits},{places}));")
        }
    };
    let fields: String = COLUMNS.iter().map(|column| field(column.kind, column.name)).collect();
    format!("message focus_cost_and_usage {{ {fields} }}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::json;

    use super::*;
    use crate::accounting::billing::made;

    /// A bill of an hour at 2.10, whose tenant has this name.
    fn bill(tenant: &str) -> Bill {
        let hour = "3600000000000";
        made::bill(&json!({"node": "=n1", "time_zone": "UTC", "currency": "EUR", "billing_account": "a",
            "invoice_issuer": "i", "rates": [{"id": "1", "unit": "gpu_hour", "price": "2.100000000", "class": "spot",
                "slot_ns": hour, "money": "2.100000000"}],
            "gpus": [{"gpu": 0, "uuid": "GPU-0", "model": "H100", "slot_ns": hour,
                "settled_until": "2026-11-01T01:00:00Z", "accounted_since": "2026-11-01T00:00:00Z"}],
            "lines": [made::line(&json!({"tenant": tenant, "holder": format!("unit:{tenant}"),
                "labels": {"systemd_unit": tenant}, "day": "2026-11-01", "rate": "1", "held_ns": hour, "within_ns": hour,
                "used_ns": hour, "measured_ns": hour, "charged_ns": hour, "money": "2.100000000"}))]}))
    }

    const HOSTILE: [&str; 5] =
        ["a,\"b\"\r\nc", "=HYPERLINK(\"http://x\")", "\u{202e}x;y\t", "@x", "\\\"',\u{1f600}"];

    #[test]
    fn a_hostile_name_stays_in_its_cell() {
        for name in HOSTILE {
            let bill = bill(name);
            let page = table(&focus_rows(&bill).unwrap()).unwrap();
            let mut reader = csv::ReaderBuilder::new().from_reader(page.as_bytes());
            let heads = reader.headers().unwrap().clone();
            let records: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
            assert_eq!(records.len(), 1);
            let cell = |name: &str| &records[0][heads.iter().position(|head| head == name).unwrap()];
            assert_eq!(cell("SubAccountId"), name);
            assert_eq!(cell("AllocatedResourceId"), bill.lines[0].holder.name());
            let tags: serde_json::Value = serde_json::from_str(cell("AllocatedTags")).unwrap();
            assert_eq!(tags, json!({"systemd_unit": name}));
            assert_eq!(
                [cell("ContractedUnitPrice"), cell("PricingQuantity"), cell("BilledCost")],
                ["2.1", "1", "2.1"]
            );
        }
    }

    #[test]
    fn parquet_has_the_same_rows_with_their_types() {
        for name in HOSTILE {
            let bill = bill(name);
            let file = parquet(&focus_rows(&bill).unwrap()).unwrap();
            let reader = SerializedFileReader::new(bytes::Bytes::from(file)).unwrap();
            let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
            assert!(metadata.contains(&KeyValue::new("focus_version".to_owned(), "1.3".to_owned())));
            let row = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
            let cell =
                |name: &str| row.get_column_iter().find(|(column, _)| *column == name).unwrap().1.clone();
            assert_eq!(cell("SubAccountId"), Field::Str(name.to_owned()));
            assert_eq!(cell("BilledCost").to_string(), "2.1000000000000000000000");
            assert_eq!(cell("ContractedUnitPrice").to_string(), "2.100000000");
            assert_eq!(cell("ChargePeriodStart").to_string(), "2026-11-01 00:00:00.000000 +00:00");
            assert_eq!(cell("ChargeClass"), Field::Null);
        }
    }

    #[test]
    fn the_ending_says_which_form_it_is() {
        assert!(matches!(form_of(Path::new("-")), Ok(FocusForm::Output)));
        assert!(matches!(form_of(Path::new("a.csv")), Ok(FocusForm::Csv(_))));
        assert!(matches!(form_of(Path::new("/x/a.parquet")), Ok(FocusForm::Parquet(_))));
        let message = form_of(Path::new("a.xlsx")).err().unwrap().message;
        assert_eq!(message, "--focus a.xlsx: give a file that ends in .csv or .parquet");
    }
}
