//! `docs/events.md`: the kinds of events.

use super::check::{Outcome, check};

#[test]
fn the_page_about_events_is_their_table() -> Outcome {
    check("docs/events.md", &gpumeter::output::events::reference())
}
