//! Requests and replies as lines of JSON.

use serde::{Deserialize, Serialize};

use crate::{Failure, MAX_STATE, Reply, Request};

/// The number of the schema that this crate speaks.
pub const SCHEMA: u32 = 1;

/// A daemon drops a client whose request line is longer than this, in bytes, unless it is a [`Request::Give`].
pub const MAX_REQUEST_LINE: usize = 16 * 1024;

/// How long the line of a [`Request::Give`] may be: as any other, and what a program may hand over with a socket
/// ([`MAX_STATE`]), as Base64.
pub const MAX_GIVE_LINE: usize = MAX_STATE.div_ceil(3) * 4 + MAX_REQUEST_LINE;

/// A line that is not of this schema.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// Not JSON, or not the members that are asked for.
    #[error("the line is not of the local API's schema: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Of another schema.
    #[error("the line is of schema {found}, and this program speaks schema {SCHEMA}")]
    Version {
        /// The line's.
        found: u32,
    },
}

impl From<SchemaError> for Failure {
    fn from(error: SchemaError) -> Self {
        let hint = match error {
            SchemaError::Malformed(_) => "docs/json.md describes the requests.",
            SchemaError::Version { .. } => "Use a client and a daemon of the same release.",
        };
        Self::new(error.to_string()).hint(hint)
    }
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    schema: u32,
    #[serde(flatten)]
    content: T,
}

/// Looks at the number alone, so that a line of another schema is told apart from a malformed one.
#[derive(Deserialize)]
struct Number {
    schema: u32,
}

/// A request as a line, newline included.
///
/// # Errors
/// When the request cannot be written as JSON.
pub fn request_to_line(request: &Request) -> Result<String, SchemaError> {
    to_line(request)
}

/// The request on a line.
///
/// # Errors
/// When the line is malformed or of another schema.
pub fn request_from_line(line: &str) -> Result<Request, SchemaError> {
    from_line(line)
}

/// A reply as a line, newline included.
///
/// # Errors
/// When the reply cannot be written as JSON.
pub fn reply_to_line(reply: &Reply) -> Result<String, SchemaError> {
    to_line(reply)
}

/// The reply on a line.
///
/// # Errors
/// When the line is malformed or of another schema.
pub fn reply_from_line(line: &str) -> Result<Reply, SchemaError> {
    from_line(line)
}

fn to_line<T: Serialize>(content: &T) -> Result<String, SchemaError> {
    let mut line = serde_json::to_string(&Line { schema: SCHEMA, content })?;
    line.push('\n');
    Ok(line)
}

fn from_line<T: for<'de> Deserialize<'de>>(line: &str) -> Result<T, SchemaError> {
    let Number { schema } = serde_json::from_str(line)?;
    if schema != SCHEMA {
        return Err(SchemaError::Version { found: schema });
    }
    Ok(serde_json::from_str::<Line<T>>(line)?.content)
}
