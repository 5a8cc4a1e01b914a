//! `packaging/config.yaml`: the default configuration, as `gpumeter run --print-default-config` prints it.

use super::check::{Outcome, check};

#[test]
fn the_packaged_configuration_is_the_printed_one() -> Outcome {
    check("packaging/config.yaml", &gpumeter::config::default_yaml())
}
