//! Real processes: shells, sleepers, and programs that will not go.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reeve_protocol::event::{ChildEvent, Kind};
use reeve_protocol::{ExecutionId, LogChunk, Output, Timestamp, sanitise};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::escalate::{Ask, Effect};
use super::{
    ChildOutput, Escalation, Exit, Member, OutputMode, Running, SpawnError, Spec, StdinSource,
    launcher_main, orphan,
};

/// Nothing here takes that long; what does hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const LINE_CHARS: usize = 2_000;
/// Hands the arguments of a launcher to this very test program.
const LAUNCH_ARGS: &str = "REEVE_TEST_LAUNCH";

fn now() -> Timestamp {
    Timestamp::from_micros(42)
}

fn program(program: &str, args: &[&str]) -> Spec {
    Spec {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        cwd: "/".into(),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        stdin: StdinSource::Null,
        output: OutputMode::Capture,
        events: false,
        line_chars: LINE_CHARS,
        scrubber: crate::scrub::Scrubber::default(),
        launcher: None,
        cgroup: false,
    }
}

fn sh(script: &str) -> Spec {
    program("/bin/sh", &["-c", script])
}

fn spawn(spec: Spec) -> Running {
    Running::spawn(spec, now).expect("it starts")
}

/// Everything that a process did, in order.
#[derive(Default)]
struct Run {
    chunks: Vec<LogChunk>,
    said: Vec<ChildEvent>,
    exit: Option<Exit>,
}

impl Run {
    fn lines(&self, stream: Output) -> Vec<&str> {
        let chunks = self.chunks.iter().filter(|chunk| chunk.stream == stream);
        chunks.flat_map(|chunk| chunk.iter().map(|(line, _)| line)).collect()
    }

    fn out(&self) -> Vec<&str> {
        self.lines(Output::Stdout)
    }

    fn take(&mut self, output: ChildOutput) {
        match output {
            ChildOutput::Log(chunk) => {
                assert!(sanitise::is_clean(&chunk.text));
                assert_eq!(chunk.iter().count(), chunk.lines as usize);
                assert_eq!(chunk.at, now());
                self.chunks.push(chunk);
            }
            ChildOutput::Said(events) => self.said.extend(events),
            ChildOutput::Exited(exit) => assert_eq!(self.exit.replace(exit), None),
        }
    }
}

async fn next(running: &mut Running) -> Option<ChildOutput> {
    timeout(PATIENCE, running.next()).await.expect("something happens")
}

/// Listens to the end.
async fn listen(running: &mut Running) -> Run {
    let mut run = Run::default();
    while let Some(output) = next(running).await {
        run.take(output);
    }
    assert!(run.exit.is_some());
    run
}

/// Listens until the process wrote `line`.
async fn until(running: &mut Running, line: &str) -> Run {
    let mut run = Run::default();
    while !run.out().contains(&line) {
        run.take(next(running).await.expect("it writes the line"));
    }
    run
}

async fn run(spec: Spec) -> Run {
    let mut running = spawn(spec);
    let run = listen(&mut running).await;
    assert_eq!(running.into_tree().leave(), []);
    run
}

/// Brings a process to its end as a worker does.
async fn stop(running: &mut Running, grace: Duration) -> Run {
    let start = Instant::now();
    let mut escalation = Escalation::new();
    let mut run = Run::default();
    escalation.handle_cancel(start.elapsed(), grace);
    loop {
        while let Some(effect) = escalation.poll_effect() {
            match effect {
                Effect::SignalTree(Ask::Term) => running.tree().signal(Signal::TERM),
                Effect::SignalTree(Ask::Int) => running.tree().signal(Signal::INT),
                Effect::KillTree => assert_eq!(running.tree().kill().await, []),
                Effect::Done => {
                    while let Some(output) = next(running).await {
                        run.take(output);
                    }
                    return run;
                }
            }
        }
        let due = start + escalation.poll_timeout().expect("it is not done");
        let look = Instant::now() + Duration::from_millis(5);
        if let Ok(Some(output)) = tokio::time::timeout_at(due.min(look), running.next()).await {
            run.take(output);
        }
        escalation.handle_timeout(start.elapsed());
        if running.tree().is_empty() {
            escalation.handle_empty();
        }
    }
}

fn is_gone(member: &Member) -> bool {
    !member.is_alive()
}

/// A folder that a process may use.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn grandchildren_end_with_the_tree() {
    for cgroup in [false, true] {
        let script = "sleep 881 & (sleep 882 & wait) & echo ready; wait";
        let mut running = spawn(Spec { cgroup, ..sh(script) });
        until(&mut running, "ready").await;
        // Each waits in its own time: look until all of them are there.
        let sleepers =
            |members: &[Member]| members.iter().filter(|member| member.comm == "sleep").count();
        wait_for("two sleepers", || sleepers(&running.tree().members()) == 2);
        let members = running.tree().members();

        let run = stop(&mut running, PATIENCE).await;

        assert!(members.iter().all(is_gone), "{members:?}");
        let exit = run.exit.expect("it ended");
        assert_eq!((exit.signal, exit.ours), (Some(15), true));
        assert_eq!(exit.describe(), "signal 15 (SIGTERM), sent by reeve");
    }
}

#[tokio::test]
async fn who_leaves_the_session_is_found_and_killed() {
    for cgroup in [false, true] {
        let script = "setsid sh -c 'trap \"\" TERM; echo $$; sleep 883 & wait' & wait";
        let mut running = spawn(Spec { cgroup, ..sh(script) });
        let first = next(&mut running).await.expect("it writes its number");
        let ChildOutput::Log(chunk) = first else { panic!("{first:?}") };
        let (line, _) = chunk.iter().next().expect("a line");
        let escaped = Member::of(line.parse().expect("a number")).expect("it lives");
        assert!(running.tree().members().contains(&escaped));
        assert!(!orphan::group_members(running.tree().leader().pid).contains(&escaped));

        assert_eq!(running.tree().kill().await, []);

        assert!(is_gone(&escaped));
        assert!(running.tree().is_empty());
        let exit = listen(&mut running).await.exit.expect("it ended");
        assert_eq!((exit.signal, exit.ours), (Some(9), true));
    }
}

#[tokio::test]
async fn an_orphan_of_another_session_still_belongs_to_the_tree() {
    let mut running = spawn(sh("setsid sleep 884 >/dev/null 2>&1 & echo bye"));
    listen(&mut running).await;
    // The shell may end before its child has become the program.
    let members = running.tree().members();
    assert_eq!(members.len(), 1, "{members:?}");

    drop(running);

    assert!(members.iter().all(is_gone));
}

#[tokio::test]
async fn a_tree_that_is_left_alone_lives_on() {
    let mut running = spawn(sh("sleep 885 >/dev/null 2>&1 & echo bye"));
    listen(&mut running).await;

    let survivors = running.into_tree().leave();

    assert_eq!(survivors.len(), 1);
    assert!(survivors[0].is_alive());
    assert!(survivors[0].signal(Signal::KILL));
}

#[tokio::test]
async fn who_forks_all_the_time_is_gone_after_a_kill() {
    let forker = "use POSIX; $| = 1; $SIG{CHLD} = 'IGNORE'; print \"ready\\n\";
        while (1) { if (!fork) { setsid; sleep 9; exit } select undef, undef, undef, 0.001 }";
    let runner = "use POSIX; $| = 1; print \"ready\\n\";
        while (1) { exit if fork; setsid; select undef, undef, undef, 0.001 }";
    for (cgroup, script) in [(false, forker), (false, runner), (true, forker), (true, runner)] {
        let spec = Spec { cgroup, ..program("/usr/bin/perl", &["-e", script]) };
        let mut running = spawn(spec);
        until(&mut running, "ready").await;

        let start = Instant::now();
        assert_eq!(running.tree().kill().await, []);
        eprintln!("cgroup {cgroup}: empty after {:?}", start.elapsed());

        for _ in 0..20 {
            assert!(running.tree().is_empty());
        }
        let cgroup = running.tree().cgroup();
        assert!(!cgroup.is_some_and(super::cgroup::Cgroup::is_populated));
        while next(&mut running).await.is_some() {}
    }
}

#[tokio::test]
async fn a_child_from_before_is_no_part_of_the_tree() {
    let mut before = std::process::Command::new("sleep").arg("886").spawn().expect("it starts");
    let mut running = spawn(sh("echo ready; exec sleep 887"));
    until(&mut running, "ready").await;
    assert_eq!(running.tree().members(), [running.tree().leader().clone()]);

    drop(running);

    assert!(before.try_wait().expect("it can be asked").is_none());
    before.kill().expect("it can be killed");
    before.wait().expect("it ends");
}

#[tokio::test]
async fn a_stopped_process_can_be_asked_to_stop() {
    let mut running = spawn(sh("trap 'echo asked; exit 0' TERM; echo ready; kill -STOP $$"));
    until(&mut running, "ready").await;
    let pid = running.tree().leader().pid;
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    wait_for("a stopped shell", || stat().contains(") T "));

    let run = stop(&mut running, PATIENCE).await;

    assert_eq!(run.out(), ["asked"]);
    assert!(run.exit.expect("it ended").is_success());
}

#[tokio::test]
async fn a_grandchild_that_holds_the_output_does_not_delay_the_end() {
    let mut running = spawn(sh("sleep 888 & echo done"));
    let start = Instant::now();
    let run = listen(&mut running).await;

    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(run.out(), ["done"]);
    assert_eq!(run.exit.expect("it ended").code, Some(0));
    assert_eq!(running.tree().members().len(), 1);
}

#[tokio::test]
async fn the_end_comes_before_output_that_does_not_end() {
    let mut running = spawn(sh("yes & exit 4"));
    let mut exit = None;
    while let Some(output) = next(&mut running).await {
        if let ChildOutput::Exited(ended) = output {
            exit = ended.code;
        }
    }
    assert_eq!(exit, Some(4));
}

#[tokio::test]
async fn a_process_may_clean_up_within_its_grace() {
    let folder = folder();
    let cleaned = folder.path().join("cleaned");
    let script = "trap 'echo x > \"$0\"; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = spawn(program("/bin/sh", &["-c", script, cleaned.to_str().expect("UTF-8")]));
    until(&mut running, "ready").await;

    let run = stop(&mut running, PATIENCE).await;

    assert!(cleaned.exists());
    assert_eq!(run.exit.expect("it ended").code, Some(3));
}

#[tokio::test]
async fn who_ignores_the_wish_is_killed_after_its_grace() {
    let mut running = spawn(sh("trap '' TERM; echo ready; while :; do sleep 0.02; done"));
    until(&mut running, "ready").await;
    let grace = Duration::from_millis(200);
    let start = Instant::now();

    let run = stop(&mut running, grace).await;

    assert!(start.elapsed() >= grace);
    let exit = run.exit.expect("it ended");
    assert_eq!(exit.describe(), "signal 9 (SIGKILL), sent by reeve");
}

#[tokio::test]
async fn twenty_megabytes_arrive_whole_and_in_order() {
    let lines = 1_250_000;
    let script = format!("seq -f %015.0f 1 {lines}");
    let start = Instant::now();
    let run = run(sh(&script)).await;
    eprintln!("20 MB in {:?} as {} chunks", start.elapsed(), run.chunks.len());

    let mut expected = 0;
    for line in run.out() {
        expected += 1;
        assert_eq!(line.parse(), Ok(expected));
    }
    assert_eq!(expected, lines);
    assert!(run.chunks.iter().all(|chunk| chunk.text.len() <= super::reader::CHUNK_BYTES));
}

#[tokio::test]
async fn one_endless_line_is_one_cut_line_in_bounded_memory() {
    let peak = || {
        let status = fs::read_to_string("/proc/self/status").expect("it is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let before = peak();
    let run = run(sh("head -c 20000000 /dev/zero | tr '\\0' y")).await;

    assert!(peak() - before < 8 << 10, "{} KiB more", peak() - before);
    let lines: Vec<_> = run.chunks.iter().flat_map(LogChunk::iter).collect();
    assert_eq!(lines, [(format!("{}…", "y".repeat(LINE_CHARS - 1)).as_str(), true)]);
}

#[tokio::test]
async fn noise_becomes_inert_text() {
    let run = run(sh("head -c 1048576 /dev/urandom")).await;
    assert!(!run.chunks.is_empty());
    assert_eq!(run.exit.expect("it ended").code, Some(0));
}

#[tokio::test]
async fn both_streams_are_told_apart() {
    let run = run(sh("echo out; echo err >&2; printf last")).await;
    assert_eq!(run.out(), ["out", "last"]);
    assert_eq!(run.lines(Output::Stderr), ["err"]);
}

#[tokio::test]
async fn many_tiny_writes_arrive_whole() {
    let script = "$| = 1; print \"line $_\\n\" for 1 .. 20000";
    let run = run(program("/usr/bin/perl", &["-e", script])).await;
    eprintln!("20,000 writes as {} chunks", run.chunks.len());
    assert_eq!(run.out().len(), 20_000);
    assert_eq!(run.out().last(), Some(&"line 20000"));
}

#[tokio::test]
async fn ends_are_told_apart() {
    for (script, code, signal, words) in [
        ("exit 0", Some(0), None, "exit code 0"),
        ("exit 7", Some(7), None, "exit code 7"),
        ("exit 137", Some(137), None, "exit code 137"),
        ("kill -KILL $$", None, Some(9), "signal 9 (SIGKILL), sender unknown"),
        ("ulimit -c 0; kill -SEGV $$", None, Some(11), "signal 11 (SIGSEGV)"),
        ("kill -TERM $$", None, Some(15), "signal 15 (SIGTERM)"),
    ] {
        for cgroup in [false, true] {
            let exit = run(Spec { cgroup, ..sh(script) }).await.exit.expect("it ended");
            assert_eq!((exit.code, exit.signal), (code, signal), "{script}");
            assert_eq!(exit.is_success(), code == Some(0), "{script}");
            assert_eq!(exit.describe(), words, "{script}");
        }
    }
}

#[tokio::test]
async fn a_process_says_things_on_its_events_descriptor() {
    let script = r#"{
        echo '{"type":"execution.progress","data":{"current":1}}'
        echo 'not json'
        printf '{"type":"execution.output","data":{"n":1}}'
    } > /dev/fd/$REEVE_EVENTS_FD; echo $REEVE_EVENTS_FD"#;
    let run = run(Spec { events: true, ..sh(script) }).await;

    assert_eq!(run.said.len(), 3, "{:?}", run.said);
    let progress = Kind::Progress { current: 1, total: None, message: None };
    assert_eq!(run.said[0], ChildEvent::Kind(progress));
    let ChildEvent::Kind(Kind::Diagnostic { code, summary, .. }) = &run.said[1] else {
        panic!("{:?}", run.said[1])
    };
    assert_eq!(code, "events_fd");
    assert!(summary.contains("not JSON"), "{summary}");
    assert_eq!(run.said[2], ChildEvent::Output(json!({ "n": 1 })));
    assert!(run.out()[0].parse::<i32>().expect("a number") >= 3);
    assert_eq!(run.exit.expect("it ended").code, Some(0));
}

#[tokio::test]
async fn without_events_a_process_inherits_only_its_streams() {
    // The test runner may have left descriptors open to us, and so to any child.
    let bare = std::process::Command::new("ls").arg("/proc/self/fd").output().expect("it runs");
    let bare = String::from_utf8(bare.stdout).expect("numbers");
    let listing = run(program("/bin/ls", &["/proc/self/fd"])).await;
    assert_eq!(listing.out(), bare.lines().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_process_reads_its_input_to_the_end() {
    let input = "grün\n".repeat(200_000).into_bytes();
    let bytes = input.len();
    let spec = Spec { stdin: StdinSource::Bytes(input), ..sh("wc -c") };
    assert_eq!(run(spec).await.out(), [bytes.to_string()]);
    assert_eq!(run(sh("wc -c")).await.out(), ["0"]);
}

#[tokio::test]
async fn a_process_need_not_read_its_input() {
    let stdin = StdinSource::Bytes(vec![b'x'; 4 << 20]);
    let run = run(Spec { stdin, ..sh("exec 0<&-; echo done") }).await;
    assert_eq!(run.out(), ["done"]);
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let error = |spec| Running::spawn(spec, now).expect_err("it cannot start");

    let missing = error(program("/no/such/program", &[]));
    assert_eq!(missing.to_string(), "cannot start /no/such/program");
    assert!(matches!(missing, SpawnError::Program { source, .. }
        if source.kind() == std::io::ErrorKind::NotFound));
    assert!(matches!(error(program("/bin", &[])), SpawnError::Program { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied));
    let nowhere = error(Spec { cwd: "/no/such/folder".into(), ..sh("true") });
    assert_eq!(nowhere.to_string(), "/no/such/folder is not a directory");
    let terminal = OutputMode::Pty { rows: 2, cols: 2 };
    let alone = error(Spec { output: terminal, ..sh("true") });
    assert!(matches!(alone, SpawnError::NoLauncher));
}

#[tokio::test]
async fn arguments_are_refused_only_beyond_the_limit() {
    let longest = "x".repeat((128 << 10) - 1);
    let fits = run(program("/bin/sh", &["-c", "echo ${#1}", "sh", &longest])).await;
    assert_eq!(fits.out(), [longest.len().to_string()]);

    let too_long = format!("{longest}x");
    let error = Running::spawn(program("/bin/true", &[&too_long]), now).expect_err("too long");
    assert!(matches!(error, SpawnError::TooBig { bytes: 131_073, limit: 131_072 }), "{error}");

    let many = vec![longest.as_str(); 64];
    let error = Running::spawn(program("/bin/true", &many), now).expect_err("too many");
    assert!(matches!(error, SpawnError::TooBig { bytes, limit } if bytes > limit), "{error}");
}

#[tokio::test]
async fn a_process_sees_exactly_its_environment() {
    let env = vec![("B".into(), "2 3".into()), ("A".into(), "".into())];
    let spec = Spec { env, ..program("/usr/bin/env", &[]) };
    let run = run(spec).await;
    let mut out = run.out();
    out.sort_unstable();
    assert_eq!(out, ["A=", "B=2 3"]);
}

#[tokio::test]
async fn orphans_are_found_by_their_mark() {
    let execution = ExecutionId::mint(now(), 7);
    let other = ExecutionId::mint(now(), 8);
    let folder = folder();
    let ready = folder.path().join("ready");
    let mut spec = sh(&format!("setsid sleep 889 & echo > {}; wait", ready.display()));
    spec.env.push(("REEVE_EXECUTION".into(), execution.to_string().into()));
    let mut running = spawn(spec);
    wait_for("the file", || ready.exists());

    let found = orphan::find_by_mark(execution);

    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(running.tree().leader()));
    assert_eq!(orphan::find_by_mark(other), []);
    assert!(orphan::group_members(running.tree().leader().pid).contains(running.tree().leader()));
}

#[tokio::test]
async fn a_tree_is_measured() {
    let script = "perl -e '$| = 1; $x = 1; $x++ for 1 .. 3e6; print \"ready\\n\"; sleep 9' & wait";
    let mut running = spawn(sh(script));
    until(&mut running, "ready").await;
    let usage = running.tree().usage();
    assert_eq!(usage.processes, 2);
    assert!(usage.cpu_ms >= 10, "{usage:?}");
    assert!(usage.memory_bytes > 1 << 20, "{usage:?}");
}

/// Is no test: what the launcher of [`on_a_terminal`] runs.
#[test]
fn as_launcher() {
    if let Ok(args) = std::env::var(LAUNCH_ARGS) {
        launcher_main(args.split('\u{1F}').map(OsString::from));
    }
}

/// Returns a launcher that hands on to [`as_launcher`].
fn launcher(folder: &Path) -> PathBuf {
    let launcher = folder.join("launcher");
    let tests = std::env::current_exe().expect("this program has a path");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = __launch ] || exit 99\nshift\nIFS=$(printf '\\037')\n\
        export {LAUNCH_ARGS}=\"$*\"\n\
        exec {} --quiet --exact process::tests::as_launcher --nocapture\n",
        tests.display()
    );
    fs::write(&launcher, script).expect("it can be written");
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).expect("it is ours");
    launcher
}

async fn on_a_terminal(script: &str, stdin: StdinSource) -> Run {
    let folder = folder();
    let launcher = Some(launcher(folder.path()));
    let output = OutputMode::Pty { rows: 33, cols: 99 };
    run(Spec { output, stdin, launcher, ..sh(script) }).await
}

#[tokio::test]
async fn a_terminal_is_one_and_has_its_size() {
    let script = "for fd in 0 1 2; do [ -t $fd ] && echo tty $fd; done; stty size; \
        [ \"$(ps -o sid= -p $$ | tr -d ' ')\" = $$ ] && echo leader; : < /dev/tty && echo own; \
        echo err >&2; exit 5";
    let run = on_a_terminal(script, StdinSource::Null).await;

    let out = run.out();
    let expected = ["tty 0", "tty 1", "tty 2", "33 99", "leader", "own", "err"];
    assert!(out.ends_with(&expected), "{out:?}");
    assert_eq!(run.exit.expect("it ended").code, Some(5));
}

#[tokio::test]
async fn input_is_typed_at_a_terminal_and_ends() {
    for (input, words) in [("", "0"), ("a b\n", "2"), ("a b c", "3")] {
        let stdin = StdinSource::Bytes(input.into());
        let run = on_a_terminal("wc -w", stdin).await;
        assert!(run.out().ends_with(&[words]), "{:?}", run.out());
    }
}

#[tokio::test]
async fn a_tree_on_a_terminal_ends_as_any_other() {
    let folder = folder();
    let launcher = Some(launcher(folder.path()));
    let output = OutputMode::Pty { rows: 33, cols: 99 };
    let script = "trap '' HUP; sleep 890 & echo ready; wait";
    let mut running = spawn(Spec { output, launcher, ..sh(script) });
    until(&mut running, "ready").await;
    let members = running.tree().members();

    let run = stop(&mut running, PATIENCE).await;

    assert!(members.iter().all(is_gone));
    assert_eq!(run.exit.expect("it ended").signal, Some(15));
}
