//! What can happen: each kind of event is declared here, and nowhere else. Its word, its fields and its description
//! become `docs/json.md`, the words are what `whimbrel_events_total` counts by, and no event is told with another
//! field.

macro_rules! kinds {
    ($($(#[doc = $about:literal])+ $kind:ident = $word:literal ($($field:ident),*) $($mark:ident)?;)+) => {
        /// A kind of event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $($(#[doc = $about])+ $kind,)+
        }

        impl Kind {
            /// All of them, in the order of their words.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),+];

            /// A word that stays the same over releases.
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }

            /// What its particulars are called.
            pub(crate) const fn fields(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => &[$(stringify!($field)),*],)+
                }
            }

            const fn mark(self) -> Option<Mark> {
                match self {
                    $(Self::$kind => kinds!(@mark $($mark)?),)+
                }
            }

            /// What it is, for who reads the documentation.
            #[cfg(test)]
            fn about(self) -> String {
                match self {
                    $(Self::$kind => [$($about),+].concat(),)+
                }
            }
        }
    };
    (@mark) => { None };
    (@mark connection) => { Some(Mark::Connection) };
    (@mark failure) => { Some(Mark::Failure) };
}

/// How an event of a kind is kept and logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// It is about a single connection, of which there may be very many.
    Connection,
    /// Something that was asked for could not be done.
    Failure,
}

impl Kind {
    /// Whether it is about a single connection.
    pub(crate) fn is_of_connection(self) -> bool {
        self.mark() == Some(Mark::Connection)
    }

    /// Whether something that was asked for could not be done.
    pub(crate) fn is_a_failure(self) -> bool {
        self.mark() == Some(Mark::Failure)
    }
}

kinds! {
    /// Whoever has an address that the peer has left opens a connection under the very names of this one. `outcome`:
    /// `refused` or `aborted`.
    AddressConflict = "address-conflict" (flow, peer, outcome);
    /// All that `[anchor]` names can be lent now, and all that is lent is reached.
    CanLend = "can-lend" ();
    /// `faults`: sentences about what `[anchor]` names and this host cannot lend with the addresses that it has, or has
    /// lent and is not reached at any more.
    CannotLend = "cannot-lend" (faults) failure;
    /// Connections that have moved are carried another way.
    CarrierChanged = "carrier-changed" (peer, carrier);
    /// The connection goes by its anchor's lease, and cannot be moved.
    ClaimRefused = "claim-refused" (flow);
    /// The connection can be moved after all, once its anchor was asked again.
    ClaimedAgain = "claimed-again" (flow);
    /// `code`: its number, which was used with the wrong words, and is good for nothing now.
    CodeGuessed = "code-guessed" (code, host, remote);
    /// `by`: key of the host that has let this one in.
    CommunityJoined = "community-joined" (community, by);
    /// This host was revoked.
    CommunityRevoked = "community-revoked" ();
    /// A stranger may be given a connection. `grant`: its number.
    ConnectionGranted = "connection-granted" (grant, host, flow);
    /// The connection has ended.
    FlowGone = "flow-gone" (flow, peer) connection;
    /// The connection will outlive a move. `translated`: a NAT is on the way.
    FlowIntroduced = "flow-introduced" (flow, peer, translated) connection;
    /// This host holds the far end of a socket that has changed hosts.
    FlowRebound = "flow-rebound" (flow);
    /// A daemon before this one has introduced it; of the first 1000.
    FlowTakenOver = "flow-taken-over" (flow, peer) connection;
    /// Single connections go on, which waited by request. `by`: `this-host` or `peer`; `waiting`: how many of this peer
    /// wait now; `named`: up to 16 of these flows as text.
    FlowsGoOn = "flows-go-on" (peer, by, flows, waiting, named);
    /// Single connections wait by request; fields as in `flows-go-on`.
    FlowsWait = "flows-wait" (peer, by, flows, waiting, named);
    /// `trust` or the pre-shared key differs.
    HandshakeRefused = "handshake-refused" (remote, reason);
    /// It is not used any more, and the connection waits; or what serves it cannot be stopped or continued. With `pid`
    /// or `cgroup` where one is known.
    HelperFailed = "helper-failed" (flow, helper, pid, cgroup) failure;
    /// The peer is back and has what was kept.
    HelperOver = "helper-over" (flow, helper, kept, answered);
    /// It answers for the peer.
    HelperStarted = "helper-started" (flow, helper, pid);
    /// A host belongs to the community, or is something else in it.
    HostJoined = "host-joined" (host, name, steward);
    /// A host belongs to the community no more.
    HostRevoked = "host-revoked" (host, name);
    /// The connection will not outlive a move.
    IntroductionFailed = "introduction-failed" (flow, reason) connection;
    /// `code`: its number; `good`: whether it can be used again.
    JoinFailed = "join-failed" (code, reason, good);
    /// Another key than is known for the address answered, `found`, or none that is known to be.
    KeyMismatch = "key-mismatch" (address, expected, found) failure;
    /// `ends`: endpoints of an anchor that this host has on lease.
    Lease = "lease" (anchor, ends);
    /// The lease is over, and programs that have it are not reached any more.
    LeaseLost = "lease-lost" (anchor);
    /// An anchor has one lease less.
    LeaseOver = "lease-over" (tenant);
    /// The anchor has the address again.
    LeaseReached = "lease-reached" (anchor, ends);
    /// The anchor lends nothing.
    LeaseRefused = "lease-refused" (anchor);
    /// Nobody here needs it any more.
    LeaseReturned = "lease-returned" (anchor);
    /// The anchor does not have the address any more.
    LeaseUnreached = "lease-unreached" (anchor, ends);
    /// Connections of other protocols than TCP and UDP at an address that is gone: at most 16, as text, and how many.
    LeftBehind = "left-behind" (flows, count);
    /// So many events of the kind `of` came more than are told.
    LeftOut = "left-out" (of, count);
    /// `whimbrel anchor start`.
    LendingStarted = "lending-started" ();
    /// `whimbrel anchor stop`. With `restored` where a daemon before this one was told so.
    LendingStopped = "lending-stopped" (restored);
    /// As an anchor, this host lends `ends`.
    Lent = "lent" (tenant, ends);
    /// This host may receive a connection of a stranger's. `grant`: its number.
    MayReceive = "may-receive" (grant, host);
    /// This host has moved, and the peer knows it.
    Moved = "moved" (peer, to, translated, took_ms, flows, carried, carrier);
    /// This host moves. `to` is null when no way is left, and equals `from` where the place is announced once more;
    /// `kept`: the path before carries on until the peer has answered.
    Moving = "moving" (peer, from, to, flows, kept);
    /// `code`: what the server said, such as `BADSIG` or `REFUSED`.
    NameRefused = "name-refused" (name, server, code, advice) failure;
    /// `code`: its number; `name`: that the host wanted, as another of the community has it. It was not let in.
    NameTaken = "name-taken" (code, host, name);
    /// The name server is asked again.
    NameUnanswered = "name-unanswered" (name, server, again_in_ms) failure;
    /// `addresses`: that the name has now.
    NameUpdated = "name-updated" (name, server, addresses);
    /// This host has private addresses alone, and `dns.private` is not set.
    NameWithheld = "name-withheld" (name, server);
    /// An address did not answer.
    NobodyThere = "nobody-there" (address, again_in_ms);
    /// The peer did not answer, but this host is where it was.
    NotMoved = "not-moved" (peer, at, flows, carried, carrier);
    /// A rendezvous (`peer`) does not stand in for this host at `address`, which it has left.
    NotStoodInFor = "not-stood-in-for" (peer, address, reason);
    /// Something could not be done.
    OpFailed = "op-failed" (what, error);
    /// A code has proven another key for an address than is remembered, which stays.
    OtherKeyKnown = "other-key-known" (address, known, proven);
    /// The path to the peer's new place is confirmed.
    PathConfirmed = "path-confirmed" (peer, remote, round_trip_ms, carried, carrier);
    /// `announced`: whether the peer has said so, or is not heard any more.
    PeerAway = "peer-away" (peer, announced, flows);
    /// The peer is heard again.
    PeerBack = "peer-back" (peer, flows, carried, carrier);
    /// `rendezvous`: number of the peer that told where it is.
    PeerFound = "peer-found" (peer, remote, rendezvous);
    /// The peer has moved.
    PeerMoved = "peer-moved" (peer, to, translated, flows, carried, carrier);
    /// A session with the peer is up.
    PeerReached = "peer-reached" (peer, key, remote, took_ms);
    /// The peer's host was started anew, and its connections have ended.
    PeerRestarted = "peer-restarted" (peer, flows);
    /// No session comes up, so that these do not survive a move yet.
    PeerSilent = "peer-silent" (peer, remote, flows);
    /// What serves the connection goes on. With `pid` or `cgroup`.
    ProcessContinued = "process-continued" (flow, helper, pid, cgroup);
    /// A whole process is with the host `to`.
    ProcessGiven = "process-given" (pid, to);
    /// A whole process stays here.
    ProcessKept = "process-kept" (pid);
    /// A whole process that was the host's `from` is lost.
    ProcessLost = "process-lost" (from);
    /// What serves the connection is stopped, since its peer is away. With `pid` or `cgroup`.
    ProcessStopped = "process-stopped" (flow, helper, pid, cgroup);
    /// A whole process has come from the host `from`.
    ProcessTaken = "process-taken" (pid, from);
    /// A peer's request was refused.
    Refused = "refused" (peer, reason);
    /// The configuration is kept as it was.
    ReloadFailed = "reload-failed" () failure;
    /// Keys whose new values count now (`changed`), and those that count from the next start on (`restart`).
    Reloaded = "reloaded" (changed, restart);
    /// This host is back.
    Resumed = "resumed" ();
    /// Here and in the following ones: a socket that changes hosts, as its donor, its acceptor and the holder of its
    /// far end tell; `flow`: where it is known.
    SocketGiven = "socket-given" (flow);
    /// It stays with its donor.
    SocketKept = "socket-kept" (flow);
    /// A socket had waited for its program for too long, and was closed.
    SocketLapsed = "socket-lapsed" ();
    /// It is lost, or may be.
    SocketLost = "socket-lost" (flow);
    /// It does not come here.
    SocketNotTaken = "socket-not-taken" (flow);
    /// All is ready for it where it may go.
    SocketPrepared = "socket-prepared" (flow);
    /// One that has come by the name of another that waits has another name here; no event tells names.
    SocketRenamed = "socket-renamed" (flow);
    /// It goes on here.
    SocketTaken = "socket-taken" (flow);
    /// It rests, since nobody can tell yet whose it is.
    SocketUndecided = "socket-undecided" (flow);
    /// This host passes on what is said to the peer at `address`, which that has left.
    StandsIn = "stands-in" (peer, address);
    /// `restored_flows`: connections taken over from a daemon before it.
    Started = "started" (key, restored_flows);
    /// This host does not stand in for the peer at `address` any more.
    StoodAside = "stood-aside" (peer, address, reason);
    /// A rendezvous (`peer`) passes on what is said to this host at `address`, which it has left.
    StoodInFor = "stood-in-for" (peer, address, reason);
    /// The daemon was asked to stop.
    Stopping = "stopping" ();
    /// This host goes away, and its connections wait.
    Suspended = "suspended" (flows);
    /// A hand-off by hand got no answer.
    TakenBack = "taken-back" (peer, from, flows);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the documentation that this file is the source of.
    fn documentation() -> String {
        let mut text = "| kind | fields | |\n|---|---|---|\n".to_owned();
        for kind in Kind::ALL {
            let going = kind.fields().contains(&"carried");
            let plain = kind.fields().iter().filter(|field| !(going && ["carried", "carrier"].contains(field)));
            let fields = plain.map(|field| format!("`{field}`")).chain(going.then(|| "*going*".to_owned()));
            let fields: Vec<String> = fields.collect();
            text += &format!("| `{}` | {} |{} |\n", kind.word(), fields.join(", "), kind.about());
        }
        text
    }

    #[test]
    fn the_documentation_says_what_is_declared() {
        const BEGIN: &str = "<!-- events: from crates/daemon/src/events/kinds.rs -->\n";
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
        let text = std::fs::read_to_string(&file).expect("the documentation");
        let (before, rest) = text.split_once(BEGIN).expect("where it begins");
        let (told, after) = rest.split_once("<!-- end -->\n").expect("where it ends");
        if std::env::var_os("WHIMBREL_WRITE_DATA").is_some() {
            std::fs::write(&file, format!("{before}{BEGIN}{}<!-- end -->\n{after}", documentation())).expect("write");
            return;
        }
        assert!(told == documentation(), "run this test once with WHIMBREL_WRITE_DATA=1, which writes docs/json.md");
    }

    #[test]
    fn words_are_in_order_and_each_is_of_one_kind() {
        assert!(Kind::ALL.is_sorted_by(|one, next| one.word() < next.word()));
    }
}
