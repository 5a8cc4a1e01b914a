//! Names of workloads that run again and again.

use crate::model::{Fact, Holder, HolderKind};

/// The name that all runs of a recurring workload have: what stays the same of a job, a pod, a container, a unit or a user.
pub fn recurring_name(holder: &Holder) -> String {
    let facts: &[Fact] = match holder.id.kind() {
        HolderKind::Slurm => &[
            Fact::SlurmCluster,
            Fact::SlurmAccount,
            Fact::SlurmUser,
            Fact::SlurmPartition,
            Fact::SlurmJobName,
        ],
        HolderKind::Pod if holder.facts.get(Fact::OwnerName).is_some() => {
            &[Fact::Namespace, Fact::OwnerKind, Fact::OwnerName]
        }
        HolderKind::Pod => &[Fact::Namespace, Fact::Pod],
        HolderKind::Container if holder.facts.get(Fact::ContainerImage).is_some() => {
            &[Fact::User, Fact::ContainerImage]
        }
        HolderKind::Container => &[Fact::User, Fact::ContainerName],
        HolderKind::Unit if holder.facts.get(Fact::UnitTemplate).is_some() => {
            &[Fact::UnitTemplate, Fact::User]
        }
        _ => &[],
    };
    let known: Vec<&str> = facts.iter().filter_map(|fact| Some(&**holder.facts.get(*fact)?)).collect();
    if known.is_empty() {
        return holder.id.name().to_owned();
    }
    let name = known.join("/");
    // A CronJob numbers its Jobs, as does who submits one again and again.
    let is_numbered = holder.facts.get(Fact::OwnerKind).is_some_and(|kind| &**kind == "Job");
    let name = name
        .rsplit_once('-')
        .filter(|(_, number)| {
            is_numbered && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
        .map_or(&*name, |(stem, _)| stem)
        .to_owned();
    format!("{}:{name}", holder.id.kind().name())
}
