//! What a user of this host may read without a password: root, the agent's user and `web.local_readers` everything, others
//! what they run themselves.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::agent::resolvers::users::GROUP_PREFIX;
use crate::holders::host::{UserDatabase, socket_owner};
use crate::model::VisibleAccount;
use crate::output::serve::{LocalReader, OwnerRequest};
use crate::runtime::clock::Stop;
use crate::runtime::thread::{self, Thread};

const QUEUE_LENGTH: usize = 16;

/// Starts the thread that finds whose connections on loopback are; it may wait for what other users do.
pub(super) fn start_owners(stop: &Stop) -> Result<mpsc::Sender<OwnerRequest>, thread::Error> {
    let (sender, mut requests) = mpsc::channel(QUEUE_LENGTH);
    let stop = stop.clone();
    Thread::start("owners", move || {
        while let Some(OwnerRequest { peer, local, reply }) = requests.blocking_recv() {
            if stop.is_called() {
                return;
            }
            // The client may have left while others were served.
            if !reply.is_closed() {
                let _ = reply.send(socket_owner(peer, local));
            }
        }
    })?;
    Ok(sender)
}

/// Lets the server find what a user of this host may see; `readers` are `web.local_readers` now.
pub(super) fn local_reader(
    users: &Arc<UserDatabase>,
    readers: impl Fn() -> Vec<String> + Send + Sync + 'static,
) -> LocalReader {
    let users = Arc::clone(users);
    Box::new(move |uid| visible_to(uid, &users, &readers))
}

fn visible_to(uid: u32, users: &UserDatabase, readers: &impl Fn() -> Vec<String>) -> Option<VisibleAccount> {
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Some(VisibleAccount::Everything);
    }
    // The groups are known when the name is.
    let name = users.name(uid).ok()?;
    let name = name.unwrap_or_else(|| uid.to_string().into());
    let is_reader = readers().iter().any(|reader| match reader.strip_prefix(GROUP_PREFIX) {
        Some(group) => users.members(group).contains(&uid),
        None => reader == "*" || **reader == *name,
    });
    Some(if is_reader { VisibleAccount::Everything } else { VisibleAccount::OfUser(name) })
}
