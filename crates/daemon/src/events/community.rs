//! What happens to the community, as events.

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::CommunityEvent;

use super::Told;

impl From<&CommunityEvent> for Told {
    fn from(event: &CommunityEvent) -> Self {
        match event {
            CommunityEvent::Joined { community, by } => {
                let community = PublicKey::from(*community).to_string();
                Self::new("community-joined", "this host belongs to the community from now on, with all of its hosts")
                    .with("community", community)
                    .with("by", by.to_string())
            }
            CommunityEvent::JoinFailed { number, why } => {
                Self::new("join-failed", format!("code {number} came to nothing: {why}"))
                    .with("code", *number)
                    .with("reason", why.to_string())
                    .with("good", why.leaves_code())
            }
            CommunityEvent::HostJoined { host, name, steward } => {
                let what = if *steward { "belongs to the community as a steward" } else { "belongs to the community" };
                Self::new("host-joined", format!("`{name}` {what} from now on: sockets may move to and from it"))
                    .with("host", host.to_string())
                    .with("name", name.clone())
                    .with("steward", *steward)
            }
            CommunityEvent::HostRevoked { host, name } => {
                Self::new("host-revoked", format!("`{name}` belongs to the community no more: nothing is taken of it"))
                    .with("host", host.to_string())
                    .with("name", name.clone())
            }
            CommunityEvent::Revoked => Self::new(
                "community-revoked",
                "this host was revoked: it belongs to the community no more. `whimbrel community join` takes it back, with a \
                 new code",
            ),
            CommunityEvent::WrongCode { number, host, remote } => Self::new(
                "code-guessed",
                format!(
                    "somebody at {remote} used code {number} with the wrong words, or somebody sits in between: the code is good \
                     for nothing now"
                ),
            )
            .with("code", *number)
            .with("host", host.to_string())
            .endpoint("remote", *remote),
            CommunityEvent::NameTaken { number, host, name } => Self::new(
                "name-taken",
                format!(
                    "a host that calls itself `{name}` has used code {number}, and was not let in: another of the community is \
                     called so. Where that one is no more, `whimbrel community revoke` frees the name"
                ),
            )
            .with("code", *number)
            .with("host", host.to_string())
            .with("name", name.clone()),
            CommunityEvent::Granted { number, host, flow } => Self::new(
                "connection-granted",
                format!("{flow} may be given to {host}, once; `whimbrel community revoke {number}` takes that back"),
            )
            .with("grant", *number)
            .with("host", host.to_string())
            .with("flow", flow.to_string()),
            CommunityEvent::OtherKeyKnown { address, known, proven } => Self::new(
                "other-key-known",
                format!(
                    "the code has proven that {address} has the key {proven}, but {known} is remembered for it and stays: connections \
                     to {address} are not introduced. Where the host was set up anew, `whimbrel peers forget {address}` has the \
                     proven key take the place of the old one"
                ),
            )
            .address("address", Some(*address))
            .with("known", known.to_string())
            .with("proven", proven.to_string()),
            CommunityEvent::MayReceive { number, host } => Self::new(
                "may-receive",
                format!("this host may receive a connection of {host}, once; `whimbrel community revoke {number}` takes that back"),
            )
            .with("grant", *number)
            .with("host", host.to_string()),
        }
    }
}
