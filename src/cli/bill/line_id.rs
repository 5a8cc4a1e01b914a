//! Ids of the lines of a bill.
//!
//! `tenant+model=lab+H100+3` is the line of the tenant lab on the model H100 at rate 3. The period is not in it, so that it stays
//! the same while the month of a ledger grows; over exports, rates are numbered anew in each period. GPUs are named by UUID and workloads with their tenant, since
//! what they are called on a bill depends on its other lines.

use ring::digest::{SHA256, digest};

use super::encode;
use crate::accounting::billing::{Bill, BillGrouping, BillLine, GroupKey, LineFilter};
use crate::config::decode_percent;
use crate::model::hexadecimal;

/// A longer id is cut, and has a digest of the whole at its end.
const LONGEST: usize = 120;

const DIGEST_BYTES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineId {
    text: String,
    by: BillGrouping,
    /// The values of the properties, and the number of the rate; none where the id is cut.
    values: Vec<String>,
}

/// The id of a line of a bill that is grouped by these properties and by rate, with the names of its groups.
pub(super) fn line_id(by: &BillGrouping, names: &[String], line: &BillLine) -> String {
    let join = |texts: &[String]| texts.iter().map(|text| encode(text)).collect::<Vec<_>>().join("+");
    // A line without a rate has an empty number.
    let values = join(&by.values(names, line));
    cut(format!("{}={}", join(&by.asked()), values.trim_end_matches('+')))
}

fn cut(id: String) -> String {
    if id.len() <= LONGEST {
        return id;
    }
    let digest = digest(&SHA256, id.as_bytes());
    let digest = hexadecimal(&digest.as_ref()[..DIGEST_BYTES]);
    let kept = id.chars().take(LONGEST - digest.len() - 1);
    kept.chain(['~']).chain(digest.chars()).collect()
}

impl LineId {
    /// Reads an id; none of a text that does not begin with properties.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (by, values) = text.split_once('=')?;
        let decoded = |text: &str| text.split('+').map(decode_percent).collect::<Option<Vec<String>>>();
        let by = decoded(by)?.join(",").parse::<BillGrouping>().ok()?.by_rate();
        let has_digest = text.rsplit_once('~').is_some_and(|(_, digest)| digest.len() == 2 * DIGEST_BYTES);
        let is_cut = text.len() >= LONGEST && has_digest;
        let values = if is_cut { Vec::new() } else { decoded(values)? };
        Some(Self { text: text.to_owned(), by, values })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// What all lines of it have in common, so that no more is read than is needed.
    pub(super) fn filter(&self) -> Result<LineFilter, String> {
        self.by.filter(&self.values)
    }

    /// The local day of its lines.
    pub(super) fn day(&self) -> Option<&str> {
        self.by.value_of("day", &self.values)
    }

    /// Whether the bill needs its lines by day: an id that is cut does not give the day.
    pub(super) fn needs_days(&self) -> bool {
        self.by.needs_days()
    }

    /// Whether GPUs and attributes of the whole bill are needed to find its lines.
    pub(super) fn needs_bill(&self) -> bool {
        self.by.needs_bill()
    }

    /// Whether each line of a part of the bill is its own.
    pub(super) fn selects(&self, part: &Bill) -> Vec<bool> {
        let names = |group: GroupKey| group.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        let groups = self.by.groups(part).into_iter().map(names).zip(&part.lines);
        groups.map(|(names, line)| line_id(&self.by, &names, line) == self.text).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accounting::billing::made;

    fn ids(bill: &Bill, by: &str) -> Vec<String> {
        let by = by.parse::<BillGrouping>().unwrap().by_rate();
        let names = |group: GroupKey| group.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        let groups = by.groups(bill).into_iter().map(names).zip(&bill.lines);
        groups.map(|(names, line)| line_id(&by, &names, line)).collect()
    }

    /// A bill in which the GPU with index 0 was replaced, and unit:x has two tenants.
    fn bill() -> Bill {
        let line = |tenant: &str, holder: &str, uuid: &str, rate: Option<u32>| {
            made::line(
                &json!({"tenant": tenant, "holder": holder, "labels": {"user_name": "ada b"}, "gpu": 0,
                "uuid": uuid, "rate": rate.map(|rate| rate.to_string())}),
            )
        };
        let lines = [
            line("a", "unit:x", "GPU-0", Some(1)),
            line("b", "unit:x", "GPU-1", Some(2)),
            line("a", "slurm:alpha/7", "GPU-0", None),
        ];
        made::bill(&json!({"lines": lines}))
    }

    #[test]
    fn an_id_names_the_properties_and_their_values() {
        let bill = bill();
        assert_eq!(ids(&bill, "tenant"), ["tenant=a+1", "tenant=b+2", "tenant=a"]);
        assert_eq!(ids(&bill, "user,workload")[2], "user+workload=ada%20b+slurm:alpha/7@a");
        assert_eq!(ids(&bill, "gpu")[0], "gpu=GPU-0+1");
        let filter = |id: &str| LineId::parse(id).unwrap().filter().unwrap();
        assert_eq!(filter("tenant+user=a+ada%20b+1").parameters(), [("tenant", "a".to_owned())]);
        assert_eq!(filter("namespace+workload=-+unit:x@b").parameters(), [("workload", "unit:x".to_owned())]);
        for other in ["4711", "unit:a=b", "tenant", "team=a", "tenant=%"] {
            assert_eq!(LineId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn lines_are_found_by_their_id_also_in_a_part_of_the_bill() {
        let bill = bill();
        let found = |bill: &Bill, id: &str| LineId::parse(id).unwrap().selects(bill);
        for by in
            ["tenant", "gpu", "workload", "user", "gpu,tenant", "slurm_account,user_name", "attribute:owner"]
        {
            let ids = ids(&bill, by);
            for id in &ids {
                assert_eq!(found(&bill, id), ids.iter().map(|other| other == id).collect::<Vec<_>>(), "{id}");
            }
        }
        // Neither the other board nor the other tenant is needed.
        let part = Bill { lines: bill.lines[..1].to_vec(), ..bill.clone() };
        for id in ["gpu=GPU-0+1", "workload=unit:x@a+1"] {
            assert_eq!((found(&bill, id)[0], found(&part, id)), (true, vec![true]), "{id}");
        }
        assert_eq!(found(&part, "gpu=GPU-0+2"), [false], "another rate");
    }

    #[test]
    fn names_with_an_at_and_attributes_named_like_a_word_are_found() {
        let lines = [
            json!({"tenant": "worker@.service", "holder": "unit:worker@7.service", "uuid": "GPU-0", "rate": "1"}),
            json!({"tenant": "ada@corp", "holder": "unit:x", "uuid": "GPU-1", "rate": "1"}),
        ];
        let attributes =
            json!({"rate": "gold", "tenant": "lab", "day": "monday", "gpu": "h", "workload": "w"});
        let bill = made::bill(&json!({"lines": lines.map(|line| made::line(&line)),
            "tenant_attributes": {"worker@.service": attributes, "ada@corp": attributes}}));
        for id in ids(&bill, "workload") {
            let id = LineId::parse(&id).unwrap();
            let selected: Vec<_> = id.selects(&bill).into_iter().filter(|selected| *selected).collect();
            assert_eq!((id.filter(), selected.len()), (Ok(LineFilter::default()), 1), "{}", id.as_str());
        }
        for name in ["rate", "tenant", "day", "gpu", "workload"] {
            let ids = ids(&bill, &format!("attribute:{name}"));
            assert_eq!(ids[0], ids[1], "both tenants are of one group");
            let id = LineId::parse(&ids[0]).unwrap();
            assert_eq!(
                (id.filter(), id.day(), id.needs_days()),
                (Ok(LineFilter::default()), None, false),
                "{name}"
            );
            assert_eq!(id.selects(&bill), [true, true], "{name}");
        }
    }

    #[test]
    fn an_id_of_the_greatest_length_is_not_cut_and_one_that_is_cut_needs_days() {
        let id = |length: usize| format!("tenant={}+1", "x".repeat(length - "tenant=+1".len()));
        let parsed = LineId::parse(&id(LONGEST)).unwrap();
        assert_eq!(parsed.values, ["x".repeat(LONGEST - "tenant=+1".len()), "1".to_owned()]);
        let parsed =
            LineId::parse(&cut(format!("day+{}", id(LONGEST).replacen('=', "=2026-11-01+", 1)))).unwrap();
        assert_eq!((parsed.day(), parsed.needs_days()), (None, true));
    }

    #[test]
    fn a_long_id_is_cut_and_stays_another_than_those_that_begin_like_it() {
        let name = |end: &str| "x".repeat(200) + end;
        let lines = ["a", "b"].map(|end| made::line(&json!({"tenant": name(end)})));
        let bill = made::bill(&json!({"lines": lines}));
        let ids = ids(&bill, "tenant");
        assert!(ids.iter().all(|id| id.len() == LONGEST) && ids[0] != ids[1], "{ids:?}");
        let id = LineId::parse(&ids[1]).unwrap();
        assert_eq!((id.filter(), id.selects(&bill)), (Ok(LineFilter::default()), vec![false, true]));
    }
}
