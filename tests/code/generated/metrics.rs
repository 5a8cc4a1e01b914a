//! `docs/metrics.md`: the reference of all metrics, as `gpumeter metrics --format markdown` prints it.

use super::check::{Outcome, check};

#[test]
fn the_metric_reference_is_the_catalogue() -> Outcome {
    check("docs/metrics.md", &gpumeter::model::catalogue::reference::markdown())
}
