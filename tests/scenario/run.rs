//! Running something: what its caller sees, what everybody else sees, and that it is the same.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::{assert_dense, checkout, documents, id_of, lines_of, pid_in, shell, types_of};

const ALONE: &str = "no broker serves this checkout";

#[test]
fn a_run_prints_and_exits_the_same_with_and_without_a_broker() {
    let checkout = checkout(&shell("both", "echo one; echo two >&2; echo three; exit 9", ""));
    let alone = checkout.run(["run", "both"]);
    assert_eq!(alone.stderr.matches(ALONE).count(), 1, "{alone:?}");
    assert!(checkout.lease().is_none(), "a run starts no broker");
    let _broker = checkout.serve(&[]);
    let served = checkout.run(["run", "both"]);
    assert!(!served.stderr.contains(ALONE), "{served:?}");
    assert_eq!((alone.stdout.as_str(), alone.code()), ("one\nthree\n", 1));
    assert_eq!((served.stdout.as_str(), served.code()), ("one\nthree\n", 1));
}

#[test]
fn a_run_is_listed_while_it_runs_and_both_ends_tell_the_same() {
    let script = "echo $PPID > pid; until test -e go; do sleep 0.01; done; echo done";
    let checkout = checkout(&shell("slow", script, ""));
    let _broker = checkout.serve(&[]);
    let run = checkout.spawn(["run", "slow", "--format", "json"]);
    let running = checkout.until_state("slow", "running");
    assert_eq!(running["actor"]["kind"], "cli");
    assert_eq!(running["actor"]["pid"], run.pid());
    assert_eq!(pid_in(&checkout, "pid"), run.pid());
    checkout.write("go", "");
    let told: serde_json::Value =
        serde_json::from_str(&run.wait().stdout).expect("a run tells its end as JSON");
    let shown = checkout.show(id_of(&running));
    for member in ["id", "state", "output", "capability", "last_sequence", "actor", "input"] {
        assert_eq!(told[member], shown[member], "{member}");
    }
    assert_eq!(
        (&shown["state"], &shown["output"]),
        (&json!("succeeded"), &json!({ "exit": { "code": 0 } }))
    );
    let expected = ["created", "started", "log", "completed"];
    let history = checkout.history(id_of(&running));
    let types: Vec<&str> =
        types_of(&history).into_iter().filter(|it| *it != "queued" && *it != "resources").collect();
    assert_eq!(types, expected);
}

#[test]
fn the_exit_code_tells_how_a_run_ended() {
    let manifest = [
        shell("good", "true", ""),
        shell("bad", "exit 7", ""),
        shell("wants", "true", "input.required = ['n']\ninput.properties.n.type = 'integer'"),
        "[capability.absent]\ncommand = ['./no-such-program']\n".to_owned(),
        shell("nowhere", "true", "cwd = 'no-such-directory'"),
    ];
    let checkout = checkout(&manifest.concat());
    for (args, code) in [
        (&["run", "good"][..], 0),
        (&["run", "bad"], 1),
        (&["run", "wants"], 2),
        (&["run", "wants", "--set", "n=many"], 2),
        (&["run", "good", "--set", "n=1"], 2),
        (&["run", "goood"], 3),
        (&["run", "absent"], 4),
        (&["run", "nowhere"], 4),
    ] {
        let ran = checkout.run(args);
        assert_eq!(ran.code(), code, "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    let refused = checkout.run(["run", "wants", "--set", "n=many"]);
    assert!(
        refused.stderr.contains("INVALID_PARAMS") && refused.stderr.contains("/n"),
        "{refused:?}"
    );
    let meant = checkout.run(["run", "goood"]);
    assert!(meant.stderr.contains("did you mean good?"), "{meant:?}");
}

#[test]
fn what_is_refused_before_it_begins_is_seen_by_everybody_as_such() {
    let checkout = checkout("[capability.absent]\ncommand = ['./no-such-program']\n");
    let _broker = checkout.serve(&[]);
    assert_eq!(checkout.run(["run", "absent"]).code(), 4);
    let failed = checkout.until_state("absent", "failed");
    let shown = checkout.show(id_of(&failed));
    assert_eq!(shown["error"]["code"], "ACTION_UNAVAILABLE");
    assert_eq!(shown["error"]["side_effect"], "none");
    assert!(shown.get("started_at").is_none());
    assert_eq!(shown["error"]["correlation_id"], shown["id"]);
}

#[test]
fn exec_exits_as_its_command_did() {
    let checkout = checkout("");
    for (script, code) in [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        ("exit 137", 137),
    ] {
        let ran = checkout.run(["exec", "--", "sh", "-c", script]);
        assert_eq!(ran.code(), code, "{script}: {ran:?}");
    }
    assert_eq!(checkout.run(["exec", "--", "./no-such-program"]).code(), 4);
}

#[test]
fn exec_hands_its_input_and_its_surroundings_on() {
    let checkout = checkout("");
    std::fs::create_dir(checkout.root().join("below")).expect("a directory can be made");
    let mut command = checkout.command(["exec", "--", "sh", "-c", "cat; echo $ANY; pwd"]);
    command.env("ANY", "thing").current_dir(checkout.root().join("below"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary under test starts");
    child.stdin.take().expect("piped").write_all(b"given\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("given\nthing\n") && said.trim_end().ends_with("/below"), "{said}");
}

#[test]
fn four_ways_to_end_badly_are_told_apart() {
    let manifest = [
        shell("killed", "kill -9 $$", ""),
        shell("looks.killed", "exit 137", ""),
        shell("crashed", "kill -SEGV $$", ""),
        shell("failed", "exit 1", ""),
    ];
    let checkout = checkout(&manifest.concat());
    let _broker = checkout.serve(&[]);
    let mut told = Vec::new();
    for (capability, reason, part) in [
        ("killed", "signal", "signal 9 (SIGKILL), sender unknown"),
        ("looks.killed", "exit_code", "exited with code 137"),
        ("crashed", "signal", "signal 11 (SIGSEGV)"),
        ("failed", "exit_code", "exited with code 1"),
    ] {
        assert_eq!(checkout.run(["run", capability]).code(), 1);
        let shown = checkout.show(id_of(&checkout.until_state(capability, "failed")));
        let message = shown["error"]["message"].as_str().expect("a fault has a message").to_owned();
        assert_eq!(shown["error"]["reason"], reason, "{message}");
        assert!(message.contains(part), "{message}");
        assert!(!told.contains(&message));
        told.push(message);
    }
}

#[test]
fn a_process_tells_steps_progress_findings_and_its_value() {
    let says = r#"say() { printf '{"type":"execution.%s","data":%s}\n' "$1" "$2" > "/dev/fd/$REEVE_EVENTS_FD"; }
say step.started '{"name":"a","title":"First"}'
echo working
say progress '{"current":1,"total":4,"message":"a quarter"}'
say diagnostic '{"severity":"warning","code":"w1","summary":"mind this"}'
say step.completed '{"name":"a","ok":false,"detail":"half of it"}'
say completed '{}'
say output '{"answer":42}'
"#;
    let checkout = checkout(&shell("tells", says, ""));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "tells"]);
    assert_eq!((ran.stdout.as_str(), ran.code()), ("working\n", 0), "{ran:?}");
    let shown = checkout.show(id_of(&checkout.until_state("tells", "succeeded")));
    assert_eq!(shown["output"], json!({ "answer": 42 }));
    let step = &shown["steps"][0];
    assert_eq!(
        (&step["name"], &step["title"], &step["detail"]),
        (&json!("a"), &json!("First"), &json!("half of it"))
    );
    assert_eq!(
        (&shown["progress"]["current"], &shown["progress"]["total"]),
        (&json!(1), &json!(4))
    );
    let codes: Vec<_> =
        shown["diagnostics"].as_array().expect("a list").iter().map(|it| &it["code"]).collect();
    assert_eq!(codes, ["w1", "events_fd"], "a process may not end itself by a word");
}

#[test]
fn an_input_is_read_by_the_process_that_wants_it() {
    let more =
        "stdin = 'input'\ninput.properties.secret = { type = 'string', format = 'password' }";
    let manifest = shell("reads", "cat > got", more) + &shell("reads.none", "cat; echo end", "");
    let checkout = checkout(&manifest);
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "reads", "--set", "secret=pass word"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert_eq!(checkout.read("got").as_deref(), Some(r#"{"secret":"pass word"}"#));
    let none = checkout.run(["run", "reads.none"]);
    assert_eq!(none.stdout, "end\n", "without an input there is nothing to wait for");
}

#[test]
fn a_process_sees_no_variable_that_nobody_let_through() {
    let print = "echo \"$X/$Y/$Z/${REEVE_STATE_DIR-none}/$REEVE_CHECKOUT\"";
    let more = "env = { set = { Z = 'set' }, allow = ['Y'] }";
    let checkout = checkout(&shell("env", print, more));
    let mut broker = checkout.command(["serve"]);
    broker.env("X", "broker").env("Y", "broker");
    let _broker = reeve_tests::Running::spawn(&mut broker);
    reeve_tests::until("the lease", || checkout.lease());
    let mut run = checkout.command(["run", "env"]);
    let output =
        run.env("X", "caller").env("Y", "caller").env("Z", "caller").output().expect("runs");
    let root = std::fs::canonicalize(checkout.root()).expect("the checkout is there");
    let expected = format!("/caller/set/none/{}\n", root.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn a_value_is_one_argument_and_never_an_option() {
    let manifest = r#"
[capability.args]
command = ["printf", "<%s>", "{first}", "--opt={second?}", "{third?}"]
[capability.args.input]
required = ["first"]
properties.first = { type = "string" }
properties.second = { type = "integer" }
properties.third = { type = "string", x-reeve-allow-dash = true }
"#;
    let checkout = checkout(manifest);
    let run = |args: &[&str]| checkout.run([&["run", "args"], args].concat());
    let hostile = "a b'\"$(touch x); `id` * \\";
    let first = format!("first={hostile}");
    assert_eq!(run(&["--set", &first]).stdout, format!("<{hostile}>\n"));
    assert!(checkout.read("x").is_none());
    let all = run(&["--set", "first=a", "--set", "second=-3", "--set", "third=-x"]);
    assert_eq!(all.stdout, "<a><--opt=-3><-x>\n");
    for value in ["-x", "--version", "-"] {
        let refused = run(&["--set", &format!("first={value}")]);
        assert_eq!(refused.code(), 2, "{refused:?}");
        assert!(refused.stderr.contains("/first"), "{refused:?}");
    }
    let nul = run(&["--input", r#"{"first": "a\u0000b"}"#]);
    assert_eq!(nul.code(), 2, "{nul:?}");
}

#[test]
fn a_terminal_is_one_to_the_process_and_has_one_stream() {
    let tty =
        "for n in 0 1 2; do test -t $n && echo \"tty $n\"; done; echo out; echo err >&2; stty size";
    let checkout = checkout(
        &(shell("tty", tty, "pty = true") + &shell("no.tty", "test -t 1 || echo none", "")),
    );
    let ran = checkout.run(["run", "tty"]);
    assert_eq!(ran.stdout, "tty 0\ntty 1\ntty 2\nout\nerr\n24 80\n", "{ran:?}");
    assert_eq!(checkout.run(["run", "no.tty"]).stdout, "none\n");
}

#[test]
fn what_is_run_by_something_that_runs_names_its_parent() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let reeve = env!("CARGO_BIN_EXE_reeve-under-test");
    let inner = format!("{reeve} exec --title inner -- true");
    let ran = checkout.run(["exec", "--title", "outer", "--", "sh", "-c", &inner]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    let list = checkout.list();
    let titled = |title: &str| list.iter().find(|one| one["title"] == title).expect("it is listed");
    assert_eq!(titled("inner")["parent_id"], titled("outer")["id"]);
}

#[test]
fn a_run_as_documents_is_the_history() {
    let script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done";
    let checkout = checkout(&shell("documents", script, ""));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "documents", "--format", "ndjson"]);
    let told = documents(&ran.stdout);
    let id = told[0]["execution_id"].as_str().expect("an event names its execution");
    let history = checkout.history(id);
    assert_eq!(told, history);
    assert_dense(&history);
    for event in &history {
        let members: Vec<&String> =
            event.as_object().expect("an event is an object").keys().collect();
        assert_eq!(members.len(), 7, "{event}");
        assert_eq!((&event["schema_version"], event["data"].is_object()), (&json!("1"), true));
        assert_eq!(event["event_id"], format!("{id}#{}", event["sequence"]));
    }
    assert_eq!(lines_of(&history, "stdout"), ["out 1", "out 2", "out 3"]);
    assert_eq!(lines_of(&history, "stderr"), ["err 1", "err 2", "err 3"]);
    let watched = checkout.run(["executions", "watch", id, "--format", "ndjson"]);
    let watched: Vec<_> =
        documents(&watched.stdout).into_iter().filter(|it| it["sequence"].is_u64()).collect();
    assert_eq!(watched, history);
}

#[test]
fn quiet_leaves_the_work_its_own_words() {
    let checkout = checkout(&shell("words", "echo out; echo err >&2", ""));
    let ran = checkout.run(["run", "words", "--quiet"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.code()), ("out\n", "err\n", 0));
}
