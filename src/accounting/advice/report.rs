//! All findings of a reader, in the order of what they are worth.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::evidence::{AdviceEvidence, SlotKey};
use super::finding::{AdviceFinding, Dismissal, FindingGpu, FindingKind, FindingStretch, OrganisationSaving};
use super::rules::{
    AdviceRule, FLEET_RULES, FleetFound, FleetRule, FoundAdvice, FoundStretch, Known, RULES, WorkloadGroup,
    grouped, groups,
};
use crate::accounting::billing::{ExactMoney, time};
use crate::model::{Grade, Money, Nanoseconds, Utc, VisibleAccount, WorkloadClass, hexadecimal};

/// The version of the JSON; fields are added without a new one.
const SCHEMA: u32 = 1;

/// The most GPUs that a finding lists.
const MOST_GPUS: usize = 16;

#[derive(Clone, Debug)]
pub struct AdviceRequest {
    pub visible: VisibleAccount,
    /// The only tenant of whom findings are wanted.
    pub tenant: Option<String>,
    /// The id of the only finding that is wanted, with its stretches.
    pub explain: Option<String>,
    /// Those of `advice.dismiss`.
    pub dismissed: Arc<[Dismissal]>,
}

impl Default for AdviceRequest {
    fn default() -> Self {
        Self { visible: VisibleAccount::Everything, tenant: None, explain: None, dismissed: Arc::default() }
    }
}

impl AdviceRequest {
    /// Reads the parameters `tenant` and `explain` of the API, each at most once.
    ///
    /// # Errors
    /// Another parameter, or one that is given twice.
    pub fn parse<'a>(pairs: impl Iterator<Item = (&'a str, String)>) -> Result<Self, String> {
        let mut request = Self::default();
        for (name, value) in pairs {
            let place = match name {
                "tenant" => &mut request.tenant,
                "explain" => &mut request.explain,
                _ => return Err(format!("unknown parameter {name:?}; use tenant and explain")),
            };
            if place.replace(value).is_some() {
                return Err(format!("{name} is given twice; give it once"));
            }
        }
        Ok(request)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    pub schema: u32,
    pub source: AdviceSource,
    #[serde(with = "time")]
    pub from: Utc,
    /// The end of the account.
    #[serde(with = "time")]
    pub to: Utc,
    pub currency: Option<String>,
    /// Whether the reader may see only a part of the account.
    pub partial: bool,
    pub findings: Vec<AdviceFinding>,
    /// How many findings were left out by `advice.dismiss`.
    pub dismissed: usize,
    /// What could not be looked at, and why.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceSource {
    /// `node` or `fleet`.
    pub kind: String,
    /// Of one node; absent of a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub nodes: usize,
    pub simulated: bool,
}

/// The findings of what is known, as the reader wants them.
pub fn advise(evidence: &AdviceEvidence, request: &AdviceRequest, source: AdviceSource) -> Advice {
    let is_partial = request.visible != VisibleAccount::Everything;
    Advice::of_all(evidence, is_partial, request.explain.as_deref(), source).wanted(request)
}

/// All findings over an account, without their stretches, made once for all readers of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviceForReaders {
    /// As a reader of everything has them.
    pub everything: Advice,
    /// Those of each tenant as his reader has them.
    pub of_tenants: Advice,
}

impl AdviceForReaders {
    /// The findings that a reader may see and wants.
    pub fn answer(&self, request: &AdviceRequest) -> Advice {
        let is_partial = request.visible != VisibleAccount::Everything;
        let all = if is_partial { &self.of_tenants } else { &self.everything };
        let is_visible = |finding: &&AdviceFinding| request.visible.shows(&finding.tenant, |_| None);
        let findings = all.findings.iter().filter(is_visible).cloned().collect();
        let (source, currency, notes) = (all.source.clone(), all.currency.clone(), all.notes.clone());
        Advice { source, currency, findings, notes, ..*all }.wanted(request)
    }
}

impl Advice {
    /// All findings of readers of everything, or those of readers of a part; `explain` is the id of the one that has its stretches.
    pub fn of_all(
        evidence: &AdviceEvidence,
        is_partial: bool,
        explain: Option<&str>,
        source: AdviceSource,
    ) -> Self {
        let grouped = grouped(evidence);
        let mut known = Known::new(evidence, is_partial);
        let mut findings = Vec::new();
        for rule in RULES {
            for group in groups(&grouped) {
                if let Some(found) = (rule.find)(&known, &group) {
                    known.claim(rule.kind, &group, &found);
                    findings.push(finding(&known, rule, &group, &found, explain));
                }
            }
        }
        if !is_partial {
            for rule in FLEET_RULES {
                findings.extend((rule.find)(evidence).iter().map(|found| fleet_finding(&known, rule, found)));
            }
        }
        findings.sort_by(|one, other| {
            let saved = |finding: &AdviceFinding| finding.organisation.and_then(|one| one.amount);
            let order = |finding: &AdviceFinding| {
                (finding.amount.max(saved(finding)).unwrap_or_default(), finding.time)
            };
            order(other).cmp(&order(one)).then_with(|| one.id.cmp(&other.id))
        });
        Self {
            schema: SCHEMA,
            source,
            from: evidence.from,
            to: evidence.to,
            currency: evidence.currency.clone(),
            partial: is_partial,
            dismissed: 0,
            findings,
            notes: Vec::new(),
        }
    }

    /// The findings that are wanted.
    #[must_use]
    pub fn wanted(mut self, request: &AdviceRequest) -> Self {
        self.findings.retain(|finding| {
            request.tenant.as_ref().is_none_or(|tenant| *tenant == finding.tenant)
                && request.explain.as_ref().is_none_or(|id| *id == finding.id)
        });
        let before = self.findings.len();
        if request.explain.is_none() {
            self.findings.retain(|finding| !request.dismissed.iter().any(|one| one.is_of(finding)));
        }
        self.dismissed = before - self.findings.len();
        if self.partial {
            // How many nodes there are is not the reader's.
            self.source.nodes = nodes_of(&self.findings);
        }
        self
    }
}

fn nodes_of(findings: &[AdviceFinding]) -> usize {
    let gpus = findings.iter().flat_map(|finding| &finding.gpus);
    gpus.map(|gpu| &gpu.node).collect::<BTreeSet<_>>().len()
}

fn finding(
    known: &Known<'_>,
    rule: &AdviceRule,
    group: &WorkloadGroup<'_>,
    found: &FoundAdvice<'_>,
    explain: Option<&str>,
) -> AdviceFinding {
    let has_prices = known.evidence.currency.is_some();
    let mut amounts = found.stretches.iter().map(money);
    let exact = amounts.try_fold(ExactMoney::ZERO, |sum, one| Some(sum.saturating_plus(one?)));
    let slots =
        found.stretches.iter().map(|found| found.slot).chain(found.slots.iter().map(|(_, slot)| *slot));
    let gpus: BTreeSet<FindingGpu> = slots.map(|slot| gpu(known, slot)).collect();
    let time: Nanoseconds = found.stretches.iter().map(|found| found.stretch.idle).sum();
    let times =
        || found.stretches.iter().map(|found| [found.stretch.from, found.stretch.to]).chain(found.seen);
    let id = id_of(rule.code, rule.kind, &[group.tenant, group.name, &found.facts]);
    let is_explained = explain == Some(&id);
    let explained = found.stretches.iter().filter(|_| is_explained);
    let stretches = explained.map(|found| stretch(known, found)).collect();
    let returned = if rule.is_credit { Nanoseconds(0) } else { time };
    AdviceFinding {
        dismiss: Dismissal::new(&id, found.extent).to_string(),
        id,
        kind: rule.kind,
        tenant: group.tenant.to_owned(),
        workload: group.name.to_owned(),
        what: found.what.clone(),
        gpu_count: gpus.len(),
        gpus: gpus.into_iter().take(MOST_GPUS).collect(),
        first_seen: times().map(|[from, _]| from).min().unwrap_or_default(),
        last_seen: times().map(|[_, to]| to).max().unwrap_or_default(),
        runs: found.runs,
        rule: rule.rule.to_owned(),
        class: group.class,
        grade: found.grade,
        time,
        amount: exact.filter(|_| has_prices && !found.stretches.is_empty()).map(ExactMoney::floor),
        is_credit: rule.is_credit,
        // Other jobs may use the time; what the organisation pays goes on as long as its nodes are there.
        organisation: (!known.is_partial)
            .then(|| OrganisationSaving { amount: has_prices.then_some(Money(0)), returned }),
        risk: rule.risk.to_owned(),
        how: rule.how.to_owned(),
        stretches,
    }
}

fn fleet_finding(known: &Known<'_>, rule: &FleetRule, found: &FleetFound) -> AdviceFinding {
    let evidence = known.evidence;
    let has_prices = evidence.currency.is_some();
    let id = id_of(rule.code, rule.kind, &["", &found.subject, ""]);
    let slots = found.gpus.iter().map(|uuid| SlotKey { uuid: Arc::clone(uuid), gpu_instance: None });
    AdviceFinding {
        dismiss: Dismissal::new(&id, found.extent).to_string(),
        id,
        kind: rule.kind,
        tenant: String::new(),
        workload: found.subject.clone(),
        what: found.what.clone(),
        gpu_count: found.gpus.len(),
        gpus: slots.take(MOST_GPUS).map(|slot| gpu(known, &slot)).collect(),
        first_seen: found.from,
        last_seen: evidence.to,
        runs: 0,
        rule: rule.rule.to_owned(),
        class: WorkloadClass::Unknown,
        grade: Grade::Measured,
        time: found.time,
        // Whoever holds nothing pays nothing.
        amount: has_prices.then_some(Money(0)),
        is_credit: false,
        organisation: Some(OrganisationSaving {
            amount: found.money.filter(|_| has_prices).map(ExactMoney::floor),
            returned: Nanoseconds(0),
        }),
        risk: rule.risk.to_owned(),
        how: rule.how.to_owned(),
        stretches: Vec::new(),
    }
}

fn id_of(code: &str, kind: FindingKind, parts: &[&str]) -> String {
    let text = format!("{}\n{}", kind.name(), parts.join("\n"));
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("{code}-{}", hexadecimal(&digest.as_ref()[..4]))
}

fn money(found: &FoundStretch<'_>) -> Option<ExactMoney> {
    found.stretch.rate.map(|rate| ExactMoney::of_time(rate, found.stretch.idle.0))
}

fn gpu(known: &Known<'_>, slot: &SlotKey) -> FindingGpu {
    let gpu = known.evidence.gpus.get(&slot.uuid);
    FindingGpu {
        node: gpu.map(|gpu| gpu.node.clone()).unwrap_or_default(),
        gpu: gpu.map_or(0, |gpu| gpu.gpu.index),
        uuid: Arc::clone(&slot.uuid),
        gpu_instance: slot.gpu_instance,
    }
}

fn stretch(known: &Known<'_>, found: &FoundStretch<'_>) -> FindingStretch {
    let FoundStretch { key, slot, stretch } = found;
    FindingStretch {
        workload: key.workload.to_string(),
        gpu: gpu(known, slot),
        from: stretch.from,
        to: stretch.to,
        time: stretch.idle,
        rate: stretch.rate.map(|rate| Money(rate.into())),
        amount: money(found).map(ExactMoney::floor),
    }
}
