//! Text that fits and leaves nothing out.

use reeve_protocol::capability::{CapabilityKind, Effect, OnWorkerLoss};
use reeve_protocol::fault::{Code, Fault};
use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::snapshot::{
    Actor, ActorKind, Description, LateReport, Progress, Repository, Step, WaitingOn, WorkerSeen,
};
use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_788_829_323 + seconds) * 1_000_000)
}

fn snapshot() -> Snapshot {
    let actor = Actor { kind: ActorKind::Cli, peer: None, pid: Some(42) };
    let description = Description {
        capability: "tests.unit".parse().unwrap(),
        title: "Unit tests".to_owned(),
        kind: CapabilityKind::Process,
        effect: Effect::Write,
        cancellable: true,
        lock: None,
        on_worker_loss: OnWorkerLoss::End,
        cancel_grace_ms: 1_000,
        input: json!({ "filter": "x" }),
        actor,
        repository: Repository {
            name: "repo".to_owned(),
            id: "0".repeat(16),
            branch: Some("main".to_owned()),
        },
        parent_id: None,
    };
    Snapshot::new(ExecutionId::mint(at(0), 7), &description, at(0))
}

#[test]
fn durations_are_short() {
    for (millis, text) in [
        (0, "0ms"),
        (850, "850ms"),
        (4_250, "4.2s"),
        (59_999, "59s"),
        (187_000, "3m07s"),
        (7_500_000, "2h05m"),
        (273_600_000, "3d04h"),
    ] {
        assert_eq!(took(Duration::from_millis(millis)), text);
    }
}

#[test]
fn a_table_fits_its_columns() {
    let running = Snapshot {
        state: State::Running,
        started_at: Some(at(1)),
        progress: Some(Progress {
            current: 30,
            total: Some(100),
            percent: Some(30),
            message: Some("äöü ".repeat(40)),
        }),
        ..snapshot()
    };
    let waiting = Snapshot {
        overlay: Overlay {
            waiting_on: Some(WaitingOn {
                kind: "lock".to_owned(),
                detail: "waits for the lock db".to_owned(),
                execution_id: None,
            }),
            ..Overlay::default()
        },
        ..snapshot()
    };
    let lines = executions(&[running, waiting], at(9), 100);
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("WHAT"));
    assert!(lines[1].contains("running  tests.unit  8.0s  42   30/100 30% äöü"), "{}", lines[1]);
    assert!(lines[1].ends_with('…') && lines[2].ends_with("waits for the lock db"));
}

#[test]
fn an_execution_is_shown_with_all_that_is_known() {
    let mut error = Fault::new(Code::Unavailable, "its worker is gone").hint("start it again");
    error.side_effect = SideEffect::Unknown;
    let full = Snapshot {
        state: State::Failed,
        started_at: Some(at(1)),
        finished_at: Some(at(5)),
        duration_ms: Some(4_000),
        worker: Some(WorkerSeen { pid: 43, role: "run".to_owned() }),
        steps: vec![Step {
            name: "a".to_owned(),
            title: "Build".to_owned(),
            state: StepState::Failed,
            started_at: at(1),
            finished_at: Some(at(3)),
            detail: Some("two errors".to_owned()),
        }],
        steps_omitted: 3,
        error: Some(error),
        receipt: Some(json!({ "ok": false })),
        last_sequence: Seq(50),
        event_count: 50,
        events_truncated: true,
        overlay: Overlay {
            cancel_requested_at: Some(at(2)),
            suspended_at: Some(at(3)),
            late_report: Some(LateReport {
                at: at(6),
                state: State::Succeeded,
                message: "it went well".to_owned(),
                unsent_events: 4,
            }),
            held: Some("its processes live".to_owned()),
            ..Overlay::default()
        },
        ..snapshot()
    };
    let text = execution(&full, at(9)).join("\n");
    for part in [
        "state:       failed (4.0s)",
        "worker:      pid 43 (run)",
        "repository:  repo on main",
        "cancel:      asked for 7.0s ago",
        "suspended:   for 6.0s",
        "late report: succeeded: it went well; 4 events were not taken",
        "still held:  its processes live",
        "  ✗ Build: two errors (2.0s)",
        "  and 3 more",
        "error:       unavailable: its worker is gone",
        "side effect: unknown; nobody can say",
        "suggestion:  start it again",
        "    \"filter\": \"x\"",
        "    \"ok\": false",
        "events:      50, some of them gone",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(hint(&full).contains("--after 30"));
}

#[test]
fn an_event_is_one_line() {
    let kind = Kind::Progress { current: 3, total: Some(10), message: Some("three".to_owned()) };
    let shown =
        event(&Event { execution_id: snapshot().id, sequence: Seq(12), timestamp: at(0), kind });
    assert_eq!(shown, "   12 01:02:03.000 progress       progress 3/10 three");
}

#[test]
fn json_says_the_same_and_a_terminal_acts_on_none_of_it() {
    let value = serde_json::json!({
        "a\u{9b}31m": "b\u{7f}\u{85}\u{202e}\u{2066}\u{2028}\u{2029}\u{61c}\u{feff}é\\",
    });
    let inert = inert_json(&value.to_string()).into_owned();
    assert!(inert.contains("a\\u009b31m") && inert.contains("\\u202e"), "{inert}");
    assert!(inert.chars().all(|it| matches!(it, ' '..='~' | 'é')), "{inert:?}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&inert).unwrap(), value);
    assert!(matches!(inert_json("{\"é\":1}"), Cow::Borrowed(_)));
    let unknown = Kind::Unknown { tag: "new".to_owned(), data: value };
    assert!(summary(&unknown).chars().all(|it| !it.is_control() && !is_active(it)));
}
