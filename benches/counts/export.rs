//! The encoders at level full, 8 GPUs and 200 processes.

use std::hint::black_box;
use std::sync::Arc;

use gpumeter::agent::policy::dcgm_options;
use gpumeter::config::Config;
use gpumeter::model::catalogue::Level;
use gpumeter::model::snapshot::Snapshot;
use gpumeter::output::render::{OtlpEncoder, OtlpResource, PageCache, PageFormat, Sample, Sink, walk};
use gungraun::prelude::*;

use crate::budget::budget;
use crate::fixture;

library_benchmark_group!(
    name = encoders,
    benchmarks = [text_warm, openmetrics_warm, text_cold, dcgm_warm, otlp_warm, otlp_cold]
);

/// A cache that has rendered before, and the snapshot that comes next.
fn page(format: PageFormat) -> (PageCache, Snapshot) {
    let cache = PageCache::new(Level::Full, false, dcgm_options(&Config::default()));
    let roster = Arc::new(fixture::roster(8, 200));
    let warm: Vec<_> =
        (1..3).map(|scale| cache.render(&fixture::values(Arc::clone(&roster), scale), format)).collect();
    drop(warm);
    let next = fixture::values(roster, 3);
    (cache, next)
}

/// As `page`, but the next snapshot has one process more, so that labels change.
fn changed() -> (PageCache, Snapshot) {
    let (cache, _) = page(PageFormat::Text);
    let next = fixture::node(8, 201);
    (cache, next)
}

fn request(processes: usize) -> (OtlpEncoder, Snapshot, Vec<u8>) {
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    let roster = Arc::new(fixture::roster(8, 200));
    let mut body = Vec::new();
    fixture::encode(&mut otlp, &fixture::values(Arc::clone(&roster), 1), &mut body);
    let next = if processes == 200 { fixture::values(roster, 3) } else { fixture::node(8, processes) };
    (otlp, next, body)
}

/// How many series of the snapshots have a value.
fn series() -> u64 {
    struct Count(u64);
    impl Sink for Count {
        fn family(&mut self, _: &'static gpumeter::model::catalogue::Family) {}
        fn sample(&mut self, sample: Sample<'_>) {
            self.0 += u64::from(sample.value.is_some());
        }
    }
    let mut count = Count(0);
    walk(&fixture::node(8, 200), Level::Full, &mut count);
    count.0
}

#[library_benchmark(config = budget("text_warm", series()))]
#[bench::full(page(PageFormat::Text))]
fn text_warm((cache, next): (PageCache, Snapshot)) -> (PageCache, Snapshot) {
    black_box(cache.render(black_box(&next), PageFormat::Text));
    (cache, next)
}

#[library_benchmark(config = budget("openmetrics_warm", series()))]
#[bench::full(page(PageFormat::OpenMetrics))]
fn openmetrics_warm((cache, next): (PageCache, Snapshot)) -> (PageCache, Snapshot) {
    black_box(cache.render(black_box(&next), PageFormat::OpenMetrics));
    (cache, next)
}

/// How many series the page with dcgm-exporter's names has.
fn dcgm_series() -> u64 {
    let (cache, next) = page(PageFormat::Dcgm);
    let page = cache.render(&next, PageFormat::Dcgm);
    (*page)
        .as_ref()
        .split(|byte| *byte == b'\n')
        .filter(|line| line.first().is_some_and(|first| *first != b'#'))
        .count() as u64
}

#[library_benchmark(config = budget("dcgm_warm", dcgm_series()))]
#[bench::full(page(PageFormat::Dcgm))]
fn dcgm_warm((cache, next): (PageCache, Snapshot)) -> (PageCache, Snapshot) {
    black_box(cache.render(black_box(&next), PageFormat::Dcgm));
    (cache, next)
}

#[library_benchmark(config = budget("text_cold", series()))]
#[bench::full(changed())]
fn text_cold((cache, next): (PageCache, Snapshot)) -> (PageCache, Snapshot) {
    black_box(cache.render(black_box(&next), PageFormat::Text));
    (cache, next)
}

#[library_benchmark(config = budget("otlp_warm", series()))]
#[bench::full(request(200))]
fn otlp_warm(
    (mut otlp, next, mut body): (OtlpEncoder, Snapshot, Vec<u8>),
) -> (OtlpEncoder, Snapshot, Vec<u8>) {
    black_box(fixture::encode(&mut otlp, black_box(&next), &mut body));
    (otlp, next, body)
}

#[library_benchmark(config = budget("otlp_cold", series()))]
#[bench::full(request(201))]
fn otlp_cold(
    (mut otlp, next, mut body): (OtlpEncoder, Snapshot, Vec<u8>),
) -> (OtlpEncoder, Snapshot, Vec<u8>) {
    black_box(fixture::encode(&mut otlp, black_box(&next), &mut body));
    (otlp, next, body)
}
