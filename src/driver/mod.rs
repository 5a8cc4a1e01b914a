//! The NVIDIA driver, behind one wrapper.
//!
//! Comes in: the driver library, and orders which GPU is read when. Goes out: inventories, plans, and one
//! `Frame` per GPU and tick in the types of `model`.
//! Does not know: who uses a GPU, what it costs, who reads the page. Nothing outside this folder sees a type or code of
//! NVML, and only this folder may be `unsafe` (and `holders/host`, for adjtimex).
//!
//! - [`nvml`]: call wrapper, plan per GPU, sampler.
//! - [`record`]: the file format of recorded driver answers.

pub mod nvml;
pub mod record;
