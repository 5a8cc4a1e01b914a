//! The state of every metric family on one GPU: exported, absent and why, or switched off and by what.
//!
//! It takes a frame that was read at level full.

use super::board;
use crate::config::Config;
use crate::meter::family_support;
use crate::model::catalogue::{Family, GpuRows, Kind, PointId, Rows, first_point};
use crate::model::{Absence, Frame, Unit, named};

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum FamilyStatus {
        Exported = "exported",
        /// It is left out by the configuration or by the GPU's mode.
        Off = "off",
        /// The board or its driver does not have it, or a right is missing.
        Absent = "absent",
        /// The driver failed to report it.
        Failed = "failed",
    }
    /// The word in JSON and on the page.
    fn name
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FamilyDiagnosis {
    pub family: &'static str,
    pub status: FamilyStatus,
    /// The reason for its absence as in `gpu_unsupported`; "" where it is exported.
    pub reason: &'static str,
    /// Why it is not exported, and what would change that; "" where it is.
    pub why: String,
}

/// All families except those of the agent itself.
pub(super) fn of(frame: &Frame, config: &Config) -> Vec<FamilyDiagnosis> {
    let told = family_support(frame).filter(|(family, _)| !matches!(family.rows, Rows::Agent));
    told.map(|(family, answer)| diagnose(family, answer.err(), frame, config)).collect()
}

fn diagnose(
    family: &'static Family,
    absence: Option<Absence>,
    frame: &Frame,
    config: &Config,
) -> FamilyDiagnosis {
    let (status, why) = match (absence, off(family, frame, config)) {
        // All other absences are properties of the board.
        (Some(absence @ (Absence::Failed | Absence::Rejected | Absence::Lost)), _) => {
            (FamilyStatus::Failed, fault(absence).into())
        }
        (Some(absence), _) => (FamilyStatus::Absent, why(absence, family, frame)),
        (None, Some(off)) => (FamilyStatus::Off, off),
        (None, None) => (FamilyStatus::Exported, String::new()),
    };
    FamilyDiagnosis { family: family.name, status, reason: absence.map_or("", Absence::reason), why }
}

fn fault(absence: Absence) -> &'static str {
    match absence {
        Absence::Rejected => {
            "the driver returned an implausible value, which was dropped; gpumeter record saves it for a report"
        }
        Absence::Lost => "the driver has lost the GPU; gpumeter health says what to do",
        _ => "the driver call failed; look for NVRM and Xid lines in the kernel log",
    }
}

/// Why a family that the board has is left out, if it is.
fn off(family: &Family, frame: &Frame, config: &Config) -> Option<String> {
    let is_total_of_account = family.kind == Kind::Counter && matches!(family.rows, Rows::Account(_));
    let is_of_instances = matches!(family.rows, Rows::Instance(_));
    if family.level > config.sampling.level {
        let (needs, is) = (family.level.name(), config.sampling.level.name());
        return Some(format!("needs sampling.level: {needs}; now it is {is}"));
    }
    if is_of_instances && !frame.identity.mig {
        return Some("MIG mode is off".into());
    }
    if is_of_instances && frame.instances.is_empty() {
        return Some("MIG mode is on, and the GPU has no MIG instances".into());
    }
    if is_total_of_account && !config.ledger.enabled {
        return Some("needs ledger.enabled: true".into());
    }
    (family.unit == Unit::Money && config.prices.currency().is_none())
        .then(|| "needs prices in the configuration, as USD 2.50 per GPU-hour".into())
}

/// Whether GPM works on the GPU at all; then a refusal concerns the single metric.
fn has_gpm(frame: &Frame) -> bool {
    frame.readings.get(GR_ENGINE).is_some_and(|reading| !reading.is_err_and(Absence::is_permanent))
}

const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");

fn why(absence: Absence, family: &Family, frame: &Frame) -> String {
    match absence {
        Absence::NotSupported => board::sentence(family, frame.identity.mig, has_gpm(frame)),
        Absence::NoSymbol if family.needs_gpm() => format!(
            "driver {} has no GPU performance monitoring (GPM); update the driver (GPM works on Hopper and later boards)",
            frame.identity.driver_version
        ),
        Absence::NoSymbol => {
            format!("driver {} has no function for it; a newer one may", frame.identity.driver_version)
        }
        Absence::NoPermission if family.needs_gpm() => {
            "the driver reserves performance counters for administrators: run as root, give CAP_SYS_ADMIN, or load \
             the module with NVreg_RestrictProfilingToAdminUsers=0"
                .into()
        }
        Absence::NoPermission => "the driver refuses this user: run as root, or give CAP_SYS_ADMIN".into(),
        Absence::NotYet if matches!(family.rows, Rows::Gpu(GpuRows::FabricInfo)) => {
            "the GPU is not registered with its fabric: see gpu_fabric_state".into()
        }
        Absence::NotYet => "no value in the last two readings".into(),
        other => other.reason().into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::GpuIdentity;
    use crate::model::catalogue::{device_points, families, point};

    fn frame(mig: bool, change: impl Fn(&mut Vec<Result<i64, Absence>>)) -> Frame {
        let mut readings = vec![Ok(1); device_points().count()];
        change(&mut readings);
        let identity = GpuIdentity { mig, driver_version: "470.1".into(), ..GpuIdentity::default() };
        Frame { identity: Arc::new(identity), ..Frame::with(readings.into()) }
    }

    fn config(text: &str) -> Config {
        Config::parse(text, "test").unwrap()
    }

    fn wanted() -> Config {
        config("{sampling: {level: full}, prices: {book: example}}")
    }

    fn find<'a>(all: &'a [FamilyDiagnosis], family: &str) -> &'a FamilyDiagnosis {
        all.iter().find(|one| one.family == family).unwrap()
    }

    #[test]
    fn every_family_of_the_node_is_told_of_and_a_whole_board_answers_all_but_instances_and_racks() {
        let all = of(&frame(false, |_| {}), &wanted());
        let is_expected = |one: &&FamilyDiagnosis| match one.family {
            "gpu_platform_info" => one.why.starts_with("only "),
            // All else is answered, so that it is in one.
            "gpu_fabric_info" => one.why.starts_with("the GPU is not registered"),
            name => name.starts_with("gpu_mig_") && one.why == "MIG mode is off",
        };
        let mut left = all.iter().filter(|one| one.status != FamilyStatus::Exported);
        assert_eq!(left.find(|one| !is_expected(one)), None);
        let expected = families().filter(|family| !matches!(family.rows, Rows::Agent)).count();
        assert_eq!(all.len(), expected);
    }

    #[test]
    fn each_absence_is_a_sentence_that_says_what_would_help() {
        const FAMILY: &str = "gpu_row_remap_pending";
        const GPM: &str = "gpu_gr_engine_active_ratio";
        const ENGINE: &str = "gpu_video_engine_active_ratio";
        for (family, mig, absence, status, words) in [
            (
                FAMILY,
                false,
                Absence::NotSupported,
                FamilyStatus::Absent,
                "retire pages instead: gpu_retired_pages",
            ),
            (FAMILY, true, Absence::NotSupported, FamilyStatus::Absent, "not while MIG mode is on"),
            (FAMILY, false, Absence::NoSymbol, FamilyStatus::Absent, "driver 470.1 has no function for it"),
            (FAMILY, false, Absence::NoPermission, FamilyStatus::Absent, "run as root"),
            (FAMILY, false, Absence::Failed, FamilyStatus::Failed, "the driver call failed"),
            (GPM, false, Absence::NotSupported, FamilyStatus::Absent, "Hopper and later"),
            (
                GPM,
                false,
                Absence::NoSymbol,
                FamilyStatus::Absent,
                "driver 470.1 has no GPU performance monitoring",
            ),
            (ENGINE, false, Absence::NotSupported, FamilyStatus::Absent, "this board does not report it"),
            ("gpu_c2c_bytes_total", false, Absence::NotSupported, FamilyStatus::Absent, "no Grace CPU"),
            ("gpu_module_power_watts", false, Absence::NotSupported, FamilyStatus::Absent, "no Grace CPU"),
            (
                GPM,
                false,
                Absence::NoPermission,
                FamilyStatus::Absent,
                "NVreg_RestrictProfilingToAdminUsers=0",
            ),
        ] {
            let number = device_points().position(|(other, _)| other.name == family).unwrap();
            let points = device_points().filter(|(other, _)| other.name == family).count();
            let all =
                of(&frame(mig, |readings| readings[number..number + points].fill(Err(absence))), &wanted());
            let one = find(&all, family);
            assert_eq!((one.status, one.reason), (status, absence.reason()), "{one:?}");
            assert!(one.why.contains(words), "{one:?}");
        }
    }

    #[test]
    fn one_answered_point_is_enough_and_a_counter_goes_with_its_ratio() {
        let number = point("gpu_throttle_active", "hw_power_brake");
        let ratio = first_point("gpu_sm_active_ratio");
        let all = of(
            &frame(false, |readings| {
                readings[number] = Err(Absence::NotSupported);
                readings[ratio] = Err(Absence::NotSupported);
            }),
            &wanted(),
        );
        assert_eq!(find(&all, "gpu_throttle_active").status, FamilyStatus::Exported);
        assert_eq!(find(&all, "gpu_sm_active_seconds_total").status, FamilyStatus::Absent);
    }

    #[test]
    fn what_the_configuration_leaves_out_is_off_and_says_by_what() {
        let lean = config("{sampling: {level: lean}, ledger: {enabled: false}}");
        let all = of(&frame(false, |_| {}), &lean);
        let why = |family| (find(&all, family).status, &*find(&all, family).why);
        assert_eq!(
            why("gpu_clock_hertz"),
            (FamilyStatus::Off, "needs sampling.level: standard; now it is lean")
        );
        assert_eq!(why("gpu_tenant_held_seconds_total"), (FamilyStatus::Off, "needs ledger.enabled: true"));
        let full = of(&frame(false, |_| {}), &config("sampling: {level: full}"));
        assert_eq!(
            find(&full, "gpu_cost_per_hour").why,
            "needs prices in the configuration, as USD 2.50 per GPU-hour"
        );
    }
}
