//! Whose part of the account a reader may see; bills and snapshots are filtered by it before they are printed.

use std::sync::Arc;

use super::Fact;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisibleAccount {
    Everything,
    Tenants(Vec<String>),
    OfUser(Arc<str>),
    /// The jobs of Slurm of that user, as the prolog recorded them, in that cluster.
    OfSlurmUser {
        user: Arc<str>,
        cluster: Arc<str>,
    },
}

impl VisibleAccount {
    pub fn shows<'a>(&self, tenant: &str, fact: impl Fn(Fact) -> Option<&'a str>) -> bool {
        match self {
            Self::Everything => true,
            Self::Tenants(tenants) => tenants.iter().any(|shown| shown == tenant),
            Self::OfSlurmUser { user, cluster } => {
                fact(Fact::SlurmUser) == Some(user) && fact(Fact::SlurmCluster) == Some(cluster)
            }
            Self::OfUser(user) => [Fact::User, Fact::SlurmUser].iter().any(|of| fact(*of) == Some(user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sees_what_he_runs_whoever_pays_for_it() {
        let facts = [(Fact::SlurmUser, "ada"), (Fact::SlurmAccount, "physics")];
        let get = |fact| facts.iter().find(|(known, _)| *known == fact).map(|(_, text)| *text);
        let shows = |visible: VisibleAccount| visible.shows("physics", get);
        assert!(shows(VisibleAccount::Everything) && shows(VisibleAccount::OfUser("ada".into())));
        assert!(shows(VisibleAccount::Tenants(vec!["physics".to_owned()])));
        assert!(
            !shows(VisibleAccount::OfUser("physics".into())),
            "the name of an account is not that of a user"
        );
        assert!(!shows(VisibleAccount::Tenants(vec!["ada".to_owned()])));
        assert!(!VisibleAccount::OfUser("ada".into()).shows("ada", |_| None));
        let in_cluster =
            |cluster: &str| VisibleAccount::OfSlurmUser { user: "ada".into(), cluster: cluster.into() };
        let of_alpha = |fact| if fact == Fact::SlurmCluster { Some("alpha") } else { get(fact) };
        assert!(in_cluster("alpha").shows("physics", of_alpha));
        assert!(!in_cluster("beta").shows("physics", of_alpha) && !in_cluster("alpha").shows("physics", get));
        let of_unit = |fact| (fact == Fact::User).then_some("ada");
        assert!(!in_cluster("alpha").shows("ada", of_unit), "another host's user of that name");
    }
}
