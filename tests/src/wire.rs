//! A peer that speaks the local wire by itself: blocking, explicit, and able to misbehave.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reeve_protocol::frame;
use reeve_protocol::peer::{Attach, Bye, Grant, Hello, PROTO, Role, kind};
use reeve_protocol::snapshot::{Actor, ActorKind, Description, Repository};
use reeve_protocol::stream::{Answer, Ctl, Op, Res};
use reeve_protocol::{Batch, ExecutionId, Fault, Fence, Handle, Kind, Seq, Stamped, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One connection to a broker.
pub struct Wire {
    stream: UnixStream,
    buffer: BytesMut,
    next_request: u64,
}

impl Wire {
    /// Connects and says nothing.
    pub fn silent(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the broker's socket takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
        stream.set_write_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
        Self { stream, buffer: BytesMut::new(), next_request: 1 }
    }

    /// Connects, says hello in this role, and takes the welcome.
    pub fn hello(socket: &Path, role: Role) -> Self {
        let mut wire = Self::silent(socket);
        wire.send(kind::HELLO, &hello(role));
        let (first, _) = wire.recv().expect("a welcome comes");
        assert_eq!(first, kind::WELCOME);
        wire
    }

    /// Connects as a client.
    pub fn client(socket: &Path) -> Self {
        Self::hello(socket, Role::Client)
    }

    /// Connects as a worker; its process is that of the test.
    pub fn worker(socket: &Path) -> Self {
        Self::hello(socket, Role::Worker)
    }

    /// Sends a message.
    pub fn send<T: Serialize>(&mut self, kind: u8, message: &T) {
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind, message);
        self.raw(&out);
    }

    /// Sends a batch.
    pub fn batch(&mut self, batch: &Batch) {
        let mut out = BytesMut::new();
        frame::put(&mut out, kind::BATCH, batch.bytes());
        self.raw(&out);
    }

    /// Sends bytes as they are; an end that is gone is not minded.
    pub fn raw(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes));
    }

    /// Receives the next frame; `None` at the end of the stream.
    pub fn recv(&mut self) -> Option<(u8, Bytes)> {
        loop {
            if let Some(frame) =
                frame::take(&mut self.buffer).expect("the broker's frames are good")
            {
                return Some(frame);
            }
            let mut chunk = [0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// Receives until a frame of this kind comes.
    ///
    /// # Panics
    ///
    /// When the stream ends first.
    #[track_caller]
    pub fn expect<T: DeserializeOwned>(&mut self, wanted: u8) -> T {
        loop {
            match self.recv() {
                Some((kind, body)) if kind == wanted => {
                    return frame::decode(&body).expect("the broker's messages are good");
                }
                Some((kind::BYE, body)) => {
                    let bye: Bye = frame::decode(&body).expect("a goodbye is good");
                    panic!("the broker closed: {}", bye.reason);
                }
                Some(_) => {}
                None => panic!("the stream ended before a frame of kind {wanted}"),
            }
        }
    }

    /// Receives until the connection is closed, and returns the reason that was given.
    #[track_caller]
    pub fn closed(&mut self) -> String {
        let mut reason = String::new();
        while let Some((kind, body)) = self.recv() {
            if kind == kind::BYE {
                reason = frame::decode::<Bye>(&body).expect("a goodbye is good").reason;
            }
        }
        reason
    }

    /// Asks something as a client.
    pub fn ask(&mut self, op: Op) -> Result<Value, Fault> {
        let request = self.next_request;
        self.next_request += 1;
        self.send(kind::CTL, &Ctl { request, op });
        loop {
            let res: Res = self.expect(kind::RES);
            if res.request == request {
                return match res.result {
                    Answer::Ok(value) => Ok(value),
                    Answer::Err(fault) => Err(fault),
                };
            }
        }
    }

    /// Attaches a new execution as a worker and waits for the grant.
    pub fn attach(&mut self, id: ExecutionId, description: Description) -> Granted {
        let attach =
            Attach { execution: id, fence: None, description, last: Seq::NONE, tree: None };
        self.send(kind::ATTACH, &attach);
        let grant: Grant = self.expect(kind::GRANT);
        Granted { handle: grant.handle, fence: grant.fence, next: grant.next }
    }

    /// Reports events from the next position on.
    pub fn report(&mut self, granted: &mut Granted, kinds: &[Kind]) {
        let batch = granted.batch(kinds);
        granted.next = batch.last().next();
        self.batch(&batch);
    }

    /// Returns another end of the same connection, for a thread that only reads.
    pub fn split(&self) -> Self {
        let stream = self.stream.try_clone().expect("a socket can be shared");
        Self { stream, buffer: self.buffer.clone(), next_request: self.next_request }
    }

    /// Returns the socket itself.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }
}

/// A worker's right to an execution.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// The execution's number.
    pub handle: Handle,
    /// The right's number.
    pub fence: Fence,
    /// The next position.
    pub next: Seq,
}

impl Granted {
    /// Makes a batch of events from the next position on.
    pub fn batch(&self, kinds: &[Kind]) -> Batch {
        let events: Vec<Stamped> = kinds.iter().cloned().map(stamped).collect();
        Batch::of_events(self.handle, self.fence, self.next, &events)
    }
}

/// Returns an event of no particular time.
pub fn stamped(kind: Kind) -> Stamped {
    Stamped { at: Timestamp::from_micros(1_800_000_000_000_000), kind }
}

/// Returns a hello of this process.
pub fn hello(role: Role) -> Hello {
    Hello {
        proto: PROTO,
        role,
        name: "test".to_owned(),
        pid: std::process::id(),
        start_ticks: 0,
        build: "test".to_owned(),
        instance: None,
    }
}

/// Returns an execution id made from a number.
pub fn id(number: u32) -> ExecutionId {
    ExecutionId::mint(Timestamp::from_micros(1_800_000_000_000_000), number)
}

/// Returns the description of an execution of this capability.
pub fn description(capability: &str) -> Description {
    Description {
        capability: capability.parse().expect("a capability id"),
        title: capability.to_owned(),
        kind: reeve_protocol::capability::CapabilityKind::Process,
        effect: reeve_protocol::capability::Effect::Read,
        cancellable: true,
        lock: None,
        on_worker_loss: reeve_protocol::capability::OnWorkerLoss::End,
        cancel_grace_ms: 1_000,
        input: serde_json::json!({}),
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: Some(std::process::id()) },
        repository: Repository::default(),
        parent_id: None,
    }
}
