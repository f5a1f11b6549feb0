fn main() -> std::process::ExitCode {
    reeve_client::main()
}
