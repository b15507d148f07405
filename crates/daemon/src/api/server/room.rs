//! How many clients there may be, of whom.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_ipc::{Code, Failure};
use whimbrel_protocol::Time;

use super::{Client, ClientId, Server};
use crate::closing;

/// Clients that may ask something, at a time.
pub(crate) const CLIENTS: usize = 64;

/// Those of one user, if that is not root.
pub(crate) const SHARE: usize = CLIENTS / 2;

/// Places among them that are root's alone.
pub(crate) const FOR_ROOT: usize = CLIENTS / 8;

/// Those beyond that hear that there is no room, of one user and in all.
const REFUSED_SHARE: usize = 16;
const REFUSED: usize = 64;

/// Clients that stay: programs behind anchors, those that receive sockets, and those that follow events. They ask
/// nothing more, so they take no room of those that do.
pub(crate) const STAYING: usize = 1024;

/// Who has not read an answer for so long gives way like who asks nothing.
pub(crate) const UNREAD: Duration = Duration::from_secs(3);

/// Whose descriptors cannot be closed, so many of them, is not taken in: each client is one more.
const UNCLOSED: usize = 256;

/// What becomes of one who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is served.
    Served,
    /// It hears that there is no room.
    Refused,
    /// There is no room even for that.
    None,
}

/// Root, or whom the daemon runs as.
fn is_root(user: Option<u32>) -> bool {
    user.is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

impl Client {
    pub(crate) fn is_served(&self) -> bool {
        !self.stays && !self.refused
    }

    /// Nothing of what it asked for is left to be done, or it does not take it.
    fn is_idle(&self, now: Time) -> bool {
        let unread = self.unread_since.is_some_and(|since| since + UNREAD <= now);
        !self.stays && !self.waits && (self.output.is_empty() || unread)
    }
}

impl Server {
    fn count(&self, which: impl Fn(&Client) -> bool) -> usize {
        self.clients.values().filter(|client| which(client)).count()
    }

    /// Finds a place for one of this user's, which others may have to leave.
    pub(crate) fn place_for(&mut self, user: Option<u32>, now: Time) -> Place {
        if closing::left_of(user) > UNCLOSED {
            return Place::None;
        }
        if self.has_room(user) || self.make_room(user, now) {
            return Place::Served;
        }
        let of_user = self.count(|client| client.refused && client.uid() == user);
        let room = of_user < REFUSED_SHARE && self.count(|client| client.refused) < REFUSED;
        if room { Place::Refused } else { Place::None }
    }

    fn has_room(&self, user: Option<u32>) -> bool {
        let served = self.count(Client::is_served);
        let others = || self.count(|client| client.is_served() && !is_root(client.uid()));
        let of_user = || self.count(|client| client.is_served() && client.uid() == user);
        served < CLIENTS && (is_root(user) || others() < CLIENTS - FOR_ROOT && of_user() < SHARE)
    }

    /// Has a client give way to one of this user's: of the user who has most, which is this one where several have as
    /// many or it has its share, the one that has been idle for longest. Whether there was one.
    pub(crate) fn make_room(&mut self, user: Option<u32>, now: Time) -> bool {
        let mut shares: HashMap<Option<u32>, usize> = HashMap::new();
        for client in self.clients.values().filter(|client| client.is_served()) {
            *shares.entry(client.uid()).or_default() += 1;
        }
        let own = shares.get(&user).copied().unwrap_or_default();
        let others = shares.iter().filter(|(of, _)| !is_root(**of)).map(|(_, count)| count).sum::<usize>();
        // Root's places are of no use to others.
        let fits = |of: Option<u32>| is_root(user) || !is_root(of) || others < CLIENTS - FOR_ROOT;
        let whose = if !is_root(user) && own >= SHARE {
            Some(user)
        } else {
            let most = shares.into_iter().filter(|(of, _)| fits(*of)).max_by_key(|(of, count)| (*count, *of == user));
            most.filter(|(of, count)| *of == user || *count > own).map(|(of, _)| of)
        };
        let Some(whose) = whose else { return false };
        let of_it = |client: &Client| client.is_served() && client.uid() == whose && client.is_idle(now);
        let idle = self.clients.iter().filter(|(_, client)| of_it(client));
        let Some(oldest) = idle.min_by_key(|(_, client)| client.used).map(|(id, _)| *id) else { return false };
        self.remove(oldest);
        true
    }

    /// Notes who does not read its answers; ends clients that have not asked for anything in time.
    pub(crate) fn expire(&mut self, now: Time, silent: Duration) {
        for client in self.clients.values_mut().filter(|client| !client.output.is_empty()) {
            client.unread_since.get_or_insert(now);
        }
        let silent = |client: &Client| !client.asked && client.is_idle(now) && client.connected + silent <= now;
        let silent: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| silent(client)).map(|(id, _)| *id).collect();
        silent.into_iter().for_each(|id| self.remove(id));
    }

    /// Whether there is room for this client to [stay](Self::stay). Users other than root have half of it each at the
    /// most, and an eighth is root's alone.
    ///
    /// # Errors
    /// [`Code::TooMany`], for the client.
    pub fn may_stay(&self, id: ClientId) -> Result<(), Failure> {
        let user = self.clients.get(&id).and_then(Client::uid);
        let staying = self.count(|client| client.stays);
        let others = self.count(|client| client.stays && !is_root(client.uid()));
        let of_user = self.count(|client| client.stays && client.uid() == user);
        let (share, shared) = (self.most_staying / 2, self.most_staying - self.most_staying / 8);
        let most = match is_root(user) {
            false if of_user >= share => share,
            false if others >= shared => shared,
            _ => self.most_staying,
        };
        if staying < self.most_staying && most == self.most_staying {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{most} programs stay connected with the daemon already, which are as many as may be"
        ))
        .code(Code::TooMany)
        .hint("Each program of `whimbrel run` is one, and each that receives sockets or follows events."))
    }
}
