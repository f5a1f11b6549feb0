//! `reeve status`: whether and how this checkout is served.

use reeve_protocol::stream::Op;
use serde_json::{Map, Value, json};

use super::{Here, block_on, broker, trust};
use crate::checkout::{self, Found};
use crate::failure::{Exit, Failure};
use crate::ui::{Format, Ui};

/// Say whether and how this checkout is served
///
/// Exits 0 whether a broker serves or not, and 5 when one is there and does not answer.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {}

pub(super) fn run(ui: &mut Ui, here: &Here, args: StatusArgs) -> Result<Exit, Failure> {
    let StatusArgs {} = args;
    let asked = block_on(async {
        let Some(mut link) = broker::connect(here, "status").await? else { return Ok(None) };
        Ok(Some(link.ask(Op::Status {}).await?))
    });
    // Looked at after the answer: a broker that has just begun has its lease then.
    let found = checkout::discover(&here.place)?;
    let mut told = Map::new();
    let serving = !matches!(asked, Ok(None));
    told.insert("serving".to_owned(), serving.into());
    told.insert("root".to_owned(), json!(here.place.root));
    told.insert("checkout".to_owned(), json!(here.place.id));
    told.insert("trust".to_owned(), trust::word(here).into());
    if let Found::Serving(lease) = &found {
        let lease = serde_json::to_value(lease).unwrap_or_default();
        told.extend(
            ["pid", "version", "started_at", "socket", "url", "instance"].iter().filter_map(
                |name| lease.get(*name).map(|value| ((*name).to_owned(), value.clone())),
            ),
        );
    }
    if let Ok(Some(Value::Object(members))) = &asked {
        told.extend(members.clone());
    }
    show(ui, &told);
    if let (false, Found::Stale(lease)) = (serving, &found) {
        ui.note(format_args!("the last broker (pid {}) ended without leaving", lease.pid));
    }
    asked.map(|_| Exit::Ok)
}

fn show(ui: &mut Ui, told: &Map<String, Value>) {
    if ui.format != Format::Text {
        ui.json(told);
        return;
    }
    for (name, value) in told {
        ui.line(format_args!("{name}: {}", in_words(value)));
    }
}

/// Returns a value as people read it: members and elements one after another.
fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(elements) if elements.is_empty() => "none".to_owned(),
        Value::Array(elements) => elements.iter().map(in_words).collect::<Vec<_>>().join("; "),
        Value::Object(members) => {
            let words = members.iter().map(|(name, value)| format!("{name} {}", in_words(value)));
            words.collect::<Vec<_>>().join(", ")
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_told_in_words() {
        for (value, words) in [
            (json!("x"), "x"),
            (json!(3), "3"),
            (json!([]), "none"),
            (json!(["a", "b"]), "a; b"),
            (json!({ "active": 1, "queued": 0 }), "active 1, queued 0"),
        ] {
            assert_eq!(in_words(&value), words);
        }
    }
}
