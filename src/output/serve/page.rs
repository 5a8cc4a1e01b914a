//! The files of the live page and of the page of costs, which the binary carries. All paths in them are relative, so that the
//! pages work below any prefix of a proxy, through `ssh -L` and `kubectl port-forward`.

use std::hash::{DefaultHasher, Hash, Hasher};

use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS,
};

use super::live::shared_response;
use super::response::PageResponse;
use crate::output::render::SharedDocument;

/// Nothing but the agent's own files and answers, and no markup from elsewhere; a configured header replaces it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Replaced by a link to the document under its external URL.
const CANONICAL: &str = "<!--canonical-->";

/// uPlot with its licence, which its minified file leaves out.
const PLOTS: &str = concat!(
    "/*\n",
    include_str!("page/vendor/uPlot.LICENSE"),
    "*/\n",
    include_str!("page/vendor/uPlot.iife.min.js"),
);

const FILES: [(&str, &str, &str); 24] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/costs", HTML, include_str!("page/costs.html")),
    ("/page/page.css", CSS, include_str!("page/page.css")),
    ("/page/page.js", SCRIPT, include_str!("page/page.js")),
    ("/page/costs.css", CSS, include_str!("page/costs.css")),
    ("/page/costs.js", SCRIPT, include_str!("page/costs.js")),
    ("/page/costs-advice.js", SCRIPT, include_str!("page/costs-advice.js")),
    ("/page/costs-csv.js", SCRIPT, include_str!("page/costs-csv.js")),
    ("/page/costs-details.js", SCRIPT, include_str!("page/costs-details.js")),
    ("/page/costs-explain.js", SCRIPT, include_str!("page/costs-explain.js")),
    ("/page/costs-plots.js", SCRIPT, include_str!("page/costs-plots.js")),
    ("/page/costs-questions.js", SCRIPT, include_str!("page/costs-questions.js")),
    ("/page/costs-table.js", SCRIPT, include_str!("page/costs-table.js")),
    ("/page/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/page/fetch.js", SCRIPT, include_str!("page/fetch.js")),
    ("/page/format.js", SCRIPT, include_str!("page/format.js")),
    ("/page/problems.js", SCRIPT, include_str!("page/problems.js")),
    ("/page/query.js", SCRIPT, include_str!("page/query.js")),
    ("/page/theme.js", SCRIPT, include_str!("page/theme.js")),
    ("/page/tiles.js", SCRIPT, include_str!("page/tiles.js")),
    ("/page/tables.js", SCRIPT, include_str!("page/tables.js")),
    ("/page/details.js", SCRIPT, include_str!("page/details.js")),
    ("/page/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/page/uplot.css", CSS, include_str!("page/vendor/uPlot.min.css")),
];

pub struct LivePage {
    files: Vec<PageFile>,
}

pub(super) struct PageFile {
    pub(super) path: &'static str,
    content_type: &'static str,
    document: SharedDocument,
    tag: String,
}

impl LivePage {
    /// The pages, whose links to copy begin with the external URL, if there is one.
    pub fn new(external_url: Option<&str>) -> Self {
        let base = external_url.map(|url| url.replace('&', "&amp;").replace('"', "&quot;"));
        let link =
            |path: &str| base.as_ref().map(|base| format!("<link rel=\"canonical\" href=\"{base}{path}\">"));
        let plots = ("/page/uplot.js", SCRIPT, PLOTS);
        let files = FILES.into_iter().chain([plots]).map(|(path, content_type, text)| {
            let text = match content_type {
                HTML => text.replace(CANONICAL, &link(path).unwrap_or_default()),
                _ => text.to_owned(),
            };
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let tag = format!("\"{:x}\"", hasher.finish());
            PageFile { path, content_type, document: SharedDocument::new(text.into()), tag }
        });
        Self { files: files.collect() }
    }

    pub(super) fn find(&self, path: &str) -> Option<&PageFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl PageFile {
    pub(super) fn response(&self, headers: &HeaderMap) -> PageResponse {
        let Self { content_type, document, tag, .. } = self;
        let mut response = shared_response(headers, document, content_type, Some(tag.clone()));
        let own: [(HeaderName, &str); 3] =
            [(CONTENT_SECURITY_POLICY, POLICY), (X_FRAME_OPTIONS, "deny"), (REFERRER_POLICY, "no-referrer")];
        for (name, value) in own {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
