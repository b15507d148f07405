//! Messages as they go over the wire. What values mean there is zbus's to know; which fields a message has is here.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use zbus::wire::{Endian, LE, Type, serialized::Context, serialized::Data, to_bytes};
use zbus::{ObjectPath, OwnedVariant, Signature, Str, Variant};

use crate::BusError;

/// What comes before the fields of a header, with the length of these.
pub(crate) const FIXED: usize = 16;

/// No service has so much to say: a longer message is left out.
pub(crate) const MOST: usize = 1 << 20;
/// The specification lets no message be longer.
const LONGEST: usize = 1 << 27;

/// A service that is not there is not started for this.
const NO_AUTO_START: u8 = 2;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;

/// Values by their names.
pub(crate) type Properties = HashMap<String, OwnedVariant>;

type Header<'a> = (u8, u8, u8, u8, u32, u32, Vec<(u8, Variant<'a>)>);

/// What comes with a message.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    bytes: Data<'static, 'static>,
    signature: Signature,
}

impl Body {
    /// What it says, where it is of this type.
    pub(crate) fn read<'a, T: Deserialize<'a> + Type>(&'a self) -> Result<T, BusError> {
        if *T::SIGNATURE != self.signature {
            let what = format!("`{}` where `{}` is expected", self.signature, T::SIGNATURE);
            return Err(BusError::Nonsense(what));
        }
        Ok(self.bytes.deserialize()?.0)
    }
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An answer to the call with this number.
    Return(u32),
    /// As that, but it could not be done.
    Error(u32, String),
    Signal(Signal),
    /// A call of something that this is not.
    Call,
}

/// Something has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) path: String,
    pub(crate) interface: String,
    pub(crate) member: String,
}

/// What comes from the bus.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// The bus vouches for it.
    pub(crate) sender: Option<String>,
    pub(crate) body: Body,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) destination: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
    /// Whether what is asked is started where it is not there.
    pub(crate) starts: bool,
}

impl Call<'_> {
    pub(crate) fn encode<T: Serialize + Type>(&self, serial: u32, body: &T) -> Result<Vec<u8>, BusError> {
        let text = |text: &str| Variant::Str(Str::from(text.to_owned()));
        let path = ObjectPath::try_from(self.path).map_err(|_| BusError::Nonsense(self.path.to_owned()))?;
        let fields = vec![
            (PATH, Variant::ObjectPath(path)),
            (INTERFACE, text(self.interface)),
            (MEMBER, text(self.member)),
            (DESTINATION, text(self.destination)),
        ];
        let flags = if self.starts { 0 } else { NO_AUTO_START };
        encode([CALL, flags], serial, fields, body)
    }
}

fn encode<T: Serialize + Type>(
    [kind, flags]: [u8; 2],
    serial: u32,
    fields: Vec<(u8, Variant<'_>)>,
    body: &T,
) -> Result<Vec<u8>, BusError> {
    let context = Context::new(LE, 0);
    let body = to_bytes(context, body)?;
    let length = u32::try_from(body.len()).map_err(|_| BusError::Nonsense("too long".to_owned()))?;
    let header: Header<'_> = (b'l', kind, flags, 1, length, serial, fields);
    let mut bytes = to_bytes(context, &header)?.bytes().to_vec();
    if *T::SIGNATURE != Signature::Unit {
        // Several values are no structure here, as which a variant would be written: so this field is written by hand.
        let signature = T::SIGNATURE.to_string_no_parens();
        let count = u8::try_from(signature.len()).map_err(|_| BusError::Nonsense("too many values".to_owned()))?;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend_from_slice(&[SIGNATURE, 1, b'g', 0, count]);
        bytes.extend_from_slice(signature.as_bytes());
        bytes.push(0);
        let fields = u32::try_from(bytes.len() - FIXED).unwrap_or(u32::MAX);
        bytes[FIXED - 4..FIXED].copy_from_slice(&fields.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend_from_slice(body.bytes());
    Ok(bytes)
}

/// How long the message is that begins so.
pub(crate) fn length(begin: &[u8; FIXED]) -> Result<usize, BusError> {
    let endian = endian(begin[0])?;
    let number = |at: usize| endian.read_u32(&begin[at..at + 4]) as usize;
    let (body, fields) = (number(4), number(12));
    let length = body.saturating_add(fields.saturating_add(FIXED).next_multiple_of(8));
    match length > LONGEST {
        true => Err(BusError::Nonsense(format!("a message of {length} bytes"))),
        false => Ok(length),
    }
}

fn endian(sign: u8) -> Result<Endian, BusError> {
    match sign {
        b'l' => Ok(Endian::Little),
        b'B' => Ok(Endian::Big),
        _ => Err(BusError::Nonsense(format!("a message that begins with {sign}"))),
    }
}

/// What these bytes mean, which are as many as [`length`] said.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<Message, BusError> {
    let missing = |what: &str| BusError::Nonsense(format!("a message without {what}"));
    let endian = endian(*bytes.first().ok_or_else(|| missing("bytes"))?)?;
    let data = Data::new(bytes, Context::new(endian, 0));
    let (header, read): (Header<'_>, usize) = data.deserialize()?;
    let (_, kind, _, version, _, _, fields) = header;
    if version != 1 {
        return Err(BusError::Nonsense(format!("version {version} of the protocol")));
    }
    let field = |code: u8| fields.iter().find(|(found, _)| *found == code).map(|(_, value)| value);
    let text = |code: u8| match field(code) {
        Some(Variant::Str(text)) => Some(text.to_string()),
        Some(Variant::ObjectPath(path)) => Some(path.to_string()),
        _ => None,
    };
    let signature = match field(SIGNATURE) {
        Some(Variant::Signature(signature)) => signature.clone(),
        _ => Signature::Unit,
    };
    let answered = || match field(REPLY_SERIAL) {
        Some(Variant::U32(serial)) => Ok(*serial),
        _ => Err(missing("what it answers")),
    };
    let required = |code: u8, what: &str| text(code).ok_or_else(|| missing(what));
    let kind = match kind {
        RETURN => Kind::Return(answered()?),
        ERROR => Kind::Error(answered()?, required(ERROR_NAME, "the error's name")?),
        SIGNAL => Kind::Signal(Signal {
            path: required(PATH, "a path")?,
            interface: required(INTERFACE, "an interface")?,
            member: required(MEMBER, "a name")?,
        }),
        // What is not known is ignored, as the specification wants.
        _ => Kind::Call,
    };
    let sender = text(SENDER);
    let begin = read.next_multiple_of(8).min(data.len());
    let body = Data::new(data.bytes()[begin..].to_vec(), Context::new(endian, 0));
    Ok(Message { kind, sender, body: Body { bytes: body, signature } })
}

/// What a bus says, for tests.
#[cfg(test)]
pub(crate) mod told {
    use super::*;

    fn named(sender: &str) -> (u8, Variant<'static>) {
        (SENDER, Variant::Str(Str::from(sender.to_owned())))
    }

    /// What a call asks for.
    pub(crate) struct Asked {
        pub(crate) serial: u32,
        pub(crate) member: String,
        pub(crate) path: String,
        /// What it is about, where that is a word.
        pub(crate) about: Option<String>,
    }

    pub(crate) fn asked(bytes: Vec<u8>) -> Asked {
        let data = Data::new(bytes, Context::new(LE, 0));
        let (header, read): (Header<'_>, usize) = data.deserialize().expect("a header");
        let text = |code: u8| match header.6.iter().find(|(found, _)| *found == code) {
            Some((_, Variant::Str(text))) => text.to_string(),
            Some((_, Variant::ObjectPath(path))) => path.to_string(),
            other => panic!("{other:?}"),
        };
        let body = Data::new(data.bytes()[read.next_multiple_of(8)..].to_vec(), Context::new(LE, 0));
        let about = body.deserialize::<String>().ok().map(|(text, _)| text);
        Asked { serial: header.5, member: text(MEMBER), path: text(PATH), about }
    }

    pub(crate) fn answer<T: Serialize + Type>(to: u32, sender: &str, body: &T) -> Vec<u8> {
        encode([RETURN, 1], 7, vec![(REPLY_SERIAL, Variant::U32(to)), named(sender)], body).expect("bytes")
    }

    pub(crate) fn error(to: u32, sender: &str, name: &str) -> Vec<u8> {
        let name = Variant::Str(Str::from(name.to_owned()));
        let fields = vec![(REPLY_SERIAL, Variant::U32(to)), named(sender), (ERROR_NAME, name)];
        encode([ERROR, 1], 7, fields, &"it cannot").expect("bytes")
    }

    pub(crate) fn signal<T: Serialize + Type>(sender: &str, signal: &Signal, body: &T) -> Vec<u8> {
        let text = |text: &str| Variant::Str(Str::from(text.to_owned()));
        let path = ObjectPath::try_from(signal.path.clone()).expect("a path");
        let fields = vec![
            (PATH, Variant::ObjectPath(path)),
            (INTERFACE, text(&signal.interface)),
            (MEMBER, text(&signal.member)),
            named(sender),
        ];
        encode([SIGNAL, 1], 7, fields, body).expect("bytes")
    }

    pub(crate) fn body<T: Serialize + Type>(body: &T) -> Body {
        decode(answer(1, ":1.1", body)).expect("a message").body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let signal = Signal { path: "/a/b".into(), interface: "a.b".into(), member: "C".into() };
        let bytes = told::signal(":1.5", &signal, &("x", 5u32));
        assert_eq!(length(bytes.first_chunk().unwrap()).unwrap(), bytes.len());
        let written = bytes.clone();
        let message = decode(bytes).unwrap();
        assert_eq!((&message.kind, message.sender.as_deref()), (&Kind::Signal(signal), Some(":1.5")));
        assert_eq!(message.body.read::<(String, u32)>().unwrap(), ("x".to_owned(), 5));
        assert!(message.body.read::<String>().is_err(), "it is of another type");
        // The signature that stands there is that of two values, and not of a structure.
        assert!(written.windows(5).any(|bytes| bytes == [1, b'g', 0, 2, b's']), "{written:?}");
        let error = decode(told::error(3, ":1.5", "a.b.C")).unwrap();
        assert_eq!(error.kind, Kind::Error(3, "a.b.C".into()));
    }

    #[test]
    fn no_bytes_do_harm() {
        let signal = Signal { path: "/a/b".into(), interface: "a.b".into(), member: "C".into() };
        let good = told::signal(":1.5", &signal, &Properties::from([("k".into(), OwnedVariant::from(1u32))]));
        // Each byte as each of several others, and each beginning: whatever comes of it is no panic.
        for at in 0..good.len() {
            for with in [0, 1, 7, 0x7f, 0xff, good[at] ^ 0x20] {
                let mut bad = good.clone();
                bad[at] = with;
                let _ = length(bad.first_chunk().unwrap());
                let _ = decode(bad).map(|message| message.body.read::<Properties>().is_ok());
            }
            let _ = decode(good[..at].to_vec());
        }
        let mut large = *good.first_chunk().unwrap();
        large[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(length(&large).is_err());
    }
}
