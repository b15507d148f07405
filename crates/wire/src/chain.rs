//! Chains of transforms, as the ends of a session agree on them (`docs/protocol.md` §7): types 0x35 and 0x36.

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU8;

use crate::binding::BindingNumber;
use crate::codec::{Malformed, Reader, put_u16, put_u32, put_u64};
use crate::message::byte_enum;

/// Names a kind of transform. The registry of `transform` says which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransformId(pub u16);

/// What the datagrams of a chain bear. The empty chain, which bears 0, is the absence of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainNumber(NonZeroU8);

impl ChainNumber {
    /// The number with this value; `None` for 0, which is the empty chain's.
    #[must_use]
    pub const fn new(value: u8) -> Option<Self> {
        match NonZeroU8::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Its value.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl From<ChainNumber> for NonZeroU8 {
    fn from(number: ChainNumber) -> Self {
        number.0
    }
}

impl fmt::Display for ChainNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A parameter of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Which of the transform's.
    pub number: u8,
    /// Its value.
    pub value: u64,
}

/// One transform of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which.
    pub transform: TransformId,
    /// In which version.
    pub version: u8,
    /// Rising by number. Those that are left out have the value that the transform gives them.
    pub parameters: Vec<Parameter>,
}

/// The transforms of a chain that is not empty, in the order in which packets that leave go through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec(Vec<Stage>);

/// A chain cannot be said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSpec;

impl fmt::Display for InvalidSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a chain has 1 to {MAX_STAGES} transforms, each with {MAX_PARAMETERS} parameters at most, in order")
    }
}

impl core::error::Error for InvalidSpec {}

impl ChainSpec {
    /// The chain of these transforms.
    ///
    /// # Errors
    /// [`InvalidSpec`] if there is none, or more than [`MAX_STAGES`], or one with more than [`MAX_PARAMETERS`]
    /// parameters, or with parameters that do not rise.
    pub fn new(stages: Vec<Stage>) -> Result<Self, InvalidSpec> {
        let rises = |stage: &Stage| stage.parameters.is_sorted_by(|one, other| one.number < other.number);
        let fits = |stage: &Stage| stage.parameters.len() <= MAX_PARAMETERS && rises(stage);
        let valid = !stages.is_empty() && stages.len() <= MAX_STAGES && stages.iter().all(fits);
        valid.then_some(Self(stages)).ok_or(InvalidSpec)
    }

    /// Its transforms.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.0
    }

    /// Whether it has the same transforms in the same versions, whatever their parameters.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        let kinds = |spec: &Self| spec.0.iter().map(|stage| (stage.transform, stage.version)).collect::<Vec<_>>();
        kinds(self) == kinds(other)
    }

    fn encoded_len(&self) -> usize {
        1 + self.0.iter().map(|stage| STAGE_LEN + PARAMETER_LEN * stage.parameters.len()).sum::<usize>()
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        for stage in &self.0 {
            put_u16(out, stage.transform.0);
            out.push(stage.version);
            out.push(stage.parameters.len() as u8);
            for parameter in &stage.parameters {
                out.push(parameter.number);
                put_u64(out, parameter.value);
            }
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let invalid = body.malformed("transforms of a chain");
        let count = usize::from(body.u8("count of transforms")?);
        if count > MAX_STAGES {
            return Err(invalid);
        }
        let stages = (0..count).map(|_| read_stage(body)).collect::<Result<_, _>>()?;
        Self::new(stages).map_err(|InvalidSpec| invalid)
    }
}

fn read_stage(body: &mut Reader<'_>) -> Result<Stage, Malformed> {
    let (transform, version) = (TransformId(body.u16("transform")?), body.u8("version of a transform")?);
    let too_many = body.malformed("count of parameters");
    let count = usize::from(body.u8("count of parameters")?);
    if count > MAX_PARAMETERS {
        return Err(too_many);
    }
    let mut read = || Ok(Parameter { number: body.u8("parameter")?, value: body.u64("value of a parameter")? });
    let parameters = (0..count).map(|_| read()).collect::<Result<_, _>>()?;
    Ok(Stage { transform, version, parameters })
}

/// Type 0x35: asks the receiver to lead the packets of a binding through a chain, as the sender will; until it is
/// answered it is repeated (P-170).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRequest {
    /// Rises with each such message of a sender's; comes back in the answer.
    pub number: u32,
    /// Which binding's.
    pub binding: BindingNumber,
    /// The chain; `None` is the empty one.
    pub chain: Option<NamedChain>,
}

/// A chain with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedChain {
    /// Its number.
    pub number: ChainNumber,
    /// The sender takes the receiver to know it already: it is to be used, with these parameters. Else it is a new one.
    pub known: bool,
    /// Its transforms.
    pub spec: ChainSpec,
}

impl ChainRequest {
    pub(crate) fn encoded_len(&self) -> usize {
        REQUEST_LEN + self.chain.as_ref().map_or(1, |chain| chain.spec.encoded_len())
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.number);
        put_u32(out, self.binding.0);
        match &self.chain {
            None => out.extend_from_slice(&[0; 3]),
            Some(chain) => {
                out.extend_from_slice(&[chain.number.get(), u8::from(chain.known)]);
                chain.spec.put(out);
            }
        }
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, binding) = (body.u32("number")?, BindingNumber(body.u32("binding")?));
        let chain = ChainNumber::new(body.u8("chain")?);
        let invalid = body.malformed("whether a chain is known");
        let known = body.u8("whether a chain is known")?;
        if known > u8::from(chain.is_some()) {
            return Err(invalid);
        }
        let Some(chain) = chain else {
            let invalid = body.malformed("count of transforms of the empty chain");
            return if body.u8("count of transforms")? == 0 {
                Ok(Self { number, binding, chain: None })
            } else {
                Err(invalid)
            };
        };
        let chain = NamedChain { number: chain, known: known == 1, spec: ChainSpec::read(body)? };
        Ok(Self { number, binding, chain: Some(chain) })
    }
}

/// Type 0x36: the answer to [`ChainRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainAnswer {
    /// As in the request.
    pub number: u32,
    /// As in the request.
    pub binding: BindingNumber,
    /// The answering end's own requests up to this number are settled, or withdrawn: what still comes of them is void.
    pub settled: u32,
    /// The chain that the answering end has in force now; `None` is the empty one.
    pub in_force: Option<ChainNumber>,
    /// What became of the request.
    pub status: ChainStatus,
    /// Which transform of the chain the status is about, counted from 0; 0 where it is about none.
    pub stage: u8,
}

impl ChainAnswer {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.number);
        put_u32(out, self.binding.0);
        put_u32(out, self.settled);
        out.extend_from_slice(&[self.in_force.map_or(0, ChainNumber::get), self.status.number(), self.stage]);
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: body.u32("number")?,
            binding: BindingNumber(body.u32("binding")?),
            settled: body.u32("number of settled requests")?,
            in_force: ChainNumber::new(body.u8("chain in force")?),
            status: ChainStatus::from_number(body.u8("status of a chain")?),
            stage: body.u8("transform of a chain")?,
        })
    }
}

byte_enum! {
    /// What became of a request for a chain. With all but the first, what was in force before is still.
    ChainStatus {
        /// It is in force.
        InForce = 0,
        /// The number is not newer than the newest one of the sender's.
        NotNewer = 1,
        /// The peer does not want this, could not make it so, or has no such binding.
        Refused = 2,
        /// A transform is not known.
        UnknownTransform = 3,
        /// A transform is not known in this version.
        UnknownVersion = 4,
        /// A transform has no such parameter, or it may not have such a value.
        BadParameter = 5,
        /// The chain is too long, or there are too many.
        NoRoom = 6,
        /// The peer has a request of its own under way, which goes first.
        Crossed = 7,
        /// A chain that is taken to be known is not, or a new one has a number that is in use or not the sender's to
        /// give.
        OtherChain = 8,
    }
}

/// Most transforms that a chain can be said with.
pub const MAX_STAGES: usize = 8;
/// Most parameters of a transform that can be said.
pub const MAX_PARAMETERS: usize = 8;
/// Length of an answer, in bytes.
pub(crate) const ANSWER_LEN: usize = 15;
/// Length of a request before its transforms.
const REQUEST_LEN: usize = 10;
/// Length of a transform without its parameters.
const STAGE_LEN: usize = 4;
const PARAMETER_LEN: usize = 9;
