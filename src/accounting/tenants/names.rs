//! Finds tenants whose name comes from two kinds of holders, such as a namespace and a user: both are on one bill.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{TenantRules, tenant};
use crate::model::{Holder, HolderKind, shown};

/// The kind of holder from which each tenant has its name.
#[derive(Debug, Default)]
pub struct TenantNames {
    first: BTreeMap<Arc<str>, (HolderKind, String)>,
    reported: BTreeSet<Arc<str>>,
}

/// The most names that are remembered; further ones are not compared.
const MOST: usize = 10_000;

impl TenantNames {
    /// Adds a holder. Returns a sentence, once per name, if holders of another kind have the same tenant. The id of a grant to
    /// a team and a tenant of a rule are names that the operator chose, so they are not compared.
    pub fn add(&mut self, holder: &Holder, rules: &TenantRules) -> Option<String> {
        if rules.matched(holder).is_some() {
            return None;
        }
        let kind = holder.id.kind();
        let fact = kind.tenant_facts().iter().find(|fact| holder.facts.get(**fact).is_some())?;
        let name = tenant(holder, rules);
        if kind == HolderKind::Team || self.reported.contains(&name) {
            return None;
        }
        let source = || format!("{} ({})", fact.meaning(), shown(holder.id.name()));
        match self.first.get(&name) {
            Some((known, _)) if *known == kind => None,
            Some((_, first)) => {
                let sentence = format!(
                    "the tenant name \"{}\" comes from two sources: {first} and {}; what both hold and use is on one bill; rename one of them if \
                     they are not the same",
                    shown(&name),
                    source()
                );
                self.reported.insert(name);
                Some(sentence)
            }
            None if self.first.len() < MOST => {
                self.first.insert(name, (kind, source()));
                None
            }
            None => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{Fact, Facts};

    fn add(names: &mut TenantNames, holder: &Holder) -> Option<String> {
        names.add(holder, &TenantRules::default())
    }

    #[test]
    fn a_tenant_that_is_a_namespace_and_a_user_is_reported_once_with_both() {
        let mut names = TenantNames::default();
        let pod = |uid: &str| {
            let facts = [(Fact::PodUid, uid), (Fact::PodContainer, "c"), (Fact::Namespace, "alice")];
            Holder::new(HolderKind::Pod, Facts::new(facts))
        };
        assert_eq!(
            [pod("1"), pod("2"), Holder::team("alice")].map(|holder| add(&mut names, &holder)),
            [None, None, None]
        );
        let sentence = add(&mut names, &Holder::user("alice", Some(1000))).unwrap();
        for words in ["\"alice\"", "Kubernetes namespace (k8s:1/c)", "Unix user (user:alice)"] {
            assert!(sentence.contains(words), "{sentence}");
        }
        assert_eq!(add(&mut names, &Holder::user("alice", Some(1000))), None);
        assert_eq!(add(&mut names, &Holder::user("bob", None)), None);
    }
}
