//! What a user of this host may read without a password: root, the agent's user and `web.local_readers` everything, others
//! what they run themselves.

use std::sync::Arc;

use super::Shared;
use crate::host::{UserNameError, socket_owner};
use crate::model::VisibleAccount;
use crate::resolvers::users::GROUP_PREFIX;
use crate::serve::{Ends, LocalReader, ReaderUnknown};

/// Tells the server what the client of a connection on this host may see.
pub(super) fn local_reader(shared: &Arc<Shared>) -> LocalReader {
    let shared = Arc::clone(shared);
    Box::new(move |ends| visible_to(ends, &shared))
}

fn visible_to(ends: Ends, shared: &Shared) -> Result<VisibleAccount, ReaderUnknown> {
    let uid = match ends {
        Ends::Tcp { peer, local } => socket_owner(peer, local),
        Ends::Unix { uid } => uid,
    };
    let uid = uid.ok_or(ReaderUnknown::Never)?;
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Ok(VisibleAccount::Everything);
    }
    let users = shared.host.users();
    // The groups are known when the name is.
    let name = users.name(uid).map_err(|error| match error {
        UserNameError::Pending { .. } => ReaderUnknown::Yet,
        UserNameError::Failed { .. } => ReaderUnknown::Never,
    })?;
    let name = name.unwrap_or_else(|| uid.to_string().into());
    let active = shared.config.active();
    let is_reader =
        active.config.web.local_readers.iter().any(|reader| match reader.strip_prefix(GROUP_PREFIX) {
            Some(group) => users.members(group).contains(&uid),
            None => reader == "*" || **reader == *name,
        });
    Ok(if is_reader { VisibleAccount::Everything } else { VisibleAccount::OfUser(name) })
}
