//! A4: nodes that are paid and free, all day or in the same hours of each week. Only whole nodes: one that lacks a GPU cannot go.

use super::{FleetFound, FleetRule, hours};
use crate::accounting::advice::evidence::AdviceEvidence;
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::fleet::{HourOfNode, NodeHours};
use crate::accounting::billing::ExactMoney;
use crate::model::{HOUR, Nanoseconds, Utc};

pub(super) const RULE: FleetRule = FleetRule {
    kind: FindingKind::FreeNode,
    code: "A4",
    rule: "nobody held any GPU of the node in 95 % of the hours of four weeks, or in the same hours of each week, 40 or more; neither \
           committed nor owned",
    risk: "jobs that begin later wait until a node is there again; whether some waited for other nodes is not known here",
    how: "remove the node, or let an autoscaler remove it in these hours (UTC); keep what is meant as a reserve under a grant of the class \
          reserve",
    find,
};

const WEEK: usize = 7 * 24;
const DAYS: usize = 28;

/// Fewer hours of a week are not worth a change.
const LEAST_HOURS: usize = 40;

fn find(evidence: &AdviceEvidence) -> Vec<FleetFound> {
    let nodes = evidence.fleet.iter().flat_map(|fleet| &fleet.nodes);
    let found = nodes.filter_map(|(name, node)| of_node(name, node));
    found.map(|found| FleetFound { from: evidence.from, ..found }).collect()
}

fn of_node(name: &str, node: &NodeHours) -> Option<FleetFound> {
    let present = node.hours.iter().filter(|hour| hour.all > 0).count();
    // A node that came later, or was away, may be there for what comes.
    if node.stays || present < DAYS * 24 || present + 1 < node.hours.len() {
        return None;
    }
    let is_free = |hour: &HourOfNode| hour.free == hour.all;
    let free = node.hours.iter().filter(|hour| hour.all > 0 && is_free(hour));
    let count = free.clone().count();
    let (what, free): (String, Vec<&HourOfNode>) = if count * 20 >= present * 19 {
        (format!("free in {count} of {present} hours"), free.collect())
    } else {
        let is_always_free = |of_week: &usize| node.hours.iter().skip(*of_week).step_by(WEEK).all(is_free);
        let weekly: Vec<usize> = (0..WEEK).filter(is_always_free).collect();
        let hours = weekly.iter().flat_map(|of_week| node.hours.iter().skip(*of_week).step_by(WEEK));
        (format!("free in the same {} hours of each week", weekly.len()), hours.collect())
    };
    if free.len() < LEAST_HOURS * (node.hours.len() / WEEK) {
        return None;
    }
    let time = free.iter().map(|hour| hour.free).fold(0, u64::saturating_add);
    let money =
        free.iter().fold(ExactMoney::ZERO, |sum, hour| sum.saturating_plus(ExactMoney::of_parts(hour.money)));
    let hours = hours(Nanoseconds(HOUR.0 * free.len() as u64));
    Some(FleetFound {
        subject: name.to_owned(),
        what: format!("{what}: {hours} of the node with its {} GPUs", node.gpus.len()),
        gpus: node.gpus.iter().cloned().collect(),
        time: Nanoseconds(time),
        money: Some(money).filter(|_| !node.is_unpriced),
        extent: Nanoseconds(time),
        from: Utc::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(is_free: impl Fn(usize) -> bool) -> NodeHours {
        let hour = |place| HourOfNode { free: if is_free(place) { 8 } else { 7 }, all: 8, money: 3 };
        NodeHours { hours: (0..DAYS * 24).map(hour).collect(), ..NodeHours::default() }
    }

    #[test]
    fn a_node_is_free_if_all_its_gpus_are_and_in_the_same_hours_of_each_week() {
        let what = |node: NodeHours| of_node("n", &node).map(|found| found.what);
        assert!(what(node(|_| true)).is_some_and(|what| what.starts_with("free in 672 of 672 hours")));
        assert_eq!(what(node(|_| false)), None, "one of its GPUs is always held");
        let weekend = |place: usize| place % WEEK < 48;
        assert!(
            what(node(weekend))
                .is_some_and(|what| what.starts_with("free in the same 48 hours of each week"))
        );
        assert_eq!(what(node(|place| weekend(place) && place > 400)), None, "in two of four weeks");
        assert_eq!(what(node(|place| place % WEEK < 39)), None, "39 hours a week");
        assert_eq!(what(NodeHours { stays: true, ..node(|_| true) }), None, "it is committed");
        let mut late = node(|_| true);
        late.hours[..24].fill(HourOfNode::default());
        assert_eq!(what(late), None, "it came a day later");
    }
}
