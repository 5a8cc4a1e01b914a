//! The jobs of a question, as the API answers.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::explanation::Explanation;
use super::job_id::JobId;
use super::job_summary::{JobSummary, SCHEMA, jobs};
use super::json;
use super::local_time::zone_of;
use super::request::BillRequest;
use crate::model::{DAY, Nanoseconds, QUARTER_HOUR, Utc, VisibleAccount};

/// How far back jobs are looked for where no begin is given.
const PERIOD: Nanoseconds = Nanoseconds(30 * DAY.0);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// The version of the JSON; fields are added without a new one.
    pub schema: u32,
    /// The searched period.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// At most the end of the account.
    #[serde(with = "json::time")]
    pub to: Utc,
    pub time_zone: String,
    /// Whether the reader may see only a part of the account.
    pub partial: bool,
    /// In the order in which they began. Of one id there are several where several clusters have it, or several kinds of what controls pods.
    pub jobs: Vec<JobSummary>,
}

impl JobReport {
    /// What an explanation says of the jobs of the request, without notes.
    pub fn new(explanation: &Explanation, request: &BillRequest) -> Self {
        let bill = &explanation.bill;
        Self {
            schema: SCHEMA,
            from: bill.from,
            to: bill.to,
            time_zone: bill.time_zone.clone(),
            partial: request.visible != VisibleAccount::Everything,
            jobs: jobs(explanation, request.filter.job()),
        }
    }

    pub fn zone(&self) -> TimeZone {
        zone_of(&self.time_zone)
    }

    /// Reads the parameters of the API: those of explanations. Without a begin, the last thirty days are searched, and without the id
    /// of a job those of Slurm.
    ///
    /// # Errors
    /// Those of [`BillRequest::parse`].
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a str, String)>,
        zone: TimeZone,
        now: Utc,
    ) -> Result<BillRequest, String> {
        let mut request = BillRequest::parse(parameters, zone, now)?;
        if request.detail.day {
            return Err("by is for bills; leave it out".to_owned());
        }
        let end = request.to.map_or(now, |to| to.min(now));
        request.from = request.from.or_else(|| Some(Utc(end.0.saturating_sub(PERIOD.0)).floor(QUARTER_HOUR)));
        let kind = if request.filter.job().is_none_or(JobId::is_of_slurm) { "slurm" } else { "k8s" };
        if request.filter.parameters().iter().all(|(name, _)| *name != "kind") {
            request.filter.set("kind", kind)?;
        }
        Ok(request)
    }
}
