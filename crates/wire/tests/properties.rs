//! What holds for all values and all bytes.

use std::net::{IpAddr, SocketAddr};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use whimbrel_wire::binding::{MAX_PLACED, MaskedUpdate, Placed, PlacedSeen, PlacedStatus};
use whimbrel_wire::chain::{ChainAnswer, ChainRequest, ChainStatus, MAX_PARAMETERS, MAX_STAGES, NamedChain, Parameter};
use whimbrel_wire::community::{
    CommunitySecret, JoinPurpose, JoinRefusal, Joined, MAX_STATEMENTS, MemberStanding, Statement, Word,
};
use whimbrel_wire::hello::MAX_LOCATORS;
use whimbrel_wire::message::{
    BindingStatus, CloseReason, Echo, Introduced, IntroductionRefusal, MAX_CLOSED, MAX_FORGOTTEN, MAX_PASSED_ON,
    MAX_REGISTERED, MAX_STOOD_IN, MAX_WAITING, MAX_WHEREABOUTS, NeighbourProxyStatus, Pairing, RegistrationChange,
    RegistrationStatus, UpdateFlags, decode_all,
};
use whimbrel_wire::moving::{MAX_RANGES, MAX_STRETCH, Received, Record, StreamStanding, Stretch};
use whimbrel_wire::{
    BindingNumber, Capabilities, ChainNumber, ChainSpec, Datagram, FlowTuple, Hello, Introduction, Message, Stage,
    TransformId, Transport,
};

fn address() -> impl Strategy<Value = IpAddr> {
    // As read back: IPv4-mapped IPv6 is IPv4.
    any::<IpAddr>().prop_map(|address| address.to_canonical())
}

fn endpoint() -> impl Strategy<Value = SocketAddr> {
    (address(), any::<u16>()).prop_map(SocketAddr::from)
}

fn tuple() -> impl Strategy<Value = FlowTuple> {
    let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)];
    (transport, endpoint(), endpoint())
        .prop_filter("one family", |(_, local, remote)| local.is_ipv4() == remote.is_ipv4())
        .prop_map(|(transport, local, remote)| FlowTuple { transport, local, remote })
}

fn echo() -> impl Strategy<Value = Echo> {
    (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u16>(), tuple()).prop_map(
        |(introducer_nonce, responder_nonce, introducer_place, responder_place, wire_port, tuple)| Echo {
            introducer_nonce,
            responder_nonce,
            introducer_place,
            responder_place,
            wire_port,
            tuple,
        },
    )
}

fn outcome() -> impl Strategy<Value = Result<Introduced, IntroductionRefusal>> {
    prop_oneof![
        (any::<u16>(), tuple()).prop_map(|(wire_port, tuple)| Ok(Introduced { wire_port, tuple })),
        (1..=255_u8).prop_map(|status| Err(IntroductionRefusal::from_number(status))),
    ]
}

fn acknowledgement() -> impl Strategy<Value = Message> {
    (any::<[u32; 4]>(), any::<u8>(), any::<u8>(), endpoint()).prop_map(
        |([binding, sequence, newest, place], status, flags, observed)| Message::BindingAcknowledgement {
            binding: BindingNumber(binding),
            sequence,
            status: BindingStatus::from_number(status),
            flags: UpdateFlags(flags),
            newest,
            place,
            observed,
        },
    )
}

fn received() -> impl Strategy<Value = Received> {
    let gaps = vec((1..5000_u64, 1..5000_u64), 0..=MAX_RANGES);
    (any::<u64>(), any::<u8>(), any::<u32>(), any::<u64>(), gaps).prop_map(|(stream, standing, before, limit, gaps)| {
        let mut at = u64::from(before);
        let ranges = gaps.into_iter().map(|(gap, length)| {
            at += gap + length;
            (at - length, at)
        });
        let ranges = ranges.collect();
        let standing = StreamStanding::from_number(standing);
        Received { stream, standing, before: u64::from(before), limit, ranges }
    })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<u16>().prop_map(|length| Message::Padding { length }),
        vec(address(), 0..=MAX_LOCATORS).prop_map(Message::Locators),
        any::<u64>().prop_map(|life| Message::Life { life }),
        any::<u64>().prop_map(|memory| Message::Memory { memory }),
        any::<u64>().prop_map(|token| Message::PathChallenge { token }),
        (any::<u64>(), endpoint()).prop_map(|(token, observed)| Message::PathResponse { token, observed }),
        any::<u32>().prop_map(|path| Message::PathKept { path }),
        (any::<[u32; 3]>(), any::<bool>(), vec(any::<u64>(), 0..=MAX_PLACED)).prop_map(
            |([binding, sequence, path], duplicated, names)| {
                Message::Placed(Placed { binding: BindingNumber(binding), sequence, path, duplicated, names })
            }
        ),
        (any::<[u32; 2]>(), any::<u8>()).prop_map(|([binding, sequence], status)| {
            let status = PlacedStatus::from_number(status);
            Message::PlacedSeen(PlacedSeen { binding: BindingNumber(binding), sequence, status })
        }),
        any::<u32>().prop_map(|tag| Message::IntroductionRequest { tag }),
        any::<u32>().prop_map(|tag| Message::IntroductionReady { tag }),
        echo().prop_map(Message::IntroductionEcho),
        (echo(), any::<[u8; 16]>(), any::<bool>()).prop_map(|(echo, proof, late)| {
            Message::Pairing(Pairing {
                introducer_nonce: echo.introducer_nonce,
                proof,
                introducer_place: echo.introducer_place,
                responder_place: echo.responder_place,
                wire_port: echo.wire_port,
                tuple: echo.tuple,
                late,
            })
        }),
        (any::<u64>(), any::<[u8; 16]>(), any::<u16>(), tuple()).prop_map(|(nonce, proof, wire_port, tuple)| {
            Message::Paired { nonce, proof, introduced: Introduced { wire_port, tuple } }
        }),
        (any::<u64>(), outcome()).prop_map(|(nonce, outcome)| Message::IntroductionDone { nonce, outcome }),
        vec(any::<u64>(), 0..200).prop_map(Message::FlowClosed),
        (any::<u64>(), any::<[u8; 32]>(), endpoint()).prop_map(|(nonce, key, at)| Message::Referral { nonce, key, at }),
        (any::<u64>(), any::<[u8; 32]>(), endpoint()).prop_map(|(name, key, at)| Message::Sought { name, key, at }),
        tuple().prop_map(|tuple| Message::IntroduceMe { tuple }),
        any::<u64>().prop_map(|nonce| Message::Seen { nonce }),
        any::<u64>().prop_map(|nonce| Message::Passing { nonce }),
        tuple().prop_map(|tuple| Message::AskHere { tuple }),
        (any::<[u32; 3]>(), any::<u8>(), endpoint()).prop_map(|([binding, sequence, lifetime], flags, claimed)| {
            Message::BindingUpdate {
                binding: BindingNumber(binding),
                sequence,
                flags: UpdateFlags(flags),
                claimed,
                lifetime,
            }
        }),
        acknowledgement(),
        any::<u64>().prop_map(|token| Message::ProbeSeen { token }),
        (any::<u32>(), any::<bool>(), vec(any::<u64>(), 0..=MAX_WAITING))
            .prop_map(|(number, wait, names)| Message::Paused { number, wait, names }),
        any::<u32>().prop_map(|number| Message::PausedSeen { number }),
        (any::<u32>(), any::<bool>(), vec(any::<u64>(), 0..=MAX_FORGOTTEN))
            .prop_map(|(number, lost, names)| Message::Forgotten { number, lost, names }),
        (any::<u32>(), endpoint())
            .prop_map(|(sequence, claimed)| Message::MaskedUpdate(MaskedUpdate { sequence, claimed })),
        any::<u32>().prop_map(|sequence| Message::MaskedUpdateSeen { sequence }),
        any::<u32>().prop_map(|number| Message::ForgottenSeen { number }),
        chain_request().prop_map(Message::Chain),
        (any::<[u32; 3]>(), any::<[u8; 3]>()).prop_map(|([number, binding, settled], [chain, status, stage])| {
            let (in_force, status) = (ChainNumber::new(chain), ChainStatus::from_number(status));
            Message::ChainSeen(ChainAnswer {
                number,
                binding: BindingNumber(binding),
                settled,
                in_force,
                status,
                stage,
            })
        }),
        (any::<u32>(), any::<u8>(), vec(any::<[u8; 16]>(), 0..=MAX_REGISTERED)).prop_map(|(number, change, tags)| {
            Message::Register { number, change: RegistrationChange::from_number(change), tags }
        }),
        (any::<u32>(), any::<u8>(), any::<u32>()).prop_map(|(number, status, newest)| {
            Message::Registered { number, status: RegistrationStatus::from_number(status), newest }
        }),
        (any::<u32>(), vec((any::<[u8; 16]>(), endpoint()), 0..=MAX_WHEREABOUTS))
            .prop_map(|(number, found)| Message::Whereabouts { number, found }),
        any::<u32>().prop_map(|number| Message::WhereaboutsSeen { number }),
        vec(address(), 0..=MAX_STOOD_IN).prop_map(|addresses| Message::NeighbourProxy { addresses }),
        vec((address(), any::<u8>().prop_map(NeighbourProxyStatus::from_number)), 0..=MAX_STOOD_IN)
            .prop_map(|addresses| Message::StandingIn { addresses }),
        (address(), endpoint(), vec(any::<u8>(), 0..=MAX_PASSED_ON))
            .prop_map(|(left, source, datagram)| Message::PassedOn { left, source, datagram }),
        (any::<u64>(), any::<bool>(), any::<u32>(), vec(any::<u8>(), 0..=MAX_STRETCH)).prop_map(
            |(stream, fresh, offset, bytes)| {
                Message::Stream(Stretch { stream, fresh, offset: u64::from(offset), bytes })
            }
        ),
        received().prop_map(Message::Received),
        community().prop_map(Message::Community),
        any::<u8>().prop_map(|reason| Message::Close { reason: CloseReason::from_number(reason) }),
    ]
}

fn chain_request() -> impl Strategy<Value = ChainRequest> {
    let parameters = btree_map(any::<u8>(), any::<u64>(), 0..=MAX_PARAMETERS);
    let parameters = parameters.prop_map(|all| {
        let all = all.into_iter().map(|(number, value)| Parameter { number, value });
        all.collect::<Vec<_>>()
    });
    let stage = (any::<u16>(), any::<u8>(), parameters).prop_map(|(transform, version, parameters)| Stage {
        transform: TransformId(transform),
        version,
        parameters,
    });
    let spec = vec(stage, 1..=MAX_STAGES).prop_map(|stages| ChainSpec::new(stages).unwrap());
    let chain = (1..=255_u8, any::<bool>(), spec).prop_map(|(number, known, spec)| NamedChain {
        number: ChainNumber::new(number).unwrap(),
        known,
        spec,
    });
    (any::<u32>(), any::<u32>(), option::of(chain)).prop_map(|(number, binding, chain)| ChainRequest {
        number,
        binding: BindingNumber(binding),
        chain,
    })
}

fn statement() -> impl Strategy<Value = Statement> {
    let keys = (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>());
    (keys, any::<u32>(), any::<u8>(), "[a-zäß ]{1,20}").prop_map(|((host, r, s), serial, standing, name)| Statement {
        host,
        serial,
        standing: MemberStanding::from_number(standing),
        name,
        signature: [r, s].concat().try_into().unwrap(),
    })
}

fn community() -> impl Strategy<Value = Word> {
    let key = any::<[u8; 32]>;
    let at = prop_oneof![Just(None), endpoint().prop_filter("a port", |at| at.port() != 0).prop_map(Some)];
    prop_oneof![
        (any::<u16>(), any::<u8>(), key()).prop_map(|(number, purpose, element)| Word::Join {
            number,
            purpose: JoinPurpose::from_number(purpose),
            element
        }),
        (any::<u16>(), key()).prop_map(|(number, element)| Word::JoinAnswer { number, element }),
        (any::<u16>(), key(), "[a-zäß ]{1,20}").prop_map(|(number, proof, name)| Word::JoinProof {
            number,
            proof,
            name
        }),
        (any::<u16>(), key(), key(), any::<Option<[u8; 32]>>(), any::<u32>()).prop_map(
            |(number, proof, community, secret, lifetime)| {
                let secret = secret.map(CommunitySecret);
                Word::Joined(Joined { number, proof, community, secret, lifetime })
            }
        ),
        (any::<u16>(), any::<u8>())
            .prop_map(|(number, refusal)| Word::JoinRefused { number, refusal: JoinRefusal::from_number(refusal) }),
        (key(), any::<[u8; 16]>(), any::<bool>()).prop_map(|(community, digest, asks)| Word::RosterState {
            community,
            digest,
            asks
        }),
        (key(), vec((statement(), at), 0..=MAX_STATEMENTS))
            .prop_map(|(community, statements)| Word::Roster { community, statements }),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    (1..=255_u8, any::<u32>(), any::<[u64; 2]>(), vec(address(), 0..=MAX_LOCATORS), any::<u16>()).prop_map(
        |(version, capabilities, [timestamp, life], locators, tcp_port)| Hello {
            version,
            capabilities: Capabilities(capabilities),
            timestamp,
            life,
            locators,
            tcp_port,
        },
    )
}

proptest! {
    #[test]
    fn messages_come_back(messages in vec(message(), 0..20)) {
        let mut encoded = Vec::new();
        let mut expected_len = 0;
        for message in &messages {
            message.encode(&mut encoded);
            expected_len += message.encoded_len();
            prop_assert_eq!(encoded.len(), expected_len);
        }
        prop_assert_eq!(decode_all(&encoded), Ok(messages));
    }

    /// What is read is what would be written, so that no two spellings mean the same.
    #[test]
    fn messages_are_spelled_one_way(mut bytes in vec(any::<u8>(), 0..300), number in any::<u8>()) {
        // A right type and length, else hardly anything is read.
        if bytes.len() >= 3 {
            let length = bytes.len() as u16 - 3;
            bytes[0] = number % 0x68;
            bytes[1..3].copy_from_slice(&length.to_be_bytes());
        }
        if let Ok(messages) = decode_all(&bytes) {
            for message in messages {
                let mut encoded = Vec::new();
                message.encode(&mut encoded);
                if !matches!(message, Message::Padding { .. }) {
                    prop_assert_eq!(&encoded, &bytes);
                }
            }
        }
    }

    #[test]
    fn records_are_spelled_one_way(mut bytes in vec(any::<u8>(), 3..300), kind in 0..18_u8) {
        let length = bytes.len() as u16 - 3;
        bytes[0] = kind;
        bytes[1..3].copy_from_slice(&length.to_be_bytes());
        if let Ok(Some((Some(record), whole))) = Record::decode(&bytes) {
            let mut encoded = Vec::new();
            record.encode(&mut encoded);
            prop_assert_eq!(whole, bytes.len());
            prop_assert_eq!(encoded, bytes);
        }
    }

    #[test]
    fn many_closed_flows_become_several_messages(count in 0..3 * MAX_CLOSED) {
        let nonces: Vec<u64> = (0..count as u64).collect();
        let message = Message::FlowClosed(nonces.clone());
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        prop_assert_eq!(encoded.len(), message.encoded_len());
        let mut read = Vec::new();
        for message in decode_all(&encoded).unwrap() {
            let Message::FlowClosed(some) = message else { panic!("{message:?}") };
            prop_assert!(some.len() <= MAX_CLOSED);
            read.extend(some);
        }
        prop_assert_eq!(read, nonces);
    }

    #[test]
    fn hellos_come_back(hello in hello(), padding in 0..100_usize) {
        let mut encoded = Vec::new();
        hello.encode(&mut encoded);
        prop_assert_eq!(encoded.len(), hello.encoded_len());
        encoded.resize(encoded.len() + padding, 0);
        prop_assert_eq!(Hello::decode(&encoded), Ok(hello));
    }

    #[test]
    fn introductions_come_back(index in any::<u32>(), nonce in any::<u64>(), no_operations in 0..=24_usize) {
        let introduction = Introduction { index, nonce };
        prop_assert_eq!(Introduction::from_udp_payload(&introduction.udp_payload()), Some(introduction));
        let mut options = vec![1; no_operations];
        options.extend(introduction.tcp_option());
        prop_assert_eq!(Introduction::in_tcp_options(&options), Some(introduction));
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in vec(any::<u8>(), 0..1500), kind in any::<u8>()) {
        let _ = decode_all(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = Introduction::in_tcp_options(&bytes);
        let _ = Introduction::from_udp_payload(&bytes);
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind % 0x22;
        }
        let _ = Datagram::parse(&bytes);
    }
}
