//! Why a task could not be done.

use std::fmt;

/// A sentence for the developer who started the task.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Says on which object something failed.
pub(crate) trait OnObject<T> {
    /// The failure as `doing object: cause`.
    fn failed(self, doing: &str, object: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OnObject<T> for Result<T, E> {
    fn failed(self, doing: &str, object: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|cause| Failure(format!("cannot {doing} {object}: {cause}")))
    }
}
