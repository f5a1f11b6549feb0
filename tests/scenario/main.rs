//! Real processes, as a person or a script would start them.
fn _none() {}
