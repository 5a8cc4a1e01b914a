//! What each NVLink says, at level full: up to 36 links per GPU, of which a board has those that it answers.

use super::NO_NVLINK;
use crate::catalogue::source::point;
use crate::catalogue::{Family, LabelPair, MOST_LINKS, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

const LINKS: usize = MOST_LINKS as usize;
const KIBIBYTE: i64 = 1_024;

const NUMBERS: [&str; LINKS] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35",
];

/// Something that every link answers: its label beside `link`, and the fields, at most two, best first.
struct LinkFields {
    label: LabelPair,
    fields: &'static [(u32, i64)],
}

/// As many as a point has at most.
type LinkSources = [Source; 2];

/// Labels of all links for all that is asked, link by link.
const fn labels<const N: usize>(asked: &[LinkFields]) -> [[LabelPair; 2]; N] {
    let mut labels = [[("", ""); 2]; N];
    let mut place = 0;
    while place < N {
        labels[place] = [("link", NUMBERS[place / asked.len()]), asked[place % asked.len()].label];
        place += 1;
    }
    labels
}

/// LinkSources in the same order.
const fn sources<const N: usize>(asked: &[LinkFields]) -> [LinkSources; N] {
    let mut sources = [[Source::Link { id: 0, link: 0, times: 0 }; 2]; N];
    let mut place = 0;
    while place < N {
        let fields = asked[place % asked.len()].fields;
        let mut nth = 0;
        while nth < fields.len() {
            let (id, times) = fields[nth];
            let link = (place / asked.len()) as u32;
            sources[place][nth] = Source::Link { id, link, times };
            nth += 1;
        }
        place += 1;
    }
    sources
}

/// Points of these labels, of which the first `count` are the family's, and sources.
const fn points<const N: usize>(
    asked: &[LinkFields],
    labels: &'static [[LabelPair; 2]; N],
    count: usize,
    sources: &'static [LinkSources; N],
) -> [Point; N] {
    let mut points = [const { point(&[], &[]) }; N];
    let mut place = 0;
    while place < N {
        let fields = asked[place % asked.len()].fields.len();
        points[place] = point(labels[place].split_at(count).0, sources[place].split_at(fields).0);
        place += 1;
    }
    points
}

const STATE: &[LinkFields] = &[LinkFields { label: ("", ""), fields: &[(165, 1)] }];
static STATE_LABELS: [[LabelPair; 2]; LINKS] = labels(STATE);
static STATE_SOURCES: [LinkSources; LINKS] = sources(STATE);
static STATE_POINTS: [Point; LINKS] = points(STATE, &STATE_LABELS, 1, &STATE_SOURCES);

const BYTES: &[LinkFields] = &[
    LinkFields { label: ("direction", "transmit"), fields: &[(138, KIBIBYTE), (202, 1)] },
    LinkFields { label: ("direction", "receive"), fields: &[(139, KIBIBYTE), (204, 1)] },
];
static BYTES_LABELS: [[LabelPair; 2]; LINKS * 2] = labels(BYTES);
static BYTES_SOURCES: [LinkSources; LINKS * 2] = sources(BYTES);
static BYTES_POINTS: [Point; LINKS * 2] = points(BYTES, &BYTES_LABELS, 2, &BYTES_SOURCES);

/// The first two up to Hopper, recoveries on all, the others from the fifth generation of NVLink on.
const ERRORS: &[LinkFields] = &[
    LinkFields { label: ("kind", "crc_flit"), fields: &[(163, 1)] },
    LinkFields { label: ("kind", "replay"), fields: &[(161, 1)] },
    // NVLink 5 tells those that succeeded.
    LinkFields { label: ("kind", "recovery"), fields: &[(162, 1), (213, 1)] },
    LinkFields { label: ("kind", "malformed_packet"), fields: &[(206, 1)] },
    LinkFields { label: ("kind", "buffer_overrun"), fields: &[(207, 1)] },
    LinkFields { label: ("kind", "receive"), fields: &[(208, 1)] },
    LinkFields { label: ("kind", "local_integrity"), fields: &[(211, 1)] },
    LinkFields { label: ("kind", "recovery_failed"), fields: &[(214, 1)] },
    LinkFields { label: ("kind", "effective"), fields: &[(219, 1)] },
    LinkFields { label: ("kind", "symbol"), fields: &[(221, 1)] },
];
static ERRORS_LABELS: [[LabelPair; 2]; LINKS * 10] = labels(ERRORS);
static ERRORS_SOURCES: [LinkSources; LINKS * 10] = sources(ERRORS);
static ERRORS_POINTS: [Point; LINKS * 10] = points(ERRORS, &ERRORS_LABELS, 2, &ERRORS_SOURCES);

pub(in crate::catalogue) const ROWS: &[Family] = &[
    Family::gauge(
        "gpu_nvlink_link_up",
        Unit::None,
        "1 while the NVLink is active, else 0.",
        Rows::Device(&STATE_POINTS),
    )
    .labels(&["gpu", "uuid", "link"])
    .tier(Tier::Slow)
    .most(1)
    .unsupported(NO_NVLINK),
    Family::counter(
        "gpu_nvlink_link_bytes_total",
        Unit::Bytes,
        "Payload over the NVLink as the GPU sees it, since the driver was loaded.",
        Rows::Device(&BYTES_POINTS),
    )
    .labels(&["gpu", "uuid", "link", "direction"])
    .tier(Tier::Medium)
    .unsupported(NO_NVLINK),
    Family::counter(
        "gpu_nvlink_link_errors_total",
        Unit::None,
        "Errors of the NVLink since the driver was loaded, by kind; which kinds there are \
         depends on the generation of NVLink. They are counted at several layers (symbols, \
         packets, the link), so one fault can count in more than one.",
        Rows::Device(&ERRORS_POINTS),
    )
    .labels(&["gpu", "uuid", "link", "kind"])
    .tier(Tier::Slow)
    .unsupported(NO_NVLINK),
];
