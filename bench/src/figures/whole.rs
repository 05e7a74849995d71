//! Figure 27: a whole tree from 50 ms away, with nothing cached: listed, walked on a mount, verified, extracted, copied.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::dataset;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::network::Far;
use crate::peers::nginx::Nginx;
use crate::peers::rsync::Rsync;
use crate::peers::view::mount_point;
use crate::process;
use crate::subject::Published;

const ONE_WAY_MS: u64 = 25;
const RSYNC: &str = "rsync's daemon";
const WEB: &str = "bulla, static HTTP from nginx";

/// Whole trees.
pub const FIGURE: Figure = Figure {
    number: 27,
    title: "a whole tree, 50 ms round trip, nothing cached",
    rounds: (3, 1),
    placements: &[Placement::Unpinned],
    metrics: &[
        Metric::time("ls", "s, ls -R or --list-only"),
        Metric::time("find", "s on a mount, or --list-only"),
        Metric::time("extract", "s, or -a"),
        Metric::time("verify", "s, or -a"),
        Metric::time("pull", "s, or -a"),
        Metric::count("listed", "bytes both ways for ls"),
        Metric::count("copied", "bytes both ways for extract"),
    ],
    reaches: &[
        reach("ls"),
        reach("find"),
        reach("extract"),
        reach("verify"),
        reach("pull"),
        reach("copied"),
        over_web("ls"),
        over_web("find"),
        over_web("extract"),
        over_web("verify"),
        over_web("pull"),
    ],
    derive: nothing,
    line_up,
};

const fn reach(metric: &'static str) -> Reach {
    Reach::new(metric, Placement::Unpinned, RSYNC, Bound::AtMost(1.0))
}

/// Over HTTP it takes at most 1.5 times as long.
const fn over_web(metric: &'static str) -> Reach {
    Reach::new(metric, Placement::Unpinned, WEB, Bound::AtLeast(1.0 / 1.5))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::linux(field)?;
    let mut line_up = LineUp::new();
    for build in field.builds() {
        let (own, web) = (build.row(OURS), build.row(WEB));
        match Published::by(field, build, "whole", &tree) {
            Ok(published) => {
                line_up.add(&own, native(field, &published));
                line_up.add(&web, over_http(field, &published));
            }
            Err(error) => {
                let why = format!("{error:#}");
                line_up.missing(&own, &why);
                line_up.missing(&web, &why);
            }
        }
    }
    if !field.gate() {
        line_up.add(RSYNC, rsync(field, &tree));
    }
    Ok(line_up)
}

fn native(
    field: &Field,
    published: &Published,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let (daemon, port) = published.serve(field)?;
    let far = Far::new(port, ONE_WAY_MS)?;
    let (field, published) = (field.clone(), published.clone());
    Ok(move |_| {
        let _serving = &daemon;
        from_afar(&field, &published, &far, "bulla")
    })
}

fn over_http(
    field: &Field,
    published: &Published,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let nginx = Nginx::start(field, "whole", &published.repo)?;
    let far = Far::new(nginx.http, ONE_WAY_MS)?;
    let (field, published) = (field.clone(), published.clone());
    Ok(move |_| {
        let _serving = &nginx;
        from_afar(&field, &published, &far, "http")
    })
}

fn from_afar(
    field: &Field,
    published: &Published,
    far: &Far,
    scheme: &str,
) -> Result<Vec<Reading>> {
    dataset::warm(&published.repo)?;
    let place = format!("{scheme}://127.0.0.1:{}", far.port);
    let target = field.fresh("whole-target")?;
    let run = |command: &mut Command| -> Result<(f64, f64)> {
        let before_bytes = far.bytes();
        let cost = process::run(command, field.work())?;
        Ok((cost.wall_s, far.bytes().saturating_sub(before_bytes) as f64))
    };
    let (ls_s, listed_bytes) = run(published.read_command("ls", &place).arg("-R"))?;
    let find_s = find(field, published, &place)?;
    let out = target.join("out");
    let (extract_s, copied_bytes) = run(published.read_command("extract", &place).arg(&out))?;
    fs::remove_dir_all(&out)?;
    let (verify_s, _) = run(&mut published.read_command("verify", &place))?;
    let replica = target.join("replica");
    let (pull_s, _) = run(&mut published.pull_command(&place, &replica))?;
    fs::remove_dir_all(&target)?;
    Ok(vec![
        ("ls", ls_s),
        ("find", find_s),
        ("extract", extract_s),
        ("verify", verify_s),
        ("pull", pull_s),
        ("listed", listed_bytes),
        ("copied", copied_bytes),
    ])
}

/// Walks a new mount as `find` does.
fn find(field: &Field, published: &Published, place: &str) -> Result<f64> {
    let dir = mount_point(field)?;
    let _mounted = published.mount_from(field, place, &[], &dir)?;
    let began = Instant::now();
    let mut find = Command::new("find");
    let found = process::run(find.arg(&dir), field.work())?;
    let took_s = began.elapsed().as_secs_f64();
    ensure!(found.stdout.lines().count() > 100, "nothing was found");
    Ok(took_s)
}

fn rsync(field: &Field, tree: &Path) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let home = field.fresh("rsync-whole")?;
    let daemon = Rsync::start(field, &home, tree)?;
    let far = Far::new(daemon.port, ONE_WAY_MS)?;
    let (field, copy) = (field.clone(), home.join("copy"));
    Ok(move |_| {
        let _serving = &daemon;
        let source = format!("rsync://127.0.0.1:{}/tree/", far.port);
        let before_bytes = far.bytes();
        let mut list = Command::new("rsync");
        let listed = process::run(list.args(["-r", "--list-only", &source]), field.work())?;
        let listed_bytes = far.bytes().saturating_sub(before_bytes) as f64;
        let before_bytes = far.bytes();
        let mut all = Command::new("rsync");
        let copied = process::run(all.args(["-a", &source]).arg(&copy), field.work())?;
        let copied_bytes = far.bytes().saturating_sub(before_bytes) as f64;
        fs::remove_dir_all(&copy).context("removing rsync's copy")?;
        Ok(vec![
            ("ls", listed.wall_s),
            ("find", listed.wall_s),
            ("extract", copied.wall_s),
            ("verify", copied.wall_s),
            ("pull", copied.wall_s),
            ("listed", listed_bytes),
            ("copied", copied_bytes),
        ])
    })
}
