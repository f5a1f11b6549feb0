//! `cargo xtask foreign`: clients and a tester that are not ours, against real brokers.
//!
//! WebSocket clients on two libraries follow executions through cut connections and a killed
//! broker, and a tester that knows only `/openapi.json` asks everything that it describes. What
//! they need is installed once, below `target/foreign/`; every broker has a checkout, a state
//! directory and a cache of its own, and whatever was started here ends here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Executions that are followed at once.
const EXECUTIONS: usize = 3;
/// Lines that each of them prints, about ten milliseconds apart.
const LINES: u32 = 500;
/// Connections that are cut before a client may follow in peace.
const CUTS: u32 = 24;
/// Seconds that the tester may take.
const TESTER_SECONDS: u32 = 45;
/// How often a fact is asked for, and how long to rest in between: half a minute in all.
const TRIES: u32 = 600;
const REST: Duration = Duration::from_millis(50);

/// Runs all of it; returns whether everything held.
pub fn run(root: &Path) -> bool {
    let steps = || {
        build(root)?;
        let tools = Tools::prepare(&root.join("tests/foreign"))?;
        follow(&tools, false)?;
        follow(&tools, true)?;
        test_surface(&tools)
    };
    match steps() {
        Ok(()) => true,
        Err(problem) => {
            eprintln!("foreign: {problem}");
            false
        }
    }
}

fn say(what: &str) {
    println!("foreign: {what}");
}

/// Builds the binary that is asked below, with the features that it ships with.
fn build(root: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--workspace", "--quiet"]);
    succeed("cargo build", &mut command)
}

/// Where everything is that the clients need.
struct Tools {
    /// The clients' source.
    source: PathBuf,
    /// A folder with the Node clients beside their libraries.
    node: PathBuf,
    /// The programs of the Python environment.
    python: PathBuf,
    /// The binary under test.
    reeve: PathBuf,
}

impl Tools {
    /// Looks for what must be there, and installs the rest unless these very pins are installed.
    fn prepare(source: &Path) -> Result<Self, String> {
        let version = need(
            Command::new("python3").args([
                "-c",
                "import ensurepip, sys, venv; assert sys.version_info >= (3, 10); print(sys.version)",
            ]),
            "python3 (3.10 or newer) with its module venv is not there; \
             install the packages python3 and python3-venv",
        )?;
        let node_version = need(
            Command::new("node").args([
                "-e",
                "if (parseInt(process.versions.node) < 18) process.exit(1); console.log(process.version)",
            ]),
            "node (18 or newer) is not there; install the package nodejs",
        )?;
        need(
            Command::new("npm").arg("--version"),
            "npm is not there; install the package npm (it comes with some packages of nodejs)",
        )?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let profile = own.parent().ok_or("this program has no folder")?;
        let home = profile.parent().ok_or("this program has no target folder")?.join("foreign");
        let tools = Self {
            source: source.to_owned(),
            node: home.join("node"),
            python: home.join("python/bin"),
            reeve: profile.join(format!("reeve{}", std::env::consts::EXE_SUFFIX)),
        };
        let mut pins = version + &node_version;
        for file in ["requirements.txt", "package-lock.json"] {
            pins += &read(&source.join(file))?;
        }
        let installed = home.join("installed");
        if fs::read_to_string(&installed).is_ok_and(|those| those == pins) {
            say("the libraries are there");
        } else {
            say("installing the libraries");
            drop(fs::remove_dir_all(&home));
            tools.install(&home)?;
            write(&installed, &pins)?;
        }
        for file in ["follow.mjs", "quiet.mjs"] {
            copy(&source.join(file), &tools.node.join(file))?;
        }
        Ok(tools)
    }

    fn install(&self, home: &Path) -> Result<(), String> {
        make_folder(&self.node)?;
        let mut venv = Command::new("python3");
        succeed("python3 -m venv", venv.args(["-m", "venv"]).arg(home.join("python")))?;
        let mut pip = Command::new(self.python.join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        succeed("pip", pip.arg("--requirement").arg(self.source.join("requirements.txt")))?;
        for file in ["package.json", "package-lock.json"] {
            copy(&self.source.join(file), &self.node.join(file))?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
        succeed("npm ci", npm.current_dir(&self.node))
    }
}

/// Two clients follow the same executions through cuts, and, if asked, a broker that is killed.
fn follow(tools: &Tools, killed: bool) -> Result<(), String> {
    let what = if killed { "cuts and a killed broker" } else { "cuts" };
    say(&format!("two clients follow {EXECUTIONS} executions through {what}"));
    let scratch = Scratch::new(tools)?;
    let mut broker = scratch.serve(0)?;
    let lines = format!("lines={LINES}");
    let mut runs = Vec::new();
    for number in 0..EXECUTIONS {
        let name = format!("run-{number}");
        let args = ["run", "count", "--set", &lines, "--format", "ndjson"];
        runs.push((Running::start(&name, scratch.to_file(&args, &name)?)?, name));
    }
    let mut ids = Vec::new();
    for (_, name) in &runs {
        let path = scratch.home.join(name);
        ids.push(until("the first event of a run", || {
            let text = fs::read_to_string(&path).ok()?;
            Some(text.split("\"execution_id\":\"").nth(1)?.split('"').next()?.to_owned())
        })?);
    }
    let mut python = Command::new(tools.python.join("python"));
    python.arg(tools.source.join("follow.py"));
    let mut node = Command::new("node");
    node.arg("follow.mjs").current_dir(&tools.node);
    let mut clients = Vec::new();
    for (name, mut client) in [("follow.py", python), ("follow.mjs", node)] {
        client.args([&broker.url, "1", &CUTS.to_string()]).args(&ids);
        clients.push(Running::start(name, client.env("REEVE_TOKEN", &broker.token))?);
    }
    if killed {
        // Somewhere in the middle; each run goes on and brings its history to the next broker.
        let text = format!("line {}", LINES / 3);
        let path = scratch.home.join(&runs[0].1);
        until("a third of the lines", || {
            fs::read_to_string(&path).ok()?.contains(&text).then_some(())
        })?;
        broker.process.end();
        broker = scratch.serve(broker.port()?)?;
        say("killed the broker, and started another");
    }
    for client in clients {
        client.succeeded()?;
    }
    for (run, _) in runs {
        run.succeeded()?;
    }
    broker.stop(&scratch)
}

/// The tester asks everything that is described, while a client waits for signs of life.
fn test_surface(tools: &Tools) -> Result<(), String> {
    say(&format!("a tester asks what /openapi.json describes, for {TESTER_SECONDS} s"));
    let scratch = Scratch::new(tools)?;
    let broker = scratch.serve(0)?;
    let args = ["run", "echo", "--set", "word=hello", "--format", "ndjson"];
    Running::start("run", scratch.to_file(&args, "run")?)?.succeeded()?;
    let text = read(&scratch.home.join("run"))?;
    let id = text.split("\"execution_id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let id = id.ok_or("a run has no id")?;
    let mut quiet = Command::new("node");
    quiet.args(["quiet.mjs", &broker.url, id]);
    quiet.current_dir(&tools.node).env("REEVE_TOKEN", &broker.token);
    let quiet = Running::start("quiet.mjs", &mut quiet)?;
    // It writes files to where it stands, and looks there for its hooks.
    for file in ["schemathesis.toml", "hooks.py"] {
        copy(&tools.source.join(file), &scratch.home.join(file))?;
    }
    let mut tester = Command::new(tools.python.join("schemathesis"));
    tester
        .current_dir(&scratch.home)
        .args(["run", &format!("{}/openapi.json", broker.url), "--no-color"])
        .args(["--max-time", &TESTER_SECONDS.to_string()])
        .env("REEVE_TOKEN", &broker.token)
        .env("REEVE_EXECUTION", id);
    let log = scratch.home.join("tester");
    to_file(&mut tester, &log)?;
    let tested = Running::start("schemathesis", &mut tester)?.succeeded();
    let told = read(&log)?;
    match &tested {
        Err(_) => println!("{told}"),
        Ok(()) => told.lines().filter(|line| line.contains("generated,")).for_each(say),
    }
    tested?;
    quiet.succeeded()?;
    let answer = scratch.command(&["status"]).output().map_err(|error| error.to_string())?;
    let status = String::from_utf8_lossy(&answer.stdout).into_owned();
    if !status.contains("serving: true") {
        return Err("the broker did not outlive the tester".to_owned());
    }
    broker.stop(&scratch)
}

/// A checkout with state of its own; gone when it is dropped.
struct Scratch {
    home: PathBuf,
    reeve: PathBuf,
}

/// A broker that serves a scratch checkout.
struct Broker {
    process: Running,
    url: String,
    token: String,
}

impl Scratch {
    fn new(tools: &Tools) -> Result<Self, String> {
        let home = std::env::temp_dir().join(format!("reeve-foreign-{}", std::process::id()));
        drop(fs::remove_dir_all(&home));
        let checkout = home.join("checkout");
        make_folder(&checkout.join(".git"))?;
        write(&checkout.join(".git/HEAD"), "ref: refs/heads/main\n")?;
        for file in ["reeve.toml", "count.sh"] {
            copy(&tools.source.join("checkout").join(file), &checkout.join(file))?;
        }
        let scratch = Self { home, reeve: tools.reeve.clone() };
        // What the tester starts, the broker runs for it.
        let mut trust = scratch.to_file(&["trust", "--yes"], "trust")?;
        succeed("reeve trust", &mut trust)?;
        Ok(scratch)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.reeve);
        command
            .args(args)
            .current_dir(self.home.join("checkout"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("REEVE_STATE_DIR", self.home.join("state"))
            .env("XDG_CACHE_HOME", self.home.join("cache"))
            .stdin(Stdio::null());
        command
    }

    /// Returns a command whose output goes to a file of the scratch home.
    fn to_file(&self, args: &[&str], name: &str) -> Result<Command, String> {
        let mut command = self.command(args);
        to_file(&mut command, &self.home.join(name))?;
        Ok(command)
    }

    /// Starts a broker at a port, 0 for any, and waits until it serves.
    fn serve(&self, port: u16) -> Result<Broker, String> {
        let port = port.to_string();
        let process = Running::start("serve", self.to_file(&["serve", "--port", &port], "serve")?)?;
        let own = format!("pid: {}", process.child.id());
        let url = until("the broker", || {
            let status = self.command(&["status"]).output().ok()?;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            let served = status.contains("serving: true") && status.contains(&own);
            let url = status.lines().find_map(|line| line.strip_prefix("url: "));
            url.filter(|_| served).map(str::to_owned)
        })?;
        let token = self.command(&["token"]).output().map_err(|error| error.to_string())?;
        let token = String::from_utf8_lossy(&token.stdout).trim().to_owned();
        Ok(Broker { process, url, token })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.home));
    }
}

impl Broker {
    fn port(&self) -> Result<u16, String> {
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok());
        port.ok_or_else(|| format!("{} has no port", self.url))
    }

    /// Ends it as a person would, and the workers of its own with it.
    fn stop(self, scratch: &Scratch) -> Result<(), String> {
        succeed("reeve stop", scratch.command(&["stop"]).stdout(Stdio::null()))?;
        self.process.succeeded()
    }
}

/// A process that ends with this program.
struct Running {
    name: String,
    child: Child,
}

impl Running {
    fn start(
        name: &str,
        mut command: impl std::borrow::BorrowMut<Command>,
    ) -> Result<Self, String> {
        let child = command.borrow_mut().spawn();
        let child = child.map_err(|error| format!("{name} cannot be started: {error}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    fn succeeded(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", self.name)) }
    }

    fn end(&mut self) {
        // It may have ended since.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks for a fact until it is there.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> Result<T, String> {
    for _ in 0..TRIES {
        if let Some(fact) = ask() {
            return Ok(fact);
        }
        std::thread::sleep(REST);
    }
    Err(format!("gave up waiting for {what}"))
}

/// Runs what shows that a program is there, and returns what it says.
fn need(command: &mut Command, otherwise: &str) -> Result<String, String> {
    match command.stderr(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        _ => Err(otherwise.to_owned()),
    }
}

fn succeed(name: &str, command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed ({status})")),
        Err(error) => Err(format!("{name} cannot be started: {error}")),
    }
}

fn to_file(command: &mut Command, path: &Path) -> Result<(), String> {
    let mut create = || {
        let out = fs::File::create(path)?;
        let same = out.try_clone()?;
        command.stdout(out).stderr(same);
        Ok(())
    };
    create().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}
