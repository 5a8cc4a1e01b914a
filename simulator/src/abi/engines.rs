//! Encoder and frame buffer capture: capacity, statistics, sessions.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlEncoderSessionInfo_t, nvmlEncoderType_t, nvmlFBCSessionInfo_t, nvmlFBCStats_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, listed};
use super::{Device, gpu_calls};

/// Frames a second, and microseconds, of a session that has the whole encoder: an L40S under ffmpeg shows up to
/// 4.3 s.
const FRAMES: u64 = 60;
const LATENCY: u64 = 4_300_000;

gpu_calls! {
    // Percent that is left.
    fn nvmlDeviceGetEncoderCapacity(at, kind: nvmlEncoderType_t, capacity: Out<c_uint>) {
        match (at.gpu.board.encoder, kind) {
            (false, _) => Err(NOT_SUPPORTED),
            (true, 0..=2) => capacity.put(100 - at.meters().utilization().encoder),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    // Boards without an encoder answer zeros here, not "not supported".
    fn nvmlDeviceGetEncoderStats(at, count: Out<c_uint>, frames: Out<c_uint>, latency: Out<c_uint>) {
        let sessions = sessions(at);
        let number = c_uint::try_from(sessions.len()).unwrap_or(c_uint::MAX);
        let mean = |of: fn(&nvmlEncoderSessionInfo_t) -> c_uint| {
            sessions.iter().map(of).sum::<c_uint>().checked_div(number).unwrap_or(0)
        };
        for pointer in [frames, latency] {
            pointer.pointer()?;
        }
        count.put(number)?;
        frames.put(mean(|session| session.averageFps))?;
        latency.put(mean(|session| session.averageLatency))
    }

    fn nvmlDeviceGetEncoderSessions(at, count: Out<c_uint>, infos: Out<nvmlEncoderSessionInfo_t>) {
        listed(count, infos, &sessions(at))
    }

    fn nvmlDeviceGetFBCStats(at, stats: Out<nvmlFBCStats_t>) {
        stats.put(nvmlFBCStats_t { sessionsCount: 0, averageFPS: 0, averageLatency: 0 })
    }

    fn nvmlDeviceGetFBCSessions(at, count: Out<c_uint>, infos: Out<nvmlFBCSessionInfo_t>) {
        listed(count, infos, &[])
    }
}

/// A session of 1080p H.264 for each process that encodes now.
fn sessions(at: &Device<'_>) -> Vec<nvmlEncoderSessionInfo_t> {
    let encoding = at.gpu.timeline.present(at.now.elapsed).filter(|(_, _, span)| span.encoder() > 0);
    encoding
        .map(|(index, worker, span)| nvmlEncoderSessionInfo_t {
            sessionId: c_uint::try_from(index).unwrap_or(0) + 1,
            pid: worker.pid,
            vgpuInstance: 0,
            codecType: 0,
            hResolution: 1920,
            vResolution: 1080,
            averageFps: c_uint::try_from(FRAMES * span.encoder() / 1_000_000).unwrap_or(0),
            averageLatency: c_uint::try_from(LATENCY * span.encoder() / 1_000_000).unwrap_or(0),
        })
        .collect()
}
