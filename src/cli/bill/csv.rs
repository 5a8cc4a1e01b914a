//! The bill as CSV (RFC 4180): one line per group, each with node and period, and no line of totals.

use super::by::BillGrouping;
use super::sheet::{BillRow, HOURS, Sheet, decimal};
use crate::billing::{Bill, BillPrice, print_money};

/// The bill with its heading.
pub(super) fn table(statement: &Bill, by: &BillGrouping) -> String {
    let mut heads: Vec<String> = ["node", "cluster", "from", "to", "time_zone"].map(str::to_owned).into();
    heads.extend(by.names().into_iter().map(str::to_owned));
    heads.extend(HOURS.iter().map(|column| format!("{}_hours", column.name)));
    heads.extend(
        ["energy_kwh", "amount", "currency", "price_per_gpu_hour", "price_class", "simulated"]
            .map(str::to_owned),
    );
    let sheet = Sheet::new(statement, by);
    sheet.rows.iter().fold(record(&heads), |page, row| page + &record(&fields(statement, row)))
}

fn fields(statement: &Bill, row: &BillRow) -> Vec<String> {
    let mut fields = vec![
        statement.node.clone(),
        statement.cluster.clone().unwrap_or_default(),
        statement.from_local.clone(),
        statement.to_local.clone(),
        statement.time_zone.clone(),
    ];
    fields.extend(row.names.iter().cloned());
    fields.extend(HOURS.iter().map(|column| decimal((column.of)(row))));
    fields.push(row.energy.map(decimal).unwrap_or_default());
    let has_money = statement.currency.is_some();
    fields.push(if has_money { decimal(row.money) } else { String::new() });
    fields.push(statement.currency.clone().unwrap_or_default());
    // Several prices are in order of time.
    let prices =
        |text: fn(&BillPrice) -> String| statement.prices.iter().map(text).collect::<Vec<_>>().join(";");
    fields.extend([prices(|price| print_money(price.gpu_hour)), prices(|price| price.class.clone())]);
    fields.push(statement.simulated.to_string());
    fields
}

fn record(fields: &[String]) -> String {
    fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",") + "\r\n"
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_would_break_the_line_is_quoted() {
        assert_eq!(quoted("lab.service"), "lab.service");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
