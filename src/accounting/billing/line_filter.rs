//! Which lines of a bill are asked for.

use std::collections::{BTreeMap, BTreeSet};

use super::{BillLine, JobId};
use crate::model::{Fact, HolderId};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineFilter {
    /// Of that Slurm job, or of one of its steps.
    job: Option<JobId>,
    /// On that GPU, of that tenant, workload or kind of holder, and with these labels of `gpu_workload_info`, by name.
    values: BTreeMap<String, String>,
}

const PROPERTIES: [&str; 4] = ["gpu", "tenant", "workload", "kind"];

impl LineFilter {
    /// The filter of these parameters.
    ///
    /// # Errors
    /// Those of [`LineFilter::set`].
    pub fn of<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut filter = Self::default();
        parameters.into_iter().try_for_each(|(name, value)| filter.set(name, value))?;
        Ok(filter)
    }

    /// Sets what a parameter of that name means.
    ///
    /// # Errors
    /// There is no such parameter, the value is none for it, or it is given twice.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let is_new = if name == "job" {
            let job = JobId::parse(value).map_err(|problem| format!("job={value}: {problem}"))?;
            self.job.replace(job).is_none()
        } else if PROPERTIES.contains(&name) || Fact::ALL.iter().any(|fact| fact.label() == name) {
            self.values.insert(name.to_owned(), value.to_owned()).is_none()
        } else {
            return Err(format!(
                "unknown parameter {name:?}; use from, to, time_zone, job, gpu, tenant, workload, kind, or a label of \
                 gpu_workload_info"
            ));
        };
        if is_new { Ok(()) } else { Err(format!("{name} is given twice; give it once")) }
    }

    /// A text that a label of each line has that it asks for; none where it asks for no label.
    pub fn common_label(&self) -> Option<String> {
        let of_label = self.values.iter().find(|(name, _)| !PROPERTIES.contains(&&***name));
        self.job.as_ref().map(JobId::common_label).or_else(|| of_label.map(|(_, text)| text.clone()))
    }

    pub const fn job(&self) -> Option<&JobId> {
        self.job.as_ref()
    }

    pub fn parameters(&self) -> Vec<(&str, String)> {
        let job = self.job.as_ref().map(|job| ("job", job.to_string()));
        job.into_iter().chain(self.values.iter().map(|(name, text)| (&**name, text.clone()))).collect()
    }

    pub fn retain(&self, lines: &mut Vec<BillLine>) {
        lines.retain(|line| self.selects(line));
        if let Some(job) = &self.job {
            retain_job(lines, job);
        }
    }

    /// Whether it asks for a line, whatever other lines there are.
    pub fn is_for(&self, line: &BillLine) -> bool {
        self.selects(line) && self.job.as_ref().is_none_or(|id| id.names(line) && id.names_step(line))
    }

    fn selects(&self, line: &BillLine) -> bool {
        self.values.iter().all(|(name, wanted)| match &**name {
            "gpu" => *wanted == *line.gpu.uuid || wanted.parse() == Ok::<u32, _>(line.gpu.index),
            "tenant" => *wanted == line.tenant,
            "workload" => {
                line.holder.name() == wanted || line.holder.is_within(&HolderId::new(wanted.as_str()))
            }
            "kind" => line.holder.kind().name() == wanted,
            label => line.labels.get(label) == Some(wanted),
        })
    }
}

/// Keeps the lines of one job, or of one of its steps. Lines of a task of an array that were stored before the ids of the array
/// were known have only its job id, so they are found by that of the others.
fn retain_job(lines: &mut Vec<BillLine>, id: &JobId) {
    if !id.is_of_slurm() {
        lines.retain(|line| id.names(line));
        return;
    }
    let label = |line: &BillLine, name: &str| line.labels.get(name).cloned();
    let key = |line: &BillLine| (label(line, "slurm_cluster"), label(line, "slurm_job_id"));
    let jobs: BTreeSet<_> = lines.iter().filter(|line| id.names(line)).map(key).collect();
    lines.retain(|line| jobs.contains(&key(line)) && id.names_step(line));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::GpuId;

    fn line(labels: &[(&str, &str)]) -> BillLine {
        let gpu = GpuId { index: 3, uuid: "GPU-3".into() };
        let mut line = BillLine::empty(gpu, HolderId::new("slurm:alpha/213.0"));
        line.labels.extend(labels.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        line
    }

    fn filter(parameters: &[(&str, &str)]) -> LineFilter {
        LineFilter::of(parameters.iter().copied()).unwrap()
    }

    fn count(lines: &[BillLine], parameters: &[(&str, &str)]) -> usize {
        let mut lines = lines.to_vec();
        filter(parameters).retain(&mut lines);
        lines.len()
    }

    #[test]
    fn lines_of_an_array_task_that_were_stored_without_its_array_are_found() {
        let job = |cluster, id| vec![("slurm_cluster", cluster), ("slurm_job_id", id)];
        let named = [job("alpha", "213"), vec![("slurm_array_job_id", "210"), ("slurm_array_task_id", "3")]];
        let labels = [job("alpha", "213"), named.concat(), job("beta", "213"), job("alpha", "214")];
        let lines: Vec<BillLine> = labels.iter().map(|labels| line(labels)).collect();
        let of_alpha = |id| count(&lines, &[("job", id), ("slurm_cluster", "alpha")]);
        let of_beta = count(&lines, &[("job", "210_3"), ("slurm_cluster", "beta")]);
        assert_eq!((count(&lines, &[("job", "210_3")]), of_beta, of_alpha("210_4")), (2, 0, 0));
        assert_eq!((count(&lines, &[("job", "213")]), of_alpha("213")), (3, 2));
    }

    #[test]
    fn a_step_and_a_component_of_a_heterogeneous_job_are_found_by_their_ids() {
        let job = [("slurm_cluster", "alpha"), ("slurm_job_id", "301"), ("slurm_het_job_id", "300")];
        let step = [&job[..], &[("slurm_step_id", "0")]].concat();
        let first = vec![("slurm_cluster", "alpha"), ("slurm_job_id", "300"), ("slurm_het_job_id", "300")];
        let lines: Vec<BillLine> = [job.to_vec(), step, first].iter().map(|labels| line(labels)).collect();
        let ids = ["300", "301", "301.0", "300+0", "300+1", "300+1.0", "300+2", "301.batch"];
        assert_eq!(ids.map(|id| count(&lines, &[("job", id)])), [1, 2, 1, 1, 2, 1, 0, 0]);
    }

    #[test]
    fn a_line_meets_everything_that_is_given() {
        let lines = [BillLine { tenant: "bio".into(), ..line(&[("slurm_user", "ada")]) }];
        for (parameters, found) in [
            (vec![], 1),
            (vec![("gpu", "3")], 1),
            (vec![("gpu", "GPU-3"), ("tenant", "bio")], 1),
            (vec![("gpu", "GPU-3"), ("tenant", "ml")], 0),
            (vec![("gpu", "33")], 0),
            (vec![("workload", "slurm:alpha/213")], 1),
            (vec![("workload", "slurm:alpha/21")], 0),
            (vec![("workload", "slurm:alpha/213.0"), ("kind", "slurm")], 1),
            (vec![("kind", "k8s")], 0),
            (vec![("slurm_user", "ada")], 1),
            (vec![("slurm_account", "ada")], 0),
        ] {
            assert_eq!(count(&lines, &parameters), found, "{parameters:?}");
        }
    }

    #[test]
    fn a_filter_is_read_from_its_own_parameters_and_mistakes_are_named() {
        let all = [
            ("job", "7.0"),
            ("gpu", "1"),
            ("k8s_pod_name", "p"),
            ("kind", "slurm"),
            ("tenant", "t"),
            ("workload", "w"),
        ];
        let filter = filter(&all);
        let parameters = filter.parameters();
        assert_eq!(parameters, all.map(|(name, value)| (name, value.to_owned())));
        let error = |name, value| filter.clone().set(name, value).unwrap_err();
        assert_eq!(error("gpu", "2"), "gpu is given twice; give it once");
        assert!(error("pod", "2").contains("unknown parameter \"pod\"; use from, "));
        assert!(LineFilter::default().set("job", "x").unwrap_err().starts_with("job=x: not a job id; "));
    }
}
