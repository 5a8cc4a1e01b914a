//! NVIDIA's XID catalogue: the class of each code, the recommended action, and what happened.

mod table;

use super::points::same;
use crate::model::named;
use table::TABLE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    pub code: u32,
    pub class: Class,
    pub action: Action,
    pub text: &'static str,
    /// Whether NVIDIA's catalogue calls the code unused, and does not explain it.
    pub disused: bool,
}

named! {
    /// The action that an XID recommends; the values of the `action` label, in the order in which they are counted.
    ///
    /// Each is a series of every GPU, so similar ones share an action: a virtual machine that must be restarted is the
    /// agent's node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Action {
        RestartApp = "restart_app",
        Ignore = "ignore",
        ResetGpu = "reset_gpu",
        RebootNode = "reboot_node",
        UpdateSoftware = "update_software",
        CheckMechanicals = "check_mechanicals",
        ContactSupport = "contact_support",
    }
    fn name
}

named! {
    /// The kind of fault that an XID reports; the values of the `class` label.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Class {
        /// An error of the application, or a fault that ends with it.
        Application = "application",
        /// The GPU, its memory or its place in the node.
        Hardware = "hardware",
        Driver = "driver",
        /// NVLink, or the link to the CPU.
        Link = "link",
        Information = "information",
        /// Reserved, or not in the table.
        Unknown = "unknown",
    }
    fn name
}

/// The row of a code; one that is not in the table is of class unknown and recommends support.
pub const fn find(code: u32) -> Xid {
    if code > 0 && code as usize <= TABLE.len() {
        return TABLE[code as usize - 1];
    }
    Xid {
        code,
        class: Class::Unknown,
        action: Action::ContactSupport,
        text: "newer than this table",
        disused: false,
    }
}

/// Whether the fault makes the GPU unavailable to its holders: broken hardware, until a reset or reboot.
pub const fn fails_slot(code: u32) -> bool {
    let xid = find(code);
    matches!((xid.class, xid.action), (Class::Hardware, Action::ResetGpu | Action::RebootNode))
}

const _: () = {
    let mut place = 0;
    while place < TABLE.len() {
        assert!(TABLE[place].code as usize == place + 1, "the table is without a gap, from 1 on");
        assert!(!TABLE[place].text.is_empty(), "every code says what happened");
        let is_known = !matches!(TABLE[place].class, Class::Unknown);
        assert!(is_known != same(TABLE[place].text, "reserved"), "every code but reserved ones has a class");
        place += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    fn with(action: Action) -> Vec<u32> {
        TABLE.iter().filter(|row| row.action == action).map(|row| row.code).collect()
    }

    #[test]
    fn actions_are_those_of_nvidias_catalogue() {
        // 151 asks for the virtual machine to be restarted, which is the agent's node.
        assert_eq!(with(Action::RebootNode), [79, 151]);
        assert_eq!(with(Action::UpdateSoftware), [78]);
        assert_eq!(with(Action::CheckMechanicals), [54]);
        let reset: Vec<u32> = [46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143]
            .into_iter()
            .chain(144..=150)
            .collect();
        assert_eq!(with(Action::ResetGpu), [&*reset, &[155, 156, 158]].concat());
        let restart = [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80];
        let restart: Vec<u32> =
            restart.into_iter().chain(82..=86).chain([88, 89, 94]).chain(96..=105).chain(126..=135).collect();
        assert_eq!(with(Action::RestartApp), [&*restart, &[139]].concat());
        assert_eq!(
            with(Action::Ignore),
            [
                37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157,
                160, 161, 162, 163
            ]
        );
    }

    #[test]
    fn errors_of_the_application_do_not_make_the_gpu_unavailable() {
        let failing: Vec<u32> = TABLE.iter().map(|row| row.code).filter(|code| fails_slot(*code)).collect();
        assert_eq!(failing, [48, 64, 79, 95, 110, 140, 143, 156]);
        assert!(
            TABLE.iter().all(|row| (row.action == Action::RestartApp) <= (row.class == Class::Application))
        );
    }

    #[test]
    fn only_reserved_codes_are_of_class_unknown() {
        let unknown = TABLE.iter().filter(|row| row.class == Class::Unknown).map(|row| row.code);
        assert!(unknown.eq([10, 14, 15, 17, 23, 87, 91]));
        assert_eq!(TABLE.len(), 173);
    }

    #[test]
    fn disused_codes_recommend_support() {
        let disused: Vec<_> = TABLE.iter().filter(|row| row.disused).collect();
        assert_eq!(disused.len(), 47);
        assert!(disused.iter().all(|row| row.action == Action::ContactSupport));
        assert_eq!(find(47).class, Class::Application);
        assert_eq!(find(123).class, Class::Hardware);
    }

    #[test]
    fn a_code_beyond_the_table_is_unknown() {
        for code in [0, 174, u32::MAX] {
            let Xid { class, action, .. } = find(code);
            assert_eq!((class, action), (Class::Unknown, Action::ContactSupport), "{code}");
        }
        assert_eq!(find(79).text, "GPU has fallen off the bus");
    }
}
