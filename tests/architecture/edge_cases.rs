//! Every test that `docs/edge-cases.md` names exists.

use std::path::Path;

#[test]
fn every_case_of_the_document_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/edge-cases.md")).unwrap();
    let cases: Vec<&str> = document.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(cases.len() >= 25, "{} cases", cases.len());
    let mut missing = Vec::new();
    for case in cases {
        let tests = case.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        let (pairs, rest) = named.as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            missing.push(format!("no tests: {case}"));
        }
        for [file, test] in pairs {
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            let is_there = source
                .split(&format!("fn {test}("))
                .next()
                .is_some_and(|before| before.len() < source.len() && before.trim_end().ends_with("#[test]"));
            if !is_there {
                missing.push(format!("{file} has no test {test}"));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}
