//! Whether the OTLP destination takes points: it is sent a request that holds none.

use bytes::Bytes;

use super::Finding;
use crate::config::Config;
use crate::push::{Destination, send};

/// What the destination answers; nothing where points are pushed nowhere.
pub(super) fn otlp(config: &Config) -> Option<Finding> {
    let endpoint = config.otlp.endpoint.as_ref()?;
    let (works, why) = match Destination::parse(&endpoint.to_string()) {
        Ok(mut destination) => {
            destination.limits.tries = 1;
            answer(&destination)
        }
        Err(error) => (false, error.to_string()),
    };
    Some(Finding::new("otlp", works, why))
}

fn answer(destination: &Destination) -> (bool, String) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return (false, format!("{destination} was not tried: {error}")),
    };
    let outcome = runtime.block_on(send(destination, Bytes::new()));
    // A name service that hangs must not hold up the command.
    runtime.shutdown_background();
    match outcome {
        Ok(accepted) if accepted.message.is_empty() => {
            (true, format!("{destination} accepted an empty request"))
        }
        Ok(accepted) => {
            (true, format!("{destination} accepted an empty request and says: {}", accepted.message))
        }
        Err(failure) => (false, format!("{destination}: {failure}")),
    }
}
