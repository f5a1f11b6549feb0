//! The binary under test: the same program, with handlers that break, hang and die.

fn main() -> std::process::ExitCode {
    let all = reeve_tests::handlers::all();
    all.into_iter().fold(reeve_client::Reeve::new(), reeve_client::Reeve::handler).main()
}
