use reeve_protocol::{ExecutionId, Seq, Timestamp};
use serde_json::{Value, json};

use super::cursors::{Broken, Cursors, Shown};

fn id(n: u32) -> ExecutionId {
    ExecutionId::mint(Timestamp::default(), n)
}

fn event(n: u32, sequence: u64, kind: &str) -> String {
    let data = match kind {
        "execution.completed" => json!({ "output": null }),
        "execution.log" => json!({ "stream": "stdout", "message": "x" }),
        _ => json!({}),
    };
    json!({
        "schema_version": "1",
        "event_id": format!("{}#{sequence}", id(n)),
        "execution_id": id(n),
        "sequence": sequence,
        "timestamp": "2026-09-08T01:02:03.000004Z",
        "type": kind,
        "data": data,
    })
    .to_string()
}

fn ready(members: Value) -> String {
    let mut ready = json!({ "type": "stream.ready", "epoch": "e", "unknown": [], "cursors": {} });
    for (name, value) in members.as_object().unwrap() {
        ready[name] = value.clone();
    }
    ready.to_string()
}

fn sequences(shown: &[Shown]) -> Vec<u64> {
    let events = shown.iter().filter_map(|shown| match shown {
        Shown::Event(event) => Some(event.sequence.0),
        Shown::Lagged { .. } | Shown::Overlay { .. } | Shown::Unknown(_) => None,
    });
    events.collect()
}

#[test]
fn everything_is_shown_once_and_a_hole_ends_the_connection() {
    let mut cursors = Cursors::of([(id(1), Seq(2))]);
    assert_eq!(cursors.target(), format!("/events?execution={}:2", id(1)));
    cursors.handle_text(&ready(json!({}))).unwrap();
    let mut seen = Vec::new();
    for sequence in [2, 3, 3, 4] {
        seen.extend(cursors.handle_text(&event(1, sequence, "execution.log")).unwrap());
    }
    assert_eq!(sequences(&seen), [3, 4]);
    let hole = cursors.handle_text(&event(1, 6, "execution.log")).unwrap_err();
    assert_eq!(hole, Broken::Hole { id: id(1), last: Seq(4), found: Seq(6) });
    assert_eq!(cursors.target(), format!("/events?execution={}:4&epoch=e", id(1)));
}

#[test]
fn what_is_missing_is_named_and_reading_goes_on_after_it() {
    let mut cursors = Cursors::of([(id(1), Seq(2))]);
    let lagged = |reason: &str, from: u64, to: u64, resume: u64| {
        json!({
            "type": "stream.lagged", "execution_id": id(1), "from": from, "to": to,
            "dropped": 1, "reason": reason, "resume_after": resume,
        })
        .to_string()
    };
    let shown = cursors.handle_text(&lagged("retention", 1, 9, 9)).unwrap();
    let Shown::Lagged { from, to, .. } = &shown[0] else { panic!("{shown:?}") };
    assert_eq!((*from, *to), (Seq(3), Seq(9)), "what it holds is not missing");
    assert_eq!(cursors.handle_text(&lagged("retention", 1, 9, 9)).unwrap(), []);
    let shown = cursors.handle_text(&event(1, 10, "execution.log")).unwrap();
    assert_eq!(sequences(&shown), [10]);
    // Another history: everything comes again.
    cursors.handle_text(&lagged("epoch", 1, 10, 0)).unwrap();
    let shown = cursors.handle_text(&event(1, 1, "execution.log")).unwrap();
    assert_eq!(sequences(&shown), [1]);
}

#[test]
fn a_reader_is_done_when_what_it_follows_has_ended_or_is_held_by_nobody() {
    let mut cursors = Cursors::of([(id(1), Seq::NONE), (id(2), Seq::NONE)]);
    let shown = cursors.handle_text(&ready(json!({ "unknown": [id(2)] }))).unwrap();
    assert_eq!(shown, [Shown::Unknown(id(2))]);
    assert!(!cursors.is_done());
    cursors.handle_text(&event(1, 1, "execution.completed")).unwrap();
    assert!(cursors.is_done());
    assert!(!Cursors::all().is_done());
}

#[test]
fn a_reader_of_everything_misses_nothing_that_began_while_it_was_away() {
    let mut cursors = Cursors::all();
    assert_eq!(cursors.target(), "/events");
    cursors.handle_text(&ready(json!({ "horizon": 7 }))).unwrap();
    // It comes in on one that runs, and sees another from its beginning to its end.
    assert_eq!(sequences(&cursors.handle_text(&event(1, 40, "execution.log")).unwrap()), [40]);
    cursors.handle_text(&event(2, 1, "execution.completed")).unwrap();
    let target = cursors.target();
    assert_eq!(target, format!("/events?since=7&execution={}:40&epoch=e", id(1)));

    cursors.handle_connected();
    let begun = json!({ "horizon": 9, "cursors": { (id(1).to_string()): 40, (id(2).to_string()): 0, (id(3).to_string()): 0 } });
    cursors.handle_text(&ready(begun)).unwrap();
    assert_eq!(cursors.handle_text(&event(2, 1, "execution.completed")).unwrap(), []);
    assert!(cursors.handle_text(&event(3, 2, "execution.log")).is_err(), "its first is missing");
    assert!(cursors.target().contains(&format!("execution={}:0", id(3))));
}

#[test]
fn what_is_new_in_the_protocol_is_shown_or_passed_over() {
    let mut cursors = Cursors::of([(id(1), Seq::NONE)]);
    assert_eq!(cursors.handle_text(r#"{"type":"stream.tomorrow","x":1}"#), Ok(vec![]));
    let shown = cursors.handle_text(&event(1, 1, "execution.tomorrow")).unwrap();
    assert_eq!(sequences(&shown), [1]);
    for text in ["", "[]", "{}", "{\"type\":5}", "{\"type\":\"execution.log\"}"] {
        assert!(matches!(cursors.handle_text(text), Err(Broken::Malformed(_))), "{text}");
    }
    let closing = r#"{"type":"stream.closing","reason":"stopping"}"#;
    assert_eq!(cursors.handle_text(closing), Err(Broken::Closing("stopping".to_owned())));
}
