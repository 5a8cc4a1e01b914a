//! A sampler over the simulated driver, tick by tick, in time that only the test moves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumeter::driver::nvml::{CallSlot, Library, Recorder, Sampler, find};
use gpumeter::driver::record::{FORMAT, RecordingHead};
use gpumeter::model::catalogue::Level;
use gpumeter::model::frame::Tier;
use gpumeter::model::{Absence, Frame, Nanoseconds, Utc};
use gpumeter::runtime::clock::{Clock, ClockPage, PageState};
use tempfile::TempDir;

pub(crate) static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// GPUs of one node: the fast tier is due every second, medium every 5 s, slow every minute.
pub(crate) struct World {
    page: Arc<ClockPage>,
    samplers: Vec<Sampler>,
    second: u64,
    /// The last field, so that it is removed after the samplers have closed the library in it.
    directory: TempDir,
}

/// Half a percent of wall time in millionths, the default.
pub(crate) const DRIVER_SHARE: u32 = 5_000;

/// The configuration of the samplers.
struct Setting {
    level: Level,
    presence: bool,
    samplers: u32,
}

const ALONE: Setting = Setting { level: Level::Full, presence: false, samplers: 1 };

impl World {
    /// A node of the scenario and the sampler of its first GPU, 10 s into the scenario.
    pub(crate) fn new(scenario: &str, presence: bool) -> Self {
        Self::over(LIBRARY, scenario, &Setting { presence, ..ALONE }, None)
    }

    /// A node of the scenario at level standard with this many samplers within one share of driver time.
    pub(crate) fn node(scenario: &str, samplers: u32) -> Self {
        Self::over(LIBRARY, scenario, &Setting { level: Level::Standard, samplers, ..ALONE }, None)
    }

    /// As `node`, where presence decides who holds, and with that share of wall time for all samplers, in millionths.
    pub(crate) fn node_by_presence(scenario: &str, samplers: u32, driver_share: u32) -> Self {
        let setting = Setting { level: Level::Standard, presence: true, samplers };
        let mut world = Self::over(LIBRARY, scenario, &setting, None);
        for sampler in &mut world.samplers {
            sampler.configure(setting.level, true, driver_share);
        }
        world
    }

    /// As `new`, with all answers of the driver recorded in a file.
    pub(crate) fn recorded(scenario: &str, file: &Path) -> (Self, Arc<Recorder>) {
        let head = RecordingHead {
            gpumeter_recording: FORMAT,
            utc_ns: UTC.0,
            interval_ns: 1_000_000_000,
            driver_version: String::new(),
            simulated: true,
        };
        let to = Box::new(fs::File::create(file).unwrap());
        let recorder = Arc::new(Recorder::begin(to, &head, BOOTTIME).unwrap());
        (Self::over(LIBRARY, scenario, &ALONE, Some(Arc::clone(&recorder))), recorder)
    }

    /// As `new`, over a library without these functions: their names are changed in it.
    pub(crate) fn without(functions: &[&str], scenario: &str) -> Self {
        let mut library = LIBRARY.to_vec();
        for function in functions {
            let name: Vec<u8> = [b"\0", function.as_bytes(), b"\0"].concat();
            let places: Vec<usize> = (0..library.len() - name.len())
                .filter(|place| library[*place..].starts_with(&name))
                .collect();
            assert!(!places.is_empty(), "the library has no {function}");
            places.iter().for_each(|place| library[place + 1] = b'_');
        }
        Self::over(&library, scenario, &ALONE, None)
    }

    fn over(library: &[u8], scenario: &str, setting: &Setting, recorder: Option<Arc<Recorder>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libnvidia-ml.so.1");
        fs::write(&path, library).unwrap();
        fs::write(directory.path().join("scenario"), scenario).unwrap();
        let page = Arc::new(ClockPage::create(&directory.path().join("clock"), held(10)).unwrap());
        let clock = Clock::Page(Arc::clone(&page));
        let library = Library::open(Some(&path)).unwrap();
        if let Some(recorder) = recorder {
            library.record(recorder);
        }
        let sampler = |index| {
            let slot = CallSlot::default();
            let found = find(&library, index, &slot, &clock).unwrap();
            let mut sampler = Sampler::new(Arc::clone(&library), &found, slot, clock.clone(), setting.level);
            sampler.configure(setting.level, setting.presence, DRIVER_SHARE);
            sampler
        };
        let samplers = (0..setting.samplers).map(sampler).collect();
        Self { page, samplers, second: 10, directory }
    }

    /// Sets the driver's faults.
    pub(crate) fn set_faults(&self, script: &str) {
        let new = self.path("faults.new");
        fs::write(&new, script).unwrap();
        fs::rename(new, self.path("faults")).unwrap();
    }

    /// Changes the MIG layout of the first GPU, given as in the state file of the library.
    pub(crate) fn set_layout(&self, layout: &str) {
        let new = self.path("state.new");
        fs::write(&new, format!(r#"{{"mig": {{"0": {layout}}}}}"#)).unwrap();
        fs::rename(new, self.path("state")).unwrap();
    }

    /// Changes the share of wall time that the first sampler, of level full, may spend inside the driver.
    pub(crate) fn set_driver_share(&mut self, millionths: u32, presence: bool) {
        self.samplers[0].configure(Level::Full, presence, millionths);
    }

    /// Makes the next tick read all tiers, as after an XID.
    pub(crate) fn read_all(&mut self) {
        self.samplers[0].read_all_tiers_next();
    }

    /// Makes the sampler compile a new plan at the next tick.
    pub(crate) fn drop_plan(&mut self) {
        self.samplers[0].drop_plan();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The next second's frame of the first GPU.
    pub(crate) fn tick(&mut self) -> Frame {
        self.tick_every(1).swap_remove(0)
    }

    /// As `tick`, but returns an absence if the GPU does not answer.
    pub(crate) fn try_tick(&mut self) -> Result<Frame, Absence> {
        let due = self.advance(1);
        self.samplers[0].tick(due)
    }

    /// The frames of all GPUs at a tick this many seconds after the last one.
    pub(crate) fn tick_every(&mut self, seconds: u64) -> Vec<Frame> {
        let due = self.advance(seconds);
        self.samplers.iter_mut().map(|sampler| sampler.tick(due).unwrap()).collect()
    }

    /// Advances time; returns which tiers are due.
    fn advance(&mut self, seconds: u64) -> [bool; 3] {
        let before = self.second;
        self.second += seconds;
        self.page.set(held(self.second)).unwrap();
        [1, 5, 60].map(|every| before / every != self.second / every)
    }

    /// The nanoseconds that all calls have taken so far, by function, in a scenario with realistic delays.
    /// Makes a tick first, since the library writes the duration of a call when the next one begins.
    pub(crate) fn time_in_driver(&mut self, seconds: u64) -> BTreeMap<String, u64> {
        self.tick_every(seconds);
        let calls: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(self.path("calls")).unwrap()).unwrap();
        serde_json::from_value(calls["owed_ns"].clone()).unwrap()
    }

    /// The frames of this many seconds.
    pub(crate) fn run(&mut self, seconds: u64) -> Vec<Frame> {
        (0..seconds).map(|_| self.tick()).collect()
    }
}

const UTC: Utc = Utc(1_767_225_600_000_000_000);
const BOOTTIME: Nanoseconds = Nanoseconds::from_seconds(1_000);

fn held(second: u64) -> PageState {
    PageState::held_at(Nanoseconds::from_seconds(second), UTC, BOOTTIME)
}

/// Whether the frame has read that tier.
pub(crate) fn is_due(frame: &Frame, tier: Tier) -> bool {
    frame.tiers[tier as usize] == Some(frame.begun)
}

/// The number of calls of each function in these frames.
pub(crate) fn calls<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> BTreeMap<&'static str, usize> {
    let mut calls = BTreeMap::new();
    for call in frames.into_iter().flat_map(|frame| &frame.calls) {
        *calls.entry(call.function).or_default() += 1;
    }
    calls
}
