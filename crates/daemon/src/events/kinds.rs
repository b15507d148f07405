//! What can happen: each kind of event is declared once, here or beside the role that it is of. Its word, its fields
//! and its description become `docs/json.md`, the words are what `whimbrel_events_total` counts by, and no event is
//! told with another field.

/// What is declared of a kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Declared {
    /// It stays the same over releases.
    word: &'static str,
    /// What its particulars are called.
    fields: &'static [&'static str],
    /// How it is kept and logged: [`kinds!`] says what there is.
    mark: &'static str,
    /// What it is, for who reads the documentation.
    about: &'static str,
}

/// A kind of event. Those that there are are its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Kind(&'static Declared);

impl Declared {
    pub(crate) const fn new(
        word: &'static str,
        fields: &'static [&'static str],
        mark: &'static str,
        about: &'static str,
    ) -> Self {
        Self { word, fields, mark, about }
    }
}

impl Kind {
    pub(crate) const fn of(declared: &'static Declared) -> Self {
        Self(declared)
    }

    /// A word that stays the same over releases.
    pub(crate) const fn word(self) -> &'static str {
        self.0.word
    }

    /// What its particulars are called.
    pub(crate) const fn fields(self) -> &'static [&'static str] {
        self.0.fields
    }

    /// Whether it is about a single connection, of which there may be very many.
    pub(crate) fn is_of_connection(self) -> bool {
        self.0.mark == "connection"
    }

    /// Whether something that was asked for could not be done.
    pub(crate) fn is_a_failure(self) -> bool {
        self.0.mark == "failure"
    }
}

/// Declares kinds of events: each with its word and its fields, and `connection` or `failure` where it is one of these.
macro_rules! kinds {
    ($($(#[doc = $about:literal])+ $kind:ident = $word:literal ($($field:ident),*) $($mark:ident)?;)+) => {
        #[expect(non_upper_case_globals, reason = "they are what variants would be")]
        impl $crate::events::Kind {
            $($(#[doc = $about])+ pub(crate) const $kind: Self = Self::of(&$crate::events::Declared::new(
                $word,
                &[$(stringify!($field)),*],
                concat!($(stringify!($mark))?),
                concat!($($about),+),
            ));)+
        }

        /// Those that are declared here.
        pub(crate) const KINDS: &[$crate::events::Kind] = &[$($crate::events::Kind::$kind),+];
    };
}
pub(crate) use kinds;

kinds! {
    /// Whoever has an address that the peer has left opens a connection under the very names of this one. `outcome`:
    /// `refused` or `aborted`.
    AddressConflict = "address-conflict" (flow, peer, outcome);
    /// Connections that have moved are carried another way.
    CarrierChanged = "carrier-changed" (peer, carrier);
    /// The connection has ended, or, where `goes_on`, is not protected any more.
    FlowGone = "flow-gone" (flow, peer, goes_on) connection;
    /// The connection will outlive a move. `translated`: a NAT is on the way.
    FlowIntroduced = "flow-introduced" (flow, peer, translated) connection;
    /// A daemon before this one has introduced it; of the first 1000.
    FlowTakenOver = "flow-taken-over" (flow, peer) connection;
    /// Single connections go on, which waited by request. `by`: `this-host` or `peer`; `waiting`: how many of this peer
    /// wait now; `named`: up to 16 of these flows as text.
    FlowsGoOn = "flows-go-on" (peer, by, flows, waiting, named);
    /// Single connections wait by request; fields as in `flows-go-on`.
    FlowsWait = "flows-wait" (peer, by, flows, waiting, named);
    /// `trust` or the pre-shared key differs.
    HandshakeRefused = "handshake-refused" (remote, reason);
    /// The connection will not outlive a move.
    IntroductionFailed = "introduction-failed" (flow, reason) connection;
    /// Another key than is known for the address answered, `found`, or none that is known to be.
    KeyMismatch = "key-mismatch" (address, expected, found) failure;
    /// Connections at an address that is gone, which the ends had not agreed on in time, or which are of other
    /// protocols than TCP and UDP: at most 16, as text, how many, and why.
    LeftBehind = "left-behind" (flows, count, reason);
    /// So many events of the kind `of` came more than are told.
    LeftOut = "left-out" (of, count);
    /// This host has moved, and the peer knows it. `masked`: it was told as from where this host was, or from there,
    /// before anything else got through.
    Moved = "moved" (peer, to, translated, masked, took_ms, flows, carried, carrier);
    /// This host moves. `to` is null when no way is left, and equals `from` where the place is announced once more;
    /// `kept`: the path before carries on until the peer has answered.
    Moving = "moving" (peer, from, to, flows, kept);
    /// `code`: what the server said, such as `BADSIG` or `REFUSED`.
    NameRefused = "name-refused" (name, server, code, advice) failure;
    /// The name server is asked again.
    NameUnanswered = "name-unanswered" (name, server, again_in_ms) failure;
    /// `addresses`: that the name has now.
    NameUpdated = "name-updated" (name, server, addresses);
    /// This host has private addresses alone, and `dns.private` is not set.
    NameWithheld = "name-withheld" (name, server);
    /// An address did not answer.
    NobodyThere = "nobody-there" (address, again_in_ms);
    /// A peer with connections has left a question unanswered for 5 s (which may be up to 30 s after it was gone:
    /// `unanswered_ms` of `peers`), so that nothing shows that they arrive. `because`: `moved`, this host has, to where
    /// it is now (`from`); `peer-moved`; or `silent`, it does not answer where it was. `heard_ms`: how long ago it was
    /// last heard; `advice`: what to look for, as the sentence has it. When it answers again `moved` or
    /// `path-confirmed` tells of it.
    NotConfirmed = "not-confirmed" (peer, remote, from, because, unanswered_ms, heard_ms, flows, advice);
    /// The peer answers again by the network of `to`, which was silent: its connections go back there.
    NetworkBack = "network-back" (peer, from, to, flows);
    /// The `[[prefer]]` section in this line of the configuration selects another network than the one in use: the
    /// peer's connections go there.
    NetworkPreferred = "network-preferred" (peer, from, to, line, flows);
    /// The `[[prefer]]` section in this line of the configuration selects another network for single connections than
    /// the one that they go by: they go there.
    ConnectionsPlaced = "connections-placed" (peer, from, to, line, flows);
    /// The network of `from` is in doubt, and the `[[prefer]]` section in this line of the configuration has
    /// connections that go by it go by that of `to` as well. `because`: `overdue` (answers are), `link` (layer 2 says
    /// so), `leaving`, `captive`. Told once in 20 seconds at the most.
    ConnectionsDuplicated = "connections-duplicated" (peer, from, to, line, because, flows);
    /// The doubt is over that was told of, or its network was left: they go by one network alone again.
    ConnectionsAlone = "connections-alone" (peer, from, line, lasted_ms, flows);
    /// So many of the connections that the `[[prefer]]` section in this line means have no room on the network of `to`,
    /// or there is none for another network: they go with the others of the peer.
    ConnectionsNotPlaced = "connections-not-placed" (peer, to, line, flows);
    /// Nothing of the peer has come by the network of `from` for `silent_ms`, and it answers by that of `to`.
    NetworkSilent = "network-silent" (peer, from, to, silent_ms, flows);
    /// The routes lead to the network of `to`, and nothing speaks against it (any more): the peer's connections go
    /// there.
    NetworkFit = "network-fit" (peer, from, to, flows);
    /// Something speaks against the network of `from` (`because`): `leaving`, it is about to be taken down; `captive`,
    /// behind it is a login page, or no Internet. The peer's connections go by another where it answers.
    NetworkUnfit = "network-unfit" (peer, from, to, because, flows);
    /// The peer did not answer, but this host is where it was.
    NotMoved = "not-moved" (peer, at, flows, carried, carrier);
    /// A rendezvous (`peer`) does not stand in for this host at `address`, which it has left.
    NotStoodInFor = "not-stood-in-for" (peer, address, reason);
    /// Something could not be done.
    OpFailed = "op-failed" (what, error);
    /// The path to the peer's new place is confirmed, or it answers again.
    PathConfirmed = "path-confirmed" (peer, remote, round_trip_ms, carried, carrier);
    /// `announced`: whether the peer has said so, or is not heard any more; `held`: whether its connections wait for
    /// it, or go on to where it was, not confirmed.
    PeerAway = "peer-away" (peer, announced, held, flows);
    /// The peer is there again, where it was: it answers, or, where its connections are native, it is heard.
    PeerBack = "peer-back" (peer, flows, carried, carrier);
    /// `whimbrel clean` was run on the peer's host: `flows` moved connections of this host's own ended. None of hosts
    /// behind this one are counted, nor UDP.
    PeerCleaned = "peer-cleaned" (peer, flows);
    /// `rendezvous`: number of the peer that told where it is, or `null` where its name did.
    PeerFound = "peer-found" (peer, remote, rendezvous);
    /// The peer has moved.
    PeerMoved = "peer-moved" (peer, to, translated, flows, carried, carrier);
    /// A session with the peer is up.
    PeerReached = "peer-reached" (peer, key, remote, took_ms);
    /// The peer's host was started anew, and its connections have ended.
    PeerRestarted = "peer-restarted" (peer, flows);
    /// No session comes up, so that these do not survive a move yet.
    PeerSilent = "peer-silent" (peer, remote, flows);
    /// A daemon before this one knew the peer, and its connections go on from this host's address `from`.
    PeerTakenOver = "peer-taken-over" (peer, key, remote, from, flows, carried, carrier);
    /// A peer's request was refused.
    Refused = "refused" (peer, reason);
    /// The configuration is kept as it was.
    ReloadFailed = "reload-failed" () failure;
    /// Keys whose new values count now (`changed`), and those that count from the next start on (`restart`).
    Reloaded = "reloaded" (changed, restart);
    /// This host is back.
    Resumed = "resumed" ();
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
    /// All that goes to the peer goes over TCP from now on (`by_tcp`), or by UDP again.
    Transport = "transport" (peer, remote, by_tcp, flows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::tellers;

    /// All, in the order of their words.
    fn kinds() -> Vec<Kind> {
        let mut kinds: Vec<Kind> = tellers::kinds().collect();
        kinds.sort_unstable();
        kinds
    }

    /// The part of the documentation that this file is the source of.
    fn documentation() -> String {
        let mut text = "| kind | fields | |\n|---|---|---|\n".to_owned();
        for kind in kinds() {
            let going = kind.fields().contains(&"carried");
            let plain = kind.fields().iter().filter(|field| !(going && ["carried", "carrier"].contains(field)));
            let fields = plain.map(|field| format!("`{field}`")).chain(going.then(|| "*going*".to_owned()));
            let fields: Vec<String> = fields.collect();
            text += &format!("| `{}` | {} |{} |\n", kind.word(), fields.join(", "), kind.0.about);
        }
        text
    }

    #[test]
    fn the_documentation_says_what_is_declared() {
        const BEGIN: &str = "<!-- events: from what `kinds!` declares in crates/daemon/src -->\n";
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
    fn each_word_is_of_one_kind() {
        assert!(kinds().is_sorted_by(|one, next| one.word() < next.word()));
    }
}
