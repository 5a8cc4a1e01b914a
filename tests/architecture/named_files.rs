//! Every file and module of the source that a document names exists, and every heading that it links to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Whether this is the path of a source file, or of a file or directory of tests or of a module.
fn is_of_source(path: &str, src: &Path) -> bool {
    let is_path = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    let first = path.split_once('/').map(|(first, _)| first).filter(|first| !first.is_empty());
    let is_known = first.is_some_and(|first| {
        ["src", "tests", "simulator", "benches"].contains(&first) || src.join(first).is_dir()
    });
    is_path && (is_known || path.ends_with(".rs"))
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let src = root.join("src");
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = documents.chain(["ARCHITECTURE.md", "README.md"].map(|name| root.join(name)));
    let is_document = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents.filter(is_document) {
        let text = std::fs::read_to_string(&document).unwrap();
        for path in text.split('`').skip(1).step_by(2).filter(|path| is_of_source(path, &src)) {
            named += 1;
            if ![root, &src].iter().any(|below| below.join(path).exists()) {
                missing.push(format!("{} names {path}, which does not exist", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
    assert!(named >= 100, "only {named} are found");
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// The anchors of a document, whose code blocks have no headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("\n```").step_by(2).flat_map(str::lines);
    outside.filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_heading_that_a_document_links_to_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |directory: &str| std::fs::read_dir(root.join(directory)).unwrap();
    let documents =
        ["docs", "docs/runbooks", "."].into_iter().flat_map(of).map(|entry| entry.unwrap().path());
    let is_document = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let (mut links, mut missing) = (0, Vec::new());
    for document in documents.filter(is_document) {
        let text = std::fs::read_to_string(&document).unwrap();
        let targets =
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for (file, heading) in targets.filter_map(|target| target.split_once('#')) {
            if file.contains(':') {
                continue;
            }
            links += 1;
            let path = if file.is_empty() { document.clone() } else { document.with_file_name(file) };
            let linked = std::fs::read_to_string(&path).unwrap_or_default();
            if !anchors(&linked).contains(heading) {
                missing
                    .push(format!("{} links to {file}#{heading}, which does not exist", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
    assert!(links >= 30, "only {links} are found");
}
