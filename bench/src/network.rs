//! A network of its own with a long way in it: a namespace whose loopback delays every packet, so that
//! client and server are as far apart as we say, and nothing else of the machine is touched. Needs root.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::field::Field;
use crate::process::{self, Daemon};

/// A namespace; it ends with this value.
pub struct Network {
    name: String,
}

impl Network {
    /// A network with `one_way_ms` from each end to the other, packets of 1,500 bytes, no loss.
    ///
    /// # Errors
    /// Without root, or without the kernel's netem.
    pub fn new(field: &Field, one_way_ms: u32) -> Result<Network> {
        let network = Network {
            name: format!("bulla-bench-{}", std::process::id()),
        };
        let add = ["netns", "add", &network.name];
        process::run(Command::new("ip").args(add), field.work())?;
        let mut up = network.command(Path::new("ip"));
        up.args(["link", "set", "lo", "up", "mtu", "1500"]);
        process::run(&mut up, field.work())?;
        let mut delay = network.command(Path::new("tc"));
        delay.args([
            "qdisc", "add", "dev", "lo", "root", "netem", "limit", "100000",
        ]);
        delay.args(["delay", &format!("{one_way_ms}ms")]);
        process::run(&mut delay, field.work())?;
        Ok(network)
    }

    /// A program that will run in it.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// The same command, in it.
    pub fn inside(&self, command: &Command) -> Command {
        let mut wrapped = self.command(Path::new(command.get_program()));
        wrapped.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }

    /// Waits until a daemon accepts connections at a port of the network's 127.0.0.1.
    pub fn wait_for_port(&self, daemon: &mut Daemon, port: u16) -> Result<()> {
        daemon.wait_until("opened its port", || {
            let mut probe = self.command(Path::new("bash"));
            probe.args(["-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")]);
            let silent = std::process::Stdio::null;
            let probed = probe.stdout(silent()).stderr(silent()).status();
            probed.is_ok_and(|status| status.success())
        })
    }

    /// Bytes that have crossed it so far, headers and both directions included.
    pub fn bytes(&self) -> Result<u64> {
        let mut read = self.command(Path::new("cat"));
        let out = read.arg("/sys/class/net/lo/statistics/rx_bytes").output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        text.trim().parse().context("the network's counter")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let delete = ["netns", "delete", &self.name];
        let _ = Command::new("ip").args(delete).status();
    }
}
