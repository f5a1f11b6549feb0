//! The binary under test: the same program, built with the tests that need it.

fn main() -> std::process::ExitCode {
    reeve_client::main()
}
