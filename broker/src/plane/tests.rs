//! Unit tests of one step each: what a reader of the plane would ask.

use std::time::Duration;

use reeve_protocol::capability::{CapabilityKind, Effect as Changes, OnWorkerLoss};
use reeve_protocol::peer::{Ack, Attach, Fenced, Grant, Released, Tree, TreeStarted};
use reeve_protocol::snapshot::{Actor, ActorKind, Description, ProcessSeen, Repository};
use reeve_protocol::{Batch, Entry, SideEffect, Timestamp};

use super::*;

const HANDLE: Handle = Handle(1);

/// A plane with a store that keeps everything at once, and what came out of the plane.
struct Rig {
    plane: Plane,
    at: Duration,
    out: Vec<Effect>,
    history: Vec<Batch>,
    /// While set, appends are not confirmed.
    slow: bool,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let plane = Plane::new(limits, "epoch".to_owned());
        Self { plane, at: Duration::ZERO, out: Vec::new(), history: Vec::new(), slow: false }
    }

    fn now(&self) -> Now {
        let micros = i64::try_from(self.at.as_micros()).unwrap();
        Now { mono: self.at, wall: Timestamp::from_micros(1_788_829_323_000_000 + micros) }
    }

    fn post(&mut self, input: Input) -> Vec<Effect> {
        let now = self.now();
        self.plane.handle_input(input, now);
        self.drain()
    }

    fn drain(&mut self) -> Vec<Effect> {
        let before = self.out.len();
        while let Some(effect) = self.plane.poll_effect() {
            if let Effect::Append(records) = &effect {
                self.history.extend(records.iter().filter_map(|record| match record {
                    Record::Events(batch) => Some(batch.clone()),
                    Record::Forget(_) => None,
                }));
                if !self.slow {
                    let now = self.now();
                    self.plane.handle_input(stored(), now);
                }
            }
            self.out.push(effect);
        }
        self.out[before..].to_vec()
    }

    /// Lets time pass; each of `alive` is heard and answers before each check.
    fn pass(&mut self, until: Duration, alive: &[u64]) {
        while let Some(due) = self.plane.poll_timeout().filter(|due| *due <= until) {
            for worker in alive {
                let pong = WorkerFrame::Pong(self.plane.checks);
                self.frames(*worker, vec![WorkerFrame::Heartbeat, pong]);
            }
            self.at = due;
            let now = self.now();
            self.plane.handle_timeout(now);
            self.drain();
        }
        self.at = until;
    }

    fn join(&mut self, worker: u64, pid: u32) {
        let process = WorkerProcess { pid, start_ticks: 1, name: "run".to_owned() };
        self.post(Input::WorkerJoined { worker: WorkerId(worker), process });
    }

    fn frames(&mut self, worker: u64, frames: Vec<WorkerFrame>) -> Vec<Effect> {
        self.post(Input::Frames { worker: WorkerId(worker), frames })
    }

    fn attach(&mut self, worker: u64, n: u32, lock: Option<&str>) -> Vec<Effect> {
        self.frames(worker, vec![WorkerFrame::Attach(Box::new(attach(n, lock)))])
    }

    fn start(&mut self, n: u32) -> Vec<Effect> {
        let description = Box::new(description(None));
        self.post(Input::Start {
            request: RequestId(u64::from(n)),
            id: id(n),
            description,
            key: None,
        })
    }

    fn cancel(&mut self, n: u32) -> Vec<Effect> {
        let by = "somebody".to_owned();
        self.post(Input::Cancel { request: RequestId(99), id: id(n), by, force: false })
    }

    fn batch(&mut self, worker: u64, batch: Batch) -> Vec<Effect> {
        self.frames(worker, vec![WorkerFrame::Batch(batch)])
    }

    /// Returns the tags of an execution's history.
    fn tags(&self, handle: Handle) -> Vec<String> {
        let batches = self.history.iter().filter(|batch| batch.handle() == handle);
        batches
            .flat_map(|batch| batch.entries().unwrap())
            .map(|entry| match entry {
                Entry::Event(event) => event.kind.tag().to_owned(),
                Entry::Log(_) => "log".to_owned(),
            })
            .collect()
    }

    /// Returns the newest snapshot that was shown.
    fn shown(&self, n: u32) -> Shown {
        let shown = self.out.iter().rev().find_map(|effect| match effect {
            Effect::Publish(shown) if shown.snapshot.id == id(n) => Some(shown.clone()),
            _ => None,
        });
        shown.expect("it was shown")
    }
}

fn stored() -> Input {
    Input::Stored { trimmed: Vec::new(), bytes: 0 }
}

fn id(n: u32) -> ExecutionId {
    ExecutionId::mint(Timestamp::from_micros(1_788_829_323_000_000), n)
}

fn description(lock: Option<&str>) -> Description {
    Description {
        capability: "tests.unit".parse().unwrap(),
        title: "Unit tests".to_owned(),
        kind: CapabilityKind::Process,
        effect: Changes::Write,
        cancellable: true,
        lock: lock.map(str::to_owned),
        on_worker_loss: OnWorkerLoss::End,
        cancel_grace_ms: 10_000,
        input: serde_json::Value::Null,
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: None },
        repository: Repository::default(),
        parent_id: None,
    }
}

fn attach(n: u32, lock: Option<&str>) -> Attach {
    let description = description(lock);
    Attach { execution: id(n), fence: None, description, last: Seq::NONE, tree: None }
}

fn events(fence: u64, first: u64, kinds: &[Kind]) -> Batch {
    let stamped: Vec<Stamped> =
        kinds.iter().map(|kind| Stamped { at: Timestamp::default(), kind: kind.clone() }).collect();
    Batch::of_events(HANDLE, Fence(fence), Seq(first), &stamped)
}

fn completed() -> Kind {
    Kind::Completed { output: serde_json::Value::Null, receipt: None }
}

fn grants(effects: &[Effect]) -> Vec<Grant> {
    let grant = |effect: &Effect| match effect {
        Effect::Send { message: ToWorker::Grant(grant), .. } => Some((**grant).clone()),
        _ => None,
    };
    effects.iter().filter_map(grant).collect()
}

fn acks(effects: &[Effect]) -> Vec<Ack> {
    let ack = |effect: &Effect| match effect {
        Effect::Send { message: ToWorker::Ack(ack), .. } => Some(*ack),
        _ => None,
    };
    effects.iter().filter_map(ack).collect()
}

fn fenced(effects: &[Effect]) -> Vec<Fenced> {
    let fenced = |effect: &Effect| match effect {
        Effect::Send { message: ToWorker::Fenced(fenced), .. } => Some((**fenced).clone()),
        _ => None,
    };
    effects.iter().filter_map(fenced).collect()
}

fn refusal(effects: &[Effect]) -> Fault {
    let fault = effects.iter().find_map(|effect| match effect {
        Effect::Reply { reply: Reply::Refused(fault), .. } => Some((**fault).clone()),
        _ => None,
    });
    fault.expect("it was refused")
}

fn launched(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Launch { .. })).count()
}

/// A rig whose first worker runs its execution.
fn running() -> Rig {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.attach(1, 1, None);
    rig.batch(1, events(1, 3, &[Kind::Started {}]));
    rig
}

#[test]
fn a_worker_that_comes_is_granted_what_nobody_else_holds() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    let grant = grants(&rig.attach(1, 1, Some("a"))).remove(0);
    assert_eq!((grant.fence, grant.next, grant.events.len()), (Fence(1), Seq(3), 2));
    assert_eq!(rig.tags(HANDLE), ["created", "queued"]);
}

#[test]
fn nothing_is_shown_granted_or_acknowledged_before_it_is_stored() {
    let mut rig = Rig::new(Limits::default());
    rig.slow = true;
    rig.join(1, 10);
    let effects = rig.attach(1, 1, None);
    assert!(matches!(effects[..], [Effect::Append(_)]), "{effects:?}");
    let effects = rig.post(stored());
    assert_eq!(grants(&effects).len(), 1);
    assert_eq!(rig.shown(1).last, Seq(2));
}

#[test]
fn who_waits_for_a_lock_is_granted_once_it_is_free() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.join(2, 20);
    rig.attach(1, 1, Some("a"));
    assert!(grants(&rig.attach(2, 2, Some("a"))).is_empty());
    assert_eq!(rig.shown(2).snapshot.overlay.waiting_on.as_ref().unwrap().kind, "lock");
    let effects = rig.batch(1, events(1, 3, &[Kind::Started {}, completed()]));
    assert_eq!(grants(&effects)[0].execution, id(2));
    assert!(rig.shown(2).snapshot.overlay.waiting_on.is_none());
}

#[test]
fn a_lock_is_held_until_the_process_tree_is_empty() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.join(2, 20);
    rig.attach(1, 1, Some("a"));
    let tree = Tree { pgid: 11, start_ticks: 1 };
    rig.frames(1, vec![WorkerFrame::Tree(TreeStarted { execution: id(1), tree })]);
    rig.attach(2, 2, Some("a"));
    assert!(grants(&rig.batch(1, events(1, 3, &[Kind::Started {}, completed()]))).is_empty());
    let released = Released { execution: id(1), survivors: Vec::new() };
    assert_eq!(grants(&rig.frames(1, vec![WorkerFrame::Released(released)])).len(), 1);
}

#[test]
fn a_cancel_of_what_waits_ends_it_before_it_began() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.join(2, 20);
    rig.attach(1, 1, Some("a"));
    rig.attach(2, 2, Some("a"));
    let effects = rig.cancel(2);
    assert_eq!(rig.tags(Handle(2)), ["created", "queued", "cancelled"]);
    assert_eq!(fenced(&effects)[0].state, State::Cancelled);
}

#[test]
fn a_cancel_of_what_runs_is_its_workers_business() {
    let mut rig = running();
    let effects = rig.cancel(1);
    let asked =
        |effect: &Effect| matches!(effect, Effect::Send { message: ToWorker::Cancel(_), .. });
    assert_eq!(effects.iter().filter(|effect| asked(effect)).count(), 1);
    assert_eq!(rig.shown(1).snapshot.state, State::Running);
    assert!(rig.shown(1).snapshot.overlay.cancel_requested_at.is_some());
}

#[test]
fn the_revision_of_the_overlay_rises_with_every_change_of_it() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.attach(1, 1, None);
    let attached = rig.shown(1).snapshot.overlay.clone();
    assert_eq!((attached.process, attached.revision), (ProcessSeen::Alive, 1));
    rig.batch(1, events(1, 3, &[Kind::Started {}]));
    rig.cancel(1);
    let asked = rig.shown(1).snapshot.overlay.clone();
    assert_eq!((asked.cancel_requested_at.is_some(), asked.revision), (true, 2));
    rig.batch(1, events(1, 4, &[Kind::Cancelling { by: "test".to_owned() }]));
    let heard = rig.shown(1).snapshot.overlay.clone();
    assert_eq!((heard.cancel_requested_at, heard.revision), (None, 3));
    rig.batch(1, events(1, 5, &[Kind::Cancelled { receipt: None }]));
    assert_eq!(rig.shown(1).snapshot.overlay, heard);
}

#[test]
fn a_batch_that_comes_twice_counts_once_and_is_acknowledged_twice() {
    let mut rig = running();
    let effects = rig.batch(1, events(1, 3, &[Kind::Started {}]));
    assert_eq!(acks(&effects), [Ack { handle: HANDLE, through: Seq(3), resend_from: None }]);
    assert_eq!(rig.tags(HANDLE), ["created", "queued", "started"]);
}

#[test]
fn a_batch_after_a_gap_is_not_taken_and_its_worker_told_where_to_go_on() {
    let mut rig = running();
    let effects = rig.batch(1, events(1, 6, &[completed()]));
    let ack = Ack { handle: HANDLE, through: Seq(3), resend_from: Some(Seq(4)) };
    assert_eq!(acks(&effects), [ack]);
    assert_eq!(rig.tags(HANDLE).len(), 3);
}

#[test]
fn a_batch_of_an_older_fence_is_refused() {
    let mut rig = running();
    let effects = rig.batch(1, events(0, 4, &[completed()]));
    assert_eq!(fenced(&effects)[0].state, State::Running);
    assert_eq!(rig.plane.gauges().refused_events, 1);
}

#[test]
fn a_batch_of_a_worker_that_does_not_own_the_execution_is_refused() {
    let mut rig = running();
    rig.join(2, 20);
    assert_eq!(fenced(&rig.batch(2, events(1, 4, &[completed()]))).len(), 1);
    assert_eq!(rig.tags(HANDLE).len(), 3);
}

#[test]
fn of_a_batch_with_an_illegal_event_what_stands_before_it_is_kept() {
    let mut rig = running();
    let step = Kind::StepStarted { name: "one".to_owned(), title: "One".to_owned() };
    let effects = rig.batch(1, events(1, 4, &[step, Kind::Started {}]));
    assert_eq!(rig.tags(HANDLE), ["created", "queued", "started", "step.started"]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Close { .. })));
}

#[test]
fn a_worker_whose_process_is_gone_is_named_and_its_execution_ends() {
    let mut rig = running();
    rig.at = Duration::from_secs(3);
    rig.post(Input::Closed { worker: WorkerId(1) });
    rig.post(Input::Looked { worker: WorkerId(1), seen: Seen::Gone, how: None });
    let error = rig.shown(1).snapshot.error.clone().unwrap();
    assert_eq!((error.code, error.side_effect), (Code::Unavailable, SideEffect::Unknown));
    assert_eq!(error.reason.as_deref(), Some("process_gone"));
    assert!(error.message.starts_with("process 10, which ran this execution"), "{error}");
    assert!(error.message.ends_with("its last event was #3 3.0 s ago"), "{error}");
}

#[test]
fn a_connection_that_outlives_its_process_holds_the_end_up_for_a_moment_only() {
    let mut rig = running();
    rig.post(Input::Looked { worker: WorkerId(1), seen: Seen::Gone, how: None });
    assert_eq!(rig.shown(1).snapshot.error.as_ref().map(|error| error.code), None);
    rig.pass(Duration::from_secs(1), &[]);
    let error = rig.shown(1).snapshot.error.clone().unwrap();
    assert_eq!(error.reason.as_deref(), Some("process_gone"));
}

#[test]
fn a_worker_that_says_nothing_for_too_long_is_lost_and_one_that_does_is_not() {
    let mut rig = running();
    rig.join(2, 20);
    rig.attach(2, 2, None);
    rig.pass(Duration::from_secs(40), &[2]);
    assert_eq!(rig.shown(1).snapshot.error.as_ref().unwrap().reason.as_deref(), Some("silent"));
    assert_eq!(rig.shown(2).snapshot.error.as_ref().map(|error| error.code), None);
}

#[test]
fn a_check_that_runs_late_counts_against_nobody() {
    let mut rig = running();
    for n in 1..100 {
        rig.at = Duration::from_secs(5 * n);
        let now = rig.now();
        rig.plane.handle_timeout(now);
        rig.drain();
    }
    assert_eq!(rig.shown(1).snapshot.state, State::Running);
    assert!(rig.plane.gauges().late_checks > 90);
}

#[test]
fn a_worker_that_comes_back_in_time_goes_on_where_the_store_stands() {
    let mut rig = running();
    rig.post(Input::Closed { worker: WorkerId(1) });
    rig.join(2, 10);
    let back = Attach { fence: Some(Fence(1)), last: Seq(9), ..attach(1, None) };
    let effects = rig.frames(2, vec![WorkerFrame::Attach(Box::new(back))]);
    let grant = grants(&effects).remove(0);
    assert_eq!((grant.fence, grant.next), (Fence(1), Seq(4)));
    rig.pass(Duration::from_secs(20), &[2]);
    assert_eq!(rig.shown(1).snapshot.state, State::Running);
}

#[test]
fn a_connection_that_was_given_up_takes_nothing_back() {
    let mut rig = running();
    rig.join(2, 10);
    rig.join(3, 10);
    let back = Attach { fence: Some(Fence(1)), last: Seq(9), ..attach(1, None) };
    rig.frames(3, vec![WorkerFrame::Attach(Box::new(back.clone()))]);
    assert!(rig.frames(2, vec![WorkerFrame::Attach(Box::new(back))]).is_empty());
    rig.post(Input::Closed { worker: WorkerId(2) });
    rig.pass(Duration::from_secs(20), &[3]);
    assert_eq!(rig.shown(1).snapshot.state, State::Running);
}

#[test]
fn a_worker_that_does_not_come_back_is_lost() {
    let mut rig = running();
    rig.post(Input::Closed { worker: WorkerId(1) });
    rig.pass(Duration::from_secs(6), &[]);
    let error = rig.shown(1).snapshot.error.clone().unwrap();
    assert_eq!(error.reason.as_deref(), Some("connection_lost"));
}

#[test]
fn another_process_cannot_take_an_execution_over() {
    let mut rig = running();
    rig.join(2, 20);
    let effects = rig.attach(2, 1, None);
    assert_eq!(fenced(&effects)[0].error.as_ref().unwrap().code, Code::Forbidden);
}

#[test]
fn what_a_worker_brings_to_a_new_broker_is_taken_from_its_first_event() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    let brought = Attach { fence: Some(Fence(4)), last: Seq(7), ..attach(1, None) };
    let effects = rig.frames(1, vec![WorkerFrame::Attach(Box::new(brought))]);
    let grant = grants(&effects).remove(0);
    assert_eq!((grant.fence, grant.next), (Fence(5), Seq(1)));
    assert!(rig.tags(HANDLE).is_empty());
}

#[test]
fn an_adopted_execution_that_brought_nothing_has_a_history_when_it_is_lost() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    let brought = Attach { fence: Some(Fence(4)), last: Seq(7), ..attach(1, None) };
    rig.frames(1, vec![WorkerFrame::Attach(Box::new(brought))]);
    rig.post(Input::Looked { worker: WorkerId(1), seen: Seen::Gone, how: None });
    rig.post(Input::Closed { worker: WorkerId(1) });
    assert_eq!(rig.tags(HANDLE), ["created", "failed"]);
}

#[test]
fn the_oldest_finished_execution_is_forgotten_and_its_id_never_used_again() {
    let mut rig = Rig::new(Limits { max_executions: 1, ..Limits::default() });
    rig.join(1, 10);
    rig.attach(1, 1, None);
    rig.batch(1, events(1, 3, &[Kind::Started {}, completed()]));
    rig.join(2, 20);
    rig.attach(2, 2, None);
    let end = events(1, 3, &[Kind::Started {}, completed()]).relabelled(Handle(2), Fence(1));
    rig.batch(2, end);
    let gone = Effect::Unpublish { handle: HANDLE, id: id(1) };
    assert!(rig.out.contains(&gone));
    assert_eq!(rig.plane.gauges().remembered, 1);
    assert_eq!(fenced(&rig.attach(1, 1, None))[0].state, State::Succeeded);
}

#[test]
fn a_start_beyond_max_queued_is_refused() {
    let limits = Limits { max_running: 1, max_queued: 1, ..Limits::default() };
    let mut rig = Rig::new(limits);
    assert_eq!(launched(&rig.start(1)), 1);
    assert_eq!(launched(&rig.start(2)), 0);
    assert_eq!(refusal(&rig.start(3)).reason.as_deref(), Some("queue_full"));
}

#[test]
fn beyond_max_active_neither_a_start_nor_a_worker_is_taken() {
    let mut rig = Rig::new(Limits { max_active: 1, ..Limits::default() });
    rig.start(1);
    assert_eq!(refusal(&rig.start(2)).reason.as_deref(), Some("too_many_active"));
    rig.join(1, 10);
    let told = fenced(&rig.attach(1, 3, None)).remove(0);
    assert_eq!((told.state, told.error.unwrap().code), (State::Queued, Code::Busy));
}

#[test]
fn a_worker_that_cannot_be_made_is_tried_once_more() {
    let mut rig = Rig::new(Limits::default());
    rig.start(1);
    let failed =
        |attempt| Input::LaunchFailed { id: id(1), attempt, message: "no such program".to_owned() };
    assert_eq!(launched(&rig.post(failed(1))), 1);
    assert_eq!(launched(&rig.post(failed(1))), 0, "that attempt is over");
    rig.post(failed(2));
    assert_eq!(rig.tags(HANDLE), ["created", "queued", "queued", "failed"]);
    assert_eq!(rig.shown(1).snapshot.error.as_ref().unwrap().side_effect, SideEffect::None);
}

#[test]
fn what_is_cancelled_while_its_worker_is_made_is_cancelled() {
    let mut rig = Rig::new(Limits::default());
    rig.start(1);
    rig.cancel(1);
    rig.post(Input::LaunchFailed { id: id(1), attempt: 1, message: "it ended".to_owned() });
    assert_eq!(rig.tags(HANDLE), ["created", "queued", "cancelled"]);
}

#[test]
fn a_worker_made_for_a_second_try_gets_all_events_before_it() {
    let mut rig = Rig::new(Limits::default());
    rig.start(1);
    rig.post(Input::LaunchFailed { id: id(1), attempt: 1, message: "it ended".to_owned() });
    rig.join(1, 10);
    let grant = grants(&rig.attach(1, 1, None)).remove(0);
    assert_eq!((grant.next, grant.events.len()), (Seq(4), 3));
}

#[test]
fn no_second_worker_is_made_for_what_may_have_begun() {
    let mut rig = Rig::new(Limits::default());
    rig.start(1);
    rig.join(1, 10);
    // It attaches and is granted at once: from then on its work may have begun.
    assert_eq!(grants(&rig.attach(1, 1, None)).len(), 1);
    // What it had sent may still be on its way: it is lost once its connection has ended too.
    let effects = rig.post(Input::Looked { worker: WorkerId(1), seen: Seen::Gone, how: None });
    assert_eq!(launched(&effects), 0);
    assert!(rig.shown(1).snapshot.error.is_none());
    let effects = rig.post(Input::Closed { worker: WorkerId(1) });
    assert_eq!(launched(&effects), 0);
    assert_eq!(rig.shown(1).snapshot.error.as_ref().unwrap().side_effect, SideEffect::Unknown);
}

#[test]
fn a_worker_that_began_by_itself_leaves_the_queue() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    rig.join(2, 20);
    rig.attach(1, 1, Some("a"));
    rig.attach(2, 2, Some("a"));
    let begun = Attach { last: Seq(2), ..attach(2, Some("a")) };
    let effects = rig.frames(2, vec![WorkerFrame::Attach(Box::new(begun))]);
    assert_eq!(grants(&effects)[0].next, Seq(3));
    assert_eq!(rig.plane.gauges().queued, 0);
    assert!(rig.shown(2).snapshot.overlay.waiting_on.is_none());
}

#[test]
fn what_a_worker_says_of_its_execution_is_made_clean_and_short() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    let mut dirty = attach(1, Some("l"));
    dirty.description.title = "a\u{1b}[31mb\u{202e}".to_owned();
    dirty.description.lock = Some("lock ".repeat(1_000));
    dirty.description.actor.peer = Some("p\n".repeat(1_000));
    dirty.description.repository.branch = Some("b".repeat(1_000));
    dirty.description.input = serde_json::json!("x".repeat(800 << 10));
    rig.frames(1, vec![WorkerFrame::Attach(Box::new(dirty))]);
    let snapshot = rig.shown(1).snapshot;
    assert_eq!(snapshot.title, "ab⟦U+202E⟧");
    assert_eq!(snapshot.input["withheld"], "too_large");
    assert_eq!(snapshot.repository.branch.as_ref().map(String::len), Some(202));
    let lock = rig.plane.executions[&HANDLE].description.lock.clone();
    assert_eq!(lock.map(|lock| lock.chars().count()), Some(200));
}

#[test]
fn survivors_are_named_in_short_and_clean() {
    let mut rig = running();
    let tree = Tree { pgid: 10, start_ticks: 1 };
    rig.frames(1, vec![WorkerFrame::Tree(TreeStarted { execution: id(1), tree })]);
    rig.batch(1, events(1, 4, &[completed()]));
    let survivors = vec![format!("\u{1b}]0;evil\u{7}{}", "y".repeat(5_000)); 500];
    let released = Released { execution: id(1), survivors };
    rig.frames(1, vec![WorkerFrame::Released(released)]);
    let held = rig.shown(1).snapshot.overlay.held.clone().unwrap();
    assert!(held.chars().count() < 1_100, "{}", held.len());
    assert!(!held.contains(['\u{1b}', '\u{7}']));
}

#[test]
fn what_a_finished_worker_left_behind_is_swept_though_something_holds_its_connection() {
    for early in [true, false] {
        let mut rig = running();
        let tree = Tree { pgid: 10, start_ticks: 1 };
        rig.frames(1, vec![WorkerFrame::Tree(TreeStarted { execution: id(1), tree })]);
        if early {
            rig.batch(1, events(1, 4, &[completed()]));
        }
        rig.post(Input::Looked { worker: WorkerId(1), seen: Seen::Gone, how: None });
        if !early {
            rig.batch(1, events(1, 4, &[completed()]));
        }
        let sweeps =
            |rig: &Rig| rig.out.iter().filter(|effect| matches!(effect, Effect::Sweep(_))).count();
        assert_eq!(sweeps(&rig), 0, "it may still say that its tree is empty");
        let until = rig.at + Duration::from_millis(200);
        rig.pass(until, &[]);
        assert_eq!(sweeps(&rig), 1);
        rig.post(Input::TreeLeft { id: id(1), pids: vec![11, 12] });
        assert!(rig.shown(1).snapshot.overlay.held.as_ref().unwrap().ends_with("live: 11, 12"));
        rig.post(Input::TreeEmpty { id: id(1) });
        assert!(rig.shown(1).snapshot.overlay.held.is_none());
        assert_eq!(rig.shown(1).snapshot.state, State::Succeeded);
    }
}

#[test]
fn a_worker_that_answers_every_ping_late_is_not_deaf() {
    let mut rig = running();
    for _ in 0..60 {
        let due = rig.plane.poll_timeout().unwrap();
        let late = WorkerFrame::Pong(rig.plane.checks.saturating_sub(2));
        rig.frames(1, vec![WorkerFrame::Heartbeat, late]);
        rig.at = due;
        let now = rig.now();
        rig.plane.handle_timeout(now);
        rig.drain();
    }
    assert_eq!(rig.shown(1).snapshot.state, State::Running);
}

#[test]
fn an_input_is_held_once_after_it_was_written() {
    let mut rig = Rig::new(Limits::default());
    rig.join(1, 10);
    let mut attach = attach(1, None);
    attach.description.input = serde_json::json!({ "a": 1 });
    rig.frames(1, vec![WorkerFrame::Attach(Box::new(attach))]);
    assert!(rig.plane.executions[&HANDLE].description.input.is_null());
    rig.batch(1, events(1, 3, &[Kind::Started {}, completed()]));
    assert!(rig.plane.executions[&HANDLE].broker_events.is_empty());
    assert_eq!(rig.shown(1).snapshot.input, serde_json::json!({ "a": 1 }));
}
