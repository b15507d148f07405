//! What is told of what happens to the community.

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::CommunityEvent;

use crate::events::{kinds, reports};

kinds! {
    /// `code`: its number, which was used with the wrong words, and is good for nothing now.
    CodeGuessed = "code-guessed" (code, host, remote);
    /// `by`: key of the host that has let this one in.
    CommunityJoined = "community-joined" (community, by);
    /// This host was revoked.
    CommunityRevoked = "community-revoked" ();
    /// A stranger may be given a connection. `grant`: its number.
    ConnectionGranted = "connection-granted" (grant, host, flow);
    /// A host belongs to the community, or is something else in it.
    HostJoined = "host-joined" (host, name, steward);
    /// A host belongs to the community no more.
    HostRevoked = "host-revoked" (host, name);
    /// `code`: its number; `good`: whether it can be used again.
    JoinFailed = "join-failed" (code, reason, good);
    /// This host may receive a connection of a stranger's. `grant`: its number.
    MayReceive = "may-receive" (grant, host);
    /// `code`: its number; `name`: that the host wanted, as another of the community has it. It was not let in.
    NameTaken = "name-taken" (code, host, name);
    /// A code has proven another key for an address than is remembered, which stays.
    OtherKeyKnown = "other-key-known" (address, known, proven);
}

reports! {
    /// What people are told of it.
    fn report(CommunityEvent);

    CommunityEvent::Joined { community, by } =>
        CommunityJoined { community: PublicKey::from(*community), by }
        "this host belongs to the community from now on, with all of its hosts";
    CommunityEvent::JoinFailed { number: code, why } =>
        JoinFailed { code, reason: why.to_string(), good: why.leaves_code() }
        "code {code} came to nothing: {why}";
    CommunityEvent::HostJoined { host, name, steward } =>
        HostJoined { host, name, steward }
        "`{name}` belongs to the community{} from now on: sockets may move to and from it",
        if *steward { " as a steward" } else { "" };
    CommunityEvent::HostRevoked { host, name } =>
        HostRevoked { host, name }
        "`{name}` belongs to the community no more: nothing is taken of it";
    CommunityEvent::Revoked =>
        CommunityRevoked {}
        "this host was revoked: it belongs to the community no more. `whimbrel community join` takes it back, with a \
         new code";
    CommunityEvent::WrongCode { number: code, host, remote } =>
        CodeGuessed { code, host, remote }
        "somebody at {remote} used code {code} with the wrong words, or somebody sits in between: the code is good for \
         nothing now";
    CommunityEvent::NameTaken { number: code, host, name } =>
        NameTaken { code, host, name }
        "a host that calls itself `{name}` has used code {code}, and was not let in: another of the community is called \
         so. Where that one is no more, `whimbrel community revoke` frees the name";
    CommunityEvent::Granted { number: grant, host, flow } =>
        ConnectionGranted { grant, host, flow }
        "{flow} may be given to {host}, once; `whimbrel community revoke {grant}` takes that back";
    CommunityEvent::OtherKeyKnown { address, known, proven } =>
        OtherKeyKnown { address, known, proven }
        "the code has proven that {address} has the key {proven}, but {known} is remembered for it and stays: \
         connections to {address} are not introduced. Where the host was set up anew, `whimbrel peers forget \
         {address}` has the proven key take the place of the old one";
    CommunityEvent::MayReceive { number: grant, host } =>
        MayReceive { grant, host }
        "this host may receive a connection of {host}, once; `whimbrel community revoke {grant}` takes that back";
}
