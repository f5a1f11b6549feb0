//! The `reeve` program.

fn main() -> std::process::ExitCode {
    reeve_client::main()
}
