//! Local API: schema and blocking client.
