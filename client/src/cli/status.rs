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
    let found = checkout::discover(&here.place)?;
    let asked = block_on(async {
        let Some(mut link) = broker::connect(here, "status").await? else { return Ok(None) };
        Ok(Some(link.ask(Op::Status {}).await?))
    });
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
        match value {
            Value::String(text) => ui.line(format_args!("{name}: {text}")),
            other => ui.line(format_args!("{name}: {other}")),
        }
    }
}
