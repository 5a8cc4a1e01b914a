//! A bill for each group, as one HTML file each.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::columns::{ShownColumns, report};
use super::view::unknown_column;
use crate::accounting::billing::{Bill, BillGrouping};
use crate::cli::Failure;
use crate::cli::report::html;
use crate::model::printable;

/// A directory for the files of groups, which is made where it is missing.
pub(in crate::cli) struct SplitDirectory<'a> {
    path: &'a Path,
    /// The names of files without their endings, in lower case.
    taken: BTreeSet<String>,
    list: String,
}

impl<'a> SplitDirectory<'a> {
    pub(in crate::cli) fn open(path: &'a Path) -> Result<Self, Failure> {
        fs::create_dir_all(path).map_err(|error| unwritten(path, &error))?;
        Ok(Self { path, taken: BTreeSet::new(), list: String::new() })
    }

    /// Writes the files of a group, each with its ending; `names` are the names of the group.
    pub(in crate::cli) fn write(&mut self, names: &[&str], files: &[(&str, String)]) -> Result<(), Failure> {
        let name = file_name(&names.join(" "), &mut self.taken);
        for (ending, text) in files {
            let path = self.path.join(format!("{name}.{ending}"));
            fs::write(&path, text).map_err(|error| unwritten(&path, &error))?;
            if *ending == "html" {
                let names: Vec<_> = names.iter().map(|name| printable(name)).collect();
                self.list += &format!("{}\t{}\n", path.display(), names.join("\t"));
            }
        }
        Ok(())
    }

    /// A line of each HTML file: its path and the names of its group, with tabs between them.
    pub(in crate::cli) fn list(self) -> String {
        self.list
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::found(format!("{}: cannot be written: {error}", path.display()))
}

/// What the lines of each group of `what` are grouped by: a bill of one tenant by tenant has one line.
pub(in crate::cli) fn within(what: &BillGrouping, by: &BillGrouping) -> BillGrouping {
    if by.is_part_of(what) { BillGrouping::of_workloads() } else { by.clone() }
}

/// Writes the bill of each group of `what` into a directory. Returns the list of the files.
pub(super) fn write(
    bill: Bill,
    what: &BillGrouping,
    by: &BillGrouping,
    columns: &ShownColumns,
    directory: &Path,
) -> Result<String, Failure> {
    let mut directory = SplitDirectory::open(directory)?;
    let groups = what.groups(&bill);
    for (group, own) in bill.divide(groups) {
        let report = report(&own, by, columns).map_err(unknown_column)?;
        let names: Vec<&str> = group.iter().map(|(_, name)| name.as_str()).collect();
        directory.write(&names, &[("html", html::page(&[report], &[], &[]))])?;
    }
    Ok(directory.list())
}

/// Characters of a file name at most, without its number and ending.
const LENGTH: usize = 100;

/// A name that is safe in any directory, mail and URL, and that no other group has.
fn file_name(group: &str, taken: &mut BTreeSet<String>) -> String {
    let safe = |character: char| {
        if character.is_ascii_alphanumeric() || "-_".contains(character) { character } else { '_' }
    };
    let base: String = group.chars().take(LENGTH).map(safe).collect();
    let base = if base.is_empty() { "_".to_owned() } else { base };
    let numbered = (1..).map(|number| if number == 1 { base.clone() } else { format!("{base}-{number}") });
    // Two groups may differ in other characters only.
    let name = numbered.into_iter().find(|name| !taken.contains(&name.to_lowercase())).unwrap_or_default();
    taken.insert(name.to_lowercase());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_safe_and_differ() {
        let mut taken = BTreeSet::new();
        let names =
            ["ml", "../ml", "ML", "a/b", "a b", "", "\u{202e}x"].map(|group| file_name(group, &mut taken));
        assert_eq!(names, ["ml", "___ml", "ML-2", "a_b", "a_b-2", "_", "_x"].map(str::to_owned));
    }
}
