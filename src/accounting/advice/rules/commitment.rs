//! A5: a base of GPUs that is always held on demand, although a commitment costs less, by the load-duration curve.

use super::{FleetFound, FleetRule};
use crate::accounting::advice::evidence::AdviceEvidence;
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::fleet::{COMMITMENT_DAYS, ModelHours};
use crate::accounting::billing::{ExactMoney, print_money};
use crate::model::{HOUR, Nanoseconds, Utc};

pub(super) const RULE: FleetRule = FleetRule {
    kind: FindingKind::Commitment,
    code: "A5",
    rule: "of GPUs that are paid on demand, as many as were held in so large a share of the hours of 60 days that their committed rate \
           costs less; one rate of each class; the second half of the time as the first, within 20 %",
    risk: "a commitment is paid also when the GPUs are not needed any more",
    how: "commit to this number for a term in which you expect the load to stay; both neighbouring numbers are given",
    find,
};

fn find(evidence: &AdviceEvidence) -> Vec<FleetFound> {
    let Some(fleet) = &evidence.fleet else { return Vec::new() };
    let found = fleet.models.iter().filter_map(|(model, hours)| of_model(model, hours));
    found.map(|found| FleetFound { from: fleet.models_begin, ..found }).collect()
}

fn of_model(model: &str, hours: &ModelHours) -> Option<FleetFound> {
    let [on_demand, committed] = [&hours.on_demand, &hours.committed].map(|rates| {
        let mut rates = rates.iter();
        rates.next().copied().filter(|_| rates.next().is_none())
    });
    let (on_demand, committed) =
        on_demand.zip(committed).filter(|(on_demand, committed)| committed < on_demand)?;
    let levels: Vec<u64> = hours.held.iter().map(|held| held / HOUR.0).collect();
    if (levels.len() as u64) < COMMITMENT_DAYS * 24 || has_trend(&levels) {
        return None;
    }
    // The savings by level rise up to the best one, and fall from then on.
    let is_worth = |count: &u64| {
        let above = levels.iter().filter(|level| *level >= count).count();
        above as i128 * i128::from(on_demand) >= levels.len() as i128 * i128::from(committed)
    };
    let best = (1..=levels.iter().copied().max()?).take_while(is_worth).last()?;
    let saving = |count: u64| {
        let used: u64 = levels.iter().map(|level| (*level).min(count)).sum();
        let [used, all] = [used, count * levels.len() as u64].map(|hours| hours.checked_mul(HOUR.0));
        let paid = ExactMoney::of_time(committed, all?);
        ExactMoney::of_time(on_demand, used?).minus(paid).ok()
    };
    let money = saving(best)?;
    let step = best.div_ceil(10);
    let near = [best.saturating_sub(step), best + step].map(|count| {
        let money = saving(count).map(|money| print_money(money.floor()));
        money.map(|money| format!("{count}: {}", &money[..money.len().saturating_sub(7)]))
    });
    let near: Vec<String> = near.into_iter().flatten().collect();
    let above = levels.iter().filter(|level| **level >= best).count();
    Some(FleetFound {
        subject: model.to_owned(),
        what: format!(
            "{best} were held in {} % of {} hours; saved over that time with 10 % fewer or more ({})",
            above * 100 / levels.len(),
            levels.len(),
            near.join("; ")
        ),
        gpus: Vec::new(),
        time: Nanoseconds(0),
        money: Some(money),
        extent: Nanoseconds(best.saturating_mul(HOUR.0)),
        from: Utc::default(),
    })
}

/// Whether the means of the two halves differ by more than a fifth.
fn has_trend(levels: &[u64]) -> bool {
    let (first, second) = levels.split_at(levels.len() / 2);
    let [first, second] = [first, second].map(|half| half.iter().sum::<u64>());
    first.abs_diff(second) * 5 > first.max(second)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn model(level: impl Fn(u64) -> u64) -> ModelHours {
        ModelHours {
            held: (0..COMMITMENT_DAYS * 24).map(|hour| level(hour) * HOUR.0).collect(),
            on_demand: [2_000_000_000].into(),
            committed: [1_200_000_000].into(),
        }
    }

    #[test]
    fn the_base_is_committed_and_not_the_peak_of_a_nightly_batch() {
        // Ten GPUs, and 40 in eight of 24 hours: less than 60 % of the time.
        let nightly = model(|hour| if hour % 24 < 8 { 40 } else { 10 });
        let found = of_model("H100", &nightly).unwrap();
        assert!(found.what.starts_with("10 were held in 100 % of 1440 hours"), "{}", found.what);
        // 10 x 1,440 h x 0.80.
        assert_eq!(found.money.unwrap().floor().0, 11_520 * 1_000_000_000);
        let longer = model(|hour| if hour % 24 < 16 { 40 } else { 10 });
        assert!(of_model("H100", &longer).unwrap().what.starts_with("40 were held in 66 %"));
    }

    #[test]
    fn too_few_days_a_trend_and_rates_of_one_class_are_silent() {
        let short = ModelHours { held: vec![10 * HOUR.0; 59 * 24], ..model(|_| 0) };
        let growing = model(|hour| 10 + hour / 100);
        let alone = ModelHours { committed: [].into(), ..model(|_| 10) };
        let two = ModelHours { on_demand: [2_000_000_000, 1_900_000_000].into(), ..model(|_| 10) };
        let dear = ModelHours { committed: [2_100_000_000].into(), ..model(|_| 10) };
        for silent in [short, growing, alone, two, dear, model(|_| 0)] {
            assert!(of_model("H100", &silent).is_none(), "{silent:?}");
        }
    }
}
