//! The properties by which lines of bills and sums of costs are told apart: one table for `bill --by` and for the costs of a period.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::{Bill, BillLine, LineDetail, LineFilter};
use crate::model::{Fact, GpuId, HolderId, PodLabel, RESERVED};

/// One property, or two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillGrouping(Vec<BillProperty>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BillProperty {
    Word(&'static BillWord),
    /// A label of `gpu_workload_info`.
    Fact(Fact),
    /// A promoted label of pods, by its name in `gpu_workload_info`.
    PodLabel(String),
    /// An attribute of tenants.
    Attribute(String),
}

/// A property that is no label. Whoever adds one adds a row to [`WORDS`], and says in [`BillProperty::detail`] what must tell
/// lines apart for it.
#[derive(Debug)]
pub struct BillWord {
    name: &'static str,
    of: fn(&LineView<'_>) -> GroupValue,
}

impl PartialEq for BillWord {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for BillWord {}

/// What groups are made by: a line of a bill with what its bill knows of it, or what sums of costs are told apart by.
#[derive(Clone, Copy, Debug)]
pub struct LineView<'a> {
    pub tenant: &'a str,
    /// None where workloads are not told apart.
    pub holder: Option<&'a HolderId>,
    /// None where labels are not told apart.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// None where GPUs are not told apart.
    pub gpu: Option<&'a GpuId>,
    pub model: Option<&'a str>,
    /// The price class; none where no price was in force.
    pub class: Option<&'a str>,
    /// The place of the rate of its time among those of the bill, from 1, and its number.
    pub rate: (u32, Option<i64>),
    pub node: Option<&'a str>,
    pub cluster: Option<&'a str>,
    pub pool: Option<&'a str>,
    /// The local date.
    pub day: Option<&'a str>,
    /// Those of its tenant.
    pub attributes: Option<&'a BTreeMap<String, String>>,
}

/// The value of a property before it is known which other lines there are. Values sort by number, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupValue {
    order: u32,
    pub name: String,
    /// Tells apart groups of one name, and is shown where there are several.
    pub qualifier: Option<String>,
}

/// The group of a line by each property: its sort key and its name; groups with the same key are sorted by name.
pub type GroupKey = Vec<(u32, String)>;

/// How many properties a grouping has at most.
const PROPERTIES: usize = 2;

/// The labels that name a user; the first one that a line has is used.
const USERS: [Fact; 2] = [Fact::User, Fact::SlurmUser];

const SHORT: [(&str, Fact); 3] =
    [("namespace", Fact::Namespace), ("account", Fact::SlurmAccount), ("unit", Fact::Unit)];

/// The name of the group of lines without the property.
pub const NONE: &str = "-";

/// Prefix of a property that is an attribute of tenants.
const ATTRIBUTE: &str = "attribute:";

/// The properties that are no labels.
static WORDS: [BillWord; 11] = [
    BillWord { name: "tenant", of: |line| named(Some(line.tenant)) },
    BillWord { name: "workload", of: |line| line.workload() },
    BillWord { name: "gpu", of: |line| line.gpu_value() },
    BillWord { name: "uuid", of: |line| named(line.gpu.map(|gpu| &*gpu.uuid)) },
    BillWord { name: "model", of: |line| named(line.model) },
    BillWord { name: "class", of: |line| named(line.class) },
    BillWord { name: "day", of: |line| named(line.day) },
    BillWord { name: "node", of: |line| named(line.node) },
    BillWord { name: "cluster", of: |line| named(line.cluster) },
    BillWord { name: "pool", of: |line| named(line.pool) },
    BillWord {
        name: "user",
        of: |line| line.of_holder(USERS.iter().find_map(|fact| line.label(fact.label()))),
    },
];

/// The rate of the time, in the order of the bill. It also separates lines, but nobody can ask for it.
static RATE: BillWord = BillWord {
    name: "rate",
    of: |line| GroupValue {
        order: line.rate.0,
        name: line.rate.1.map(|id| id.to_string()).unwrap_or_default(),
        qualifier: None,
    },
};

fn named(name: Option<&str>) -> GroupValue {
    let name = name.filter(|name| !name.is_empty()).unwrap_or(NONE).to_owned();
    GroupValue { order: 0, name, qualifier: None }
}

impl LineView<'_> {
    /// Whether it is of a remainder, which no workload has.
    pub fn is_remainder(&self) -> bool {
        self.holder.map_or_else(|| self.tenant.starts_with(RESERVED), HolderId::is_remainder)
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels?.get(name).map(String::as_str)
    }

    /// Unheld time keeps the name of its reserved tenant.
    fn of_holder(&self, name: Option<&str>) -> GroupValue {
        named(if self.is_remainder() { Some(self.tenant) } else { name })
    }

    /// A workload whose account or namespace has changed has several tenants.
    fn workload(&self) -> GroupValue {
        let qualifier = (!self.is_remainder()).then(|| self.tenant.to_owned());
        GroupValue { qualifier, ..self.of_holder(self.holder.map(HolderId::name)) }
    }

    /// A replaced GPU had the same index.
    fn gpu_value(&self) -> GroupValue {
        let Some(GpuId { index, uuid }) = self.gpu else { return named(None) };
        GroupValue { order: *index, name: index.to_string(), qualifier: Some(uuid.to_string()) }
    }
}

/// Properties with the values that a line may have of each. A GPU may be given by index or UUID, and a workload by its id, whoever
/// pays for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyFilters(Vec<(BillProperty, Vec<String>)>);

impl PropertyFilters {
    /// Lets a line have that value too.
    ///
    /// # Errors
    /// The value is given twice.
    pub fn add(&mut self, property: BillProperty, value: String) -> Result<(), String> {
        let place = self.0.iter().position(|(known, _)| *known == property).unwrap_or_else(|| {
            self.0.push((property, Vec::new()));
            self.0.len() - 1
        });
        let (property, values) = &mut self.0[place];
        if values.contains(&value) {
            return Err(format!("{}={value} is given twice; give it once", property.asked()));
        }
        values.push(value);
        Ok(())
    }

    pub fn properties(&self) -> impl Iterator<Item = &BillProperty> {
        self.0.iter().map(|(property, _)| property)
    }

    /// The properties and their values, as a user asks for them.
    pub fn asked(&self) -> Vec<(String, Vec<String>)> {
        self.0.iter().map(|(property, values)| (property.asked(), values.clone())).collect()
    }

    pub fn selects(&self, line: &LineView<'_>) -> bool {
        self.0.iter().all(|(property, values)| {
            let value = property.value(line);
            let uuid = value.qualifier.as_ref().filter(|_| property.word() == Some("gpu"));
            values.iter().any(|wanted| *wanted == value.name || uuid == Some(wanted))
        })
    }

    /// Whether each line of a bill has such values.
    pub fn selected(&self, bill: &Bill) -> Vec<bool> {
        let index = BillIndex::new(bill);
        bill.lines.iter().map(|line| self.selects(&index.view(line))).collect()
    }
}

/// The names that several groups have, each with a qualifier of its own, by the place of their property.
#[derive(Debug, Default)]
pub struct SharedNames<'a>(BTreeMap<(usize, u32, &'a str), BTreeSet<&'a str>>);

impl<'a> SharedNames<'a> {
    pub fn of(groups: impl IntoIterator<Item = &'a [GroupValue]>) -> Self {
        let mut qualifiers = BTreeMap::<_, BTreeSet<&str>>::new();
        for (place, value) in groups.into_iter().flat_map(|values| values.iter().enumerate()) {
            if let Some(qualifier) = &value.qualifier {
                qualifiers.entry((place, value.order, &*value.name)).or_default().insert(qualifier);
            }
        }
        qualifiers.retain(|_, qualifiers| qualifiers.len() > 1);
        Self(qualifiers)
    }

    /// Sort key and name of a value of that property.
    pub fn resolve(&self, place: usize, value: &GroupValue) -> (u32, String) {
        let GroupValue { order, name, qualifier } = value;
        let name = match qualifier.as_ref().filter(|_| self.0.contains_key(&(place, *order, name))) {
            Some(qualifier) => format!("{name} ({qualifier})"),
            None => name.clone(),
        };
        (*order, name)
    }
}

/// A bill with what is looked up for each of its lines.
struct BillIndex<'a> {
    bill: &'a Bill,
    /// The models of GPUs by UUID.
    models: BTreeMap<&'a str, &'a str>,
    /// The class of each rate by its number, with its place among all.
    rates: BTreeMap<i64, (u32, &'a str)>,
}

impl<'a> BillIndex<'a> {
    fn new(bill: &'a Bill) -> Self {
        let models = bill.gpus.iter().map(|gpu| (&*gpu.gpu.uuid, &*gpu.model)).collect();
        let rates = (1..).zip(&bill.rates).map(|(place, rate)| (rate.id, (place, &*rate.class)));
        Self { bill, models, rates: rates.collect() }
    }

    fn view(&self, line: &'a BillLine) -> LineView<'a> {
        let Self { bill, models, rates } = self;
        let rate = line.rates.time.and_then(|id| rates.get(&id).copied());
        let node = line.node.as_ref();
        LineView {
            tenant: &line.tenant,
            holder: Some(&line.holder),
            labels: Some(&line.labels),
            gpu: Some(&line.gpu),
            model: models.get(&*line.gpu.uuid).copied(),
            class: rate.map(|(_, class)| class),
            rate: (rate.map_or(0, |(place, _)| place), line.rates.time),
            node: Some(node.map_or(&*bill.node, |node| &*node.name)),
            cluster: node.map_or(bill.cluster.as_deref(), |node| node.cluster.as_deref()),
            pool: node.and_then(|node| node.pool.as_deref()),
            day: line.day.as_deref(),
            attributes: bill.tenant_attributes.get(&line.tenant),
        }
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
            let words: Vec<&str> = Self::words().collect();
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
    pub fn of_workloads() -> Self {
        Self(WORDS.iter().filter(|word| word.name == "workload").map(BillProperty::Word).collect())
    }

    /// Whether all lines of a group of the other one are in one group of this.
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.0.iter().all(|property| other.0.contains(property))
    }

    /// Whether all lines of a tenant are in one group, and no lines of others.
    pub fn is_one_tenant(&self) -> bool {
        let is_of_tenants = |property: &BillProperty| {
            property.word() == Some("tenant") || matches!(property, BillProperty::Attribute(_))
        };
        self.has("tenant") && self.0.iter().all(is_of_tenants)
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(BillProperty::name).collect()
    }

    /// The properties as a user asks for them, without the rate.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.0.iter().filter(|property| property.word() != Some(RATE.name));
        asked.map(BillProperty::asked).collect()
    }

    pub fn by_rate(&self) -> Self {
        Self(self.0.iter().cloned().chain([BillProperty::Word(&RATE)]).collect())
    }

    pub fn detail(&self) -> LineDetail {
        let nothing = LineDetail { labels: Some(Vec::new()), ..LineDetail::default() };
        self.0.iter().map(BillProperty::detail).fold(nothing, LineDetail::and)
    }

    pub fn needs_days(&self) -> bool {
        self.has("day")
    }

    pub fn value_of<'a>(&self, word: &str, values: &'a [String]) -> Option<&'a str> {
        values.get(self.place_of(word)?).map(String::as_str)
    }

    /// Which of its properties has that word.
    pub fn place_of(&self, word: &str) -> Option<usize> {
        self.0.iter().position(|property| property.word() == Some(word))
    }

    fn has(&self, name: &str) -> bool {
        self.place_of(name).is_some()
    }

    /// A property of it, in words, that no line of the bills has; only those whose names the operator makes up.
    pub fn unknown<'a>(&self, bills: impl Iterator<Item = &'a Bill> + Clone) -> Option<String> {
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
    pub fn needs_bill(&self) -> bool {
        self.has("model") || self.0.iter().any(|property| matches!(property, BillProperty::Attribute(_)))
    }

    /// The value of each property of a line. It does not depend on other lines; the names of groups may.
    pub fn values(&self, names: &[String], line: &BillLine) -> Vec<String> {
        let value = |(property, name): (&BillProperty, &String)| match property.word() {
            Some("gpu") => line.gpu.uuid.to_string(),
            Some("workload") if !line.holder.is_remainder() => format!("{}@{}", line.holder, line.tenant),
            _ => name.clone(),
        };
        self.0.iter().zip(names).map(value).collect()
    }

    pub fn filter(&self, values: &[String]) -> Result<LineFilter, String> {
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

    /// The group of each line of a bill.
    pub fn groups(&self, bill: &Bill) -> Vec<GroupKey> {
        let index = BillIndex::new(bill);
        let values: Vec<Vec<GroupValue>> =
            bill.lines.iter().map(|line| self.values_of(&index.view(line))).collect();
        let names = SharedNames::of(values.iter().map(Vec::as_slice));
        let key = |values: &Vec<GroupValue>| {
            values.iter().enumerate().map(|(place, value)| names.resolve(place, value)).collect()
        };
        values.iter().map(key).collect()
    }

    pub fn values_of(&self, line: &LineView<'_>) -> Vec<GroupValue> {
        self.0.iter().map(|property| property.value(line)).collect()
    }

    pub fn properties(&self) -> &[BillProperty] {
        &self.0
    }
}

impl BillProperty {
    /// The words for properties, as a user asks for them; attributes and labels have names of their own.
    pub fn words() -> impl Iterator<Item = &'static str> {
        WORDS.iter().map(|word| word.name).chain(SHORT.iter().map(|(name, _)| *name))
    }

    /// The word that stands for it; attributes, labels and facts have names of their own, which may be such a word.
    pub fn word(&self) -> Option<&'static str> {
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

    /// As a user asks for it.
    pub fn asked(&self) -> String {
        match self {
            Self::Attribute(name) => format!("{ATTRIBUTE}{name}"),
            other => other.name().to_owned(),
        }
    }

    /// How finely a bill over exports must tell lines apart for it.
    pub fn detail(&self) -> LineDetail {
        let labels = match self {
            Self::Word(word) if word.name == "user" => {
                USERS.iter().map(|fact| fact.label().to_owned()).collect()
            }
            Self::Fact(fact) => vec![fact.label().to_owned()],
            Self::PodLabel(name) => vec![name.clone()],
            Self::Word(_) | Self::Attribute(_) => Vec::new(),
        };
        LineDetail {
            workload: self.word() == Some("workload"),
            labels: Some(labels),
            node: matches!(self.word(), Some("node" | "cluster" | "pool")),
            day: self.word() == Some("day"),
        }
    }

    pub fn value(&self, line: &LineView<'_>) -> GroupValue {
        match self {
            Self::Word(word) => (word.of)(line),
            Self::Fact(fact) => line.of_holder(line.label(fact.label())),
            Self::PodLabel(name) => line.of_holder(line.label(name)),
            Self::Attribute(name) => {
                let value = line.attributes.and_then(|attributes| attributes.get(name));
                let remainder = Some(line.tenant).filter(|tenant| tenant.starts_with(RESERVED));
                named(value.map(String::as_str).or(remainder))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::super::made;
    use super::*;
    use crate::model::Money;

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

    fn groups(by: &str, bill: &Bill) -> Vec<(u32, String)> {
        by.parse::<BillGrouping>().unwrap().groups(bill).into_iter().flatten().collect()
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
