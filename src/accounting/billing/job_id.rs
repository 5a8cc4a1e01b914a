//! The id of a Slurm job as Slurm's commands print it: `4711`, `4711_3` (task 3 of a job array), `4711+1` (component 1 of a
//! heterogeneous job), each with `.0` or `.batch` for one step.

use std::fmt;

use super::BillLine;

/// The id of a job, of several jobs of which it is the array or the leader, or of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId {
    text: String,
    job: JobName,
    step: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum JobName {
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
}

impl JobId {
    /// Parses an id.
    ///
    /// # Errors
    /// It is not of one of the forms; the text lists them.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const FORMS: &str = "not a job id; write the number of a job as 4711, a task of a job array as 4711_3, a component of \
                             a heterogeneous job as 4711+1, and a step of one as 4711.0 or 4711.batch";
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

    /// Whether the line is of that job, or of one of its steps. A line of an array's task that was stored before the ids of
    /// the array were known has only the number of the job.
    pub fn names(&self, line: &BillLine) -> bool {
        let is =
            |label: &str, wanted: u32| line.labels.get(label).and_then(|value| number(value)) == Some(wanted);
        match self.job {
            JobName::Job(job) => is("slurm_job_id", job),
            JobName::ArrayTask { array, task } => {
                is("slurm_array_job_id", array) && is("slurm_array_task_id", task)
            }
            JobName::Component { leader, job } => is("slurm_het_job_id", leader) && is("slurm_job_id", job),
        }
    }

    /// Whether the line belongs to the step that was asked for, or no step was asked for.
    pub fn names_step(&self, line: &BillLine) -> bool {
        self.step.is_none() || line.labels.get("slurm_step_id") == self.step.as_ref()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_number_with_a_task_a_component_or_a_step() {
        for id in ["211", "211.0", "211.batch", "210_5", "210_5.extern", "300+1", "300+0.3"] {
            assert_eq!(JobId::parse(id).unwrap().to_string(), id);
        }
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
        ] {
            let error = JobId::parse(wrong).unwrap_err();
            assert!(error.contains("4711_3") && error.contains("4711+1"), "{wrong}: {error}");
        }
    }
}
