//! What can be typed, and what is said of what cannot.

use std::os::unix::ffi::OsStringExt;

use super::*;

fn typed(args: &[&str]) -> Result<Cli, (String, Exit)> {
    parse(std::iter::once("reeve").chain(args.iter().copied()).map(OsString::from).collect())
}

#[test]
fn the_command_line_is_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn commands_are_read() {
    for line in [
        "serve --idle 30m --store memory --limit max_events=3",
        "run tests.unit --input {} --set a=1 --set b=2 --quiet --format ndjson",
        "run tests.unit --input -",
        "exec --pty --title x -- ls -l --format json",
        "executions list --state running --capability a.b --limit 3 --format json",
        "executions show x-20260908T010203Z-0a1b2c3d",
        "executions events x-20260908T010203Z-0a1b2c3d --after 4 --limit 2",
        "executions cancel x-20260908T010203Z-0a1b2c3d --force --wait",
        "executions watch",
        "executions watch x-20260908T010203Z-0a1b2c3d",
        "capabilities list",
        "capabilities show a.b",
        "status",
        "stop --force",
        "serve --port 0",
        "token --scope observe,start",
        "token --rotate --format json",
        "init --force",
        "-C /tmp status",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        assert!(typed(&args).is_ok(), "{line}");
    }
}

#[test]
fn what_is_none_is_a_usage_error() {
    for args in [
        &["run"][..],
        &["run", ""],
        &["run", "-x"],
        &["run", "Upper"],
        &["exec"],
        &["exec", "--"],
        &["executions", "show", ""],
        &["executions", "show", "-x"],
        &["executions", "show", "../../etc/passwd"],
        &["executions", "list", "--state", "done"],
        &["executions", "watch", "--after", "3"],
        &["serve", "--idle", "soon"],
        &["serve", "--port", "70000"],
        &["token", "--scope", "observe,all"],
        &["serve", "--store", "disk"],
        &["nonsense"],
        &[],
    ] {
        let Err((said, exit)) = typed(args) else { panic!("{args:?}") };
        assert_eq!(exit, Exit::Usage, "{args:?}");
        assert!(!said.is_empty());
    }
    assert!(matches!(typed(&["--help"]), Err((_, Exit::Ok))));
    assert!(matches!(typed(&["run", "--help"]), Err((_, Exit::Ok))));
    assert!(matches!(typed(&["--version"]), Err((said, Exit::Ok)) if said.starts_with("reeve ")));
}

#[test]
fn what_was_typed_is_repeated_without_its_power() {
    let bytes = vec![b'a', 0xff, 0x1b, b'['];
    let args = vec!["reeve".into(), "run".into(), OsString::from_vec(bytes)];
    let Err((said, exit)) = parse(args) else { panic!("it is no UTF-8") };
    assert_eq!(exit, Exit::Usage);
    assert!(said.contains("a\\xff\\x1b["), "{said}");
    let Err((said, _)) = typed(&["\u{1b}[2Jx"]) else { panic!("it is no command") };
    assert!(!said.contains('\u{1b}'), "{said}");
}
