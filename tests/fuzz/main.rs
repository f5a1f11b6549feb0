//! Readers of what strangers write, fed with what is nearly good.
//!
//! Whatever comes, a reader does not panic, takes bounded time and memory, and what it takes it can
//! write and read again. An input that broke one is kept in `tests/fuzz/found/TARGET/` and fed first
//! from then on. `cargo xtask fuzz` runs for longer; `REEVE_FUZZ_SEED` says where chance begins.

mod mutate;
mod secret;
mod text;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Inputs of one target when nobody says for how long.
const CASES: u64 = 2_000;
/// Inputs between two looks at the clock.
const ROUND: u64 = 100;
/// No input may take longer, by far not.
const INPUT_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes that any reader may use, whatever the size of its input.
const BASE_BYTES: u64 = 64 << 10;

/// A reader under test.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Inputs that it takes.
    pub good: fn() -> Vec<Vec<u8>>,
    /// Words that mean something to it.
    pub words: &'static [&'static str],
    /// Reads an input, and checks what holds of every input.
    pub check: fn(&[u8]),
}

/// Makes a test of each target: its name, where its parts are, and its words.
macro_rules! targets {
    ($($name:ident in $module:ident: $words:expr;)*) => {
        $(#[test]
        fn $name() {
            run(&Target {
                name: stringify!($name),
                good: $module::$name::good,
                words: $words,
                check: $module::$name::check,
            });
        })*
    };
}

targets! {
    frame_decode in wire: &["execution", "fence", "description"];
    msgpack_event in wire: &["type", "data", "progress", "Unknown"];
    output_page in wire: &["\u{1}\n", "\n"];
    ws_client_frame in wire: &["subscribe", "executions", "\"after\":", "nonce", ":42"];
    json_request in text: &["\"seconds\":", "\"mode\":", "\"fast\"", "\"name\":"];
    http_head in text: &["Content-Length: ", "Transfer-Encoding: chunked\r\n", "Host: a\r\n", " HTTP/1.1\r\n"];
    query_string in text: &["execution=", "after=", "&", "%2B"];
    manifest in text: &["[capability.x]\n", "command = ", "\"\"\"", "{name?}", "[[", "= {"];
    sanitise in text: &["\u{1b}\\", "\u{9c}", "\u{90}", "\r", "\u{1b}(0", "\u{200d}"];
    redact in secret: &["\"password\":", "\"keys\":", "hunter2-Zebra!", "\"token\":"];
    scrub in secret: &["hunter2-Zebra!", "hunter2", "-Zebra!", "[redacted]"];
    child_line in text: &["execution.output", "execution.log", "\"data\":"];
}

/// Runs what is asked for: kept inputs first, then nearly good ones.
fn run(target: &Target) {
    let good = (target.good)();
    for (path, input) in kept(target) {
        println!("{}: {}", target.name, path.display());
        (target.check)(&input);
    }
    good.iter().for_each(|input| (target.check)(input));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("REEVE_FUZZ_SEED").unwrap_or(1);
    let lasting = number("REEVE_FUZZ_MILLISECONDS").map(Duration::from_millis);
    let (start, mut round) = (reeve_tests::now(), 0_u64);
    while lasting.map_or(round * ROUND < CASES, |lasting| start.elapsed() < lasting) {
        // A runner counts what it has done, so every round has one of its own.
        let mut runner = runner(seed, round);
        let ran = runner.run(&mutate::recipes(), |recipe| {
            (target.check)(&mutate::make(&recipe, &good, target.words));
            Ok(())
        });
        if let Err(TestError::Fail(reason, recipe)) = ran {
            let input = mutate::make(&recipe, &good, target.words);
            let path = keep(target, &input);
            panic!(
                "{}, seed {seed}: {reason}\nkept as {}: {}",
                target.name,
                path.display(),
                input.escape_ascii()
            );
        }
        ran.expect("no case is passed over");
        round += 1;
    }
    println!("{}: {} inputs from seed {seed}", target.name, round * ROUND);
}

fn runner(seed: u64, round: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    bytes[8..16].copy_from_slice(&round.to_be_bytes());
    let cases = u32::try_from(ROUND).expect("a small number");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn folder(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/found").join(target.name)
}

fn kept(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder(target)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: PathBuf| fs::read(&path).map(|input| (path, input));
    paths.into_iter().map(|path| read(path).expect("a kept input can be read")).collect()
}

fn keep(target: &Target, input: &[u8]) -> PathBuf {
    let folder = folder(target);
    fs::create_dir_all(&folder).expect("a folder can be made");
    let path = folder.join(format!("{:08x}", crc32fast::hash(input)));
    fs::write(&path, input).expect("an input can be kept");
    path
}

/// Reads something out of an input of so many bytes, and checks what it took: time, and at most
/// `factor` bytes of memory at once for each of the input's.
#[track_caller]
pub fn bounded<T>(bytes: usize, factor: u64, read: impl FnOnce() -> T) -> T {
    bounded_over(BASE_BYTES, bytes, factor, read)
}

/// As [`bounded`], for a reader that uses so many bytes whatever its input is.
#[track_caller]
pub fn bounded_over<T>(base: u64, bytes: usize, factor: u64, read: impl FnOnce() -> T) -> T {
    let start = reeve_tests::now();
    let mut value = None;
    let used = allocation_counter::measure(|| value = Some(read()));
    let (took, most) = (start.elapsed(), factor * bytes as u64 + base);
    assert!(took < INPUT_DEADLINE, "{took:?} for {bytes} bytes");
    assert!(used.bytes_max <= most, "{} bytes of memory for {bytes} of input", used.bytes_max);
    value.expect("it was read")
}
