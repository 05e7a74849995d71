//! A server of a shared volume and two devices on a network that is slow, loses packets and is cut: each host is a
//! network namespace, and each process the real binary.

use std::process::Stdio;
use std::time::Duration;

use sim::network::{Host, Network};

use crate::network::hosts;
use crate::shared_lab::{founded_at, joined};
use crate::support::{Home, Ran};

const ONE_WAY: Duration = Duration::from_millis(25);
const LOST_IN_1000: u64 = 20;

/// A machine: its files, and the host on which its processes run.
struct Machine {
    home: Home,
    host: Host,
}

impl Machine {
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.home.command(args);
        let ran = self.host.inside(|| command.output());
        Ran::of(ran.unwrap())
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.home.path(name), content).unwrap();
    }

    fn put(&self, name: &str, content: &str) {
        self.write(name, content);
        self.run(&["put", name, "notes", "--deadline", "60s"])
            .ends(0);
    }

    #[track_caller]
    fn reads(&self, name: &str, content: &str) {
        let ran = self.run(&["cat", "notes", name, "--deadline", "60s"]);
        assert_eq!(ran.ends(0).out, content);
    }
}

/// The kind of the error of a command that fails.
fn kind(ran: &Ran) -> String {
    ran.field("error")["kind"].as_str().unwrap().to_owned()
}

#[test]
fn devices_far_away_lose_nothing_while_packets_are_lost_and_hosts_are_cut_off() {
    let mut network = Network::new(ONE_WAY, LOST_IN_1000, 7);
    let Some([server, one, other]) = hosts(&mut network) else {
        return;
    };
    let place = server.address().to_string();
    let (orderer, ada, laptop) = server.inside(|| {
        let (orderer, ada) = founded_at(&place, &[]);
        let laptop = joined(&ada, "ada");
        (orderer, ada, laptop)
    });
    let ada = Machine {
        home: ada,
        host: one,
    };
    let laptop = Machine {
        home: laptop,
        host: other,
    };
    for round in 0..4 {
        let content = format!("round {round}\n").repeat(3000);
        let (from, to) = if round % 2 == 0 {
            (&ada, &laptop)
        } else {
            (&laptop, &ada)
        };
        from.put("file", &content);
        to.reads("file", &content);
    }
    // A device that is cut off gets an error at its deadline; the other goes on.
    network.cut_off(&laptop.host);
    let told = laptop.run(&["--json", "cat", "notes", "file", "--deadline", "3s"]);
    assert_eq!(kind(&told.ends(30)), "unavailable");
    ada.put("b", "meanwhile\n");
    network.reconnect(&laptop.host);
    laptop.reads("b", "meanwhile\n");
    // A device is cut off while it writes, and connected again: the command ends as if nothing had been.
    laptop.write("c", &"c".repeat(300_000));
    let mut put = laptop
        .home
        .command(&["put", "c", "notes", "--deadline", "100s"]);
    put.stdout(Stdio::null()).stderr(Stdio::piped());
    let put = laptop.host.inside(|| put.spawn()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    network.cut_off(&laptop.host);
    std::thread::sleep(Duration::from_secs(2));
    network.reconnect(&laptop.host);
    Ran::of(put.wait_with_output().unwrap()).ends(0);
    ada.reads("c", &"c".repeat(300_000));
    // No device reaches the server. Each command says so in time, and nothing is lost.
    network.cut_off(&server);
    ada.write("d", "d\n");
    for (machine, args) in [
        (&ada, &["put", "d", "notes", "--deadline", "3s"][..]),
        (&laptop, &["ls", "notes", "--deadline", "3s"]),
    ] {
        let told = machine.run(&[&["--json"], args].concat());
        assert_eq!(kind(&told.ends(30)), "unavailable");
    }
    network.reconnect(&server);
    ada.put("d", "d\n");
    for machine in [&ada, &laptop] {
        let listed = machine.run(&["ls", "notes", "--deadline", "60s"]);
        assert_eq!(listed.ends(0).out, "b\nc\nd\nfile\n");
    }
    drop(orderer);
    let (carried, lost) = network.packets();
    assert!(lost > 5, "the network was too good: {lost} of {carried}");
}
