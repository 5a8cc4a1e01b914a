//! The property by which the lines of a bill are grouped.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use crate::billing::BillLine;
use crate::model::Fact;

/// A property of the lines of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BillGrouping {
    Tenant,
    /// The workload id.
    Workload,
    Gpu,
    /// The Unix user of a unit, a session or a Slurm job.
    User,
    /// A label of `gpu_workload_info`.
    Fact(Fact),
}

/// The labels that name a user; the first one that a line has is used.
const USERS: [Fact; 2] = [Fact::User, Fact::SlurmUser];

/// Short names of labels.
const SHORT: [(&str, Fact); 3] =
    [("namespace", Fact::Namespace), ("account", Fact::SlurmAccount), ("unit", Fact::Unit)];

/// The name of the group of lines without the property.
const NONE: &str = "-";

impl FromStr for BillGrouping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tenant" => return Ok(Self::Tenant),
            "workload" => return Ok(Self::Workload),
            "gpu" => return Ok(Self::Gpu),
            "user" => return Ok(Self::User),
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

impl BillGrouping {
    /// The heading of its column.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Workload => "workload",
            Self::Gpu => "gpu",
            Self::User => "user",
            Self::Fact(fact) => fact.label(),
        }
    }

    /// What a line belongs to, in the words of the legend.
    pub(super) const fn whose(&self) -> &'static str {
        match self {
            Self::Tenant => "the tenant",
            Self::Workload | Self::Gpu | Self::User | Self::Fact(_) => "the workload",
        }
    }

    /// The group of each line: its sort key and its name; groups with the same key are sorted by name.
    pub(super) fn groups(&self, lines: &[BillLine]) -> Vec<(u32, String)> {
        let mut boards: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
        let mut payers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in lines {
            boards.entry(line.gpu.index).or_default().insert(&line.gpu.uuid);
            payers.entry(line.holder.name()).or_default().insert(&line.tenant);
        }
        let group = |line: &BillLine| match self {
            // A replaced GPU had the same index.
            Self::Gpu if boards.get(&line.gpu.index).is_some_and(|uuids| uuids.len() > 1) => {
                (line.gpu.index, format!("{} ({})", line.gpu.index, line.gpu.uuid))
            }
            Self::Gpu => (line.gpu.index, line.gpu.index.to_string()),
            // A workload whose account or namespace has changed has several tenants.
            Self::Workload if payers.get(line.holder.name()).is_some_and(|tenants| tenants.len() > 1) => {
                (0, format!("{} ({})", line.holder, line.tenant))
            }
            _ => (0, self.name_of(line)),
        };
        lines.iter().map(group).collect()
    }

    /// The name of the group that a line belongs to. Unheld time keeps the name of its reserved tenant.
    fn name_of(&self, line: &BillLine) -> String {
        let label = |fact: &Fact| line.labels.get(fact.label()).map(String::as_str);
        let name = match self {
            Self::Tenant => Some(&*line.tenant),
            _ if line.holder.is_remainder() => Some(&*line.tenant),
            Self::Workload | Self::Gpu => Some(line.holder.name()),
            Self::User => USERS.iter().find_map(label),
            Self::Fact(fact) => label(fact),
        };
        name.unwrap_or(NONE).to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{GpuId, HolderId};

    fn board(index: u32, uuid: &str) -> GpuId {
        GpuId { index, uuid: uuid.into() }
    }

    fn line(gpu: u32) -> BillLine {
        BillLine::empty(board(gpu, "x"), HolderId::new("x"))
    }

    #[test]
    fn gpus_are_sorted_by_index_and_all_other_groups_by_name() {
        let places = |by: BillGrouping| by.groups(&[line(2), line(10)]).into_iter().map(|(place, _)| place);
        assert!(places(BillGrouping::Gpu).eq([2, 10]));
        assert!(places(BillGrouping::Tenant).eq([0, 0]));
    }

    #[test]
    fn two_boards_with_the_same_index_are_two_lines() {
        let replaced = BillLine { gpu: board(2, "y"), ..line(2) };
        let names = |lines: &[BillLine]| -> Vec<String> {
            BillGrouping::Gpu.groups(lines).into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(&[line(2), line(2), line(3)]), ["2", "2", "3"]);
        assert_eq!(names(&[line(2), replaced, line(3)]), ["2 (x)", "2 (y)", "3"]);
    }

    #[test]
    fn a_workload_with_two_tenants_is_two_lines_that_name_them() {
        let of = |tenant: &str| BillLine { tenant: tenant.into(), ..line(0) };
        let names = |lines: &[BillLine]| -> Vec<String> {
            BillGrouping::Workload.groups(lines).into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(&[of("physics"), of("physics")]), ["x", "x"]);
        assert_eq!(names(&[of("physics"), of("bio")]), ["x (physics)", "x (bio)"]);
    }

    #[test]
    fn a_user_is_that_of_a_unit_a_session_or_a_job() {
        let user = |label: Fact| {
            let mut line = line(0);
            line.labels.insert(label.label().into(), "ada".into());
            BillGrouping::User.name_of(&line)
        };
        assert_eq!([Fact::User, Fact::SlurmUser, Fact::SlurmAccount].map(user), ["ada", "ada", NONE]);
    }

    #[test]
    fn a_grouping_is_a_word_or_a_label_and_the_error_for_an_unknown_one_lists_all() {
        let by = |text: &str| text.parse::<BillGrouping>();
        assert_eq!(by("tenant"), Ok(BillGrouping::Tenant));
        assert_eq!(by("namespace"), by("k8s_namespace_name"));
        assert_eq!(by("account").unwrap().name(), "slurm_account");
        let error = by("team").unwrap_err();
        assert!(error.contains("workload") && error.contains("k8s_pod_name"), "{error}");
    }
}
