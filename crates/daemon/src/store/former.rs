//! What a daemon of before has written: one object in a line, which has the name of what is put or removed.
//!
//! Its lines are turned into rows of today's tables, and stand among today's lines where there was no room to write the
//! file anew.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use whimbrel_handshake::PublicKey;
use whimbrel_wire::hex;

use super::log::Rows;

/// Takes in a line; `None`: it makes no sense.
pub(super) fn apply(rows: &mut Rows<'_>, line: &[u8]) -> Option<()> {
    let line: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let (tag, said) = line.into_iter().next()?;
    let mut put = |table: &'static str, key: Value, row: Option<Value>| {
        rows.insert((table.into(), key.to_string().into()), row.map(|row| Cow::Owned(row.to_string())));
    };
    let is = |said: &Value| said.as_bool().map(|is| is.then_some(Value::Bool(true)));
    match tag.as_str() {
        "peer" => put("peer", said.get("id")?.clone(), Some(peer(said)?)),
        "forget" => put("peer", said, None),
        "flow" => put("flow", flow(said.get("own")?)?, Some(entry(said)?)),
        "gone" => put("flow", flow(&said)?, None),
        "left" => put("left", flow(said.get("own")?)?, Some(entry(said)?)),
        "left_over" => put("left", flow(&said)?, None),
        "suspended" => put("suspended", Value::Null, is(&said)?),
        "lending_stopped" => put("lending-stopped", Value::Null, is(&said)?),
        "memory" => put("memory", Value::Null, Some(said)),
        "halted" => put("halted", said.get(0)?.clone(), Some(said.get(1)?.clone())),
        "halted_over" => put("halted", said, None),
        "donation" => put("donation", said.get("name")?.clone(), Some(donation(said)?)),
        "donation_over" => put("donation", said, None),
        "acceptance" => put("acceptance", said.get("name")?.clone(), Some(acceptance(said)?)),
        "acceptance_over" => put("acceptance", said, None),
        "held" => {
            let value = said.get("flow")?;
            put("held", json!([said.get("last")?.get(0)?, value]), None);
            put("held", json!([said.get("owner")?, value]), Some(held(said)?));
        }
        "held_over_with" => put("held", said, None),
        "lease" => put("lease", json!([said.get("tenant")?, said.get("number")?]), Some(lease(said)?)),
        "lease_over" => put("lease", said, None),
        "tenancy" => put("tenancy", json!([said.get("anchor")?, said.get("number")?]), Some(tenancy(said)?)),
        "tenancy_over_of" => put("tenancy", said, None),
        // Once no two had the same number.
        "held_over" => remove_numbered(rows, "held", said.as_u64()?),
        "tenancy_over" => remove_numbered(rows, "tenancy", said.as_u64()?),
        _ => return None,
    }
    Some(())
}

fn remove_numbered(rows: &mut Rows<'_>, of: &str, number: u64) {
    rows.retain(|(table, key), _| table.as_ref() != of || !key.ends_with(&format!(",{number}]")));
}

/// Protocol number, local, remote.
fn flow(tuple: &Value) -> Option<Value> {
    let transport = transport(tuple.get(0)?)?;
    Some(format!("{transport} {} -> {}", tuple.get(1)?.as_str()?, tuple.get(2)?.as_str()?).into())
}

fn transport(protocol: &Value) -> Option<&'static str> {
    match protocol.as_u64()? {
        6 => Some("tcp"),
        17 => Some("udp"),
        _ => None,
    }
}

/// The key of a row becomes bytes within another one.
fn bytes(key: &Value) -> Option<Value> {
    let key: PublicKey = key.as_str()?.parse().ok()?;
    Some(hex::print(key.as_bytes()).into())
}

/// Donor and number.
fn move_name(name: &Value) -> Option<Value> {
    Some(json!([bytes(name.get(0)?)?, name.get(1)?]))
}

fn entry(mut said: Value) -> Option<Value> {
    said["manner"] =
        json!([said.get("view").unwrap_or(&json!("virtual")), said.get("gives_way").unwrap_or(&json!(false))]);
    said["peer_tuple"] = flow(said.get("peer_tuple")?)?;
    said["wire_local_port"] = said.get("wire")?.get(0)?.clone();
    said["wire_remote_port"] = said.get("wire")?.get(1)?.clone();
    Some(said)
}

fn peer(mut said: Value) -> Option<Value> {
    let key: [u8; 32] = serde_json::from_value(said.get("key")?.clone()).ok()?;
    said["key"] = PublicKey::from(key).to_string().into();
    said["sequence_sent"] = said.get("sequence")?.get(0)?.clone();
    said["sequence_accepted"] = said.get("sequence")?.get(1)?.clone();
    said["carrier"] = said.get("carrier")?.as_str()?.replace('_', "-").into();
    let translated: Vec<Value> = said.get("translated_places").and_then(Value::as_array).cloned().unwrap_or_default();
    for place in said.get_mut("known_places")?.as_array_mut()? {
        let is_translated = place.get(1)? != place.get(2)? || translated.contains(place.get(0)?);
        place.as_array_mut()?.push(is_translated.into());
    }
    let optional = said.as_object_mut()?;
    optional.entry("silent").or_insert(Value::Bool(false));
    optional.entry("memory").or_insert(0.into());
    Some(said)
}

fn donation(mut said: Value) -> Option<Value> {
    said["name"] = move_name(said.get("name")?)?;
    said["tuple"] = flow(said.get("tuple")?)?;
    said["flow"] = json!([said.get("flow")?, said.get("holder")?]);
    Some(said)
}

fn acceptance(mut said: Value) -> Option<Value> {
    said["name"] = move_name(said.get("name")?)?;
    said["tuple"] = flow(said.get("tuple")?)?;
    said["holder"] = bytes(said.get("holder")?)?;
    said["acceptor"] = bytes(said.get("acceptor")?)?;
    said["family"] = if said.get("family")? == 6 { "ipv6" } else { "ipv4" }.into();
    let mac: [u8; 16] = serde_json::from_value(said.get("mac")?.clone()).ok()?;
    said["mac"] = hex::print(&mac).into();
    Some(json!({"request": said, "ticket": said, "wire_port": said.get("wire_port")?}))
}

fn held(mut said: Value) -> Option<Value> {
    said["flow"] = json!([said.get("flow")?, said.get("owner")?]);
    said["last"] = move_name(said.get("last")?)?;
    if !said.get("far")?.is_null() {
        said["far"] = flow(said.get("far")?)?;
    }
    for unsettled in said.get_mut("unsettled")?.as_array_mut()? {
        unsettled[0] = move_name(unsettled.get(0)?)?;
    }
    let optional = said.as_object_mut()?;
    for flag in ["hidden", "ending"] {
        optional.entry(flag).or_insert(Value::Bool(false));
    }
    Some(said)
}

fn lease(said: Value) -> Option<Value> {
    let saved = json!({"name": [said.get("tenant")?, said.get("number")?], "ends": said.get("ends")?});
    Some(json!([saved, said.get("on_link").unwrap_or(&Value::Bool(false))]))
}

fn tenancy(mut said: Value) -> Option<Value> {
    said["moved"] = said.get("moved").and_then(transport).into();
    let hidden = said.get("hidden").unwrap_or(&Value::Bool(false));
    let brought = said.get("cookie").filter(|cookie| !cookie.is_null());
    let brought = brought.map(|cookie| json!({"cookie": cookie, "hidden": hidden}));
    Some(json!([said, brought]))
}
