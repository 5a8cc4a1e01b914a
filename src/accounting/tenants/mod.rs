//! Maps a holder's facts to its tenant, who pays.
//!
//! The first matching rule of the operator yields it. Without one, the row of the holder's kind names the fact that is the
//! tenant; a remainder is the reserved tenant of its name. Further rules say what a holder is for, which changes no bill.

mod classes;
mod names;
mod recurring;
mod rules;
mod schedule;

use std::sync::Arc;

pub use classes::{ClassRule, class, class_rule};
pub use names::TenantNames;
pub use recurring::recurring_name;
pub use rules::{TenantRule, TenantRules, is_label};
pub use schedule::RuleSchedule;

use crate::accounting::billing::PriceBook;
use crate::model::{Holder, HolderId, Nanoseconds, RESERVED};

/// What the operator put in force at a time; what is none stays as it was.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Prices and terms; an empty book ends all.
    pub book: Option<PriceBook>,
    pub rules: Option<Arc<TenantRules>>,
    /// Time since boot at which it was decided; its account time may not be known yet.
    pub decided: Nanoseconds,
}

/// The tenant of a holder: that of the first rule that matches, else the default of its kind.
///
/// Names that begin with two underscores are reserved for remainders. A unit or user with such a name has its workload id as
/// its tenant (`user:__system__`), which begins with its kind and so is never reserved.
pub fn tenant(holder: &Holder, rules: &TenantRules) -> Arc<str> {
    if holder.id.unattributed_reason().is_some() {
        return HolderId::UNATTRIBUTED.into();
    }
    if let Some(tenant) = rules.matched(holder) {
        return tenant;
    }
    let name = holder.id.kind().tenant_facts().iter().find_map(|fact| holder.facts.get(*fact));
    match name {
        Some(name) if !name.starts_with(RESERVED) => Arc::clone(name),
        _ => holder.id.workload(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::UnattributedReason;

    fn tenant(holder: &Holder) -> Arc<str> {
        super::tenant(holder, &TenantRules::default())
    }

    #[test]
    fn without_rules_a_unit_and_a_user_are_their_own_tenants() {
        assert_eq!(&*tenant(&Holder::unit("train.service", Some("alice"), Some(1000))), "train.service");
        assert_eq!(&*tenant(&Holder::unit("worker@7.service", None, None)), "worker@.service");
        assert_eq!(&*tenant(&Holder::unit("worker@.service", None, None)), "worker@.service");
        assert_eq!(&*tenant(&Holder::user("alice", Some(1000))), "alice");
        assert_eq!(&*tenant(&Holder::group("research")), "research");
        assert_eq!(&*tenant(&Holder::team("lab")), "lab");
        assert_eq!(&*tenant(&Holder::remainder(HolderId::new(HolderId::SYSTEM))), "__system__");
    }

    #[test]
    fn unattributed_use_is_one_tenant_whatever_the_reason() {
        for reason in UnattributedReason::ALL {
            let holder = Holder::remainder(HolderId::unattributed(reason));
            assert_eq!(&*tenant(&holder), "__unattributed__", "{reason:?}");
        }
    }

    #[test]
    fn a_reserved_name_cannot_be_taken() {
        assert_eq!(&*tenant(&Holder::user("__system__", None)), "user:__system__");
        assert_eq!(&*tenant(&Holder::unit("__x.service", None, None)), "unit:__x.service");
    }

    proptest! {
        #[test]
        fn no_unit_and_no_user_becomes_a_reserved_tenant(name in "_{0,3}\\PC{0,9}") {
            prop_assert!(!tenant(&Holder::user(&name, None)).starts_with("__"));
            prop_assert!(!tenant(&Holder::unit(&name, None, None)).starts_with("__"));
        }
    }
}
