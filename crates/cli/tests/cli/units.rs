//! The units of contrib/systemd: systemd accepts them, their exposure is low, and their command lines work
//! with the binary of this build.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shared_lab;
use crate::support::{Home, Ran, copy, skipped};

/// The highest exposure of a service by `systemd-analyze security`, in tenths. systemd calls less than 2.0
/// OK.
const MOST_EXPOSURE: &str = "--threshold=19";
/// That of a protected device: the kernel writes memory back through it, which takes CAP_SYS_RESOURCE.
const MOST_OF_PROTECT: &str = "--threshold=20";

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

/// Copies of all units that start the binary of this build; templates as the instance `docs`.
fn units(home: &Home) -> Vec<PathBuf> {
    let directory = home.path("units");
    fs::create_dir(&directory).unwrap();
    let mut units = Vec::new();
    for place in [contrib(), contrib().join("examples")] {
        for entry in fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let ending = name.rsplit('.').next().unwrap();
            if !matches!(ending, "service" | "socket" | "timer" | "mount") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace("/usr/bin/bulla", env!("CARGO_BIN_EXE_bulla"));
            // Units of systemd itself may be missing on this machine; that does not matter here.
            let unit = directory.join(name.replace('@', "@docs"));
            fs::write(&unit, text).unwrap();
            units.push(unit);
        }
    }
    units.sort();
    assert!(units.len() >= 9, "{units:?}");
    units
}

fn analyze() -> Option<Command> {
    let program = "/usr/bin/systemd-analyze";
    if Path::new(program).exists() {
        return Some(Command::new(program));
    }
    skipped("systemd-analyze", "it is not installed");
    None
}

/// A socket that is enabled while its service runs is opened when the service starts again, because only then
/// can the service get it.
#[test]
fn additional_socket_opens_with_its_service() {
    let mut further = Vec::new();
    for entry in fs::read_dir(contrib()).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let Some(service) = value("Service=") else {
            continue;
        };
        let wanted = value("WantedBy=").unwrap_or_default();
        let wanted: Vec<&str> = wanted.split_whitespace().collect();
        assert!(wanted.contains(&"sockets.target"), "{path:?}: {wanted:?}");
        assert!(wanted.contains(&service), "{path:?}: {wanted:?}");
        further.push(path);
    }
    assert!(further.len() >= 2, "{further:?}");
}

/// The result of `systemd-analyze verify` for units.
fn verify(home: &Home, units: &[PathBuf]) -> Option<Ran> {
    let mut command = analyze()?;
    let path = format!("{}:", home.path("units").display());
    command.env("SYSTEMD_UNIT_PATH", path);
    let command = command.args(["verify", "--man=no"]).args(units);
    Some(Ran::of(command.output().unwrap()))
}

#[test]
fn systemd_understands_every_unit() {
    let home = Home::new();
    let units = units(&home);
    let Some(told) = verify(&home, &units) else {
        return;
    };
    let about_us: Vec<&str> = told.err.lines().filter(|l| l.contains("bulla")).collect();
    assert!(told.code == 0 && about_us.is_empty(), "{}", told.err);
    // Control: a wrong unit is found.
    let wrong = home.path("units/bulla-wrong.service");
    fs::write(&wrong, "[Service]\nExecStart=/bin/true\nBullaNonsense=1\n").unwrap();
    let told = verify(&home, &[wrong]).unwrap();
    assert!(told.err.contains("BullaNonsense"), "{}", told.err);
}

#[test]
fn services_stay_below_the_exposure_limit() {
    let home = Home::new();
    let exposed = |unit: &Path| {
        let mut command = analyze()?;
        let name = unit.file_name()?.to_string_lossy().into_owned();
        let most = match name.starts_with("bulla-protect@") {
            true => MOST_OF_PROTECT,
            false => MOST_EXPOSURE,
        };
        let words = ["security", "--offline=yes", "--no-pager", most];
        Some(Ran::of(command.args(words).arg(unit).output().unwrap()))
    };
    let is_service = |unit: &PathBuf| unit.extension().is_some_and(|e| e == "service");
    for unit in units(&home).into_iter().filter(is_service) {
        let Some(told) = exposed(&unit) else { return };
        let overall = told.out.lines().find(|line| line.contains("Overall"));
        eprintln!("{}", overall.unwrap_or_default());
        assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    }
    let open = home.path("units/open.service");
    fs::write(&open, "[Service]\nExecStart=/bin/true\n").unwrap();
    assert_ne!(exposed(&open).unwrap().code, 0, "every unit passes");
}

#[test]
fn the_users_of_the_services_can_be_made() {
    let program = "/usr/bin/systemd-sysusers";
    if !Path::new(program).exists() || !rustix::process::geteuid().is_root() {
        return skipped("systemd-sysusers", "it needs root, and to be installed");
    }
    let home = Home::new();
    fs::create_dir_all(home.path("root/etc")).unwrap();
    let mut make = Command::new(program);
    make.arg(format!("--root={}", home.path("root").display()));
    Ran::of(make.arg(contrib().join("bulla.sysusers")).output().unwrap()).ends(0);
    let made = fs::read_to_string(home.path("root/etc/passwd")).unwrap();
    let made: Vec<&str> = made
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    for unit in units(&home) {
        let text = fs::read_to_string(unit).unwrap();
        for user in text.lines().filter_map(|line| line.strip_prefix("User=")) {
            assert!(made.contains(&user), "{user} is not in {made:?}");
        }
    }
}

/// The command line of a unit as systemd would make it, and its environment.
fn command_of(unit: &Path, home: &Home, variables: &HashMap<&str, String>) -> Command {
    let text = fs::read_to_string(unit).unwrap();
    let expand = |word: &str| {
        let state = home.path("var").display().to_string();
        let settings = home.path("etc").display().to_string();
        let word = word.replace("%i", "docs").replace("%S", &state);
        word.replace("/etc/bulla", &settings)
    };
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let line = value("ExecStart=").expect("an ExecStart line");
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        match word.strip_prefix('$') {
            // Without braces a variable becomes as many words as it has.
            Some(name) => {
                let value = variables.get(name).expect("a documented variable");
                words.extend(value.split_whitespace().map(str::to_owned));
            }
            None => words.push(expand(word)),
        }
    }
    assert_eq!(words.remove(0), env!("CARGO_BIN_EXE_bulla"));
    let mut command = home.command(&words);
    if let Some((name, value)) = value("Environment=").and_then(|line| line.split_once('=')) {
        command.env(name, expand(value));
    }
    command.env("BULLA_CONFIG", home.path("config.toml"));
    command
}

#[test]
fn what_the_units_start_runs() {
    let home = Home::new();
    let volume = home.published();
    let _units = units(&home);
    let unit = |name: &str| home.path("units").join(name);
    let repo = home.path("var/bulla-publish/docs");
    fs::create_dir_all(home.path("var/bulla-publish")).unwrap();
    fs::create_dir_all(home.path("var/bulla-pull")).unwrap();
    fs::create_dir_all(home.path("etc/keys")).unwrap();
    copy(&home.path("repo"), &repo);
    copy(&home.path("key"), &home.path("etc/keys/docs.key"));
    let source = format!("{volume}@{}", repo.display());
    let config = format!("[sources.docs]\nsource = \"{source}\"\n");
    fs::write(home.path("config.toml"), config).unwrap();
    let replica = home.path("var/bulla-pull/docs").display().to_string();
    let variables = HashMap::from([
        ("RENEW_OPTIONS", "--valid 9d --json".to_owned()),
        ("PULL_OPTIONS", "--keep 3 --json".to_owned()),
        ("SERVE_OPTIONS", "--memory 1MiB -q".to_owned()),
        ("REPOSITORIES", replica.clone()),
    ]);
    let run = |name: &str| {
        let mut command = command_of(&unit(name), &home, &variables);
        Ran::of(command.output().unwrap()).ends(0)
    };
    let renewed = run("bulla-renew@docs.service");
    assert_eq!(renewed.field("version"), 2);
    assert!(home.path("var/bulla-publish/.state").is_dir());
    let pulled = run("bulla-pull@docs.service");
    assert_eq!(pulled.field("version"), 2);
    assert!(home.path("var/bulla-pull/.state").is_dir());
    // The server comes last, on a socket, as the unit's `Requires=` says.
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let serve = command_of(&unit("bulla-serve.service"), &home, &variables);
    // As under `PrivateNetwork=`: the socket is of the network outside, the service has none.
    let alone = ["unshare", "--net", "sh"];
    let mut can = Command::new(alone[0]);
    let can = can.args(["--net", "true"]).status();
    let alone = match can.is_ok_and(|status| status.success()) {
        true => &alone[..],
        false => {
            skipped("a server without a network", "no network namespaces");
            &alone[2..]
        }
    };
    let mut parent = Command::new(alone[0]);
    parent.args(&alone[1..]);
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    parent.args(["-c", script]).arg(serve.get_program());
    parent.args(serve.get_args()).current_dir(home.path(""));
    parent
        .env("HOME", home.path(""))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
    let mut service = parent.stdout(Stdio::null()).spawn().unwrap();
    let read = home.run(&["cat", &format!("{volume}@bulla://{at}"), "a"]);
    service.kill().unwrap();
    service.wait().unwrap();
    assert_eq!(read.ends(0).out, "hello\n");
}

/// The unit that confirms a volume with a timestamp key.
#[test]
fn unit_of_a_timestamp_key_makes_a_new_volume_readable() {
    let home = Home::new();
    fs::create_dir_all(home.path("etc/keys")).unwrap();
    fs::create_dir_all(home.path("var/bulla-publish")).unwrap();
    fs::create_dir(home.path("tree")).unwrap();
    fs::write(home.path("tree/a"), b"hello\n").unwrap();
    for name in ["key", "etc/keys/docs.timestamp.key"] {
        let new = ["key", "new", "--out", name, "--no-passphrase"];
        home.run(&new).ends(0);
    }
    let shown = ["--json", "key", "show", "etc/keys/docs.timestamp.key"];
    let key = home.run(&shown).ends(0).field("key");
    let publish = [
        "--json",
        "publish",
        "tree",
        "var/bulla-publish/docs",
        "--key",
        "key",
    ];
    let stamped = ["--timestamp-key", key.as_str().unwrap()];
    let made = home.run(&[&publish[..], &stamped].concat()).ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    let source = home.source(&volume, "var/bulla-publish/docs");
    home.run(&["cat", &source, "a"]).ends(20);
    let _units = units(&home);
    fs::write(home.path("config.toml"), "").unwrap();
    let variables = HashMap::from([("CONFIRM_OPTIONS", "--json".to_owned())]);
    let unit = home.path("units/bulla-confirm@docs.service");
    for _ in 0..2 {
        let mut command = command_of(&unit, &home, &variables);
        let confirmed = Ran::of(command.output().unwrap()).ends(0);
        assert_eq!(confirmed.field("renewed"), "timestamp");
        assert_eq!(home.run(&["cat", &source, "a"]).ends(0).out, "hello\n");
    }
}

/// The unit of the server of shared volumes, with the socket that its `Requires=` names.
#[test]
fn unit_of_an_orderer_serves_its_volumes() {
    let (mut orderer, ada) = shared_lab::founded(&[]);
    orderer.kill();
    let home = &orderer.home;
    let _units = units(home);
    fs::create_dir_all(home.path("etc/keys")).unwrap();
    copy(&home.path("key"), &home.path("etc/keys/orderer.key"));
    fs::write(home.path("config.toml"), "").unwrap();
    let variables = HashMap::from([
        ("ORDERER_OPTIONS", "--max-connections 100".to_owned()),
        ("REPOSITORIES", home.path("repo").display().to_string()),
    ]);
    let unit = home.path("units/bulla-orderer.service");
    let serve = command_of(&unit, home, &variables);
    let socket = TcpListener::bind(orderer.address()).unwrap();
    let passed = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=shared";
    let script = format!("exec 3<&0 </dev/null; {passed} exec \"$0\" \"$@\"");
    let mut parent = Command::new("sh");
    parent.args(["-c", &script]).arg(serve.get_program());
    parent.args(serve.get_args()).current_dir(home.path(""));
    parent
        .env("HOME", home.path(""))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
    let mut service = parent.stdout(Stdio::null()).spawn().unwrap();
    fs::write(ada.path("list"), "milk\n").unwrap();
    let put = ada.run(&["put", "list", "notes"]);
    service.kill().unwrap();
    service.wait().unwrap();
    put.ends(0);
}

/// The unit of a witness, with the socket that its `Requires=` names.
#[test]
fn unit_of_a_witness_cosigns() {
    let home = Home::new();
    let volume = home.published();
    let _units = units(&home);
    fs::create_dir_all(home.path("etc/keys")).unwrap();
    fs::write(home.path("config.toml"), "").unwrap();
    let new = [
        "key",
        "new",
        "--out",
        "etc/keys/witness.key",
        "--no-passphrase",
    ];
    let witness = home.run(&new).ends(0).out;
    let state = "var/bulla-witness";
    let remember = ["witness", "new", "--key", new[3], "--state", state];
    home.run(&remember).ends(0);
    let log = home.run(&["key", "show", "key"]).ends(0).out;
    let options = format!("--name w --volume {volume}={}", log.trim());
    let variables = HashMap::from([("WITNESS_OPTIONS", options)]);
    let run = command_of(&home.path("units/bulla-witness.service"), &home, &variables);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let passed = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=witness";
    let script = format!("exec 3<&0 </dev/null; {passed} exec \"$0\" \"$@\"");
    let mut parent = Command::new("sh");
    parent.args(["-c", &script]).arg(run.get_program());
    parent.args(run.get_args()).current_dir(home.path(""));
    parent
        .env("HOME", home.path(""))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
    let mut service = parent.stdout(Stdio::null()).spawn().unwrap();
    let add = format!("witnesses={}", witness.trim());
    let propose = [
        "policy",
        "new",
        "repo",
        "--out",
        "next",
        "--needed",
        "witnesses=1",
    ];
    home.run(&[&propose[..], &["--add", &add]].concat()).ends(0);
    let expect = format!("--expect={add}");
    let sign = [
        "--yes", "policy", "sign", "next", "--key", "key", "--out", "next",
    ];
    home.run(&[&sign[..], &[&expect]].concat()).ends(0);
    let install = [
        "policy",
        "install",
        "next",
        "repo",
        "--key",
        "key",
        "--witness",
        &url,
    ];
    let installed = home.run(&install);
    service.kill().unwrap();
    service.wait().unwrap();
    installed.ends(0);
    assert!(home.path("var/bulla-witness/cosigned").is_dir());
}

#[test]
fn unit_of_a_device_waits_for_its_disks() {
    let home = Home::new();
    let unit = fs::read_to_string(contrib().join("bulla-protect@.service")).unwrap();
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStartPre="));
    let script = line.unwrap().strip_prefix("/bin/sh -c '").unwrap();
    let (script, disks) = script.split_once("' ").unwrap();
    assert_eq!(disks, "${DEVICE} ${LOG}");
    let mut waits = Command::new("/bin/sh")
        .args(["-c", &script.replace("$$", "$")])
        .args([home.path("d"), home.path("l")])
        .spawn()
        .unwrap();
    fs::write(home.path("d"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(waits.try_wait().unwrap().is_none(), "the log is not there");
    fs::write(home.path("l"), "").unwrap();
    assert!(waits.wait().unwrap().success());
}

/// The unit of a protected device: it is ready when the device answers, and SIGTERM detaches it.
#[test]
fn unit_of_a_device_attaches_it_until_it_is_stopped() {
    let home = Home::new();
    let _units = units(&home);
    fs::write(home.path("config.toml"), "").unwrap();
    fs::write(home.path("d"), [1; 1 << 20]).unwrap();
    let enrol = [
        "protect",
        "enrol",
        "d",
        "--log",
        "l",
        "--ring",
        "16MiB",
        "--key-file",
        "k",
    ];
    home.run(&enrol).ends(0);
    let text = |name: &str| home.path(name).display().to_string();
    let variables = HashMap::from([
        ("{DEVICE}", text("d")),
        ("{LOG}", text("l")),
        (
            "ATTACH_OPTIONS",
            format!("--key-file {} --nbd {}", text("k"), text("nbd")),
        ),
    ]);
    let unit = home.path("units/bulla-protect@docs.service");
    let notified = std::os::unix::net::UnixDatagram::bind(home.path("notify")).unwrap();
    notified
        .set_read_timeout(Some(std::time::Duration::from_secs(60)))
        .unwrap();
    let mut command = command_of(&unit, &home, &variables);
    command
        .env("NOTIFY_SOCKET", home.path("notify"))
        .stdout(Stdio::null());
    let mut service = command.stderr(Stdio::null()).spawn().unwrap();
    let mut told = [0; 256];
    let n = notified.recv(&mut told).unwrap();
    assert!(
        told[..n].starts_with(b"READY=1\n"),
        "{}",
        told[..n].escape_ascii()
    );
    assert!(home.path("nbd").exists());
    let status = home.run(&["--json", "protect", "status", "d"]).ends(0);
    assert_eq!(status.field("devices"), 1);
    let kill = format!("kill {}", service.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(service.wait().unwrap().code(), Some(0));
    assert!(!home.path("nbd").exists());
}

/// The unit for a user's own manager: systemd understands it, and what it starts runs.
#[test]
fn unit_of_a_user_runs_the_engine_of_a_device() {
    let (_orderer, ada) = shared_lab::founded(&[]);
    let directory = ada.path("units");
    fs::create_dir(&directory).unwrap();
    let text = fs::read_to_string(contrib().join("user/bulla-share@.service")).unwrap();
    let text = text.replace("/usr/bin/bulla", env!("CARGO_BIN_EXE_bulla"));
    let unit = directory.join("bulla-share@notes.service");
    fs::write(&unit, &text).unwrap();
    if let Some(mut command) = analyze() {
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", directory.display()));
        command.args(["--user", "verify", "--man=no"]).arg(&unit);
        let told = Ran::of(command.output().unwrap());
        let about_us = told.err.lines().filter(|line| line.contains("bulla-share"));
        assert_eq!(about_us.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    fs::write(ada.path("config.toml"), "").unwrap();
    let variables = HashMap::from([("SHARE_OPTIONS", "--json".to_owned())]);
    fs::write(&unit, text.replace("%i", "notes")).unwrap();
    let mut talk = shared_lab::Talk::begin(&mut command_of(&unit, &ada, &variables));
    assert_eq!(talk.record("running", "name"), "notes");
    ada.run(&["mkdir", "notes", "trips"]).ends(0);
    let stop = format!("kill -TERM {}", talk.child.id());
    Ran::of(Command::new("sh").args(["-c", &stop]).output().unwrap()).ends(0);
    talk.end().ends(0);
}
