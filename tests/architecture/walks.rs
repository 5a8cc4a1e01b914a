//! The two walks of ARCHITECTURE.md: the functions that a value passes on its way.

use std::path::Path;

/// Most functions and files of a walk; both shrink or stay.
const MOST_FUNCTIONS: usize = 40;
const MOST_FILES: usize = 21;

/// The lines of the code block after the bold title `title`, as a file and its functions.
fn walk<'a>(document: &'a str, title: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let (_, rest) = document.split_once(&format!("**{title}")).unwrap();
    let block = rest.split("```\n").nth(1).unwrap();
    let lines = block.lines().map(|line| {
        let (names, _) = line.split_once("  ").unwrap_or((line, ""));
        let mut words = names.split_whitespace();
        (words.next().unwrap(), words.collect())
    });
    lines.collect()
}

#[test]
fn each_walk_names_functions_that_exist_and_stays_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for title in ["Board power from field id to text line.", "A pid to its bill line."] {
        let walk = walk(&document, title);
        let functions: usize = walk.iter().map(|(_, functions)| functions.len()).sum();
        println!("{title} {functions} functions in {} files", walk.len());
        for (file, functions) in &walk {
            let text = std::fs::read_to_string(root.join("src").join(file)).expect(file);
            for function in functions {
                let declared = [format!("fn {function}("), format!("fn {function}<")]
                    .iter()
                    .any(|start| text.contains(start));
                assert!(declared, "{file} has no function {function}");
            }
        }
        assert!(
            functions <= MOST_FUNCTIONS && walk.len() <= MOST_FILES,
            "{title} {functions} {}",
            walk.len()
        );
    }
}
