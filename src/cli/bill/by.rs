//! The one or two properties by which the lines of a bill are grouped.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use crate::accounting::billing::{Bill, BillLine, BillRate, LineDetail, LineFilter};
use crate::model::{Fact, GpuId, PodLabel, RESERVED};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct BillGrouping(Vec<BillProperty>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum BillProperty {
    Word(&'static BillWord),
    /// A label of `gpu_workload_info`.
    Fact(Fact),
    /// A promoted label of pods, by its name in `gpu_workload_info`.
    PodLabel(String),
    Attribute(String),
}

/// A property that is no label. Whoever adds one adds a row to [`WORDS`], and says in [`BillGrouping::detail`] whether a bill over
/// exports must tell lines apart for it.
#[derive(Debug)]
struct BillWord {
    name: &'static str,
    of: fn(&GroupedBill<'_>, &BillLine) -> Group,
}

impl PartialEq for BillWord {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for BillWord {}

/// The group of a line by one property: its sort key and its name; groups with the same key are sorted by name.
type Group = (u32, String);

pub(super) type GroupKey = Vec<Group>;

/// How many properties a grouping has at most.
const PROPERTIES: usize = 2;

/// The labels that name a user; the first one that a line has is used.
const USERS: [Fact; 2] = [Fact::User, Fact::SlurmUser];

const SHORT: [(&str, Fact); 3] =
    [("namespace", Fact::Namespace), ("account", Fact::SlurmAccount), ("unit", Fact::Unit)];

/// The name of the group of lines without the property.
pub(super) const NONE: &str = "-";

/// Prefix of a property that is an attribute of tenants.
const ATTRIBUTE: &str = "attribute:";

/// The properties that are no labels.
static WORDS: [BillWord; 11] = [
    BillWord { name: "tenant", of: |_, line| named(Some(&line.tenant)) },
    BillWord { name: "workload", of: |known, line| known.workload(line) },
    BillWord { name: "gpu", of: |known, line| known.gpu(line) },
    BillWord { name: "uuid", of: |_, line| named(Some(&line.gpu.uuid)) },
    BillWord { name: "model", of: |known, line| named(known.models.get(&*line.gpu.uuid).copied()) },
    BillWord { name: "class", of: |known, line| named(known.rate(line).map(|(_, rate)| &*rate.class)) },
    BillWord { name: "day", of: |_, line| named(line.day.as_deref()) },
    BillWord {
        name: "node",
        of: |known, line| named(line.node.as_ref().map(|node| &*node.name).or(Some(&known.bill.node))),
    },
    BillWord {
        name: "cluster",
        of: |known, line| {
            named(line.node.as_ref().map_or(known.bill.cluster.as_deref(), |node| node.cluster.as_deref()))
        },
    },
    BillWord { name: "pool", of: |_, line| named(line.node.as_ref().and_then(|node| node.pool.as_deref())) },
    BillWord {
        name: "user",
        of: |_, line| {
            of_holder(line, USERS.iter().find_map(|fact| line.labels.get(fact.label()).map(String::as_str)))
        },
    },
];

/// The rate of the time, in the order of the bill. It also separates lines, but nobody can ask for it.
static RATE: BillWord = BillWord {
    name: "rate",
    of: |known, line| match known.rate(line) {
        Some((place, rate)) => (u32::try_from(place + 1).unwrap_or(0), rate.id.to_string()),
        None => (0, line.rates.time.map(|id| id.to_string()).unwrap_or_default()),
    },
};

fn named(name: Option<&str>) -> Group {
    (0, name.filter(|name| !name.is_empty()).unwrap_or(NONE).to_owned())
}

/// Unheld time keeps the name of its reserved tenant.
fn of_holder(line: &BillLine, name: Option<&str>) -> Group {
    named(if line.holder.is_remainder() { Some(&line.tenant) } else { name })
}

struct GroupedBill<'a> {
    bill: &'a Bill,
    /// The models of GPUs by UUID.
    models: BTreeMap<&'a str, &'a str>,
    /// The tenants of each workload.
    payers: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// The UUIDs by index.
    boards: BTreeMap<u32, BTreeSet<&'a str>>,
}

impl<'a> GroupedBill<'a> {
    fn new(bill: &'a Bill) -> Self {
        let models = bill.gpus.iter().map(|gpu| (&*gpu.gpu.uuid, &*gpu.model)).collect();
        let mut known = Self { bill, models, payers: BTreeMap::new(), boards: BTreeMap::new() };
        for line in &bill.lines {
            known.payers.entry(line.holder.name()).or_default().insert(&line.tenant);
            known.boards.entry(line.gpu.index).or_default().insert(&line.gpu.uuid);
        }
        known
    }

    fn rate(&self, line: &BillLine) -> Option<(usize, &BillRate)> {
        self.bill.rates.iter().enumerate().find(|(_, rate)| Some(rate.id) == line.rates.time)
    }

    /// A workload whose account or namespace has changed has several tenants.
    fn workload(&self, line: &BillLine) -> Group {
        match self.payers.get(line.holder.name()) {
            Some(tenants) if tenants.len() > 1 => (0, format!("{} ({})", line.holder, line.tenant)),
            _ => of_holder(line, Some(line.holder.name())),
        }
    }

    /// A replaced GPU had the same index.
    fn gpu(&self, line: &BillLine) -> Group {
        let GpuId { index, uuid } = &line.gpu;
        let is_replaced = self.boards.get(index).is_some_and(|uuids| uuids.len() > 1);
        (*index, if is_replaced { format!("{index} ({uuid})") } else { index.to_string() })
    }
}

impl FromStr for BillGrouping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let properties = text.split(',').map(str::parse).collect::<Result<Vec<BillProperty>, _>>()?;
        if properties.len() > PROPERTIES {
            return Err("write one property, or two with a comma between them".into());
        }
        match properties.as_slice() {
            [one, other] if one == other => Err(format!("{} is given twice; give it once", one.name())),
            _ => Ok(Self(properties)),
        }
    }
}

impl FromStr for BillProperty {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(word) = WORDS.iter().find(|word| word.name == text) {
            return Ok(Self::Word(word));
        }
        if let Some(name) = text.strip_prefix(ATTRIBUTE).filter(|name| !name.is_empty()) {
            return Ok(Self::Attribute(name.to_owned()));
        }
        if text.strip_prefix(PodLabel::PREFIX).is_some_and(|rest| !rest.is_empty()) {
            return Ok(Self::PodLabel(text.to_owned()));
        }
        let short = SHORT.iter().find(|(name, _)| *name == text).map(|(_, fact)| *fact);
        let fact = short.or_else(|| Fact::ALL.iter().copied().find(|fact| fact.label() == text));
        fact.map(Self::Fact).ok_or_else(|| {
            let words = WORDS.iter().map(|word| word.name).chain(SHORT.iter().map(|(name, _)| *name));
            let words: Vec<&str> = words.collect();
            let labels: Vec<&str> = Fact::ALL.iter().map(|fact| fact.label()).collect();
            format!(
                "write {}, attribute:NAME, one of {}, or two of these with a comma between them",
                words.join(", "),
                labels.join(", ")
            )
        })
    }
}

impl BillGrouping {
    pub(super) fn names(&self) -> Vec<&str> {
        self.0.iter().map(BillProperty::name).collect()
    }

    /// The properties as a user asks for them, without the rate.
    pub(super) fn asked(&self) -> Vec<String> {
        let asked = self.0.iter().filter(|property| property.word() != Some(RATE.name));
        let asked = asked.map(|property| match property {
            BillProperty::Attribute(name) => format!("{ATTRIBUTE}{name}"),
            other => other.name().to_owned(),
        });
        asked.collect()
    }

    pub(super) fn by_rate(&self) -> Self {
        Self(self.0.iter().cloned().chain([BillProperty::Word(&RATE)]).collect())
    }

    pub(super) fn detail(&self) -> LineDetail {
        let labels = self.0.iter().flat_map(|property| match property {
            BillProperty::Word(word) if word.name == "user" => {
                USERS.iter().map(|fact| fact.label().to_owned()).collect()
            }
            BillProperty::Fact(fact) => vec![fact.label().to_owned()],
            BillProperty::PodLabel(name) => vec![name.clone()],
            _ => Vec::new(),
        });
        LineDetail {
            workload: self.has("workload"),
            labels: Some(labels.collect()),
            node: ["node", "cluster", "pool"].iter().any(|name| self.has(name)),
            day: self.needs_days(),
        }
    }

    pub(super) fn needs_days(&self) -> bool {
        self.has("day")
    }

    pub(super) fn value_of<'a>(&self, word: &str, values: &'a [String]) -> Option<&'a str> {
        let place = self.0.iter().position(|property| property.word() == Some(word))?;
        values.get(place).map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|property| property.word() == Some(name))
    }

    /// A property of it, in words, that no line of the bills has; only those whose names the operator makes up.
    pub(in crate::cli) fn unknown<'a>(
        &self,
        bills: impl Iterator<Item = &'a Bill> + Clone,
    ) -> Option<String> {
        let attributes: BTreeSet<&String> =
            bills.clone().flat_map(|bill| bill.tenant_attributes.values()).flat_map(BTreeMap::keys).collect();
        let has_label = |name: &str| {
            bills.clone().flat_map(|bill| &bill.lines).any(|line| line.labels.contains_key(name))
        };
        self.0.iter().find_map(|property| match property {
            BillProperty::Attribute(name) if attributes.is_empty() => Some(format!(
                "no tenant of the bill has attributes, so none has {name:?}; see tenants.attributes"
            )),
            BillProperty::Attribute(name) if !attributes.contains(name) => {
                let known: Vec<&str> = attributes.iter().map(|name| name.as_str()).collect();
                Some(format!(
                    "no tenant of the bill has the attribute {name:?}; there are {}",
                    known.join(", ")
                ))
            }
            BillProperty::PodLabel(name) if !has_label(name) => {
                Some(format!("no line of the bill has the label {name:?}; see attribution.kubernetes.labels"))
            }
            _ => None,
        })
    }

    /// Whether GPUs and tenants of the whole bill are needed to group its lines.
    pub(super) fn needs_bill(&self) -> bool {
        self.has("model") || self.0.iter().any(|property| matches!(property, BillProperty::Attribute(_)))
    }

    /// The value of each property of a line. It does not depend on other lines; the names of groups may.
    pub(super) fn values(&self, names: &[String], line: &BillLine) -> Vec<String> {
        let value = |(property, name): (&BillProperty, &String)| match property.word() {
            Some("gpu") => line.gpu.uuid.to_string(),
            Some("workload") if !line.holder.is_remainder() => format!("{}@{}", line.holder, line.tenant),
            _ => name.clone(),
        };
        self.0.iter().zip(names).map(value).collect()
    }

    pub(super) fn filter(&self, values: &[String]) -> Result<LineFilter, String> {
        let values = values.iter().map(String::as_str);
        let parameters = self.0.iter().zip(values).filter(|(_, value)| *value != NONE);
        let parameters = parameters.filter_map(|(property, value)| match (property, property.word()) {
            // Unheld time has the name of its tenant in all groups.
            _ if value.starts_with(RESERVED) => Some(("tenant", value)),
            (_, Some("tenant")) => Some(("tenant", value)),
            (_, Some("workload")) => {
                let (holder, tenant) = value.split_once('@')?;
                // Both names may have an @, as in worker@7.service: then all workloads are read, and the id tells its own.
                (!tenant.contains('@')).then_some(("workload", holder))
            }
            (_, Some("gpu" | "uuid")) => Some(("gpu", value)),
            (BillProperty::Fact(fact), _) => Some((fact.label(), value)),
            _ => None,
        });
        // Of two properties of unheld time both say its tenant.
        LineFilter::of(parameters.collect::<BTreeMap<_, _>>())
    }

    pub(super) fn groups(&self, bill: &Bill) -> Vec<GroupKey> {
        let mut groups = vec![GroupKey::new(); bill.lines.len()];
        for property in &self.0 {
            for (group, of_property) in groups.iter_mut().zip(property.groups(bill)) {
                group.push(of_property);
            }
        }
        groups
    }
}

impl BillProperty {
    /// The word that stands for it; attributes, labels and facts have names of their own, which may be such a word.
    fn word(&self) -> Option<&'static str> {
        match self {
            Self::Word(word) => Some(word.name),
            _ => None,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::PodLabel(name) | Self::Attribute(name) => name,
            Self::Fact(fact) => fact.label(),
            Self::Word(word) => word.name,
        }
    }

    fn groups(&self, bill: &Bill) -> Vec<Group> {
        let known = GroupedBill::new(bill);
        let label = |line: &BillLine, name: &str| of_holder(line, line.labels.get(name).map(String::as_str));
        let group = |line: &BillLine| match self {
            Self::Word(word) => (word.of)(&known, line),
            Self::Fact(fact) => label(line, fact.label()),
            Self::PodLabel(name) => label(line, name),
            Self::Attribute(name) => {
                let of_tenant = bill.tenant_attributes.get(&line.tenant);
                let value = of_tenant.and_then(|attributes| attributes.get(name));
                let remainder = Some(&line.tenant).filter(|tenant| tenant.starts_with(RESERVED));
                named(value.or(remainder).map(String::as_str))
            }
        };
        bill.lines.iter().map(group).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accounting::billing::made;
    use crate::model::{HolderId, Money};

    fn board(index: u32, uuid: &str) -> GpuId {
        GpuId { index, uuid: uuid.into() }
    }

    fn line(gpu: u32) -> BillLine {
        BillLine::empty(board(gpu, "x"), HolderId::new("x"))
    }

    fn bill(lines: &[BillLine]) -> Bill {
        let gpu = json!({"gpu": 0, "uuid": "x", "model": "H100", "slot_ns": 0, "settled_until": "2026-11-01T01:00:00Z"});
        Bill { lines: lines.to_vec(), ..made::bill(&json!({"gpus": [gpu]})) }
    }

    fn groups(by: &str, bill: &Bill) -> Vec<Group> {
        by.parse::<BillProperty>().unwrap().groups(bill)
    }

    fn names(by: &str, lines: &[BillLine]) -> Vec<String> {
        groups(by, &bill(lines)).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn gpus_are_sorted_by_index_and_all_other_groups_by_name() {
        let places = |by: &str| groups(by, &bill(&[line(2), line(10)])).into_iter().map(|(place, _)| place);
        assert!(places("gpu").eq([2, 10]));
        assert!(places("tenant").eq([0, 0]));
    }

    #[test]
    fn two_boards_with_the_same_index_are_two_lines() {
        let replaced = BillLine { gpu: board(2, "y"), ..line(2) };
        let names = |lines: &[BillLine]| names("gpu", lines);
        assert_eq!(names(&[line(2), line(2), line(3)]), ["2", "2", "3"]);
        assert_eq!(names(&[line(2), replaced, line(3)]), ["2 (x)", "2 (y)", "3"]);
    }

    #[test]
    fn a_workload_with_two_tenants_is_two_lines_that_name_them() {
        let of = |tenant: &str| BillLine { tenant: tenant.into(), ..line(0) };
        let names = |lines: &[BillLine]| names("workload", lines);
        assert_eq!(names(&[of("physics"), of("physics")]), ["x", "x"]);
        assert_eq!(names(&[of("physics"), of("bio")]), ["x (physics)", "x (bio)"]);
    }

    #[test]
    fn a_user_is_that_of_a_unit_a_session_or_a_job() {
        let user = |label: Fact| {
            let mut line = line(0);
            line.labels.insert(label.label().into(), "ada".into());
            names("user", &[line])[0].clone()
        };
        assert_eq!([Fact::User, Fact::SlurmUser, Fact::SlurmAccount].map(user), ["ada", "ada", NONE]);
    }

    #[test]
    fn a_grouping_is_a_word_or_a_label_and_the_error_for_an_unknown_one_lists_all() {
        let by = |text: &str| text.parse::<BillGrouping>();
        assert_eq!(by("tenant").unwrap().names(), ["tenant"]);
        assert_eq!(by("namespace"), by("k8s_namespace_name"));
        assert_eq!(by("account").unwrap().names(), ["slurm_account"]);
        assert_eq!(by("model,tenant").unwrap().names(), ["model", "tenant"]);
        assert_eq!(by("gpu,gpu").unwrap_err(), "gpu is given twice; give it once");
        for wrong in ["tenant,gpu,node", "tenant,", ",", ""] {
            assert!(by(wrong).is_err(), "{wrong:?}");
        }
        let error = by("team").unwrap_err();
        assert!(error.contains("workload") && error.contains("k8s_pod_name"), "{error}");
    }

    #[test]
    fn an_attribute_or_pod_label_that_nothing_has_is_named() {
        let mut bill = bill(&[line(0)]);
        let unknown = |bill: &Bill, by: &str| {
            by.parse::<BillGrouping>().unwrap().unknown([bill].into_iter()).unwrap_or_default()
        };
        assert!(unknown(&bill, "attribute:owner").contains("no tenant of the bill has attributes"));
        bill.tenant_attributes = [("x".to_owned(), [("owner".to_owned(), "ada".to_owned())].into())].into();
        let label = format!("{}team", PodLabel::PREFIX);
        bill.lines[0].labels.insert(label.clone(), "ml".into());
        let told = unknown(&bill, "tenant,attribute:nonsense");
        assert_eq!(told, r#"no tenant of the bill has the attribute "nonsense"; there are owner"#);
        assert!(unknown(&bill, &format!("{}nonsense", PodLabel::PREFIX)).contains("no line of the bill has"));
        for known in ["attribute:owner", &label, "k8s_namespace_name", "tenant"] {
            assert_eq!(unknown(&bill, known), "", "{known}");
        }
    }

    #[test]
    fn a_bill_of_some_tenants_has_the_models_and_the_time_of_their_own_gpus() {
        let held = |tenant: &str, gpu: GpuId, hours: u64| {
            let mut line = BillLine { tenant: tenant.into(), ..BillLine::empty(gpu, HolderId::new("x")) };
            line.amounts.parts.idle = hours;
            line
        };
        let gpu = |uuid: &str, index: u32| {
            json!({"gpu": index, "uuid": uuid, "model": format!("model of {uuid}"), "slot_ns": 24,
                "settled_until": "2026-11-01T01:00:00Z", "money": "24.000000000"})
        };
        let lines = vec![
            held("ml", board(0, "x"), 3),
            held("ml", board(0, "x"), 4),
            held("bio", board(0, "x"), 5),
            held("bio", board(1, "y"), 6),
        ];
        let mut bill = Bill { lines, ..made::bill(&json!({"gpus": [gpu("x", 0), gpu("y", 1)]})) };
        bill.keep_lines(|line| line.tenant == "ml");
        let models: BTreeSet<_> = groups("model", &bill).into_iter().map(|(_, name)| name).collect();
        assert_eq!(models, ["model of x".to_owned()].into());
        let [gpu] = &bill.gpus[..] else { panic!("{:?}", bill.gpus) };
        assert_eq!((gpu.slot.0, gpu.money), (7, Some(Money(0))), "nothing of others is in it");
    }

    #[test]
    fn a_model_is_found_by_uuid_and_two_properties_are_two_names() {
        let unknown = BillLine { gpu: board(3, "y"), ..line(3) };
        let lines = [line(0), unknown];
        assert_eq!(names("model", &lines), ["H100", NONE]);
        assert_eq!(names("node", &lines), ["n1", "n1"]);
        let by: BillGrouping = "model,gpu".parse().unwrap();
        let key = |index: u32, model: &str| vec![(0, model.to_owned()), (index, index.to_string())];
        assert_eq!(by.groups(&bill(&lines)), [key(0, "H100"), key(3, NONE)]);
    }
}
