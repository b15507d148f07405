//! Chains that are made of what two ends have agreed on.

#[path = "support/pairs.rs"]
mod pairs;

use pairs::{PAIRS, REGISTRY};
use whimbrel_transform::{Chain, KNOWN, SpecError};
use whimbrel_wire::chain::{ChainStatus, Parameter};
use whimbrel_wire::{ChainSpec, Stage, TransformId};

fn stage(transform: TransformId, version: u8, parameters: &[(u8, u64)]) -> Stage {
    let parameters = parameters.iter().map(|(number, value)| Parameter { number: *number, value: *value }).collect();
    Stage { transform, version, parameters }
}

fn spec(stages: &[Stage]) -> ChainSpec {
    ChainSpec::new(stages.to_vec()).unwrap()
}

fn values(chain: &Chain) -> Vec<Vec<u64>> {
    chain.parameters().map(|(_, all)| all.into_iter().map(|(_, value)| value).collect()).collect()
}

#[test]
fn a_chain_is_made_with_what_is_said_and_else_with_defaults() {
    let chain = REGISTRY.build(&spec(&[stage(PAIRS, 1, &[(2, 900)]), stage(PAIRS, 2, &[])])).unwrap();
    assert_eq!(values(&chain), [[20_000, 900], [20_000, 65_000]]);
}

#[test]
fn what_is_not_known_is_refused_at_its_place() {
    let good = stage(PAIRS, 1, &[]);
    for (bad, status) in [
        (stage(TransformId(1), 1, &[]), ChainStatus::UnknownTransform),
        (stage(PAIRS, 3, &[]), ChainStatus::UnknownVersion),
        (stage(PAIRS, 0, &[]), ChainStatus::UnknownVersion),
        (stage(PAIRS, 1, &[(1, 1_000_001)]), ChainStatus::BadParameter),
        (stage(PAIRS, 1, &[(3, 0)]), ChainStatus::BadParameter),
    ] {
        let refused = REGISTRY.build(&spec(&[good.clone(), bad])).unwrap_err();
        assert_eq!(refused, SpecError { stage: 1, status });
    }
    assert_eq!(KNOWN.build(&spec(&[good])).unwrap_err().status, ChainStatus::UnknownTransform);
}

#[test]
fn parameters_change_all_or_none() {
    let two = |one: &[(u8, u64)], other: &[(u8, u64)]| spec(&[stage(PAIRS, 1, one), stage(PAIRS, 1, other)]);
    let mut chain = REGISTRY.build(&two(&[(1, 5)], &[(1, 6)])).unwrap();
    REGISTRY.set_parameters(&mut chain, &two(&[(1, 7), (2, 70)], &[])).unwrap();
    assert_eq!(values(&chain), [[7, 70], [20_000, 65_000]]);
    let refused = REGISTRY.set_parameters(&mut chain, &two(&[(1, 8)], &[(1, u64::MAX)]));
    assert_eq!(refused, Err(SpecError { stage: 1, status: ChainStatus::BadParameter }));
    let other = REGISTRY.set_parameters(&mut chain, &spec(&[stage(PAIRS, 1, &[])]));
    assert_eq!(other, Err(SpecError { stage: 0, status: ChainStatus::OtherChain }));
    assert_eq!(values(&chain), [[7, 70], [20_000, 65_000]]);
}
