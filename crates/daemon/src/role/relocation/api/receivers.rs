//! Programs that receive sockets, and the names under which they do.
//!
//! A plain name is root's. That of another user's program begins with the user's: whoever moves something to a name
//! says with it whose program is to have it, and nobody is there before it, or while it starts anew, but that user.

use whimbrel_ipc::{Code, Failure, MAX_RECEIVER, Reply};
use whimbrel_kernel::owner::Owner;

use super::Moves;
use crate::api::Answer;
use crate::api::access::{self, User};
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::effects::Effects;

/// A program that receives sockets.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// All that it is called, what it is told first.
    names: Vec<String>,
}

impl Receiver {
    /// The program of a user that asks for a name.
    fn called(name: &str, user: User) -> Result<Self, Failure> {
        let names = match user {
            User::Root => vec![name.to_owned()],
            User::Other(uid) => {
                let mut users = access::names_of_user(uid);
                // A name says more than a number.
                users.rotate_left(1);
                users.into_iter().map(|user| format!("{user}/{name}")).collect()
            }
            User::Unknown => {
                return Err(Failure::new("the system does not say whose this program is").code(Code::Denied));
            }
        };
        let longest = names.iter().map(String::len).max().unwrap_or_default();
        if name.is_empty() || longest > MAX_RECEIVER {
            let whole = "a user's name and a stroke that it begins with included, unless it is root's";
            return Err(Failure::new(format!("a receiver's name has 1 to {MAX_RECEIVER} bytes, {whole}")).on(name));
        }
        Ok(Self { names })
    }

    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        self.names.iter().any(|own| own.as_bytes() == name)
    }

    /// What it is told that it is called.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map(String::as_str).unwrap_or_default()
    }
}

impl Moves {
    /// [`Request::Receive`](whimbrel_ipc::Request::Receive): the client stays
    /// ([`Server::stay`](crate::api::server::Server::stay)) until it is among those that are gone
    /// ([`Server::take_gone`](crate::api::server::Server::take_gone)).
    pub(crate) fn receive_sockets(&mut self, with: &mut With<'_, Effects>, id: ClientId, name: &str) -> Answer {
        let receiver = self.register_receiver(with, id, name)?;
        let name = receiver.name().to_owned();
        self.receivers.insert(id, receiver);
        with.desk.server.stay(id);
        with.desk.server.say(id, &Reply::Receiving { name }, Vec::new());
        Ok(None)
    }

    fn register_receiver(
        &mut self,
        with: &mut With<'_, Effects>,
        id: ClientId,
        name: &str,
    ) -> Result<Receiver, Failure> {
        let client = with.desk.server.credentials(id);
        let receiver = Receiver::called(name, User::of(client))?;
        with.desk.server.may_stay(id)?;
        let owner = client.map_or(Owner::NOBODY, Owner::from);
        if !with.own.relocation.add_receiver(&receiver.names, owner) {
            let failure = Failure::new("another program receives sockets under this name");
            return Err(failure.on(receiver.name()).code(Code::InUse));
        }
        Ok(receiver)
    }

    /// A client may have been one.
    pub(crate) fn forget_receiver(&mut self, effects: &mut Effects, id: ClientId) {
        if let Some(receiver) = self.receivers.remove(&id) {
            receiver.names.iter().for_each(|name| effects.relocation.remove_receiver(name.as_bytes()));
        }
    }

    /// A client may have been handed sockets, or have taken some.
    pub(crate) fn on_backlog(&self, desk: &Desk, effects: &mut Effects, id: ClientId) {
        let Some(receiver) = self.receivers.get(&id) else { return };
        let is_behind = desk.server.is_behind(id);
        receiver.names.iter().for_each(|name| effects.relocation.set_full(name.as_bytes(), is_behind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_root_s_and_the_others_begin_with_their_user() {
        let root = Receiver::called("echo", User::Root).expect("a name");
        let other = Receiver::called("echo", User::Other(4_000_000_000)).expect("a name");
        assert!(root.is_called(b"echo") && !other.is_called(b"echo"));
        assert!(other.is_called(b"4000000000/echo") && other.name() == "4000000000/echo");
        // Of a user that has a name, both do.
        let other = Receiver::called("echo", User::Other(1)).expect("a name");
        assert!(other.is_called(b"1/echo") && other.is_called(other.name().as_bytes()));
        assert!(Receiver::called("echo", User::Unknown).is_err());
        let longest = "x".repeat(MAX_RECEIVER);
        assert!(Receiver::called(&longest, User::Root).is_ok());
        for (name, user) in [("", User::Root), ("", User::Other(1)), (&longest, User::Other(1))] {
            assert!(Receiver::called(name, user).is_err(), "{name}");
        }
    }
}
