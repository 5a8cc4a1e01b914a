//! Jobs as `sacct --parsable2` prints them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::job_id::JobId;
use crate::model::Utc;

/// A job, or one run of a job that was requeued, as Slurm accounts for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SacctJob {
    /// The id, as `4711` or `4711_3`.
    pub id: String,
    /// The number by which Slurm knows a task of an array; from the column JobIDRaw.
    pub raw_id: Option<String>,
    pub cluster: Option<String>,
    pub account: Option<String>,
    pub user: Option<String>,
    /// Time that it ran, in seconds, without time in which it was suspended.
    pub elapsed: u64,
    /// Time that it was suspended, in seconds.
    pub suspended: u64,
    /// Allocated GPUs, on all nodes.
    pub gpus: u64,
    /// Allocated nodes, at least 1.
    pub nodes: u64,
    /// Their names, in Slurm's notation.
    pub node_list: Option<String>,
    pub start: Option<Utc>,
    /// When it ended; none while it runs.
    pub end: Option<Utc>,
}

struct SacctColumns {
    count: usize,
    id: usize,
    elapsed: usize,
    tres: usize,
    /// Those that may be missing, in the order of [`OPTIONAL`].
    optional: [Option<usize>; OPTIONAL.len()],
}

const OPTIONAL: [&str; 9] =
    ["JobIDRaw", "Cluster", "Account", "User", "Suspended", "NNodes", "NodeList", "Start", "End"];

/// The jobs with their allocation, without steps, of which the job has the sum. Times without an offset are of that zone.
///
/// # Errors
/// A column is missing, or a line has a value that is none for its column; the text names line and column.
pub fn parse_sacct(text: &str, zone: &TimeZone) -> Result<Vec<SacctJob>, String> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (_, head) = lines.next().ok_or("it is empty; print it with sacct --parsable2")?;
    let columns = SacctColumns::find(head)?;
    let mut jobs = Vec::new();
    for (number, line) in lines {
        let job = columns.parse(line, zone).map_err(|problem| format!("line {number}: {problem}"))?;
        jobs.extend(job);
    }
    Ok(jobs)
}

impl SacctColumns {
    fn find(head: &str) -> Result<Self, String> {
        let names: Vec<&str> = head.split('|').map(str::trim).collect();
        let place = |name: &str| names.iter().position(|found| found.eq_ignore_ascii_case(name));
        let required = |known: &[&str]| {
            known.iter().find_map(|name| place(name)).ok_or_else(|| {
                format!(
                    "its first line {head:?} has no column {}; print it with sacct --parsable2 --format \
                     JobID,JobIDRaw,Cluster,Account,User,Start,End,Elapsed,Suspended,AllocTRES,NodeList",
                    known[0]
                )
            })
        };
        Ok(Self {
            count: names.len(),
            id: required(&["JobID"])?,
            elapsed: required(&["Elapsed", "ElapsedRaw"])?,
            tres: required(&["AllocTRES", "TRES"])?,
            optional: OPTIONAL.map(place),
        })
    }

    /// The job of a line; none for a step, and for a job without an allocation.
    fn parse(&self, line: &str, zone: &TimeZone) -> Result<Option<SacctJob>, String> {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        if fields.len() != self.count {
            return Err(format!(
                "it has {} fields, and the first line {}; leave out columns such as JobName that may have a | in them",
                fields.len(),
                self.count
            ));
        }
        let (id, tres) = (fields[self.id], fields[self.tres]);
        if id.contains('.') || tres.is_empty() {
            return Ok(None);
        }
        if !JobId::parse(id).is_ok_and(|id| id.is_of_slurm()) {
            return Err(format!("JobID {id:?} is not the id of a job"));
        }
        let optional =
            self.optional.map(|place| place.map(|place| fields[place]).filter(|text| !text.is_empty()));
        let [raw_id, cluster, account, user, suspended, nodes, node_list, start, end] = optional;
        let [raw_id, cluster, account, user, node_list] =
            [raw_id, cluster, account, user, node_list].map(|text| text.map(str::to_owned));
        let duration = |name: &str, text: &str| {
            parse_duration(text)
                .ok_or_else(|| format!("{name} {text:?} is not a duration; sacct prints it as 1-02:03:04"))
        };
        let nodes = match nodes {
            Some(text) => text.parse().map_err(|_| format!("NNodes {text:?} is not a number"))?,
            None => count(tres, "node")?.unwrap_or(1),
        };
        Ok(Some(SacctJob {
            id: id.to_owned(),
            raw_id,
            cluster,
            account,
            user,
            elapsed: duration("Elapsed", fields[self.elapsed])?,
            suspended: suspended.map_or(Ok(0), |text| duration("Suspended", text))?,
            gpus: gpus(tres)?,
            nodes: nodes.max(1),
            node_list,
            start: parse_sacct_time("Start", start, zone)?,
            end: parse_sacct_time("End", end, zone)?,
        }))
    }
}

/// The GPUs of `cpu=4,gres/gpu=2,gres/gpu:h100=2,node=1`: those of all types, else the sum over types.
fn gpus(tres: &str) -> Result<u64, String> {
    if let Some(all) = count(tres, "gres/gpu")? {
        return Ok(all);
    }
    let typed = tres.split(',').filter_map(|part| part.split_once('=')?.0.strip_prefix("gres/gpu:"));
    typed.map(|kind| Ok(count(tres, &format!("gres/gpu:{kind}"))?.unwrap_or(0))).sum()
}

fn count(tres: &str, name: &str) -> Result<Option<u64>, String> {
    let found = tres.split(',').filter_map(|part| part.split_once('=')).find(|(known, _)| *known == name);
    let number = found.map(|(_, text)| {
        text.parse::<u32>().map_err(|_| format!("AllocTRES {tres:?}: {name} is not a number"))
    });
    Ok(number.transpose()?.map(u64::from))
}

/// Seconds of `[[days-]hours:]minutes:seconds`, or of a number of seconds.
fn parse_duration(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    let parts = clock.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    let [hours, minutes, seconds] = match parts[..] {
        [seconds] => [0, 0, seconds],
        [minutes, seconds] => [0, minutes, seconds],
        [hours, minutes, seconds] => [hours, minutes, seconds],
        _ => return None,
    };
    let hours = number(days)?.checked_mul(24)?.checked_add(hours)?;
    let seconds = hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)?;
    // A job of more than a century is a mistake.
    u32::try_from(seconds).ok().map(u64::from)
}

/// A time of sacct; none for one that has not come.
fn parse_sacct_time(name: &str, text: Option<&str>, zone: &TimeZone) -> Result<Option<Utc>, String> {
    let Some(text) = text.filter(|text| !["Unknown", "None", "N/A"].contains(text)) else { return Ok(None) };
    let local = text.parse::<DateTime>().ok();
    let time = local.and_then(|local| zone.to_timestamp(local).ok());
    let time = time.and_then(|time| Utc::try_from(time).ok());
    time.map(Some)
        .ok_or_else(|| format!("{name} {text:?} is not a time; sacct prints it as 2026-11-01T08:00:00"))
}

impl SacctJob {
    /// Whether it ran on that node; none where that is unknown.
    pub fn is_on(&self, node: &str) -> Option<bool> {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let list = self.node_list.as_deref()?;
        Some(nodes_of(list).iter().any(|name| short(name) == short(node)))
    }
}

/// The nodes of `gpu[01-03,7],login1`. A part that cannot be read stays as it is.
fn nodes_of(list: &str) -> Vec<String> {
    let mut nodes = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let open = rest.find('[').unwrap_or(rest.len());
        let comma = rest.find(',').unwrap_or(rest.len());
        if comma <= open {
            nodes.push(rest[..comma].to_owned());
            rest = rest.get(comma + 1..).unwrap_or_default();
            continue;
        }
        let close = rest.find(']').unwrap_or(rest.len() - 1);
        let end = rest[close..].find(',').map_or(rest.len(), |comma| close + comma);
        let (prefix, suffix) = (&rest[..open], &rest[(close + 1).min(end)..end]);
        let ranges = rest.get(open + 1..close).unwrap_or_default().split(',');
        nodes.extend(ranges.flat_map(numbers).map(|number| format!("{prefix}{number}{suffix}")));
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    nodes
}

/// The numbers of `01-03`, as wide as the first; at most as many as a cluster has nodes.
fn numbers(range: &str) -> Vec<String> {
    const MOST: u64 = 100_000;
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(from), Ok(to)) if to.saturating_sub(from) < MOST => {
            (from..=to).map(|number| format!("{number:0width$}", width = first.len())).collect()
        }
        _ => vec![range.to_owned()],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// 2026-11-01T07:00:00Z.
    const SEVEN: u64 = 1_793_516_400_000_000_000;

    fn parse(text: &str) -> Result<Vec<SacctJob>, String> {
        parse_sacct(text, &TimeZone::fixed(jiff::tz::offset(1)))
    }

    #[test]
    fn columns_are_found_by_their_names_and_steps_are_left_out() {
        let text = "\
User|AllocTRES|JobID|Elapsed|Account|Start|End|NodeList|Suspended|JobIDRaw|Cluster|State
ada|billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2,mem=64G,node=1|4711|01:00:30|phys|2026-11-01T08:00:00|2026-11-01T09:00:30|gpu07|00:00:00|4711|alpha|COMPLETED
|cpu=8,gres/gpu=2,node=1|4711.batch|01:00:30|phys|2026-11-01T08:00:00|2026-11-01T09:00:30|gpu07|00:00:00|4711.batch|alpha|COMPLETED
bob|cpu=1,gres/gpu:a=1,gres/gpu:b=3,node=2|210_5|1-00:00:01|bio|2026-11-01T08:00:00|Unknown|gpu[07-08]|00:10:00|215|alpha|RUNNING

eve||4712_[1-9]|00:00:00|bio|Unknown|Unknown|None assigned|00:00:00|4712|alpha|PENDING
";
        let jobs = parse(text).unwrap();
        assert_eq!(jobs.len(), 2);
        let first = SacctJob {
            id: "4711".into(),
            raw_id: Some("4711".into()),
            cluster: Some("alpha".into()),
            account: Some("phys".into()),
            user: Some("ada".into()),
            elapsed: 3_630,
            suspended: 0,
            gpus: 2,
            nodes: 1,
            node_list: Some("gpu07".into()),
            start: Some(Utc(SEVEN)),
            end: Some(Utc(SEVEN + 3_630_000_000_000)),
        };
        assert_eq!(jobs[0], first);
        let second = &jobs[1];
        assert_eq!((second.elapsed, second.gpus, second.nodes, second.suspended), (86_401, 4, 2, 600));
        assert_eq!((second.raw_id.as_deref(), second.end), (Some("215"), None));
        assert_eq!([second.is_on("gpu08.example.com"), second.is_on("gpu09")], [Some(true), Some(false)]);
    }

    #[test]
    fn the_least_that_is_needed_is_an_id_a_time_and_the_resources() {
        let jobs = parse("ElapsedRaw|JobID|TRES|\n60|7|cpu=1,gres/gpu=1|\n60|8|cpu=1|\n").unwrap();
        assert_eq!(jobs.iter().map(|job| (job.elapsed, job.gpus)).collect::<Vec<_>>(), [(60, 1), (60, 0)]);
        assert_eq!((jobs[0].is_on("n1"), jobs[0].nodes, jobs[0].start), (None, 1, None));
    }

    #[test]
    fn what_sacct_does_not_print_is_named_with_its_line() {
        let head = "JobID|Elapsed|AllocTRES|Start";
        for (text, words) in [
            ("", "it is empty"),
            (
                "4711|01:00:00|gres/gpu=1",
                "has no column JobID; print it with sacct --parsable2 --format JobID,",
            ),
            ("JobID    Elapsed   AllocTRES", "has no column JobID"),
            ("JobID|AllocTRES", "has no column Elapsed"),
            ("JobID|Elapsed", "has no column AllocTRES"),
            (
                &format!("{head}\n1|00:01|gres/gpu=1"),
                "line 2: it has 3 fields, and the first line 4; leave out",
            ),
            (&format!("{head}\n\nx|00:01|gres/gpu=1|"), "line 3: JobID \"x\" is not the id of a job"),
            (&format!("{head}\n1|soon|gres/gpu=1|"), "line 2: Elapsed \"soon\" is not a duration"),
            (&format!("{head}\n1|1:2:3:4|gres/gpu=1|"), "is not a duration"),
            (&format!("{head}\n1|00:01|gres/gpu=many|"), "gres/gpu is not a number"),
            (&format!("{head}\n1|00:01|gres/gpu=1|yesterday"), "Start \"yesterday\" is not a time"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_list_of_nodes_is_read_as_slurm_writes_it() {
        assert_eq!(
            nodes_of("gpu[08-10,3],login1,a[1-2]-ib"),
            ["gpu08", "gpu09", "gpu10", "gpu3", "login1", "a1-ib", "a2-ib"]
        );
        assert_eq!(nodes_of("gpu1"), ["gpu1"]);
        for broken in ["a[", "a[1", "a]", "[", ",", "a[1-", "a[1-99999999999]"] {
            nodes_of(broken);
        }
    }
}
