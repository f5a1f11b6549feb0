//! The conversation with a broker: offers the execution, sends the history, hears the answers.
//!
//! The rule: what a broker does not say, the session does not wait for. A broker names the
//! position that it expects next, and everything from there is sent, whatever was sent before.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use reeve_protocol::frame;
use reeve_protocol::mutant;
use reeve_protocol::peer::{self, Ack, Attach, Attached, Fenced, Grant, Heartbeat, Welcome};
use reeve_protocol::{Batch, Class, Code, Entry, Fence, Handle, Kind, Now, Seq, Stamped, State};

use super::{
    Asked, Effect, Ended, FromBroker, KEEPS_UP, Local, Notice, PATIENCE, PAUSE_ABOVE, Peer,
    REWIND_PACE, Session, Standing, UNMENTIONED, WINDOW, outbox,
};

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            standing: Standing::Offline,
            fence: None,
            handle: Handle(0),
            answer_by: None,
            unanswered: false,
            sent: Seq::NONE,
            acked: Seq::NONE,
            acked_offset: 0,
            flight: VecDeque::new(),
            flight_bytes: 0,
            progress_at: Duration::ZERO,
            quiet_since: None,
            heartbeat_at: None,
            rewound: None,
            rewind_again: None,
            disconnected_at: None,
        }
    }

    fn land(&mut self, through: Seq) {
        while let Some((last, bytes)) = self.flight.front().copied()
            && last <= through
        {
            self.flight.pop_front();
            self.flight_bytes -= bytes;
        }
    }

    fn rewind(&mut self, to: Seq) {
        self.sent = to;
        self.flight.clear();
        self.flight_bytes = 0;
        self.rewind_again = None;
    }
}

impl Session {
    /// Takes that there is a connection, on which the shell has said hello.
    pub fn handle_connected(&mut self, now: Now) {
        self.now = now;
        self.peer.standing = Standing::Greeting;
        self.peer.heartbeat_at = Some(now.mono + self.limits.heartbeat);
        self.peer.rewind(Seq::NONE);
    }

    /// Takes that the connection is gone.
    pub fn handle_disconnected(&mut self, now: Now) {
        self.now = now;
        self.peer.standing = Standing::Offline;
        self.peer.heartbeat_at = None;
        self.peer.disconnected_at = Some(now.mono);
        self.peer.rewind(Seq::NONE);
        if !self.begun {
            self.notice(Notice::Quiet);
            self.begin_alone();
        } else if self.peer.fence.is_some() {
            self.peer.quiet_since.get_or_insert(now.mono);
        }
    }

    /// Takes that no broker could be reached, before any connection.
    pub fn handle_unreachable(&mut self, now: Now) {
        self.now = now;
        if !self.begun && self.peer.standing == Standing::Offline && self.peer.answer_by.is_some() {
            self.notice(Notice::Alone);
            self.begin_alone();
        }
    }

    /// Takes a frame from the broker, still encoded.
    pub fn handle_frame(&mut self, kind: u8, body: &[u8], now: Now) {
        self.now = now;
        match FromBroker::decode(kind, body) {
            Ok(Some(message)) => self.handle_message(message, now),
            Ok(None) => tracing::trace!(kind, "a frame of no use to a worker"),
            Err(error) => self.break_off(error.to_string()),
        }
    }

    /// Takes a frame from the broker.
    pub fn handle_message(&mut self, message: FromBroker, now: Now) {
        self.now = now;
        if matches!(self.peer.standing, Standing::Offline | Standing::Closed) {
            return;
        }
        match message {
            FromBroker::Welcome(welcome) => self.on_welcome(&welcome),
            FromBroker::Attached(attached) => self.on_attached(&attached),
            FromBroker::Grant(grant) => self.on_grant(grant),
            FromBroker::Ack(ack) => self.on_ack(ack),
            FromBroker::Cancel(cancel) if cancel.execution == self.id => {
                self.on_cancel(&cancel.by, cancel.force);
            }
            FromBroker::Cancel(_) => {}
            FromBroker::Fenced(fenced) => self.on_fenced(fenced),
            FromBroker::Ping(ping) => self.send(peer::kind::PONG, &ping),
            FromBroker::Drain => tracing::debug!("the broker is about to leave"),
        }
        self.pump();
    }

    fn on_welcome(&mut self, welcome: &Welcome) {
        if self.peer.standing != Standing::Greeting {
            return;
        }
        if welcome.proto != peer::PROTO {
            let theirs = welcome.proto;
            self.break_off(format!("protocol {theirs}; this worker speaks {}", peer::PROTO));
            return;
        }
        let theirs = &welcome.limits;
        self.limits.heartbeat = theirs.heartbeat;
        self.limits.linger = theirs.linger;
        self.limits.max_batch_events = self.limits.max_batch_events.min(theirs.max_batch_events);
        self.limits.max_value_bytes = self.limits.max_value_bytes.min(theirs.max_value_bytes);
        self.peer.heartbeat_at = Some(self.now.mono + theirs.heartbeat);
        self.offer();
    }

    /// Offers the execution as it stands.
    pub(super) fn offer(&mut self) {
        self.peer.standing = Standing::Offered;
        let attach = Attach {
            execution: self.id,
            fence: self.peer.fence,
            description: self.description.clone(),
            last: self.last,
            tree: self.tree,
        };
        self.send(peer::kind::ATTACH, &attach);
    }

    fn on_attached(&mut self, attached: &Attached) {
        if attached.execution == self.id && self.peer.standing == Standing::Offered {
            self.peer.standing = Standing::Waiting;
            self.peer.answer_by = None;
            self.peer.unanswered = false;
        }
        if attached.execution == self.id
            && self.peer.standing == Standing::Waiting
            && let Some(waits) = &attached.waiting_on
        {
            self.notice(Notice::Waits(waits.detail.clone()));
        }
    }

    fn on_grant(&mut self, grant: Grant) {
        let open =
            matches!(self.peer.standing, Standing::Offered | Standing::Waiting | Standing::Granted);
        if grant.execution != self.id || !open || self.fenced.is_some() {
            return;
        }
        let Grant { handle, fence, next, events, .. } = grant;
        if next == Seq::NONE || (self.begun && next > self.last.next()) {
            self.refuse_peer(format!("position {next} is beyond what this worker has numbered"));
            return;
        }
        let first_time = !self.begun;
        if first_time && let Err(reason) = self.adopt(next, events) {
            self.refuse_peer(reason);
            return;
        }
        self.flush();
        let peer = &mut self.peer;
        peer.standing = Standing::Granted;
        peer.answer_by = None;
        peer.unanswered = false;
        (peer.handle, peer.fence) = (handle, Some(fence));
        peer.acked = Seq(next.0 - 1);
        peer.rewind(peer.acked);
        peer.rewound = None;
        peer.progress_at = self.now.mono;
        peer.quiet_since = None;
        self.peer.acked_offset = self.history.offset_at(self.peer.acked);
        if first_time || mutant::on("begin at each grant") {
            self.effects.push_back(Effect::Begin);
        } else if self.said.quiet || self.said.alone {
            self.notice(Notice::Reattached);
        }
        self.say_tree();
        self.say_released();
    }

    /// Takes the events that the broker wrote as the beginning of the history.
    fn adopt(&mut self, next: Seq, events: Vec<Stamped>) -> Result<(), String> {
        let before = next.0 - 1;
        let missing = before.checked_sub(events.len() as u64);
        let Some(missing) = missing.and_then(|missing| u32::try_from(missing).ok()) else {
            return Err("a grant has more events than positions".to_owned());
        };
        let mut snapshot = self.snapshot.clone();
        if missing > 0 {
            snapshot.fold_lost(u64::from(missing)).map_err(|error| error.to_string())?;
        }
        for event in &events {
            snapshot.fold(event, &self.limits).map_err(|error| error.to_string())?;
        }
        self.snapshot = snapshot;
        self.begun = true;
        if missing > 0 {
            self.history.push(Batch::lost(Handle(0), Fence(0), Seq(1), missing));
            self.last = Seq(u64::from(missing));
        }
        for event in events {
            let seq = self.last.next();
            self.last = seq;
            self.make_room(Class::Events, frame::encode(&event).len());
            self.outbox.event(seq, &event, self.now.mono);
            self.local.push_back(Local { seq: Some(seq), entry: Entry::Event(event) });
        }
        if before == 0 {
            self.begin_unwritten();
        }
        Ok(())
    }

    /// Writes the first events where a broker granted the right to everything.
    fn begin_unwritten(&mut self) {
        let description = self.description.clone();
        let created = Kind::Created {
            capability: description.capability,
            title: description.title,
            input: description.input,
        };
        self.number(created).expect("it is the first event");
        self.number(Kind::Queued { ahead: 0 }).expect("it follows the first event");
    }

    fn on_ack(&mut self, ack: Ack) {
        if self.peer.standing != Standing::Granted || ack.handle != self.peer.handle {
            return;
        }
        let beyond = u64::from(mutant::on("ack reaches one further"));
        let through = ack.through.plus(beyond).min(self.peer.sent);
        if through > self.peer.acked {
            self.peer.acked = through;
            self.peer.acked_offset = self.history.offset_at(through);
            self.peer.progress_at = self.now.mono;
            self.peer.land(through);
            self.peer.quiet_since = (!self.peer.flight.is_empty()).then_some(self.now.mono);
            if self.said.quiet {
                self.notice(Notice::Reattached);
            }
        }
        if let Some(from) = ack.resend_from
            && from > self.peer.acked
            && from <= self.peer.sent
        {
            self.on_resend(Seq(from.0 - 1));
        }
    }

    /// Goes back; batches that were on their way make a broker ask several times.
    fn on_resend(&mut self, after: Seq) {
        let now = self.now.mono;
        match self.peer.rewound {
            Some((before, at)) if before == after && now < at + REWIND_PACE => {
                self.peer.rewind_again = Some((after, at + REWIND_PACE));
            }
            Some(_) | None => {
                self.peer.rewind(after);
                self.peer.rewound = Some((after, now));
            }
        }
    }

    pub(super) fn on_cancel(&mut self, by: &str, force: bool) {
        let asked = if force { Asked::Kill } else { Asked::Cancel };
        if asked <= self.cancel || self.finished_at.is_some() {
            return;
        }
        self.cancel = asked;
        if self.snapshot.state == State::Running {
            self.release_paced(|_| true);
            self.number(Kind::Cancelling { by: by.to_owned() }).expect("what runs can be stopped");
        }
        self.effects.push_back(Effect::Cancel { by: by.to_owned(), force });
    }

    fn on_fenced(&mut self, fenced: Fenced) {
        if fenced.execution != self.id {
            return;
        }
        self.peer.answer_by = None;
        self.peer.quiet_since = None;
        self.peer.rewind(self.peer.sent);
        if self.fenced.is_none() && self.is_our_end(&fenced) {
            // The end was stored; only the word of it was lost.
            self.peer.standing = Standing::Closed;
            self.peer.acked = self.last;
            return;
        }
        let busy = fenced.error.as_ref().is_some_and(|error| error.code == Code::Busy);
        if self.fenced.is_none() && (busy || !fenced.state.is_final() && self.peer.fence.is_none())
        {
            // Nobody else has it: it goes on by itself, and is offered again at the next connection.
            self.peer.standing = Standing::Closed;
            self.notice(Notice::Unwatched);
            self.begin_alone();
            return;
        }
        self.peer.standing = Standing::Fenced;
        if self.fenced.is_none() {
            self.late.events = self.last.0 - self.peer.acked.0.min(self.last.0);
            let ended = Ended { state: fenced.state, last: fenced.last, error: fenced.error };
            self.fenced = Some(ended.clone());
            self.effects.push_back(Effect::Fenced(ended));
            if self.finished_at.is_some() {
                self.late.outcome = Some((self.snapshot.state, self.last_words()));
            }
        }
        self.say_released();
        self.say_late();
    }

    /// Returns whether the broker has stored our own final event.
    fn is_our_end(&self, fenced: &Fenced) -> bool {
        let ours = &self.snapshot;
        self.finished_at.is_some()
            && !mutant::on("own end is a fence")
            && fenced.last == self.last
            && fenced.state == ours.state
            && (ours.state != State::Failed || fenced.error == ours.error)
    }

    /// Reports how the work really ended after the execution was taken away.
    pub(super) fn late(&mut self, outcome: (State, String)) {
        self.late.outcome = Some(outcome);
        self.say_late();
    }

    fn say_late(&mut self) {
        if self.late.sent || self.peer.standing != Standing::Fenced {
            return;
        }
        let Some((state, message)) = self.late.outcome.clone() else { return };
        self.late.sent = true;
        let late = peer::Late {
            execution: self.id,
            fence: self.peer.fence.unwrap_or_default(),
            state,
            message,
            unsent_events: self.late.events,
        };
        self.send(peer::kind::LATE, &late);
    }

    fn last_words(&self) -> String {
        match &self.snapshot.error {
            Some(error) => format!("{}: {error}", self.snapshot.state),
            None => self.snapshot.state.to_string(),
        }
    }

    fn break_off(&mut self, reason: String) {
        self.effects.push_back(Effect::Disconnect { reason });
    }

    fn refuse_peer(&mut self, reason: String) {
        self.break_off(reason);
        self.peer.standing = Standing::Closed;
        self.begin_alone();
    }

    /// Sends what the window has room for.
    pub(super) fn pump(&mut self) {
        if self.peer.standing != Standing::Granted {
            return;
        }
        while self.peer.flight_bytes < WINDOW {
            let Some(batch) = self.history.following(self.peer.sent) else { break };
            let batch = outbox::beginning(batch, self.limits.max_batch_events);
            let frame = framed(&batch, self.peer.handle, self.peer.fence.unwrap_or_default());
            let bytes = frame.len() as u64;
            self.peer.sent = batch.last();
            self.peer.flight.push_back((batch.last(), bytes));
            self.peer.flight_bytes += bytes;
            self.peer.quiet_since.get_or_insert(self.now.mono);
            self.effects.push_back(Effect::Send(frame));
        }
    }

    pub(super) fn on_peer_timeout(&mut self) {
        let now = self.now.mono;
        if self.peer.heartbeat_at.is_some_and(|at| at <= now) {
            self.peer.heartbeat_at = Some(now + self.limits.heartbeat);
            if !matches!(self.peer.standing, Standing::Greeting | Standing::Closed) {
                let active = vec![self.id];
                self.send(peer::kind::HEARTBEAT, &Heartbeat { active });
            }
        }
        if let Some((after, at)) = self.peer.rewind_again
            && at <= now
        {
            self.peer.rewind_again = None;
            if self.peer.acked <= after && after < self.peer.sent {
                self.peer.rewind(after);
                self.peer.rewound = Some((after, now));
            }
        }
        if self.quiet_at().is_some_and(|at| at <= now) {
            self.notice(Notice::Quiet);
        }
    }

    /// Returns when a silence is worth mentioning.
    pub(super) fn quiet_at(&self) -> Option<Duration> {
        let since = self.peer.quiet_since.filter(|_| !self.said.quiet)?;
        let after = match self.peer.standing {
            Standing::Granted => self.limits.reattach,
            Standing::Offline
            | Standing::Greeting
            | Standing::Offered
            | Standing::Waiting
            | Standing::Fenced
            | Standing::Closed => UNMENTIONED,
        };
        Some(since + after)
    }

    /// Returns whether more waits for the broker than should.
    pub(super) fn full_peer(&self) -> bool {
        let waiting = self.history.offset() - self.peer.acked_offset + self.outbox.len() as u64;
        self.peer.standing == Standing::Granted && waiting > PAUSE_ABOVE
    }

    /// Returns until when the end waits for a broker; none if there is nothing to wait for.
    pub(super) fn patience_until(&self) -> Option<Duration> {
        let finished = self.finished_at?;
        match self.peer.standing {
            Standing::Closed => None,
            Standing::Greeting | Standing::Offered if self.peer.unanswered => None,
            Standing::Offline => self.peer.disconnected_at.map(|at| at + PATIENCE),
            Standing::Greeting | Standing::Offered | Standing::Waiting | Standing::Fenced => {
                Some(finished + PATIENCE)
            }
            Standing::Granted => Some(finished.max(self.peer.progress_at) + PATIENCE),
        }
    }
}

/// Makes the frame of a batch under a writer's handle and fence.
fn framed(batch: &Batch, handle: Handle, fence: Fence) -> Bytes {
    let body = batch.bytes();
    let mut bytes = BytesMut::with_capacity(5 + body.len());
    bytes.extend_from_slice(&frame::prefix(peer::kind::BATCH, body.len()));
    bytes.put_u32(handle.0);
    bytes.put_u64(fence.0);
    bytes.extend_from_slice(&body[12..]);
    bytes.freeze()
}

const _: () = assert!(KEEPS_UP.as_millis() < PATIENCE.as_millis());
