//! `[gateway]`: hosts that this one speaks for.

use std::ops::Range;

use whimbrel_protocol::Prefix;

use super::value::{Mistake, Section, Value, array, boolean, prefix, subtable};

/// Each costs a rule of routing.
const MOST: usize = 64;

/// `[gateway]`; one without `behind` names nobody. With where `behind` is, unless anybody may come through.
pub(super) fn gateway(value: Value<'_, '_>) -> Result<(Vec<Prefix>, Option<Range<usize>>), Mistake> {
    let mut section = Section::new(subtable(value, "gateway")?);
    let behind = section.take("behind");
    let anybody = section.take("anybody").map(|value| boolean(value, "anybody")).transpose()?.unwrap_or(false);
    section.finish()?;
    let Some(value) = behind else { return Ok((Vec::new(), None)) };
    let elements = array(value, "behind", "a list of prefixes such as [\"198.51.100.0/24\", \"2001:db8:5::/64\"]")?;
    if elements.len() > MOST {
        return Err(Mistake::new(value.span(), format!("`behind` must have at most {MOST} prefixes")));
    }
    let one = |element| {
        let prefix = prefix(element, "behind")?;
        if prefix.length == 0 {
            return Err(Mistake::new(
                element.span(),
                "`behind` names everybody; it must name the hosts behind this one",
            ));
        }
        Ok(prefix)
    };
    Ok((elements.iter().map(one).collect::<Result<_, _>>()?, (!anybody).then(|| value.span())))
}
