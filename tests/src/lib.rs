//! The harness: a checkout with real processes around it, and a peer that speaks the wire.
//!
//! Every test has a checkout, a state directory and a run directory of its own, so tests never
//! meet. Whatever a test started ends with it. Nothing sleeps to wait for a fact: [`until`] asks
//! for it again and again, up to a generous deadline.

pub mod handlers;
pub mod wire;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use reeve_protocol::lease::Lease;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up. Far beyond every figure that is expected.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks for a fact until it is there.
///
/// # Panics
///
/// When it is not there after [`PATIENCE`]; the message names what was waited for.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = now();
    loop {
        if let Some(fact) = ask() {
            return fact;
        }
        assert!(start.elapsed() < PATIENCE, "gave up waiting for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the clock, for deadlines and orderings.
#[expect(clippy::disallowed_methods, reason = "tests are shells")]
pub fn now() -> Instant {
    Instant::now()
}

/// A checkout of its own, and what was started in it.
pub struct Checkout {
    home: TempDir,
    root: PathBuf,
    reeve: PathBuf,
}

impl Checkout {
    /// Makes a checkout with this manifest. `reeve` is the binary under test.
    pub fn new(reeve: &str, manifest: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let root = home.path().join("checkout");
        fs::create_dir_all(root.join(".git")).expect("a checkout can be made");
        fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").expect("a branch can be set");
        let checkout = Self { home, root, reeve: reeve.into() };
        checkout.write("reeve.toml", manifest);
        checkout
    }

    /// Returns the root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory that holds everything of this test.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Writes a file of the checkout.
    pub fn write(&self, path: &str, content: &str) {
        fs::write(self.root.join(path), content).expect("a file of the checkout can be written");
    }

    /// Reads a file of the checkout; nothing if it is not there.
    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Returns a command of the binary under test, in the checkout, with a clean environment.
    pub fn command<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.reeve);
        command
            .args(args)
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("REEVE_STATE_DIR", self.home.path().join("state"))
            .env("XDG_CACHE_HOME", self.home.path().join("cache"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Ran {
        let output = self.command(args).output().expect("the binary under test starts");
        Ran::from(output)
    }

    /// Starts a command and leaves it running; it ends with the test.
    pub fn spawn<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Running {
        let mut command = self.command(args);
        Running::spawn(&mut command)
    }

    /// Trusts the manifest, starts a broker with these limits and waits until it can be connected
    /// to.
    pub fn serve(&self, limits: &[(&str, &str)]) -> Running {
        // A manifest that is none is trusted by nobody.
        self.run(["trust", "--yes"]);
        self.serve_as_it_is(limits)
    }

    /// Starts a broker with these limits, whatever is trusted, and waits until it can be connected
    /// to.
    pub fn serve_as_it_is(&self, limits: &[(&str, &str)]) -> Running {
        let mut args = vec!["serve".to_owned()];
        for (name, value) in limits {
            args.extend(["--limit".to_owned(), format!("{name}={value}")]);
        }
        let before = self.lease().map(|lease| lease.instance);
        let mut broker = self.spawn(args);
        until("the broker's lease", || {
            if !broker.is_running() {
                let said: Vec<String> = broker.stderr.iter().collect();
                panic!("the broker ended: {}", said.concat());
            }
            self.lease().filter(|lease| Some(&lease.instance) != before.as_ref())
        });
        broker
    }

    /// Reads the broker's lease.
    pub fn lease(&self) -> Option<Lease> {
        let states = fs::read_dir(self.home.path().join("state")).ok()?;
        let files = states.flatten().map(|entry| entry.path().join("lease.json"));
        files.filter_map(|file| Lease::parse(&fs::read(file).ok()?)).next()
    }

    /// Asks the broker something with `--format json`.
    pub fn json<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Value {
        let mut command = self.command(args);
        let ran = Ran::from(command.args(["--format", "json"]).output().expect("it starts"));
        serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {ran:?}"))
    }

    /// Returns what the list shows, newest first.
    pub fn list(&self) -> Vec<Value> {
        let list = self.json(["executions", "list"]);
        list["executions"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until an execution of this capability is in this state, and returns its snapshot.
    pub fn until_state(&self, capability: &str, state: &str) -> Value {
        until(&format!("{capability} to be {state}"), || {
            self.list()
                .into_iter()
                .find(|one| one["capability"] == capability && one["state"] == state)
        })
    }

    /// Returns one execution's snapshot.
    pub fn show(&self, id: &str) -> Value {
        self.json(["executions", "show", id])
    }

    /// Returns the whole retained history of an execution.
    pub fn history(&self, id: &str) -> Vec<Value> {
        let (mut after, mut events) = (0, Vec::new());
        loop {
            let after_text = after.to_string();
            let page = self.json(["executions", "events", id, "--after", &after_text]);
            events.extend(page["events"].as_array().cloned().unwrap_or_default());
            after = page["last_sequence"].as_u64().expect("a page has a cursor");
            if page["more"] != true {
                return events;
            }
        }
    }
}

impl Drop for Checkout {
    /// Ends what a test left behind when it killed a worker together with its broker. Whatever
    /// was started here has this checkout's home in its environment.
    fn drop(&mut self) {
        let mark = format!("HOME={}", self.home.path().display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let ours = environ.split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid.filter(|_| ours).and_then(Pid::from_raw) {
                // It may have ended since.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Ran {
    /// Returns its exit code.
    ///
    /// # Panics
    ///
    /// When a signal ended it.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("a signal ended it: {self:?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A process that runs; it is killed when this is dropped.
pub struct Running {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    /// Starts a command; both its streams are read, so that it never blocks on them.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        Self::of(child)
    }

    /// Takes a process that was started; what of it is piped is read.
    pub fn of(mut child: Child) -> Self {
        let read = |stream: Option<Box<dyn Read + Send>>| stream.map_or_else(|| channel().1, lines);
        let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as _));
        let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as _));
        Self { child, stdout, stderr }
    }

    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("it can be signalled");
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be looked at").is_none()
    }

    /// Waits for a line of its output that contains `text`.
    #[track_caller]
    pub fn until_stdout(&self, text: &str) -> String {
        until_line(&self.stdout, text)
    }

    /// Waits for a line of what it says that contains `text`.
    #[track_caller]
    pub fn until_stderr(&self, text: &str) -> String {
        until_line(&self.stderr, text)
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self) -> Ran {
        let status = until("a process to end", || self.child.try_wait().expect("it can be seen"));
        Ran {
            status,
            stdout: self.stdout.iter().collect::<Vec<_>>().concat(),
            stderr: self.stderr.iter().collect::<Vec<_>>().concat(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[track_caller]
fn until_line(lines: &Receiver<String>, text: &str) -> String {
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line.contains(text) => return line,
            Ok(_) => {}
            Err(error) => panic!("no line with {text:?} came: {error}"),
        }
    }
}

/// Reads lines on a thread that ends with the stream.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                // Nobody reads any more, and the process must not block.
                drop(std::io::copy(&mut stream, &mut std::io::sink()));
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Returns whether a process lives; a zombie does not.
pub fn lives(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok();
    let stat = stat.as_deref().and_then(reeve_protocol::place::ProcessStat::parse);
    stat.is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Returns the resident memory of a process, in bytes.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("VmRSS: 0 kB");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().unwrap_or(0) * 1024
}

/// Returns the peak resident memory of a process, in bytes.
pub fn peak_resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: 0 kB");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().unwrap_or(0) * 1024
}
