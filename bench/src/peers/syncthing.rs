//! Syncthing: two instances that share a directory, one of which reaches the other through a delay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::field::Field;
use crate::network::Far;
use crate::process::{self, Daemon};

/// How long the first connection, or a change, may take.
const DEADLINE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(1);
const NAME: &str = "note.txt";

/// Two instances.
pub struct Pair {
    _daemons: [Daemon; 2],
    _far: Far,
    trees: [PathBuf; 2],
}

/// What the configuration says of an instance.
struct Instance {
    home: PathBuf,
    id: String,
    port: u16,
}

impl Pair {
    /// Starts both. `delay_s`: how long changes are collected before they are sent.
    ///
    /// # Errors
    /// When Syncthing is not installed, or the two do not find each other.
    pub fn start(field: &Field, delay_s: u32, one_way_ms: u64) -> Result<Pair> {
        let version = process::short(Command::new("syncthing").arg("--version"));
        version.context("Syncthing is not installed (bench/peers.sh)")?;
        let home = field.fresh(&format!("syncthing-{delay_s}"))?;
        let instances = [instance(&home.join("one"))?, instance(&home.join("two"))?];
        let far = Far::new(instances[1].port, one_way_ms)?;
        let mut daemons = Vec::new();
        for (number, instance) in instances.iter().enumerate() {
            configure(instance, (delay_s, far.port), &instances, number == 0)?;
            let mut serve = syncthing(&instance.home);
            serve.args(["serve", "--no-browser", "--no-restart", "--no-upgrade"]);
            serve.arg(format!("--home={}", instance.home.display()));
            daemons.push(Daemon::start(
                "syncthing",
                &mut serve,
                &field.log("syncthing"),
            )?);
        }
        let daemons = <[Daemon; 2]>::try_from(daemons)
            .ok()
            .context("two instances")?;
        let mut pair = Pair {
            _daemons: daemons,
            _far: far,
            trees: [tree(&instances[0].home), tree(&instances[1].home)],
        };
        pair.change("nothing").context("the first change")?;
        Ok(pair)
    }

    /// Writes a file in one directory. Returns the seconds until it is in the other one.
    ///
    /// # Errors
    /// When it does not come.
    pub fn change(&mut self, content: &str) -> Result<f64> {
        let [from, to] = self.trees.each_ref().map(|tree| tree.join(NAME));
        fs::write(&from, content)?;
        let began = Instant::now();
        while !fs::read_to_string(&to).is_ok_and(|read| read == content) {
            process::check_stop()?;
            ensure!(began.elapsed() < DEADLINE, "the change has not arrived");
            sleep(LOOK);
        }
        Ok(began.elapsed().as_secs_f64())
    }
}

fn tree(home: &Path) -> PathBuf {
    home.join("tree")
}

/// Syncthing, which looks for a home directory even if it has another one.
fn syncthing(home: &Path) -> Command {
    let mut command = Command::new("syncthing");
    command.env("HOME", home).env("STNOUPGRADE", "1");
    command
}

/// Makes the keys of an instance.
fn instance(home: &Path) -> Result<Instance> {
    // A directory is shared only if it has this mark.
    fs::create_dir_all(tree(home).join(".stfolder"))?;
    let mut generate = syncthing(home);
    generate.args(["generate", "--no-default-folder", "--skip-port-probing"]);
    process::short(generate.arg(format!("--home={}", home.display())))?;
    let mut show = syncthing(home);
    show.args(["serve", "--device-id"]);
    let id = process::short(show.arg(format!("--home={}", home.display())))?;
    Ok(Instance {
        id: id.trim().to_owned(),
        port: process::free_port()?,
        home: home.to_owned(),
    })
}

/// Writes the configuration: nothing but the two instances and the directory.
fn configure(
    own: &Instance,
    (delay_s, far_port): (u32, u16),
    all: &[Instance; 2],
    dials: bool,
) -> Result<()> {
    let address = match dials {
        true => format!("tcp://127.0.0.1:{far_port}"),
        // It is dialled.
        false => "dynamic".to_owned(),
    };
    let member = |one: &Instance| format!("<device id=\"{}\"/>", one.id);
    let known = |one: &Instance| {
        format!(
            "<device id=\"{}\"><address>{address}</address></device>",
            one.id
        )
    };
    let text = format!(
        r#"<configuration version="36">
<folder id="bench" path="{tree}" type="sendreceive" rescanIntervalS="3600" fsWatcherEnabled="true" fsWatcherDelayS="{delay_s}">{members}</folder>
{devices}
<gui enabled="false"/>
<options>
<listenAddress>tcp://127.0.0.1:{port}</listenAddress>
<globalAnnounceEnabled>false</globalAnnounceEnabled>
<localAnnounceEnabled>false</localAnnounceEnabled>
<relaysEnabled>false</relaysEnabled>
<natEnabled>false</natEnabled>
<crashReportingEnabled>false</crashReportingEnabled>
<urAccepted>-1</urAccepted>
<autoUpgradeIntervalH>0</autoUpgradeIntervalH>
<reconnectionIntervalS>1</reconnectionIntervalS>
<startBrowser>false</startBrowser>
</options>
</configuration>
"#,
        tree = tree(&own.home).display(),
        members = all.iter().map(member).collect::<String>(),
        devices = all.iter().map(known).collect::<String>(),
        port = own.port,
    );
    fs::write(own.home.join("config.xml"), text).context("writing the configuration")
}
