//! Figure 3: a replica takes over an update of 100 files over a long way.
//!
//! Source and replica lie on this machine, in a network of their own with 25 ms each way. Every round
//! changes 100 files of the tree, the sources take them over unmeasured, then each follower follows.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::republish;
use crate::dataset::{self, Dice};
use crate::field::{Field, disk_bytes};
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::network::Network;
use crate::process::{self, Daemon};
use crate::subject::Published;

const ONE_WAY_MS: u32 = 25;
const RSYNC: &str = "rsync of the tree, daemon";
const OSTREE: &str = "ostree pull, archive behind nginx";
/// What the update itself weighs.
const FRAMES: &str = "the new segments alone";
/// The time that we said.
const BOUND: &str = "two seconds";

/// Following an update.
pub const FIGURE: Figure = Figure {
    number: 3,
    title: "a replica takes over an update of 100 files, 50 ms round trip",
    rounds: (5, 2),
    placements: &[Placement::Unpinned],
    metrics: &[
        Metric::WALL,
        Metric::CPU,
        Metric {
            name: "received",
            unit: "bytes of blocks, index and log",
        },
        Metric {
            name: "crossed",
            unit: "bytes both ways",
        },
        Metric {
            name: "waves",
            unit: "dependent requests",
        },
    ],
    reaches: &[
        reach("wall", BOUND, 1.0),
        reach("wall", RSYNC, 1.0),
        reach("wall", OSTREE, 1.0),
        reach("received", FRAMES, 1.2),
    ],
    derive: nothing,
    line_up,
};

const fn reach(metric: &'static str, peer: &'static str, at_most: f64) -> Reach {
    Reach::new(metric, Placement::Unpinned, peer, Bound::AtMost(at_most))
}

/// What the contestants share.
struct Scene {
    field: Field,
    network: Network,
    tree: PathBuf,
    published: Published,
    /// What the last publication added to the segments, bytes.
    new_bytes: RefCell<f64>,
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = republish::copy(field)?;
    let files = dataset::files(&tree)?;
    let scene = Rc::new(Scene {
        network: Network::new(field, ONE_WAY_MS)?,
        published: Published::new(field, "pull", &tree)?,
        new_bytes: RefCell::new(0.0),
        field: field.clone(),
        tree,
    });
    let mut line_up = LineUp::new();
    line_up.add(BOUND, Ok(|_| Ok(vec![("wall", 2.0)])));
    let frames = scene.clone();
    let frames =
        move |_| -> Result<Vec<Reading>> { Ok(vec![("received", *frames.new_bytes.borrow())]) };
    line_up.add(FRAMES, Ok(frames));
    line_up.add(OURS, ours(&scene));
    line_up.add(RSYNC, rsync(&scene));
    let ostree = Ostree::new(&scene);
    let source = ostree.as_ref().ok().map(|o| o.source.clone());
    line_up.add(OSTREE, ostree.map(|mut o| move |_| o.measure()));
    let mut dice = Dice::new(3);
    line_up.before_round = Box::new(move |round| {
        republish::change(&files, &mut dice, round)?;
        let segments = scene.published.repo.join("segments");
        let before_bytes = disk_bytes(&segments)?;
        scene.published.again(&scene.field, &scene.tree)?;
        *scene.new_bytes.borrow_mut() = disk_bytes(&segments)?.saturating_sub(before_bytes) as f64;
        if let Some(source) = &source {
            commit(&scene, source)?;
        }
        Ok(())
    });
    Ok(line_up)
}

/// Runs a command in the network; also what crossed it meanwhile.
fn across(scene: &Scene, command: &Command) -> Result<(process::Cost, u64)> {
    let before_bytes = scene.network.bytes()?;
    let cost = process::run(&mut scene.network.inside(command), scene.field.work())?;
    Ok((cost, scene.network.bytes()?.saturating_sub(before_bytes)))
}

fn ours(scene: &Rc<Scene>) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let port = process::free_port()?;
    let serve = scene.published.serve_command(port);
    let log = scene.field.log("bulla-serve-far");
    let mut daemon = Daemon::start("bulla serve", &mut scene.network.inside(&serve), &log)?;
    scene.network.wait_for_port(&mut daemon, port)?;
    let replica = scene.field.fresh("replica")?.join("repo");
    let place = scene.published.repo.display().to_string();
    let pull = scene.published.pull_command(&place, &replica);
    process::run(&mut scene.network.inside(&pull), scene.field.work())?;
    // The server looks for a new version every second; a publication takes longer than that.
    let pull = scene
        .published
        .pull_command(&format!("bulla://127.0.0.1:{port}"), &replica);
    let scene = scene.clone();
    Ok(move |_| {
        let _serving = &daemon;
        std::thread::sleep(std::time::Duration::from_secs(2));
        let (cost, crossed_bytes) = across(&scene, &pull)?;
        let last = cost.stdout.trim().lines().next_back().unwrap_or_default();
        let record: serde_json::Value = serde_json::from_str(last).context("pull --json")?;
        let number = |key: &str| record.get(key).and_then(serde_json::Value::as_f64);
        anyhow::ensure!(number("blocks") > Some(0.0), "nothing was pulled: {last}");
        Ok(vec![
            ("wall", cost.wall_s),
            ("cpu", cost.cpu_s),
            (
                "received",
                number("received_bytes").context("received_bytes")?,
            ),
            ("crossed", crossed_bytes as f64),
            ("waves", number("waves").context("waves")?),
        ])
    })
}

fn rsync(scene: &Rc<Scene>) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let home = scene.field.fresh("rsync")?;
    let port = process::free_port()?;
    let configuration = home.join("rsyncd.conf");
    fs::write(
        &configuration,
        format!(
            "use chroot = no\nuid = root\ngid = root\nread only = yes\n[tree]\npath = {}\n",
            scene.tree.display()
        ),
    )?;
    let mut serve = scene.network.command(Path::new("rsync"));
    serve.args(["--daemon", "--no-detach", "--address=127.0.0.1"]);
    serve
        .arg(format!("--port={port}"))
        .arg("--config")
        .arg(&configuration);
    let mut daemon = Daemon::start("rsync --daemon", &mut serve, &scene.field.log("rsyncd"))?;
    scene.network.wait_for_port(&mut daemon, port)?;
    let copy = home.join("copy");
    let mut first = Command::new("cp");
    first.arg("-a").arg(&scene.tree).arg(&copy);
    process::run(&mut first, scene.field.work())?;
    let mut follow = Command::new("rsync");
    follow.args(["-a", "--delete"]);
    follow
        .arg(format!("rsync://127.0.0.1:{port}/tree/"))
        .arg(&copy);
    let scene = scene.clone();
    Ok(move |_| {
        let _serving = &daemon;
        let (cost, crossed_bytes) = across(&scene, &follow)?;
        Ok(vec![
            ("wall", cost.wall_s),
            ("cpu", cost.cpu_s),
            ("crossed", crossed_bytes as f64),
        ])
    })
}

struct Ostree {
    scene: Rc<Scene>,
    source: PathBuf,
    pull: Command,
    _nginx: Daemon,
}

impl Ostree {
    fn new(scene: &Rc<Scene>) -> Result<Ostree> {
        let home = scene.field.fresh("ostree-far")?;
        let (source, replica) = (home.join("source"), home.join("replica"));
        for repo in [&source, &replica] {
            let mut init = ostree(repo);
            process::run(init.args(["init", "--mode=archive"]), scene.field.work())?;
        }
        commit(scene, &source)?;
        let port = process::free_port()?;
        let nginx = nginx(scene, &home, &source, port)?;
        let mut local = ostree(&replica);
        local.arg("pull-local").arg(&source).arg("main");
        process::run(&mut local, scene.field.work())?;
        let mut remote = ostree(&replica);
        remote.args(["remote", "add", "--no-gpg-verify", "origin"]);
        remote.arg(format!("http://127.0.0.1:{port}/"));
        process::run(&mut remote, scene.field.work())?;
        let mut pull = ostree(&replica);
        pull.args(["pull", "--mirror", "origin", "main"]);
        Ok(Ostree {
            scene: scene.clone(),
            source,
            pull,
            _nginx: nginx,
        })
    }

    fn measure(&mut self) -> Result<Vec<Reading>> {
        let (cost, crossed_bytes) = across(&self.scene, &self.pull)?;
        Ok(vec![
            ("wall", cost.wall_s),
            ("cpu", cost.cpu_s),
            ("crossed", crossed_bytes as f64),
        ])
    }
}

fn ostree(repo: &Path) -> Command {
    let mut command = Command::new("ostree");
    command.arg(format!("--repo={}", repo.display()));
    command
}

fn commit(scene: &Scene, source: &Path) -> Result<()> {
    let mut commit = ostree(source);
    commit.args(["commit", "--branch=main", "--subject=update"]);
    commit.arg(format!("--tree=dir={}", scene.tree.display()));
    process::run(&mut commit, scene.field.work()).map(drop)
}

fn nginx(scene: &Scene, home: &Path, root: &Path, port: u16) -> Result<Daemon> {
    let path = home.join("nginx.conf");
    let shown = home.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {shown}/tmp-{kind};\n"))
        .collect();
    let configuration = format!(
        "daemon off;\nuser root;\npid {shown}/pid;\nevents {{ worker_connections 1024; }}\n\
         http {{\n{temporary}  access_log off;\n  sendfile on;\n  keepalive_requests 1000000;\n\
           server {{ listen 127.0.0.1:{port}; root {}; }}\n}}\n",
        root.display()
    );
    fs::write(&path, configuration)?;
    let mut command = scene.network.command(Path::new("nginx"));
    command
        .arg("-p")
        .arg(home)
        .arg("-e")
        .arg(home.join("error.log"))
        .arg("-c")
        .arg(&path);
    let mut daemon = Daemon::start("nginx", &mut command, &scene.field.log("nginx-far"))?;
    scene.network.wait_for_port(&mut daemon, port)?;
    Ok(daemon)
}
