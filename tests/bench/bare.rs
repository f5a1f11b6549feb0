//! The bare figures: the same work done by the system, with nothing of ours in it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The argument that makes this program a child of itself.
pub const CHILD: &str = "__bare";
/// Bytes of a line, its end included.
pub const LINE: usize = 80;
/// Bytes of a record that the bare socket carries instead of an event.
pub const RECORD: usize = 150;

/// Returns a command of this program as a child.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg(CHILD).args(args);
    command
}

/// Does what a child is asked to.
pub fn child(args: &[String]) {
    match args[0].as_str() {
        "lines" => lines(args[1].parse().expect("a number of bytes")),
        "line" => one_line(args[1].parse().expect("a number of bytes")),
        "serve" => serve(Path::new(&args[1])),
        "send" => send(Path::new(&args[1]), args[2].parse().expect("a number of records")),
        other => panic!("no child does {other}"),
    }
}

/// Writes lines, 64 KiB at a time.
fn lines(bytes: usize) {
    let mut line = [b'x'; LINE];
    line[LINE - 1] = b'\n';
    let chunk = line.repeat((64 << 10) / LINE);
    write_all(&chunk, bytes);
}

/// Writes one line without an end.
fn one_line(bytes: usize) {
    write_all(&vec![b'x'; 64 << 10], bytes);
}

fn write_all(chunk: &[u8], bytes: usize) {
    let mut out = std::io::stdout().lock();
    let mut left = bytes;
    while left > 0 {
        let part = left.min(chunk.len());
        out.write_all(&chunk[..part]).expect("the reader reads");
        left -= part;
    }
}

/// Answers connections until it is killed: the least that a server can be.
fn serve(socket: &Path) {
    let listener = UnixListener::bind(socket).expect("the socket can be bound");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection comes");
        stream.write_all(b"ready").expect("the other end listens");
    }
}

fn send(socket: &Path, records: usize) {
    let mut stream = UnixStream::connect(socket).expect("the counter listens");
    let batch = vec![b'a'; RECORD * 500];
    for _ in 0..records / 500 {
        stream.write_all(&batch).expect("the counter reads");
    }
}

/// Reads a pipe to its end and returns how much came.
pub fn drain(child: &mut Child) -> usize {
    let mut pipe = child.stdout.take().expect("it is piped");
    let mut buffer = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        match pipe.read(&mut buffer).expect("a pipe can be read") {
            0 => return total,
            read => total += read,
        }
    }
}

/// Counts the bytes that some senders bring over a socket.
pub fn count(socket: &Path, senders: usize, records: usize) {
    let listener = UnixListener::bind(socket).expect("the socket can be bound");
    let records_text = records.to_string();
    let path = socket.to_string_lossy().into_owned();
    let children: Vec<Child> = (0..senders)
        .map(|_| {
            let mut command = command(&["send", &path, &records_text]);
            command.stdin(Stdio::null()).spawn().expect("a sender starts")
        })
        .collect();
    let readers: Vec<_> = (0..senders)
        .map(|_| {
            let (mut stream, _) = listener.accept().expect("a sender connects");
            std::thread::spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                let mut total = 0;
                loop {
                    match stream.read(&mut buffer).expect("a socket can be read") {
                        0 => return total,
                        read => total += read,
                    }
                }
            })
        })
        .collect();
    let total: usize = readers.into_iter().map(|reader| reader.join().expect("it reads")).sum();
    assert_eq!(total, senders * records * RECORD);
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    std::fs::remove_file(socket).expect("the socket can be removed");
}
