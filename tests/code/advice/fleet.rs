//! Advice over exports, by quarter hours.

use gpumeter::accounting::advice::{Advice, AdviceFinding, AdviceRequest};
use gpumeter::accounting::day_files::{ExportSource, make_advice, make_advice_for_readers};
use gpumeter::accounting::ledger::Reader;
use gpumeter::model::{Nanoseconds, VisibleAccount};

use super::node::ledger;

fn advice(request: &AdviceRequest) -> Advice {
    let directory = ledger().exports();
    let source = ExportSource::of(&directory);
    make_advice(&source, request, |_, _| Ok(())).unwrap()
}

/// What is compared.
pub fn shown(finding: &AdviceFinding) -> (&str, &str, Nanoseconds, Option<i128>) {
    (&finding.id, &finding.what, finding.time, finding.amount.map(|amount| amount.0))
}

#[test]
fn exports_yield_the_findings_of_the_ledger_but_for_faults_that_came_after_them() {
    let of_ledger = Reader::open(&ledger().ledger()).unwrap().advice(&AdviceRequest::default()).unwrap();
    let is_of_fault =
        |finding: &&AdviceFinding| ["A8-", "A10"].iter().any(|code| finding.id.starts_with(code));
    let expected: Vec<_> = of_ledger.findings.iter().filter(|one| !is_of_fault(one)).map(shown).collect();
    let over_exports = advice(&AdviceRequest::default());
    assert_eq!(over_exports.findings.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!((over_exports.source.kind.as_str(), over_exports.source.nodes), ("fleet", 1));
}

#[test]
fn a_reader_of_one_tenant_sees_his_findings_over_exports_too() {
    let visible = VisibleAccount::Tenants(vec!["a3-true".to_owned()]);
    let own = advice(&AdviceRequest { visible, ..AdviceRequest::default() });
    let tenants: Vec<&str> = own.findings.iter().map(|finding| &*finding.tenant).collect();
    assert_eq!(tenants, ["a3-true"]);
    assert!(own.partial && own.findings[0].organisation.is_none());
}

#[test]
fn what_is_made_once_for_all_readers_is_what_each_of_them_would_be_told() {
    let directory = ledger().exports();
    let for_readers = make_advice_for_readers(&ExportSource::of(&directory), |_, _| Ok(())).unwrap();
    let everything = advice(&AdviceRequest::default());
    assert_eq!(for_readers.answer(&AdviceRequest::default()), everything);
    for tenant in ["a3-true", "a8-true", "nobody"] {
        let visible = VisibleAccount::Tenants(vec![tenant.to_owned()]);
        let own = AdviceRequest { visible, ..AdviceRequest::default() };
        assert_eq!(for_readers.answer(&own), advice(&own), "{tenant}");
    }
    let asked = AdviceRequest { tenant: Some("a3-true".to_owned()), ..AdviceRequest::default() };
    assert_eq!(for_readers.answer(&asked), advice(&asked));
    assert_eq!(for_readers.answer(&asked).findings.len(), 1);
    for visible in [
        VisibleAccount::OfUser("ada".into()),
        VisibleAccount::OfSlurmUser { user: "ada".into(), cluster: "c".into() },
    ] {
        let of_user = for_readers.answer(&AdviceRequest { visible, ..AdviceRequest::default() });
        assert!(of_user.findings.is_empty(), "whose jobs they are is not kept");
    }
    let dismissed = gpumeter::accounting::advice::Dismissal::parse(&everything.findings[0].dismiss).unwrap();
    let without = AdviceRequest { dismissed: [dismissed].into(), ..AdviceRequest::default() };
    assert_eq!(for_readers.answer(&without), advice(&without));
    assert_eq!(for_readers.answer(&without).dismissed, 1);
}
