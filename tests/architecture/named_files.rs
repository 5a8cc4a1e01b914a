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

/// The documents in these folders.
fn documents(folders: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |folder: &&str| std::fs::read_dir(root.join(folder)).unwrap();
    let paths = folders.iter().flat_map(of).map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let src = root.join("src");
    let documents = documents(&["docs", "docs/contributing"]);
    let documents = documents.into_iter().chain(["ARCHITECTURE.md", "README.md"].map(|name| root.join(name)));
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents {
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
fn every_file_and_heading_that_a_document_links_to_exists() {
    let (mut links, mut missing) = (0, Vec::new());
    for document in documents(&["docs", "docs/runbooks", "docs/contributing", "."]) {
        let text = std::fs::read_to_string(&document).unwrap();
        let targets =
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        // What is no address of the web and no text of a program, such as a pattern in a query.
        for target in targets.filter(|target| !target.contains([':', ' ', '\\', '"'])) {
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { document.clone() } else { document.with_file_name(file) };
            let has_heading =
                || anchors(&std::fs::read_to_string(&path).unwrap_or_default()).contains(heading);
            if !path.exists() || !heading.is_empty() && !has_heading() {
                missing.push(format!("{} links to {target}, which does not exist", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
    assert!(links >= 200, "only {links} are found");
}

#[test]
fn the_index_of_documents_links_to_every_page() {
    let pages = documents(&["docs", "docs/contributing"]);
    let index = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/README.md")).unwrap();
    let evidence = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/evidence.md")).unwrap();
    let is_linked = |page: &PathBuf| {
        let name = page.file_name().unwrap().to_str().unwrap();
        name == "README.md" || [&index, &evidence].iter().any(|text| text.contains(&format!("{name})")))
    };
    let missing: Vec<_> = pages.iter().filter(|page| !is_linked(page)).collect();
    assert!(missing.is_empty(), "docs/README.md and docs/evidence.md do not link to {missing:?}");
}
