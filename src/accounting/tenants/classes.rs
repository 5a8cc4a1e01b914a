//! What holders are for: by the operator's rules, else by what is known of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TenantRules;
use super::rules::{can_have_rule, matches};
use crate::model::{Fact, Holder, HolderKind, WorkloadClass};

/// A rule that says what holders with certain facts are for. It changes no amount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassRule {
    /// Patterns by label of `gpu_workload_info`; all must match.
    #[serde(rename = "match")]
    pub patterns: BTreeMap<String, String>,
    pub class: WorkloadClass,
}

/// Words in the name of a Slurm partition whose jobs are interactive.
const INTERACTIVE: &str = "interactive";

/// The class of a holder: that of the first rule that matches, else the default of what it is.
pub fn class(holder: &Holder, rules: &TenantRules) -> WorkloadClass {
    class_rule(holder, rules).map_or_else(|| default_class(holder), |(_, rule)| rule.class)
}

/// The first rule that matches, with its place in the list.
pub fn class_rule<'a>(holder: &Holder, rules: &'a TenantRules) -> Option<(usize, &'a ClassRule)> {
    let mut rules = rules.classes.iter().enumerate().filter(|_| can_have_rule(holder));
    rules.find(|(_, rule)| matches(&rule.patterns, &holder.facts))
}

fn default_class(holder: &Holder) -> WorkloadClass {
    let text = |fact: Fact| holder.facts.get(fact).map_or("", |text| &**text);
    match holder.id.kind() {
        HolderKind::Slurm if text(Fact::SlurmPartition).contains(INTERACTIVE) => WorkloadClass::Interactive,
        HolderKind::Slurm => WorkloadClass::Batch,
        HolderKind::Pod => match text(Fact::OwnerKind) {
            "Job" => WorkloadClass::Batch,
            "Deployment" | "ReplicaSet" | "StatefulSet" | "InferenceService" | "LeaderWorkerSet" => {
                WorkloadClass::Service
            }
            "Notebook" => WorkloadClass::Interactive,
            _ => WorkloadClass::Unknown,
        },
        // What a user runs outside units of the system is of a login session.
        HolderKind::User => WorkloadClass::Interactive,
        _ => WorkloadClass::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, HolderId};

    fn job(partition: &str) -> Holder {
        let facts = [(Fact::SlurmCluster, "c"), (Fact::SlurmJob, "7"), (Fact::SlurmPartition, partition)];
        Holder::new(HolderKind::Slurm, Facts::new(facts))
    }

    fn pod(owner: &str) -> Holder {
        let facts = [(Fact::PodUid, "u"), (Fact::PodContainer, "main"), (Fact::OwnerKind, owner)];
        Holder::new(HolderKind::Pod, Facts::new(facts))
    }

    #[test]
    fn without_rules_the_class_follows_from_the_kind_its_owner_or_its_partition() {
        let none = TenantRules::default();
        for (holder, expected) in [
            (job("gpu"), WorkloadClass::Batch),
            (job("gpu-interactive"), WorkloadClass::Interactive),
            (pod("Job"), WorkloadClass::Batch),
            (pod("Deployment"), WorkloadClass::Service),
            (pod("StatefulSet"), WorkloadClass::Service),
            (pod("InferenceService"), WorkloadClass::Service),
            (pod("LeaderWorkerSet"), WorkloadClass::Service),
            (pod("Notebook"), WorkloadClass::Interactive),
            (pod("DaemonSet"), WorkloadClass::Unknown),
            (pod(""), WorkloadClass::Unknown),
            (Holder::user("ada", None), WorkloadClass::Interactive),
            (Holder::unit("server.service", None, None), WorkloadClass::Unknown),
            (Holder::remainder(HolderId::new(HolderId::UNALLOCATED)), WorkloadClass::Unknown),
        ] {
            assert_eq!(class(&holder, &none), expected, "{holder:?}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_gives_the_class_and_none_matches_a_remainder() {
        let rule = |patterns: &[(&str, &str)], class| ClassRule {
            patterns: patterns
                .iter()
                .map(|(label, text)| ((*label).to_owned(), (*text).to_owned()))
                .collect(),
            class,
        };
        let classes = vec![
            rule(&[("slurm_partition", "pre*")], WorkloadClass::Interruptible),
            rule(&[("slurm_job_id", "*")], WorkloadClass::Warm),
            rule(&[], WorkloadClass::Reserve),
        ];
        let rules = TenantRules { classes, ..TenantRules::default() };
        assert_eq!(class(&job("preempt"), &rules), WorkloadClass::Interruptible);
        assert_eq!(class(&job("interactive"), &rules), WorkloadClass::Warm);
        assert_eq!(class_rule(&pod("Job"), &rules).map(|(place, _)| place), Some(2));
        let free = Holder::remainder(HolderId::new(HolderId::UNALLOCATED));
        assert_eq!(class(&free, &rules), WorkloadClass::Unknown);
    }
}
