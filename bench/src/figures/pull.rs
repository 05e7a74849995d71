//! Figure 3: a replica pulls an update of 100 files over a network with a round-trip time of 50 ms.
//!
//! Source and replica are on this machine with a relay (`network`) between them, which delays by 25 ms
//! each way and imitates TCP's slow start. Every round changes 100 files of the tree, updates the sources
//! without measuring that, and then runs each replica. Both builds of bulla follow the same repository.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::republish;
use crate::dataset::{self, Dice};
use crate::field::{Field, disk_bytes};
use crate::figure::{
    Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing,
};
use crate::network::Far;
use crate::peers::rsync::Rsync;
use crate::process::{self, Daemon};
use crate::subject::Published;

const ONE_WAY_MS: u64 = 25;
const RSYNC: &str = "rsync of the tree, daemon";
const OSTREE: &str = "ostree pull, archive behind nginx";
/// Size of the update itself.
const FRAMES: &str = "the new segments alone";
/// The time that is our goal.
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
        Metric::count("received", "bytes of blocks, index and log"),
        Metric::count("crossed", "bytes both ways"),
        Metric::count("waves", "dependent requests"),
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

/// Data that the contestants share.
struct Scene {
    field: Field,
    tree: PathBuf,
    published: Published,
    /// Bytes that the last publication added to the segments.
    new_bytes: RefCell<f64>,
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = republish::copy(field)?;
    let files = dataset::files(&tree)?;
    let scene = Rc::new(Scene {
        published: Published::new(field, "pull", &tree)?,
        new_bytes: RefCell::new(0.0),
        field: field.clone(),
        tree,
    });
    let mut line_up = LineUp::new();
    for build in field.builds() {
        line_up.add(&build.row(OURS), ours(&scene, build));
    }
    if field.gate() {
        line_up.before_round = new_version(scene, files, None);
        return Ok(line_up);
    }
    line_up.add(BOUND, Ok(|_| Ok(vec![("wall", 2.0)])));
    let frames = scene.clone();
    let frames =
        move |_| -> Result<Vec<Reading>> { Ok(vec![("received", *frames.new_bytes.borrow())]) };
    line_up.add(FRAMES, Ok(frames));
    line_up.add(RSYNC, rsync(&scene));
    let ostree = Ostree::new(&scene);
    let source = ostree.as_ref().ok().map(|o| o.source.clone());
    line_up.add(OSTREE, ostree.map(|mut o| move |_| o.measure()));
    line_up.before_round = new_version(scene, files, source);
    Ok(line_up)
}

/// Changes 100 files and publishes the tree again, and commits it to `source`.
fn new_version(
    scene: Rc<Scene>,
    files: Vec<PathBuf>,
    source: Option<PathBuf>,
) -> Box<dyn FnMut(u32) -> Result<()>> {
    let mut dice = Dice::new(3);
    Box::new(move |round| {
        republish::change(&files, &mut dice, round)?;
        let segments = scene.published.repo.join("segments");
        let before_bytes = disk_bytes(&segments)?;
        scene.published.again(&scene.field, &scene.tree)?;
        *scene.new_bytes.borrow_mut() = disk_bytes(&segments)?.saturating_sub(before_bytes) as f64;
        if let Some(source) = &source {
            commit(&scene, source)?;
        }
        Ok(())
    })
}

/// Runs a command. Also returns the bytes that crossed the relay during it.
fn across(scene: &Scene, far: &Far, command: &mut Command) -> Result<(process::Cost, u64)> {
    let before_bytes = far.bytes();
    let cost = process::run(command, scene.field.work())?;
    Ok((cost, far.bytes().saturating_sub(before_bytes)))
}

/// Serves and pulls with a build; the build under test publishes the versions.
fn ours(
    scene: &Rc<Scene>,
    build: Build,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let published = scene.published.with_build(&scene.field, build, "pull")?;
    let (daemon, port) = published.serve(&scene.field)?;
    let far = Far::new(port, ONE_WAY_MS)?;
    let name = format!("replica-{}", build.directory());
    let replica = scene.field.fresh(&name)?.join("repo");
    let place = published.repo.display().to_string();
    let mut first = published.pull_command(&place, &replica);
    process::run(&mut first, scene.field.work())?;
    // The server looks for a new version every second; a publication takes longer than that.
    let place = format!("bulla://127.0.0.1:{}", far.port);
    let scene = scene.clone();
    Ok(move |_| {
        let _serving = &daemon;
        std::thread::sleep(std::time::Duration::from_secs(2));
        let mut pull = published.pull_command(&place, &replica);
        let (cost, crossed_bytes) = across(&scene, &far, &mut pull)?;
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
    let daemon = Rsync::start(&scene.field, &home, &scene.tree)?;
    let far = Far::new(daemon.port, ONE_WAY_MS)?;
    let copy = home.join("copy");
    let mut first = Command::new("cp");
    first.arg("-a").arg(&scene.tree).arg(&copy);
    process::run(&mut first, scene.field.work())?;
    let mut follow = Command::new("rsync");
    follow.args(["-a", "--delete"]);
    follow
        .arg(format!("rsync://127.0.0.1:{}/tree/", far.port))
        .arg(&copy);
    let scene = scene.clone();
    Ok(move |_| {
        let _serving = &daemon;
        let (cost, crossed_bytes) = across(&scene, &far, &mut follow)?;
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
    far: Far,
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
        let far = Far::new(port, ONE_WAY_MS)?;
        let mut local = ostree(&replica);
        local.arg("pull-local").arg(&source).arg("main");
        process::run(&mut local, scene.field.work())?;
        let mut remote = ostree(&replica);
        remote.args(["remote", "add", "--no-gpg-verify", "origin"]);
        remote.arg(format!("http://127.0.0.1:{}/", far.port));
        process::run(&mut remote, scene.field.work())?;
        let mut pull = ostree(&replica);
        pull.args(["pull", "--mirror", "origin", "main"]);
        Ok(Ostree {
            scene: scene.clone(),
            source,
            pull,
            far,
            _nginx: nginx,
        })
    }

    fn measure(&mut self) -> Result<Vec<Reading>> {
        let (cost, crossed_bytes) = across(&self.scene, &self.far, &mut self.pull)?;
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
    let mut command = Command::new("nginx");
    command
        .arg("-p")
        .arg(home)
        .arg("-e")
        .arg(home.join("error.log"))
        .arg("-c")
        .arg(&path);
    let mut daemon = Daemon::start("nginx", &mut command, &scene.field.log("nginx-far"))?;
    daemon.wait_for_port(port)?;
    Ok(daemon)
}
