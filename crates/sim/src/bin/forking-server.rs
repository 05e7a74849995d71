//! The forking server as a program, for tests and for a look at what a fork does. See [`sim::forking`].

fn main() -> anyhow::Result<()> {
    sim::forking::main(std::env::args_os())
}
