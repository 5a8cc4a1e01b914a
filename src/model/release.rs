//! The driver's release on request.

use super::Utc;

#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// When the agent uses the driver again without being asked.
    pub until: Utc,
    /// Unix user id of the one who asked for it.
    pub user: u32,
}

impl Release {
    pub fn words(self) -> String {
        let user = if self.user == 0 { "root".to_owned() } else { format!("user {}", self.user) };
        format!(" until {:.0}, asked for by {user}", self.until)
    }
}
