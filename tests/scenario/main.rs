//! Real processes, as a person or a script would start them.
//!
//! A figure of time is never asserted: what is checked is which of two things came first, or that
//! something came at all.

mod broker;
mod cancel;
mod cli;
mod handlers;
mod load;
mod locks;
mod lost;
mod manifest;
mod output;
mod places;
mod run;

use reeve_tests::{Checkout, until};
use serde_json::Value;

/// Makes a checkout that declares this.
fn checkout(manifest: &str) -> Checkout {
    Checkout::new(env!("CARGO_BIN_EXE_reeve-under-test"), manifest)
}

/// Declares a capability that a shell carries out, with more keys of it.
fn shell(id: &str, script: &str, more: &str) -> String {
    let script = script.replace('{', "{{").replace('}', "}}");
    format!("[capability.\"{id}\"]\ncommand = ['sh', '-c', '''{script}''']\n{more}\n")
}

/// Returns the pid that a process of the checkout has written into this file.
fn pid_in(checkout: &Checkout, file: &str) -> u32 {
    until("a pid to be written", || {
        checkout.read(file).filter(|text| text.ends_with('\n'))?.trim().parse().ok()
    })
}

/// Waits until a process has ended.
fn until_gone(pid: u32) {
    until("a process to be gone", || (!reeve_tests::lives(pid)).then_some(()));
}

/// Returns the id that a snapshot or a summary is of.
fn id_of(value: &Value) -> &str {
    value["id"].as_str().expect("a snapshot has an id")
}

/// Returns the lines of a history that this stream has.
fn lines_of(history: &[Value], stream: &str) -> Vec<String> {
    let logs = history.iter().filter(|event| event["type"] == "execution.log");
    logs.filter(|event| event["data"]["stream"] == stream)
        .map(|event| event["data"]["message"].as_str().expect("a line is a text").to_owned())
        .collect()
}

/// Returns the type of every event, without what they have in common.
fn types_of(history: &[Value]) -> Vec<&str> {
    history.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("execution.")).collect()
}

/// Checks that positions are dense from 1.
fn assert_dense(history: &[Value]) {
    let positions: Vec<u64> =
        history.iter().filter_map(|event| event["sequence"].as_u64()).collect();
    assert_eq!(positions, (1..=history.len() as u64).collect::<Vec<_>>());
}

/// Reads what was written as one JSON document a line.
fn documents(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}
