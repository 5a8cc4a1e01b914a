//! The id of a job: of Slurm as its commands print it, `4711` (also a whole array), `4711_3` (task 3 of a job array), `4711+1`
//! (component 1 of a heterogeneous job), each with `.0` or `.batch` for one step; of Kubernetes `ml/train-0` for a pod or for what
//! controls pods, or with its kind `ml/RayCluster/train`.

use std::fmt;

use super::BillLine;
use crate::model::Fact;

/// The id of a job, of several jobs of which it is the array or the leader, of a step, of a pod, or of what controls pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId {
    text: String,
    job: JobName,
    step: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum JobName {
    /// The last task of an array has the number of the array.
    Job(u32),
    ArrayTask {
        array: u32,
        task: u32,
    },
    /// Slurm numbers the components of a heterogeneous job consecutively from its own number.
    Component {
        leader: u32,
        job: u32,
    },
    Pods {
        /// That of the controller, or `Pod`; without it, whatever has the name.
        kind: Option<String>,
        namespace: String,
        name: String,
    },
}

/// The kind of a pod that is named by itself.
const POD: &str = "Pod";

/// The longest name of Kubernetes.
const LONGEST_NAME: usize = 253;

impl JobId {
    /// Parses an id.
    ///
    /// # Errors
    /// It is not of one of the forms; the text lists them.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const FORMS: &str = "not a job id; write the number of a job or of a job array as 4711, a task of an array as 4711_3, a component \
                             of a heterogeneous job as 4711+1, a step of one as 4711.0 or 4711.batch, and a pod or what controls pods as \
                             NAMESPACE/NAME or NAMESPACE/KIND/NAME";
        if text.contains('/') {
            let job = parse_pods(text).ok_or(FORMS)?;
            return Ok(Self { text: text.to_owned(), job, step: None });
        }
        let (name, step) = match text.split_once('.') {
            Some((name, step)) => (name, Some(step.to_owned())),
            None => (text, None),
        };
        let is_step =
            |step: &String| number(step).is_some() || ["batch", "extern", "interactive"].contains(&&**step);
        let job = if let Some((array, task)) = name.split_once('_') {
            number(array).zip(number(task)).map(|(array, task)| JobName::ArrayTask { array, task })
        } else if let Some((leader, component)) = name.split_once('+') {
            number(leader).zip(number(component)).and_then(|(leader, component)| {
                Some(JobName::Component { leader, job: leader.checked_add(component)? })
            })
        } else {
            number(name).map(JobName::Job)
        };
        match job {
            Some(job) if step.as_ref().is_none_or(is_step) => Ok(Self { text: text.to_owned(), job, step }),
            _ => Err(FORMS),
        }
    }

    pub const fn is_of_slurm(&self) -> bool {
        !matches!(self.job, JobName::Pods { .. })
    }

    /// A text that a label of each of its lines has.
    pub(super) fn common_label(&self) -> String {
        match &self.job {
            JobName::Job(job) | JobName::Component { job, .. } => job.to_string(),
            JobName::ArrayTask { array, .. } => array.to_string(),
            JobName::Pods { name, .. } => name.clone(),
        }
    }

    /// Whether the line is of that job, or of one of its steps. A line of an array's task that was stored before the ids of
    /// the array were known has only the number of the job.
    pub fn names(&self, line: &BillLine) -> bool {
        let is = |fact: Fact, wanted: u32| label(line, fact).and_then(number) == Some(wanted);
        match self.job {
            JobName::Job(job) => is(Fact::SlurmJob, job) || is(Fact::SlurmArrayJob, job),
            JobName::ArrayTask { array, task } => {
                is(Fact::SlurmArrayJob, array) && is(Fact::SlurmArrayTask, task)
            }
            JobName::Component { leader, job } => is(Fact::SlurmHetJob, leader) && is(Fact::SlurmJob, job),
            JobName::Pods { .. } => self.kind_of(line).is_some(),
        }
    }

    /// Whether the line belongs to the step that was asked for, or no step was asked for.
    pub fn names_step(&self, line: &BillLine) -> bool {
        self.step.is_none() || label(line, Fact::SlurmStep) == self.step.as_deref()
    }

    /// The id of what has that kind; none of a job of Slurm.
    pub(super) fn with_kind(&self, kind: &str) -> Option<String> {
        let JobName::Pods { namespace, name, .. } = &self.job else { return None };
        (!kind.is_empty()).then(|| format!("{kind}/{namespace}/{name}"))
    }

    /// The kind of what the id names in a line of Kubernetes: `Pod`, or that of the pod's controller.
    pub fn kind_of<'a>(&self, line: &'a BillLine) -> Option<&'a str> {
        let JobName::Pods { kind, namespace, name } = &self.job else { return None };
        if label(line, Fact::Namespace) != Some(namespace) {
            return None;
        }
        let owner = label(line, Fact::OwnerKind).filter(|_| label(line, Fact::OwnerName) == Some(name));
        let found = if label(line, Fact::Pod) == Some(name) { [Some(POD), owner] } else { [owner, None] };
        let is_wanted = |found: &&str| kind.as_ref().is_none_or(|kind| kind.eq_ignore_ascii_case(found));
        found.into_iter().flatten().find(is_wanted)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn label(line: &BillLine, fact: Fact) -> Option<&str> {
    line.labels.get(fact.label()).map(String::as_str)
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Reads `NAMESPACE/NAME` or `NAMESPACE/KIND/NAME`, or the name of a job in JSON, `KIND/NAMESPACE/NAME`: kinds have capitals, and
/// namespaces have none. None where these cannot be names of Kubernetes.
fn parse_pods(text: &str) -> Option<JobName> {
    let parts: Vec<&str> = text.split('/').collect();
    let has_capital = |part: &str| part.bytes().any(|byte| byte.is_ascii_uppercase());
    let (kind, namespace, name) = match *parts {
        [namespace, name] => (None, namespace, name),
        [namespace, kind, name] if has_capital(kind) && !has_capital(namespace) => {
            (Some(kind), namespace, name)
        }
        [kind, namespace, name] => (Some(kind), namespace, name),
        _ => return None,
    };
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(|byte| is_plain(byte) || b"-.".contains(&byte))
            && name.as_bytes().first().is_some_and(|byte| is_plain(*byte))
    };
    let is_kind = |kind: &str| {
        kind.len() <= 63 && !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_valid = is_name(namespace) && is_name(name) && kind.is_none_or(is_kind);
    is_valid.then(|| JobName::Pods {
        kind: kind.map(str::to_owned),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{GpuId, HolderId};

    #[test]
    fn an_id_is_a_number_with_a_task_a_component_or_a_step_or_a_name_with_its_namespace() {
        for id in ["211", "211.0", "211.batch", "210_5", "210_5.extern", "300+1", "300+0.3"] {
            assert_eq!(
                JobId::parse(id).map(|id| (id.to_string(), id.is_of_slurm())),
                Ok((id.to_owned(), true))
            );
        }
        for id in ["ml/train-0", "ml/RayCluster/train", "RayCluster/ml/train", "job/team-a/x.y"] {
            assert_eq!(
                JobId::parse(id).map(|id| (id.to_string(), id.is_of_slurm())),
                Ok((id.to_owned(), false))
            );
        }
        let long = format!("ml/{}", "a".repeat(254));
        for wrong in [
            "abc",
            "",
            "211.",
            "211.x",
            "210_",
            "_5",
            "300+",
            "210_[1-3]",
            "-1",
            "+1",
            "99999999999",
            "4294967295+1",
            "٣",
            "ml/",
            "/train",
            "ml/../x",
            "../../etc/passwd",
            "a/b/c/d",
            "ml/Train",
            "ml/a b",
            "ml/a\nb",
            "ml/%2e",
            "Ray-Cluster/ml/x",
            "ML/RayCluster/x",
            "ml/a\u{202e}b",
            &long,
        ] {
            let error = JobId::parse(wrong).unwrap_err();
            assert!(error.contains("4711_3") && error.contains("4711+1"), "{wrong}: {error}");
        }
    }

    fn line(labels: &[(Fact, &str)]) -> BillLine {
        let mut line = BillLine::empty(GpuId::default(), HolderId::new("x"));
        line.labels.extend(labels.iter().map(|(fact, text)| (fact.label().to_owned(), (*text).to_owned())));
        line
    }

    #[test]
    fn a_number_is_that_of_a_job_and_of_an_array_and_a_name_that_of_a_pod_and_of_its_controller() {
        let task =
            line(&[(Fact::SlurmJob, "214"), (Fact::SlurmArrayJob, "210"), (Fact::SlurmArrayTask, "4")]);
        let names = |id: &str, line: &BillLine| JobId::parse(id).unwrap().names(line);
        assert_eq!(
            ["210", "214", "210_4", "210_3", "4"].map(|id| names(id, &task)),
            [true, true, true, false, false]
        );
        let of_ray = [
            (Fact::Namespace, "ml"),
            (Fact::Pod, "ray-worker-x"),
            (Fact::OwnerKind, "RayCluster"),
            (Fact::OwnerName, "ray"),
        ];
        let worker = line(&of_ray);
        let kind = |id: &str, line: &BillLine| JobId::parse(id).unwrap().kind_of(line).map(str::to_owned);
        let found = [
            "ml/ray",
            "raycluster/ml/ray",
            "ml/RayCluster/ray",
            "ml/Pod/ray-worker-x",
            "ml/Job/ray",
            "x/ray",
        ];
        let of = |kind: &str| Some(kind.to_owned());
        assert_eq!(
            found.map(|id| kind(id, &worker)),
            [of("RayCluster"), of("RayCluster"), of("RayCluster"), of("Pod"), None, None]
        );
        assert!(!names("ml/ray", &task));
        // A pod that has the name of its controller.
        let same = line(&[(Fact::Namespace, "ml"), (Fact::Pod, "ray"), of_ray[2], of_ray[3]]);
        assert_eq!(["ml/ray", "RayCluster/ml/ray"].map(|id| kind(id, &same)), [of("Pod"), of("RayCluster")]);
    }
}
