//! What the caller's policy wants for a flow.

use whimbrel_handshake::PublicKey;

use crate::base::op::Manner;

/// What is wanted for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// It is left alone, by the caller's rule of this number, which means nothing here.
    pub excluded_by: Option<u32>,
    /// How it is treated otherwise.
    pub manner: Manner,
}

/// What is wanted for a flow, whoever turns out to be at its other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Where that is a peer of one of these keys.
    pub for_keys: Vec<(PublicKey, Rule)>,
    /// Where it is anybody else, or not known.
    pub otherwise: Rule,
}

impl Verdict {
    /// What is wanted for it with the peer of this key.
    #[must_use]
    pub fn with(&self, key: &PublicKey) -> Rule {
        self.for_keys.iter().find(|(named, _)| named == key).map_or(self.otherwise, |(_, rule)| *rule)
    }

    /// The rule that leaves it alone, whoever is at the other end.
    #[must_use]
    pub fn excluded_by(&self) -> Option<u32> {
        let all = self.for_keys.iter().all(|(_, rule)| rule.excluded_by.is_some());
        self.otherwise.excluded_by.filter(|_| all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_left_alone_whoever_is_there_only_if_no_key_is_excepted() {
        let (one, other) = (PublicKey::from([1; 32]), PublicKey::from([2; 32]));
        let left_alone = Rule { excluded_by: Some(7), manner: Manner::default() };
        let verdict = Verdict { for_keys: vec![(one, Rule::default())], otherwise: left_alone };
        assert_eq!(
            (verdict.excluded_by(), verdict.with(&one), verdict.with(&other)),
            (None, Rule::default(), left_alone)
        );
        let verdict = Verdict {
            for_keys: vec![(one, Rule { excluded_by: Some(3), manner: Manner::default() })],
            otherwise: left_alone,
        };
        assert_eq!(verdict.excluded_by(), Some(7));
        let verdict = Verdict { for_keys: vec![(one, left_alone)], otherwise: Rule::default() };
        assert_eq!(verdict.excluded_by(), None);
    }
}
