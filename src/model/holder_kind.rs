//! The kinds of holders and the facts known of them, one row each.
//!
//! The row of a kind has the parts of its workload ids and its default tenant. A new kind needs a row here and a
//! resolver in `holders`; only this file parses workload ids. The order of the rows is the precedence where a process
//! belongs to several kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{HolderId, PodLabel};

/// Declares [`Fact`]: variant, name in the ledger's JSON, label of `gpu_workload_info`, meaning of that label.
macro_rules! facts {
    ($($fact:ident $name:literal $label:literal $meaning:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fact {
            $(#[doc = $meaning] $fact,)*
        }

        impl Fact {
            /// All facts, in the order of their labels.
            pub const ALL: &[Self] = &[$(Self::$fact),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$fact => $name),* }
            }

            pub const fn label(self) -> &'static str {
                match self { $(Self::$fact => $label),* }
            }

            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$fact => $meaning),* }
            }
        }
    };
}

facts! {
    SlurmCluster "slurm_cluster" "slurm_cluster" "Slurm cluster",
    SlurmJob "slurm_job" "slurm_job_id" "Slurm job",
    SlurmStep "slurm_step" "slurm_step_id" "step of the Slurm job: a number, batch, extern or interactive",
    SlurmArrayJob "slurm_array_job" "slurm_array_job_id" "Slurm job array that the job is a task of",
    SlurmArrayTask "slurm_array_task" "slurm_array_task_id" "number of the job in its Slurm job array",
    SlurmHetJob "slurm_het_job" "slurm_het_job_id" "heterogeneous Slurm job that the job is a component of",
    SlurmAccount "slurm_account" "slurm_account" "account that the Slurm job is charged to",
    SlurmUser "slurm_user" "slurm_user" "owner of the Slurm job",
    SlurmPartition "slurm_partition" "slurm_partition" "partition of the Slurm job",
    SlurmQos "slurm_qos" "slurm_qos" "quality of service of the Slurm job",
    SlurmJobName "slurm_job_name" "slurm_job_name" "name of the Slurm job, which its user chose",
    Namespace "k8s_namespace" "k8s_namespace_name" "Kubernetes namespace",
    Pod "k8s_pod" "k8s_pod_name" "Kubernetes pod",
    PodUid "k8s_pod_uid" "k8s_pod_uid" "UID of the Kubernetes pod",
    PodContainer "k8s_container" "k8s_container_name" "container of the Kubernetes pod",
    OwnerKind "k8s_owner_kind" "k8s_owner_kind" "kind of what controls the Kubernetes pod, such as Deployment, StatefulSet or Job",
    OwnerName "k8s_owner" "k8s_owner_name" "name of what controls the Kubernetes pod",
    ContainerRuntime "runtime" "container_runtime" "container runtime",
    Container "container" "container_id" "container, as its runtime numbers it",
    ContainerName "container_name" "container_name" "name of the container, where its runtime is asked for names",
    ContainerImage "image" "container_image" "image of the container, where its runtime is asked for names",
    Vm "vm" "vm_name" "virtual machine",
    Unit "unit" "systemd_unit" "systemd unit",
    UnitTemplate "unit_template" "systemd_unit_template" "systemd template that the unit is an instance of",
    User "user" "user_name" "Unix user",
    Group "group" "group_name" "Unix group, or id of the grant to a team",
}

/// Declares [`HolderKind`]: variant, name, the facts in its ids with the text before each, and the facts of which the first
/// known one is the tenant where no rule applies.
macro_rules! holder_kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal { id: [$($before:literal $fact:ident),*], tenant: [$($tenant:ident)*] },)*) => {
        /// The kinds of holders, in order of precedence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum HolderKind {
            $($(#[$doc])* $kind,)*
            Remainder,
            /// A kind that this version does not know, in a ledger that another version wrote.
            Other,
        }

        impl HolderKind {
            const WITH_IDS: &[Self] = &[$(Self::$kind),*];

            pub const NAMES: &[&'static str] = &[$($name,)* "remainder", "other"];

            /// The value of the `kind` label and, before a colon, the beginning of its workload ids.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                    Self::Remainder => "remainder",
                    Self::Other => "other",
                }
            }

            const fn id_facts(self) -> &'static [(&'static str, Fact)] {
                match self {
                    $(Self::$kind => &[$(($before, Fact::$fact)),*],)*
                    Self::Remainder | Self::Other => &[],
                }
            }

            /// The facts of which the first known one is the tenant where no rule applies; without any, the workload id is
            /// the tenant.
            pub const fn tenant_facts(self) -> &'static [Fact] {
                match self {
                    $(Self::$kind => &[$(Fact::$tenant),*],)*
                    Self::Remainder | Self::Other => &[],
                }
            }
        }
    };
}

holder_kinds! {
    /// A job of Slurm, or a step of one.
    Slurm "slurm" { id: ["" SlurmCluster, "/" SlurmJob, "." SlurmStep], tenant: [SlurmAccount] },
    Pod "k8s" { id: ["" PodUid, "/" PodContainer], tenant: [Namespace] },
    /// A container that belongs to no pod and no job. A user's own is on the user's bill.
    Container "container" { id: ["" ContainerRuntime, "/" Container], tenant: [User ContainerRuntime] },
    Vm "vm" { id: ["" Vm], tenant: [Vm] },
    /// A systemd unit of the system manager, or a slice of it. An instance of a template is on the template's bill.
    Unit "unit" { id: ["" Unit], tenant: [UnitTemplate Unit] },
    User "user" { id: ["" User], tenant: [User] },
    /// A Unix group, which only holds: its members use.
    Group "group" { id: ["" Group], tenant: [Group] },
    /// Users listed in a standing grant, who hold together under its id; each of them uses.
    Team "team" { id: ["" Group], tenant: [Group] },
}

/// What is known of a holder beside its id, as it was observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "StoredFacts")]
pub struct Facts {
    pub uid: Option<u32>,
    /// When this run of the workload began, in wall-clock seconds: distinguishes a requeued job from its earlier run.
    pub started: Option<u64>,
    texts: Vec<(Fact, Arc<str>)>,
    /// Promoted labels of its pod, by key, each once; none where they are not known.
    pod_labels: Option<Vec<PodLabel>>,
}

impl Facts {
    /// Facts from pairs; the last of several texts for one fact counts.
    pub fn new<T: Into<Arc<str>>>(texts: impl IntoIterator<Item = (Fact, T)>) -> Self {
        let mut facts = Self::default();
        for (fact, text) in texts {
            facts.set(fact, text.into());
        }
        facts
    }

    #[must_use]
    pub fn with_uid(self, uid: Option<u32>) -> Self {
        Self { uid, ..self }
    }

    /// Sets a fact; an empty text removes it.
    pub fn set(&mut self, fact: Fact, text: Arc<str>) {
        match self.texts.binary_search_by_key(&fact, |(known, _)| *known) {
            Ok(at) => self.texts[at].1 = text,
            Err(at) => self.texts.insert(at, (fact, text)),
        }
        self.texts.retain(|(_, text)| !text.is_empty());
    }

    /// Replaces the promoted labels of its pod; those with an empty value are left out.
    pub fn set_pod_labels(&mut self, labels: impl IntoIterator<Item = PodLabel>) {
        let mut labels: Vec<PodLabel> = labels.into_iter().filter(|label| !label.value.is_empty()).collect();
        labels.sort();
        labels.dedup_by(|one, other| one.key == other.key);
        self.pod_labels = Some(labels);
    }

    pub fn pod_labels(&self) -> &[PodLabel] {
        self.pod_labels.as_deref().unwrap_or_default()
    }

    /// These facts with those of `others` that were not known; none where both know one and differ.
    pub fn completed_by(&self, others: &Self) -> Option<Self> {
        let mut facts = self.clone();
        complete(&mut facts.uid, others.uid.as_ref())?;
        complete(&mut facts.started, others.started.as_ref())?;
        complete(&mut facts.pod_labels, others.pod_labels.as_ref())?;
        for (fact, text) in &others.texts {
            let mut known = facts.get(*fact).cloned();
            complete(&mut known, Some(text))?;
            facts.set(*fact, known?);
        }
        Some(facts)
    }

    pub fn get(&self, fact: Fact) -> Option<&Arc<str>> {
        self.texts.iter().find(|(known, _)| *known == fact).map(|(_, text)| text)
    }

    pub fn labelled(&self, label: &str) -> Option<&str> {
        let text = self.iter().find(|(fact, _)| fact.label() == label).map(|(_, text)| text);
        text.or_else(|| self.pod_labels().iter().find(|one| &*one.name == label).map(|one| &*one.value))
    }

    /// All facts that are texts, in the order of [`Fact::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Fact, &str)> {
        self.texts.iter().map(|(fact, text)| (*fact, &**text))
    }
}

/// Sets what is not known yet; none where it is known to be something else.
fn complete<T: Clone + PartialEq>(known: &mut Option<T>, other: Option<&T>) -> Option<()> {
    if known.is_none() {
        *known = other.cloned();
    }
    other.is_none_or(|other| known.as_ref() == Some(other)).then_some(())
}

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (fact, text) in self.iter() {
            map.serialize_entry(fact.name(), text)?;
        }
        if let Some(labels) = &self.pod_labels {
            let labels = labels.iter().map(|label| (&*label.key, &*label.value));
            map.serialize_entry("k8s_pod_labels", &labels.collect::<BTreeMap<_, _>>())?;
        }
        if let Some(uid) = self.uid {
            map.serialize_entry("uid", &uid)?;
        }
        if let Some(started) = self.started {
            map.serialize_entry("started", &started)?;
        }
        map.end()
    }
}

/// Facts as the ledger has them; those of a newer version are left out.
#[derive(Deserialize)]
struct StoredFacts {
    uid: Option<u32>,
    started: Option<u64>,
    k8s_pod_labels: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    texts: BTreeMap<String, Value>,
}

impl From<StoredFacts> for Facts {
    fn from(stored: StoredFacts) -> Self {
        let text = |fact: &Fact| Some((*fact, stored.texts.get(fact.name())?.as_str()?));
        let mut facts = Self::new(Fact::ALL.iter().filter_map(text));
        facts.uid = stored.uid;
        facts.started = stored.started;
        if let Some(labels) = stored.k8s_pod_labels {
            facts.set_pod_labels(labels.iter().map(|(key, value)| PodLabel::new(key, value)));
        }
        facts
    }
}

/// Ends the name of a unit in the id of a user who is not the first one in it. systemd allows no slash in names.
const UNIT_USER: char = '/';

impl HolderId {
    pub(super) fn with_unit_user(&self, uid: u32) -> Self {
        Self::new(format!("{}{UNIT_USER}{uid}", self.name()))
    }

    /// The unit itself, where this is the id of a further user of it.
    pub fn shared_unit(&self) -> Option<Self> {
        let (unit, _) = self.name().split_once(UNIT_USER).filter(|_| self.kind() == HolderKind::Unit)?;
        Some(Self::new(unit))
    }

    /// The id of a holder of that kind with these facts; a fact that is not known ends it.
    pub fn of(kind: HolderKind, facts: &Facts) -> Self {
        let mut text = format!("{}:", kind.name());
        for (before, fact) in kind.id_facts() {
            let Some(part) = facts.get(*fact) else { break };
            text.push_str(before);
            text.push_str(part);
        }
        Self::new(text)
    }

    pub fn kind(&self) -> HolderKind {
        self.parse().0
    }

    pub fn facts(&self) -> Facts {
        let (kind, mut rest) = self.parse();
        let mut facts = Facts::default();
        if kind == HolderKind::Unit
            && let Some((unit, uid)) = rest.split_once(UNIT_USER)
        {
            (rest, facts.uid) = (unit, uid.parse().ok());
        }
        let mut parts = kind.id_facts().iter().peekable();
        while let Some((_, fact)) = parts.next() {
            let (part, behind) = match parts.peek() {
                Some((before, _)) => rest.split_once(before).unwrap_or((rest, "")),
                None => (rest, ""),
            };
            facts.set(*fact, part.into());
            rest = behind;
        }
        facts
    }

    /// Whether it names a part of the other workload, as a step is a part of its job.
    pub fn is_within(&self, outer: &Self) -> bool {
        if self.shared_unit().is_some_and(|unit| unit.name() == outer.name()) {
            return true;
        }
        let Some(rest) = self.name().strip_prefix(outer.name()) else { return false };
        self.kind().id_facts().iter().any(|(before, _)| !before.is_empty() && rest.starts_with(before))
    }

    pub fn is_in_pod_of(&self, other: &Self) -> bool {
        let pod = |id: &Self| id.facts().get(Fact::PodUid).cloned();
        self.kind() == HolderKind::Pod && other.kind() == HolderKind::Pod && pod(self) == pod(other)
    }

    fn parse(&self) -> (HolderKind, &str) {
        if self.is_remainder() {
            return (HolderKind::Remainder, "");
        }
        self.name()
            .split_once(':')
            .and_then(|(name, rest)| {
                let kind = HolderKind::WITH_IDS.iter().find(|kind| kind.name() == name)?;
                Some((*kind, rest))
            })
            .unwrap_or((HolderKind::Other, ""))
    }
}

impl HolderKind {
    /// The facts of which [`Self::title`] is made.
    pub const OF_TITLES: &[Fact] = &[
        Fact::Namespace,
        Fact::Pod,
        Fact::PodContainer,
        Fact::SlurmJob,
        Fact::SlurmStep,
        Fact::SlurmUser,
        Fact::ContainerName,
        Fact::Container,
        Fact::ContainerRuntime,
        Fact::Unit,
        Fact::User,
    ];

    /// What people call a workload of the kind; none where its facts do not tell, and its id must do.
    pub fn title<'a>(self, fact: impl Fn(Fact) -> Option<&'a str>) -> Option<String> {
        match self {
            Self::Pod => fact(Fact::Namespace).zip(fact(Fact::Pod)).map(|(namespace, pod)| {
                match fact(Fact::PodContainer) {
                    Some(container) => format!("{namespace}/{pod}/{container}"),
                    None => format!("{namespace}/{pod}"),
                }
            }),
            Self::Slurm => fact(Fact::SlurmJob).map(|job| {
                let step = fact(Fact::SlurmStep).map(|step| format!(".{step}")).unwrap_or_default();
                let user = fact(Fact::SlurmUser).map(|user| format!(" of {user}")).unwrap_or_default();
                format!("job {job}{step}{user}")
            }),
            Self::Container => fact(Fact::ContainerName)
                .map(str::to_owned)
                .or_else(|| Some(fact(Fact::Container)?.chars().take(12).collect()))
                .map(|name| format!("{} {name}", fact(Fact::ContainerRuntime).unwrap_or("container"))),
            Self::Unit => fact(Fact::Unit).map(str::to_owned),
            Self::User => fact(Fact::User).map(|user| format!("user {user}")),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_tells_its_kind_and_its_facts() {
        for (id, kind, facts) in [
            ("unit:train.service", HolderKind::Unit, vec![(Fact::Unit, "train.service")]),
            (
                "slurm:alpha/7.batch",
                HolderKind::Slurm,
                vec![(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, "7"), (Fact::SlurmStep, "batch")],
            ),
            ("unit:train.service/1011", HolderKind::Unit, vec![(Fact::Unit, "train.service")]),
            ("user:alice", HolderKind::User, vec![(Fact::User, "alice")]),
            ("user:a:b/c", HolderKind::User, vec![(Fact::User, "a:b/c")]),
            ("group:lab", HolderKind::Group, vec![(Fact::Group, "lab")]),
            ("team:lab", HolderKind::Team, vec![(Fact::Group, "lab")]),
            ("user:", HolderKind::User, vec![]),
            ("__system__", HolderKind::Remainder, vec![]),
            ("__unattributed__/pod", HolderKind::Remainder, vec![]),
            ("newer:thing", HolderKind::Other, vec![]),
            ("remainder:x", HolderKind::Other, vec![]),
            ("", HolderKind::Other, vec![]),
        ] {
            let id = HolderId::new(id);
            assert_eq!((id.kind(), id.facts().iter().collect()), (kind, facts), "{id}");
        }
    }

    #[test]
    fn a_further_user_of_a_unit_is_a_part_of_it_and_has_its_name_and_uid() {
        let unit = super::super::Holder::unit("a.service", Some("bob"), Some(1011));
        let further = unit.of_further_user(1011);
        assert_eq!(further.id.as_str(), "unit:a.service/1011");
        assert_eq!((further.id.facts().uid, further.id.shared_unit()), (Some(1011), Some(unit.id.clone())));
        assert!(further.id.is_within(&unit.id) && !unit.id.is_within(&further.id));
        assert!(!HolderId::new("unit:a.service.d").is_within(&unit.id));
        assert_eq!((unit.id.shared_unit(), HolderId::new("user:a/b").shared_unit()), (None, None));
    }

    #[test]
    fn facts_are_stored_as_ledgers_have_them() {
        let facts = Facts::new([(Fact::User, "alice"), (Fact::Unit, "a.service")]).with_uid(Some(1000));
        let json = r#"{"unit":"a.service","user":"alice","uid":1000}"#;
        assert_eq!(serde_json::to_string(&facts).unwrap(), json);
        assert_eq!(serde_json::from_str::<Facts>(json).unwrap(), facts);
        let mut facts = Facts::new([(Fact::Pod, "train-0")]);
        let label = |key: &str, value: &str| PodLabel::new(key, value);
        facts.set_pod_labels([label("team", "vision"), label("ray.io/cluster", "a"), label("empty", "")]);
        let json = r#"{"k8s_pod":"train-0","k8s_pod_labels":{"ray.io/cluster":"a","team":"vision"}}"#;
        assert_eq!(serde_json::to_string(&facts).unwrap(), json);
        assert_eq!(serde_json::from_str::<Facts>(json).unwrap(), facts);
        assert_eq!(&*facts.pod_labels()[0].name, "k8s_pod_label_ray_io_cluster");
        assert_eq!(serde_json::from_str::<Facts>(r#"{"newer":[1],"user":null}"#).unwrap(), Facts::default());
        assert!(serde_json::from_str::<Facts>(r#"{"uid":"x"}"#).is_err());
    }

    fn any_kind() -> impl Strategy<Value = HolderKind> {
        prop::sample::select(HolderKind::WITH_IDS)
    }

    proptest! {
        #[test]
        fn an_id_made_of_facts_tells_them_again(kind in any_kind(), texts in prop::collection::vec("[a-z0-9-]{1,9}", 4)) {
            let facts = Facts::new(kind.id_facts().iter().map(|(_, fact)| *fact).zip(texts));
            let id = HolderId::of(kind, &facts);
            prop_assert_eq!((id.kind(), id.facts()), (kind, facts));
        }

        #[test]
        fn any_text_is_read_as_an_id_without_a_panic(text in "(unit|user|__)?:?\\PC{0,12}") {
            HolderId::new(text).facts();
        }
    }
}
