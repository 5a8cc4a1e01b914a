//! Every function of the header with random arguments, boards, layouts, times and states: none panics (a panic in a C
//! function ends the process), and each returns one of NVML's codes.

use std::time::{Duration, Instant};

use crate::header::Argument;
use crate::support::{Node, SECOND};
use libloading::Library;

/// Eight words: no function of the header takes more.
type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> u32;

const BOARDS: [&str; 10] = [
    r#"{"profile":"t4"}"#,
    r#"{"profile":"a10","surprise":"many_replays"}"#,
    r#"{"profile":"a100","accounting":true}"#,
    r#"{"profile":"a30","mig":[{"profile":"2g.12gb","start":0},{"profile":"1g.6gb","start":2}]}"#,
    r#"{"profile":"l4","surprise":"narrow_link"}"#,
    r#"{"profile":"rtx-4090","surprise":"after_load_window"}"#,
    r#"{"profile":"h100","mps":true}"#,
    r#"{"profile":"h100","mig":[{"profile":"3g.40gb","start":4,"compute":["1c.3g.40gb","2c.3g.40gb"]}]}"#,
    r#"{"profile":"b200","surprise":"drifting_margin"}"#,
    r#"{"profile":"gb200","count":2}"#,
];

const STATES: [&str; 7] = [
    "{}",
    r#"{"mig":{"0":[]}}"#,
    r#"{"driver":{"epoch":2}}"#,
    r#"{"gpus":{"0":{"state":"lost"}}}"#,
    r#"{"gpus":{"0":{"state":"replaced","uuid_seed":3}}}"#,
    r#"{"gpus":{"0":{"state":"reset_required"}}}"#,
    r#"{"xids":[{"gpu":0,"xid":31,"per_second":20000,"count":50000}]}"#,
];

/// The beginning, parts of a cycle, its end, months, decades.
const TIMES: [u64; 8] =
    [0, 1, SECOND / 3, 59 * SECOND, 60 * SECOND, 3_601 * SECOND, 10_000_001 * SECOND, 1_000_000_007 * SECOND];

const NUMBERS: [usize; 12] = [0, 1, 2, 3, 4, 5, 7, 8, 19, 82, 185, 255];

/// The size of each buffer: more than any count among the numbers.
const ROOM: usize = 4_096;

struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn scenario(random: &mut RandomNumbers) -> String {
    let board = random.choose(&BOARDS);
    let instance = if board.contains("mig") { "0" } else { "null" };
    // Turing remaps no rows.
    let bank = if board.contains("t4") { "null".to_owned() } else { random.below(9).to_string() };
    format!(
        r#"{{"seed":{},"cycle_seconds":60,"driver_version":"{}","driver_loads":[61],"gpus":[{board},{{"profile":"h100"}}],
        "processes":[{{"pid":7,"gpu":0,"instance":{instance},"zombie_ms":500,"phases":[
            {{"from":0,"to":30,"demand":0.7,"tensor":0.5,"encoder":0.3,"memory_bytes":1073741824}}]}}],
        "memory_errors":[{{"at":0,"gpu":0,"kind":"dram_corrected","count":18446744073709551615}},
            {{"at":1,"gpu":0,"kind":"page_retired_corrected","count":9}}],
        "remaps":[{{"at":1,"gpu":0,"cause":"uncorrectable","pending":true,"bank":{bank}}}],
        "links_down":[{{"from":10,"to":20,"gpu":0}}],"replays":[{{"at":2,"gpu":0,"count":4294967295}}],
        "xids":[{{"at":3,"gpu":0,"xid":79}}],
        "throttles":[{{"from":5,"to":20,"gpu":0,"reason":"hw_slowdown"}}]}}"#,
        random.below(100),
        random.choose(&["580.105.08", "580.65.06", "590.48.01"]),
    )
}

/// A caller: the library, its buffers, and the handles it has received.
struct Caller<'a> {
    library: &'a Library,
    buffers: Vec<Vec<u64>>,
    devices: Vec<usize>,
    handles: Vec<usize>,
}

impl Caller<'_> {
    fn call(&self, name: &str, words: [usize; 8]) -> u32 {
        // SAFETY: NVML's functions take words and return an int-sized code.
        let function = unsafe { self.library.get::<Call>(name.as_bytes()) }.unwrap();
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: every pointer is null or to a buffer larger than any count given here.
        unsafe { function(a, b, c, d, e, f, g, h) }
    }

    /// A buffer whose words are small as counts, and null or another buffer as addresses.
    fn buffer(&mut self, place: usize, random: &mut RandomNumbers) -> usize {
        let inner =
            if random.below(2) == 0 { 0 } else { self.buffers.last().unwrap().as_ptr().addr() as u64 };
        let head = random.below(4) as u64 | (random.below(9) as u64) << 32;
        let buffer = &mut self.buffers[place];
        buffer.fill(inner);
        buffer[0] = head;
        buffer.as_ptr().addr()
    }

    fn words(&mut self, arguments: &[Argument], random: &mut RandomNumbers) -> [usize; 8] {
        let mut words = [0; 8];
        for (place, argument) in arguments.iter().enumerate() {
            words[place] = match argument {
                _ if random.below(8) == 0 => 0,
                Argument::Device if random.below(8) > 0 => random.choose(&self.devices),
                Argument::Device | Argument::Handle => random.choose(&self.handles),
                Argument::Pointer => self.buffer(place, random),
                Argument::Number => random.choose(&NUMBERS),
            };
        }
        words
    }

    /// Fetches every current handle.
    fn collect(&mut self) {
        let mut found = 0_usize;
        let out = (&raw mut found).addr();
        self.devices = vec![0x6E76_0000_0040];
        self.handles = vec![1, usize::MAX];
        for index in 0..2 {
            if self.call("nvmlDeviceGetHandleByIndex_v2", [index, out, 0, 0, 0, 0, 0, 0]) != 0 {
                continue;
            }
            let gpu = found;
            self.devices.extend([gpu; 4]);
            for index in 0..3 {
                if self.call("nvmlDeviceGetMigDeviceHandleByIndex", [gpu, index, out, 0, 0, 0, 0, 0]) == 0 {
                    self.devices.push(found);
                    let mut id = 0_u32;
                    let place = (&raw mut id).addr();
                    self.call("nvmlDeviceGetGpuInstanceId", [found, place, 0, 0, 0, 0, 0, 0]);
                    self.call("nvmlDeviceGetGpuInstanceById", [gpu, id as usize, out, 0, 0, 0, 0, 0]);
                    self.handles.extend([found; 2]);
                    self.call("nvmlGpuInstanceGetComputeInstanceById", [found, 0, out, 0, 0, 0, 0, 0]);
                    self.handles.push(found);
                }
            }
        }
        for make in ["nvmlEventSetCreate", "nvmlGpmSampleAlloc", "nvmlGpmSampleAlloc"] {
            if self.call(make, [out, 0, 0, 0, 0, 0, 0, 0]) == 0 {
                self.handles.push(found);
            }
        }
    }
}

#[test]
fn no_arguments_make_a_call_panic_on_any_board_or_state() {
    let mut functions = crate::header::functions();
    functions.retain(|(name, arguments)| {
        // These would end the session, or wait.
        let is_safe = !name.contains("Init") && !name.contains("Shutdown") && !name.contains("ErrorString");
        is_safe && !name.contains("SetWait") && arguments.len() <= 8
    });
    assert!(functions.len() > 380, "{}", functions.len());
    let mut random = RandomNumbers(11);
    let begun = Instant::now();
    let (mut rounds, mut answered) = (0, 0_u64);
    // Enough rounds for most boards and states; more while there is time.
    while rounds < 16 || begun.elapsed() < Duration::from_secs(3) {
        let node = Node::new(&scenario(&mut random));
        // SAFETY: the library runs no code of its own while it is loaded.
        let library = unsafe { Library::new(node.library()) }.unwrap();
        let buffers = vec![vec![0; ROOM]; 9];
        let mut caller = Caller { library: &library, buffers, devices: Vec::new(), handles: Vec::new() };
        assert_eq!(caller.call("nvmlInit_v2", [0; 8]), 0, "{}", node.read("scenario"));
        for pass in 0..6 {
            caller.collect();
            for (place, (name, arguments)) in functions.iter().enumerate() {
                // The truth is written at every other new time.
                if place % 16 == 0 {
                    node.hold(random.choose(&TIMES) + random.below(1_000_000) as u64);
                }
                let words = caller.words(arguments, &mut random);
                let mut code = caller.call(name, words);
                // The version word is tried for all sizes, since the function's structure is unknown.
                let versions =
                    (1..=3).flat_map(|version| (8..1_600).step_by(4).map(move |size| size | version << 24));
                for version in versions.filter(|_| code == 25 && rounds % 8 == 0 && pass == 0) {
                    let pointer =
                        arguments.iter().position(|argument| *argument == Argument::Pointer).unwrap();
                    caller.buffer(pointer, &mut random);
                    caller.buffers[pointer][0] = version;
                    if caller.call(name, words) != 25 {
                        code = 0;
                        break;
                    }
                }
                assert!(code <= 30 || code == 999, "{name} answers {code}");
                answered += u64::from(code == 0);
            }
            if pass == 3 {
                node.state(random.choose(&STATES));
            }
        }
        rounds += 1;
        caller.call("nvmlShutdown", [0; 8]);
    }
    assert!(answered > 1_000, "{answered}");
}
