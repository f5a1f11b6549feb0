//! `reeve executions events`: the history of one execution, page by page.

use reeve_protocol::event::Event;
use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::stream::Op;
use serde_json::Value;

use crate::cli::{Here, block_on, broker};
use crate::failure::{Exit, Failure};
use crate::link::Link;
use crate::render;
use crate::ui::{Format, Ui};

/// Show the history of one execution
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct EventsArgs {
    /// The execution
    id: ExecutionId,
    /// Only events after this position
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// At most so many events; all of them where nothing is said
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: EventsArgs) -> Result<Exit, Failure> {
    block_on(async {
        let mut link = broker::need(here, "executions events").await?;
        let mut pages = Pages { after: Seq(args.after), left: args.limit };
        let mut whole: Option<Value> = None;
        while let Some(page) = pages.next(&mut link, args.id).await? {
            let more = page["more"] == true && pages.left != Some(0) && !ui.is_closed();
            match (ui.format, &mut whole) {
                (Format::Json, None) => whole = Some(page),
                (Format::Json, Some(whole)) => append(whole, page),
                (Format::Text | Format::Ndjson, _) => show(ui, &page),
            }
            ui.flush();
            if !more {
                break;
            }
        }
        if let Some(whole) = &whole {
            ui.json(whole);
        }
        if pages.left == Some(0) {
            ui.note(format_args!("there may be more: --after {}", pages.after));
        }
        Ok(Exit::Ok)
    })
}

/// Where the next page starts, and how many events are still wanted.
struct Pages {
    after: Seq,
    left: Option<u64>,
}

impl Pages {
    async fn next(&mut self, link: &mut Link, id: ExecutionId) -> Result<Option<Value>, Failure> {
        if self.left == Some(0) {
            return Ok(None);
        }
        let page = link.ask(Op::Events { id, after: self.after, limit: self.left }).await?;
        let events = page["events"].as_array().map_or(0, Vec::len) as u64;
        let last = page["last_sequence"].as_u64().unwrap_or(self.after.0);
        // A page that brings nothing and goes nowhere would be asked for again for ever.
        let stuck = last <= self.after.0;
        self.after = Seq(last.max(self.after.0));
        self.left = self.left.map(|left| left.saturating_sub(events));
        if stuck && events == 0 {
            self.left = Some(self.left.unwrap_or(0)).filter(|_| self.left.is_some());
            let mut page = page;
            page["more"] = Value::Bool(false);
            return Ok(Some(page));
        }
        Ok(Some(page))
    }
}

/// Puts a further page behind the ones before.
fn append(whole: &mut Value, page: Value) {
    let Value::Object(members) = page else { return };
    for (name, value) in members {
        match (name.as_str(), value) {
            ("events", Value::Array(mut more)) => {
                if let Some(events) = whole["events"].as_array_mut() {
                    events.append(&mut more);
                }
            }
            ("truncated", value) => {
                whole["truncated"] = Value::Bool(whole["truncated"] == true || value == true);
            }
            (_, value) => whole[name] = value,
        }
    }
}

fn show(ui: &mut Ui, page: &Value) {
    for event in page["events"].as_array().into_iter().flatten() {
        if ui.format == Format::Ndjson {
            ui.json(event);
            continue;
        }
        match serde_json::from_value::<Event>(event.clone()) {
            Ok(event) => ui.line(render::event(&event)),
            // Not an event as this version knows them: shown as it is.
            Err(_) => ui.line(render::inert_json(&event.to_string())),
        }
    }
    if page["truncated"] == true && ui.format == Format::Text {
        ui.note("some events are no longer kept");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_are_joined() {
        let mut whole = json!({
            "execution_id": "x", "events": [1, 2], "last_sequence": 2, "more": true,
            "truncated": true,
        });
        append(
            &mut whole,
            json!({ "events": [3], "last_sequence": 3, "more": false, "truncated": false }),
        );
        assert_eq!(
            whole,
            json!({
                "execution_id": "x", "events": [1, 2, 3], "last_sequence": 3, "more": false,
                "truncated": true,
            })
        );
    }
}
