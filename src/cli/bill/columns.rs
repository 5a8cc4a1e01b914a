//! The columns of a bill: what each is called in text and in CSV, and what it means.

use super::sheet::BillRow;

/// Stands in a meaning for whom a line is of.
pub(super) const WHOSE: &str = "WHOSE";

/// A column of hours.
pub(super) struct BillColumn {
    /// Its head in the table; in CSV followed by `_hours`.
    pub(super) name: &'static str,
    /// What it means, for the legend, with [`WHOSE`].
    pub(super) meaning: &'static str,
    pub(super) of: fn(&BillRow) -> u128,
    /// Whether it stands in a bill without prices too.
    pub(super) always: bool,
}

const fn column(name: &'static str, of: fn(&BillRow) -> u128, meaning: &'static str) -> BillColumn {
    BillColumn { name, meaning, of, always: true }
}

const fn of_price(name: &'static str, of: fn(&BillRow) -> u128, meaning: &'static str) -> BillColumn {
    BillColumn { name, meaning, of, always: false }
}

/// All columns of hours, in their order.
pub(super) const HOURS: [BillColumn; 11] = [
    column(
        "held",
        BillRow::held,
        "GPU time granted to WHOSE = within + lent + idle + unmeasured + unavailable",
    ),
    column("within", |row| row.parts[0], "held, and used by WHOSE"),
    column("lent", |row| row.parts[1], "held, not used by WHOSE, and used by others"),
    column(
        "idle",
        |row| row.parts[2],
        "held, and used by nobody; in JSON and metrics idle is this and lent together",
    ),
    column("unmeasured", |row| row.parts[3], "held while it could not be measured whether the GPU was used"),
    column(
        "unavailable",
        |row| row.parts[4],
        "held while the GPU was lost or failed; its price goes to __unavailable__",
    ),
    column("beyond", |row| row.beside[0], "used above WHOSE's own share; not part of held"),
    column(
        "outside",
        |row| row.beside[1],
        "used on a GPU that others held and WHOSE did not; not part of held",
    ),
    column("unheld", |row| row.beside[2], "used while nobody held the GPU; not part of held"),
    of_price(
        "charged",
        |row| row.charged,
        "time that the amount is for: held less unavailable, while a price was in force",
    ),
    of_price("unpriced", |row| row.unpriced, "the same while no price was in force; it costs nothing"),
];

/// The legend of energy.
pub(super) const ENERGY: &str =
    "energy: idle power shared by held time, the rest by use; - where it is not measured";

/// Reserved tenants that may stand in a bill, with what is booked on them.
pub(super) const REMAINDERS: [(&str, &str); 6] = [
    ("__unallocated__", "time that nobody held"),
    ("__stranded__", "time of MIG placements that no profile can use"),
    (
        "__unavailable__",
        "time in which nobody held a GPU that was lost or failed, and the price of all unavailable time",
    ),
    ("__unobserved__", "time in which no agent watched the GPU"),
    ("__system__", "use by the system: display server, persistence daemon, the agent"),
    ("__unattributed__", "use by processes whose owner is not known"),
];
