//! Which transforms there are, by the names that the ends of a session have for them, and how a chain is made of what
//! was agreed on.

use std::ops::RangeInclusive;

use whimbrel_wire::chain::ChainStatus;
use whimbrel_wire::{ChainSpec, Stage, TransformId};

use crate::chain::Chain;
use crate::transform::Transform;

/// The transforms of this program.
pub const KNOWN: Registry = Registry(&[]);

/// A kind of transform.
#[derive(Debug)]
pub struct Kind {
    /// What the wire calls it.
    pub id: TransformId,
    /// What people call it.
    pub name: &'static str,
    /// Versions of what it says to the other end.
    pub versions: RangeInclusive<u8>,
    /// Its parameters.
    pub parameters: &'static [ParameterKind],
    /// Makes one that speaks this version.
    pub make: fn(version: u8) -> Box<dyn Transform>,
}

/// A parameter of a kind of transform.
#[derive(Debug)]
pub struct ParameterKind {
    /// What the wire calls it.
    pub number: u8,
    /// What [`Transform::set_parameter`] calls it.
    pub name: &'static str,
    /// What it may be.
    pub range: RangeInclusive<u64>,
    /// What it is where nobody says.
    pub default: u64,
}

/// A chain cannot be made, or changed, so. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transform {stage} of the chain: {status:?}")]
pub struct SpecError {
    /// Which transform of the chain, counted from 0.
    pub stage: u8,
    /// Why, as the other end is told.
    pub status: ChainStatus,
}

/// Kinds of transforms.
#[derive(Clone, Copy, Debug)]
pub struct Registry(pub &'static [Kind]);

impl Registry {
    /// Makes a chain.
    ///
    /// # Errors
    /// [`SpecError`] if a transform is not known, or may not have such parameters.
    pub fn build(&self, spec: &ChainSpec) -> Result<Chain, SpecError> {
        let stages = self.checked(spec)?;
        let make = |(kind, stage): &(&Kind, &Stage)| (kind.make)(stage.version);
        let mut chain = Chain::new(stages.iter().map(make).collect());
        set_all(&mut chain, &stages)?;
        Ok(chain)
    }

    /// Changes the parameters of a chain that was made of these transforms, all or none.
    ///
    /// # Errors
    /// [`SpecError`] if a transform is not known or not at this place of the chain, or may not have such parameters.
    pub fn set_parameters(&self, chain: &mut Chain, spec: &ChainSpec) -> Result<(), SpecError> {
        let stages = self.checked(spec)?;
        let before: Vec<_> = chain.parameters().collect();
        let alike = before.len() == stages.len();
        if !alike || stages.iter().zip(&before).any(|((kind, _), (name, _))| kind.name != *name) {
            return Err(SpecError { stage: 0, status: ChainStatus::OtherChain });
        }
        set_all(chain, &stages).inspect_err(|_| {
            for (at, (_, parameters)) in before.iter().enumerate() {
                for (name, value) in parameters {
                    // It had this value.
                    let _ = chain.set_parameter(at, name, *value);
                }
            }
        })
    }

    fn checked<'a>(&self, spec: &'a ChainSpec) -> Result<Vec<(&'static Kind, &'a Stage)>, SpecError> {
        let check = |(at, stage): (usize, &'a Stage)| {
            let error = |status| SpecError { stage: at as u8, status };
            let kind = self.0.iter().find(|kind| kind.id == stage.transform);
            let kind = kind.ok_or(error(ChainStatus::UnknownTransform))?;
            if !kind.versions.contains(&stage.version) {
                return Err(error(ChainStatus::UnknownVersion));
            }
            let fits = stage.parameters.iter().all(|of| {
                kind.parameters.iter().any(|known| known.number == of.number && known.range.contains(&of.value))
            });
            if fits { Ok((kind, stage)) } else { Err(error(ChainStatus::BadParameter)) }
        };
        spec.stages().iter().enumerate().map(check).collect()
    }
}

fn set_all(chain: &mut Chain, stages: &[(&Kind, &Stage)]) -> Result<(), SpecError> {
    for (at, (kind, stage)) in stages.iter().enumerate() {
        for parameter in kind.parameters {
            let said = stage.parameters.iter().find(|said| said.number == parameter.number);
            let value = said.map_or(parameter.default, |said| said.value);
            let refused = SpecError { stage: at as u8, status: ChainStatus::BadParameter };
            chain.set_parameter(at, parameter.name, value).map_err(|_| refused)?;
        }
    }
    Ok(())
}
