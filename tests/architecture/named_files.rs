//! Every file and module of the source that a document names exists.

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
