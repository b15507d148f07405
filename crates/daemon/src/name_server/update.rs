//! Messages of dynamic update (RFC 2136), signed (RFC 8945).

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::message_builder::PushError;
use domain::base::name::Name;
use domain::base::rdata::UnknownRecordData;
use domain::base::{Message, MessageBuilder, Ttl};
use domain::rdata::tsig::Time48;
use domain::rdata::{A, Aaaa};
use domain::tsig::{ClientTransaction, Key, ValidationError};

/// A name in the tree.
pub(crate) type DomainName = Name<Vec<u8>>;

/// What a server is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    /// The zone that is changed.
    pub(crate) zone: &'a DomainName,
    /// The name that gets addresses.
    pub(crate) name: &'a DomainName,
    /// Records that are deleted, and no others.
    pub(crate) remove: &'a [IpAddr],
    /// Records that are made.
    pub(crate) add: &'a [IpAddr],
    /// How long others may remember these, in seconds.
    pub(crate) ttl: u32,
}

/// What a server says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// It is not, and why: what it said (RFC 2136 §2.2, RFC 8945 §5.3), and what to do about it.
    Refused { code: String, advice: &'static str },
}

/// A change on its way.
pub(crate) struct Asked {
    transaction: ClientTransaction<Key>,
    id: u16,
    pub(crate) datagram: Vec<u8>,
}

impl Change<'_> {
    /// The message that asks for it, signed.
    pub(crate) fn ask(&self, key: Key, id: u16, now: SystemTime) -> Result<Asked, PushError> {
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(id);
        message.header_mut().set_opcode(Opcode::UPDATE);
        // The sections are called zone, prerequisite and update here (RFC 2136 §2).
        let mut zone = message.question();
        zone.push((self.zone, Rtype::SOA, Class::IN))?;
        let mut prerequisite = zone.answer();
        // A server ignores addresses beside an alias without a word (§3.4.2.2).
        let none: [u8; 0] = [];
        if let Ok(alias) = UnknownRecordData::from_octets(Rtype::CNAME, none) {
            prerequisite.push((self.name, Class::NONE, Ttl::ZERO, alias))?;
        }
        let mut update = prerequisite.authority();
        for (addresses, class, ttl) in
            [(self.remove, Class::NONE, Ttl::ZERO), (self.add, Class::IN, Ttl::from_secs(self.ttl))]
        {
            for address in addresses {
                match address {
                    IpAddr::V4(address) => update.push((self.name, class, ttl, A::from(*address)))?,
                    IpAddr::V6(address) => update.push((self.name, class, ttl, Aaaa::from(*address)))?,
                }
            }
        }
        let mut message = update.additional();
        let transaction = ClientTransaction::request(key, &mut message, time(now))?;
        Ok(Asked { transaction, id, datagram: message.finish() })
    }
}

impl Asked {
    /// Reads what came back; `None` where it is no answer to this. `Err`: it is one, but nothing shows that the server
    /// wrote it.
    pub(crate) fn read(&self, datagram: &[u8], now: SystemTime) -> Option<Result<Answer, Answer>> {
        let mut message = Message::from_octets(datagram.to_vec()).ok()?;
        let header = message.header();
        if header.id() != self.id || !header.qr() || header.opcode() != Opcode::UPDATE {
            return None;
        }
        let rcode = header.rcode();
        Some(match self.transaction.answer(&mut message, time(now)) {
            Ok(()) if rcode == Rcode::NOERROR => Ok(Answer::Done),
            Ok(()) => Ok(Answer::Refused { code: rcode.to_string(), advice: advice(rcode) }),
            Err(ValidationError::ServerBadKey) => Err(Answer::Refused {
                code: "BADKEY".to_owned(),
                advice: "the server does not know the key by this name and algorithm",
            }),
            Err(ValidationError::ServerBadSig | ValidationError::BadSig) => Err(Answer::Refused {
                code: "BADSIG".to_owned(),
                advice: "the server's key of this name has another secret",
            }),
            Err(ValidationError::ServerBadTime { .. } | ValidationError::BadTime) => Err(Answer::Refused {
                code: "BADTIME".to_owned(),
                advice: "the clocks of this host and of the server are more than five minutes apart",
            }),
            Err(_) if rcode != Rcode::NOERROR => {
                Err(Answer::Refused { code: rcode.to_string(), advice: "the server did not sign its answer" })
            }
            Err(_) => return None,
        })
    }
}

fn advice(rcode: Rcode) -> &'static str {
    match rcode {
        Rcode::REFUSED => {
            "the server does not let this key change this name: see `update-policy` or `allow-update` there"
        }
        Rcode::NOTAUTH => "the server is not the primary of this zone, or does not take this key",
        Rcode::NOTZONE => "the name is not in this zone",
        Rcode::YXRRSET => "the name is an alias (CNAME)",
        Rcode::NOTIMP => "the server takes no updates",
        Rcode::SERVFAIL => "the server's own log says why",
        _ => "see RFC 2136 §2.2",
    }
}

fn time(now: SystemTime) -> Time48 {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Time48::from_u64(seconds.min((1 << 48) - 1))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use domain::tsig::{Algorithm, KeyName, ServerTransaction};

    use super::*;

    fn name(text: &str) -> DomainName {
        Name::from_str(text).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new(Algorithm::Sha256, &[7; 32], KeyName::from_str(name).unwrap(), None, None).unwrap()
    }

    fn ask(now: SystemTime) -> Asked {
        let change = Change {
            zone: &name("roam.test"),
            name: &name("laptop.roam.test"),
            remove: &["192.0.2.9".parse().unwrap()],
            add: &["198.51.100.7".parse().unwrap(), "2001:db8::7".parse().unwrap()],
            ttl: 60,
        };
        change.ask(key("laptop-key"), 0x1234, now).unwrap()
    }

    /// As a server answers that has this key.
    fn answer(asked: &Asked, name: &str, rcode: Rcode, now: SystemTime) -> Vec<u8> {
        let mut message = Message::from_octets(asked.datagram.clone()).unwrap();
        let transaction = ServerTransaction::request(&key(name), &mut message, time(now));
        let mut answer = MessageBuilder::new_vec();
        match transaction {
            Ok(Some(transaction)) => {
                answer.header_mut().set_id(message.header().id());
                answer.header_mut().set_qr(true);
                answer.header_mut().set_opcode(Opcode::UPDATE);
                answer.header_mut().set_rcode(rcode);
                let mut answer = answer.additional();
                transaction.answer(&mut answer, time(now)).unwrap();
                answer.finish()
            }
            Ok(None) => panic!("not signed"),
            Err(error) => error.build_message(&message, answer).unwrap().finish(),
        }
    }

    #[test]
    fn a_change_is_asked_for_as_the_standard_has_it() {
        let asked = ask(UNIX_EPOCH);
        let hex: String = asked.datagram.iter().map(|byte| format!("{byte:02x}")).collect();
        let zone = "04726f616d047465737400";
        let name = format!("066c6170746f70{zone}");
        let expected = [
            "1234280000010001000300 01".replace(' ', ""),
            format!("{zone}00060001"),
            format!("{name}000500fe000000000000"),
            format!("{name}000100fe000000000004c0000209"),
            format!("{name}000100010000003c0004c6336407"),
            format!("{name}001c00010000003c001020010db8000000000000000000000007"),
        ]
        .concat();
        assert!(hex.starts_with(&expected), "{hex}\n{expected}");
        assert!(hex[expected.len()..].starts_with("0a6c6170746f702d6b65790000fa00ff"), "TSIG by name and class");
    }

    #[test]
    fn answers_are_believed_if_they_are_signed() {
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        const OWN: &str = "laptop-key";
        let asked = ask(now);
        assert_eq!(asked.read(&answer(&asked, OWN, Rcode::NOERROR, now), now), Some(Ok(Answer::Done)));
        let code = |answer: Option<Result<Answer, Answer>>| match answer {
            Some(Ok(Answer::Refused { code, .. })) => format!("signed {code}"),
            Some(Err(Answer::Refused { code, .. })) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(asked.read(&answer(&asked, OWN, Rcode::REFUSED, now), now)), "signed REFUSED");
        assert_eq!(code(asked.read(&answer(&asked, "other", Rcode::NOERROR, now), now)), "BADKEY");
        // Of another, changed, cut short, or not signed at all.
        let good = answer(&asked, OWN, Rcode::NOERROR, now);
        // But for class and TTL of the signature's own record, which mean nothing.
        for at in (0..good.len()).filter(|at| !(26..32).contains(at)) {
            let mut changed = good.clone();
            changed[at] ^= 1;
            assert_ne!(asked.read(&changed, now), Some(Ok(Answer::Done)), "byte {at}");
            assert_ne!(asked.read(&good[..at], now), Some(Ok(Answer::Done)));
        }
        assert_ne!(
            ask(now).read(&answer(&ask(UNIX_EPOCH), OWN, Rcode::NOERROR, UNIX_EPOCH), now),
            Some(Ok(Answer::Done))
        );
        let mut bare = vec![0x12, 0x34, 0xa8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(asked.read(&bare, now), None, "who forges it gains nothing");
        bare[3] = 5;
        assert_eq!(code(asked.read(&bare, now)), "REFUSED");
    }
}
