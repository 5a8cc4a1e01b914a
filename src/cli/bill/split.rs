//! A bill for each group, as one HTML file each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::columns::report;
use crate::accounting::billing::{Bill, BillGrouping};
use crate::cli::report::html;

/// Writes the bill of each group of `what` into a directory, which is made where it is missing. Returns the names of the
/// groups with their files.
pub(super) fn write(
    bill: &Bill,
    what: &BillGrouping,
    by: &BillGrouping,
    directory: &Path,
) -> Result<Vec<(String, PathBuf)>, String> {
    let fail = |path: &Path, error| format!("{}: cannot be written: {error}", path.display());
    fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
    // A bill of one tenant by tenant has one line.
    let by = if by == what { &"workload".parse::<BillGrouping>()? } else { by };
    let names: Vec<String> = what.groups(bill).into_iter().map(|key| group_name(&key)).collect();
    let mut files = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for name in names.iter().collect::<BTreeSet<_>>() {
        let mut of_group = bill.clone();
        let mut names = names.iter();
        of_group.keep_lines(|_| names.next() == Some(name));
        let path = directory.join(file_name(name, &mut taken));
        let page = html::page(&[report(&of_group, by)], &[], &[]);
        fs::write(&path, page).map_err(|error| fail(&path, error))?;
        files.insert(name.clone(), path);
    }
    Ok(files.into_iter().collect())
}

fn group_name(key: &[(u32, String)]) -> String {
    key.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(" ")
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
    format!("{name}.html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_safe_and_differ() {
        let mut taken = BTreeSet::new();
        let names =
            ["ml", "../ml", "ML", "a/b", "a b", "", "\u{202e}x"].map(|group| file_name(group, &mut taken));
        assert_eq!(
            names,
            ["ml.html", "___ml.html", "ML-2.html", "a_b.html", "a_b-2.html", "_.html", "_x.html"]
                .map(str::to_owned)
        );
    }
}
