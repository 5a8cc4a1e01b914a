//! By what the lines of a bill are added up.

use std::str::FromStr;

use crate::ledger::StatementLine;
use crate::model::{Fact, HolderId};

/// A property of the lines of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    Tenant,
    /// The workload id.
    Workload,
    Gpu,
    /// A label of `gpu_workload_info`.
    Fact(Fact),
}

/// Short names of labels.
const SHORT: [(&str, Fact); 4] = [
    ("namespace", Fact::Namespace),
    ("account", Fact::SlurmAccount),
    ("user", Fact::User),
    ("unit", Fact::Unit),
];

/// What lines without the property are called.
const NONE: &str = "-";

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tenant" => return Ok(Self::Tenant),
            "workload" => return Ok(Self::Workload),
            "gpu" => return Ok(Self::Gpu),
            _ => {}
        }
        let short = SHORT.iter().find(|(name, _)| *name == text).map(|(_, fact)| *fact);
        let fact = short.or_else(|| Fact::ALL.iter().copied().find(|fact| fact.label() == text));
        fact.map(Self::Fact).ok_or_else(|| {
            let labels: Vec<&str> = Fact::ALL.iter().map(|fact| fact.label()).collect();
            format!(
                "write tenant, workload, gpu, namespace, account, user, unit, or one of {}",
                labels.join(", ")
            )
        })
    }
}

impl By {
    /// The head of the column.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Workload => "workload",
            Self::Gpu => "gpu",
            Self::Fact(fact) => fact.label(),
        }
    }

    /// Where what the line is added to stands among the others; those of one place are in the order of their names.
    pub(super) const fn place_of(&self, line: &StatementLine) -> u32 {
        match self {
            Self::Gpu => line.gpu,
            Self::Tenant | Self::Workload | Self::Fact(_) => 0,
        }
    }

    /// What the line is added to. Time that is nobody's stays under the name of its reserved tenant.
    pub(super) fn name_of(&self, line: &StatementLine) -> String {
        match self {
            Self::Tenant => line.tenant.clone(),
            Self::Gpu => line.gpu.to_string(),
            _ if HolderId::new(line.holder.as_str()).is_remainder() => line.tenant.clone(),
            Self::Workload => line.holder.clone(),
            Self::Fact(fact) => line.labels.get(fact.label()).map_or(NONE, String::as_str).to_owned(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn line(gpu: u32) -> StatementLine {
        let zero =
            ["held", "within", "lent", "waste", "unmeasured", "unavailable", "idle", "used", "beyond_share"];
        let zero = zero.into_iter().chain(["outside_holding", "unheld", "measured"]);
        let mut line: serde_json::Map<_, _> = zero.map(|name| (format!("{name}_ns"), 0.into())).collect();
        for name in ["tenant", "holder", "uuid", "grade", "method"] {
            line.insert(name.into(), "x".into());
        }
        line.extend([("gpu".into(), gpu.into()), ("sources".into(), serde_json::json!([]))]);
        serde_json::from_value(line.into()).unwrap()
    }

    #[test]
    fn gpus_stand_in_the_order_of_their_numbers_and_everything_else_in_that_of_its_name() {
        assert!(By::Gpu.place_of(&line(2)) < By::Gpu.place_of(&line(10)));
        assert_eq!(By::Tenant.place_of(&line(2)), By::Tenant.place_of(&line(10)));
    }

    #[test]
    fn what_a_bill_is_by_is_a_word_or_a_label_and_an_unknown_one_is_told_with_all_that_are() {
        let by = |text: &str| text.parse::<By>();
        assert_eq!(by("tenant"), Ok(By::Tenant));
        assert_eq!(by("namespace"), by("k8s_namespace_name"));
        assert_eq!(by("account").unwrap().name(), "slurm_account");
        let error = by("team").unwrap_err();
        assert!(error.contains("workload") && error.contains("k8s_pod_name"), "{error}");
    }
}
