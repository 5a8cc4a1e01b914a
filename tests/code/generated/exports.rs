//! Pages of the small snapshot, compared with files; `UPDATE=1` writes them.

use std::path::Path;
use std::sync::Arc;

use gpumeter::model::catalogue::Level;
use gpumeter::output::render::{PageCache, PageFormat, PublishedSnapshot};

use crate::export::fixture;

fn page(created: bool, format: PageFormat) -> String {
    let snapshot = Arc::new(fixture::node(2, 2));
    let page =
        PublishedSnapshot::new(snapshot, Arc::new(PageCache::new(Level::Full, created, Arc::default())))
            .page(format);
    String::from_utf8((*page).as_ref().to_vec()).unwrap()
}

fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/export").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(text.lines()).enumerate().find(|(_, (old, new))| old != new);
    if let Some((number, (old, new))) = differs {
        panic!("{}:{}: expected\n{old}\ngot\n{new}\nUPDATE=1 accepts", path.display(), number + 1);
    }
    assert_eq!(expected, text, "{}; UPDATE=1 accepts", path.display());
}

#[test]
fn the_text_page_is_the_committed_one() {
    compare("page.prom", &page(false, PageFormat::Text));
}

#[test]
fn the_text_page_with_start_times_is_the_committed_one() {
    compare("page-created.prom", &page(true, PageFormat::Text));
}

#[test]
fn the_openmetrics_page_is_the_committed_one() {
    compare("page.om", &page(true, PageFormat::OpenMetrics));
}
