//! What the log says at the start: version, configuration, grants, prices, and the ledger with its last commit.

use super::Launch;
use crate::config::{ConfigFile, PriceBookConfig};
use crate::ledger::{Ledger, Recovered};

/// Says what starts, and by which configuration.
pub(super) fn agent(launch: &Launch) {
    let Launch { config, source, .. } = launch;
    let file = source.as_ref().map(ConfigFile::path).map_or_else(
        || "none".to_owned(),
        |path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
    );
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = file,
        level = config.sampling.level.name(),
        interval_ms = config.sampling.interval.0 / 1_000_000,
        "gpumeter starts"
    );
    let (rates, currency) = match &config.prices {
        Some(PriceBookConfig::Own { currency, rates }) => (rates.len(), &**currency),
        Some(PriceBookConfig::Example) => (1, "example prices"),
        None => (0, "none: hours and joules, no money"),
    };
    tracing::info!(
        standing = config.attribution.standing.len(),
        presence = config.attribution.presence,
        rates,
        currency,
        "grants and prices"
    );
}

/// Says which ledger was opened, and where its account stands.
pub(super) fn ledger(ledger: &Ledger, recovered: &Recovered) {
    let last_commit = if recovered.gpus.is_empty() {
        "none: no GPU has an account in it yet".to_owned()
    } else {
        jiff::Timestamp::from_nanosecond(i128::from(recovered.last_commit.0))
            .map_or_else(|_| "unknown".to_owned(), |at| at.to_string())
    };
    tracing::info!(
        path = %ledger.path().display(),
        last_commit,
        gpus = recovered.gpus.len(),
        durable = recovered.durable,
        "ledger opened"
    );
    if let Some(copy) = &recovered.upgraded_from {
        tracing::info!(
            copy = %copy.display(),
            "the ledger has a newer schema from now on; the way back to an earlier release is gpumeter ledger restore"
        );
    }
}
