//! Readers in the simulation: real followers, connected and connected again.

use bytes::BytesMut;
use reeve_client::follow::{Follower, Offer};
use reeve_protocol::frame;
use reeve_protocol::peer::{Hello, PROTO, Role, kind};
use reeve_protocol::stream::{FollowFrom, Sub};
use reeve_protocol::{ExecutionId, Seq};

use crate::faults::{MS, SECOND};
use crate::net::{ConnId, Peer, Way};
use crate::rng::Rng;
use crate::world::{Event, World};

/// What a reader is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Follows everything.
    All,
    /// Follows one execution from a cursor.
    One,
    /// Connects and takes nothing.
    Deaf,
}

/// A reader.
pub struct Reader {
    pub habit: Habit,
    pub follower: Follower,
    pub conn: Option<ConnId>,
    retry_due: bool,
    /// Whether it asked once more by itself, so that a further subscription is its own doing.
    retried: bool,
    pub rng: Rng,
}

impl World {
    /// Makes the readers; whom they follow is known once executions are.
    pub fn add_readers(&mut self) {
        for index in 0..self.plan.readers {
            let mut rng = Rng::of(self.seed, "reader", index as u64);
            let habit = match rng.below(10) {
                0..=3 => Habit::All,
                4..=8 => Habit::One,
                _ => Habit::Deaf,
            };
            let follower = self.follower(habit, &mut rng, index);
            let at = rng.below(self.plan.safety / 2);
            self.readers.push(Reader {
                habit,
                follower,
                conn: None,
                retry_due: false,
                retried: false,
                rng,
            });
            self.at(at, Event::ReaderConnect { reader: index });
        }
    }

    fn follower(&mut self, habit: Habit, rng: &mut Rng, index: usize) -> Follower {
        if habit == Habit::All {
            return Follower::of_all();
        }
        let ids: Vec<ExecutionId> = self.ids.clone();
        let Some(execution) = ids.get(rng.index(ids.len())).copied() else {
            return Follower::of_all();
        };
        // Most begin at the beginning; some hold a cursor, which may be beyond the end.
        let after = if rng.chance(700) { Seq::NONE } else { Seq(rng.below(12)) };
        self.ledger.on_wish(index, execution, after);
        Follower::of([FollowFrom { execution, after }])
    }

    pub fn on_reader_connect(&mut self, reader: usize) {
        if self.readers[reader].conn.is_some() || self.readers[reader].follower.is_done() {
            return;
        }
        if !self.broker.up {
            return self.reader_later(reader);
        }
        let conn = self.open(Peer::Reader(reader));
        self.readers[reader].conn = Some(conn);
        let hello = Hello {
            proto: PROTO,
            role: Role::Client,
            name: "watch".to_owned(),
            pid: 9,
            start_ticks: 9,
            build: "sim".to_owned(),
            instance: None,
        };
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::HELLO, &hello);
        let sub = self.readers[reader].follower.handle_connected();
        self.ledger.on_reader_connected(reader);
        frame::put_message(&mut out, kind::SUB, &sub);
        self.write(conn, Way::Up, out.freeze());
    }

    fn reader_later(&mut self, reader: usize) {
        let at = self.now + 20 * MS + self.readers[reader].rng.below(400 * MS);
        self.at(at, Event::ReaderConnect { reader });
    }

    /// Takes what arrived at a reader.
    pub fn on_reader_arrival(&mut self, reader: usize, conn: ConnId) {
        if self.readers[reader].conn != Some(conn) {
            return;
        }
        if self.readers[reader].habit == Habit::Deaf && !self.conns[conn].down.ended {
            self.conns[conn].down.inbox.clear();
            return;
        }
        loop {
            match frame::take(&mut self.conns[conn].down.inbox) {
                Ok(Some((frame_kind, body))) => {
                    let this = &mut self.readers[reader];
                    if let Err(error) = this.follower.handle_frame(frame_kind, body) {
                        let text = format!("reader {reader}: {error}");
                        return self.ledger.fail("followers", text);
                    }
                    self.take_offers(reader);
                    self.subscribe_again(reader, conn);
                }
                Ok(None) => break,
                Err(error) => return self.ledger.fail("honest peers", error.to_string()),
            }
        }
        if self.conns[conn].down.ended {
            self.readers[reader].conn = None;
            self.readers[reader].retry_due = false;
            self.close(conn, Way::Up, usize::MAX);
            self.reader_later(reader);
        } else if self.readers[reader].follower.is_done() {
            self.readers[reader].conn = None;
            self.close(conn, Way::Up, usize::MAX);
        }
    }

    fn take_offers(&mut self, reader: usize) {
        let epoch = self.conns[self.readers[reader].conn.expect("it is connected")].life;
        while let Some(offer) = self.readers[reader].follower.poll_offer() {
            self.trace(|| format!("R{reader}: {}", show_offer(&offer)));
            if matches!(offer, Offer::Unknown { .. }) && !self.readers[reader].retry_due {
                self.readers[reader].retry_due = true;
                let at = self.now + 250 * MS;
                self.at(at, Event::ReaderRetry { reader });
            }
            let same_life = epoch == self.broker.life;
            self.ledger.on_offer(reader, epoch, &offer, same_life.then_some(&self.broker.store));
        }
    }

    fn subscribe_again(&mut self, reader: usize, conn: ConnId) {
        if let Some(sub) = self.readers[reader].follower.poll_sub() {
            if !self.readers[reader].retried {
                let text = format!("reader {reader} had to subscribe again: {sub:?}");
                self.ledger.fail("followers", text);
            }
            self.send_sub(conn, &sub);
        }
    }

    fn send_sub(&mut self, conn: ConnId, sub: &Sub) {
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::SUB, sub);
        self.write(conn, Way::Up, out.freeze());
    }

    /// Asks once more for what nobody held.
    pub fn on_reader_retry(&mut self, reader: usize) {
        self.readers[reader].retry_due = false;
        let Some(conn) = self.readers[reader].conn else { return };
        let this = &mut self.readers[reader];
        this.follower.handle_retry();
        this.retried = true;
        self.subscribe_again(reader, conn);
        self.readers[reader].retried = false;
    }

    /// Cuts a reader's connection where it likes.
    pub fn cut_reader(&mut self, reader: usize) {
        let Some(conn) = self.readers[reader].conn else { return };
        let keep = self.keep(conn, Way::Down);
        self.close(conn, Way::Down, keep);
        let keep = self.keep(conn, Way::Up);
        self.close(conn, Way::Up, keep);
    }
}

/// How long a reader may take to catch up once nothing stands in its way.
pub const CATCH_UP: u64 = 4 * SECOND;

fn show_offer(offer: &Offer) -> String {
    match offer {
        Offer::Events { id, batch } => format!("{id} events {}..{}", batch.first(), batch.last()),
        other => format!("{other:?}"),
    }
}
