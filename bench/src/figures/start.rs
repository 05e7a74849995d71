//! Figures 12 and 15: the cold start of a program that opens 600 of 20,000 files.
//!
//! Far: the server is 50 ms away (`network`), nothing is cached, and the files are opened and read one
//! after the other in a recorded order. Cached: the same start and a read of 1 GiB from a filled disk
//! cache without any server, compared with the local disk; pages are dropped before each.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::reading::{self, LOCAL, SSHFS};
use crate::cpu;
use crate::dataset;
use crate::field::Field;
use crate::figure::{
    Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing,
};
use crate::network::Far;
use crate::peers::nginx::Nginx;
use crate::peers::view::{Viewer, mount_point};
use crate::process;
use crate::subject::Published;

const ONE_WAY_MS: u64 = 25;
/// Reads that fill the cache.
const FILLS: u32 = 8;
const WEB: &str = "bulla, static HTTP from nginx";
const WEB_OWN: &str = "bulla, HTTP from serve";
const BOUND: &str = "what we said";
const BOUND_WEB: &str = "what we said, over HTTP";
const UNPINNED: Placement = Placement::Unpinned;
const START: Metric = Metric::time("start", "s");

/// Over 50 ms.
pub const FAR: Figure = Figure {
    number: 12,
    title: "cold start of a program, 600 of 20,000 files, 50 ms round trip",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        START,
        Metric::processor("cpu", "s, both ends"),
        Metric::count("waves", "round trips begun"),
        Metric::count("crossed", "bytes both ways"),
        Metric::time("mount", "s before"),
        Metric::time("profiled", "s, with a profile"),
        Metric::count("waves-profiled", "round trips begun, with a profile"),
        Metric::count("crossed-profiled", "bytes both ways, with a profile"),
    ],
    reaches: &[
        reach("start", BOUND),
        reach("waves", BOUND),
        reach("start", SSHFS),
        reach("profiled", BOUND),
        reach("waves-profiled", BOUND),
    ],
    derive: nothing,
    line_up: far,
};

/// From the disk cache.
pub const CACHED: Figure = Figure {
    number: 15,
    title: "the same start and 1 GiB from the disk cache, without network",
    rounds: (5, 1),
    placements: &[UNPINNED],
    metrics: &[START, Metric::time("read", "s for 1 GiB")],
    reaches: &[
        Reach::new("start", UNPINNED, LOCAL, Bound::AtMost(1.5)),
        Reach::new("read", UNPINNED, LOCAL, Bound::AtMost(1.5)),
    ],
    derive: nothing,
    line_up: cached,
};

const fn reach(metric: &'static str, peer: &'static str) -> Reach {
    Reach::new(metric, UNPINNED, peer, Bound::AtMost(1.0))
}

/// Opens and reads each file whole, as the program does. Returns the seconds.
fn start(dir: &Path, order: &[PathBuf]) -> Result<f64> {
    let began = Instant::now();
    for path in order {
        let path = dir.join(path);
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(!bytes.is_empty(), "{} is empty", path.display());
    }
    Ok(began.elapsed().as_secs_f64())
}

fn far(field: &Field) -> Result<LineUp> {
    let tree = dataset::program(field)?;
    let order = dataset::program_start(field);
    let mut line_up = LineUp::new();
    if !field.gate() {
        let bound = vec![
            ("start", 4.0),
            ("waves", 60.0),
            ("profiled", 1.6),
            ("waves-profiled", 20.0),
        ];
        line_up.add(BOUND, Ok(move |_| Ok(bound.clone())));
        line_up.add(BOUND_WEB, Ok(|_| Ok(vec![("start", 6.0), ("waves", 90.0)])));
    }
    for build in field.builds() {
        let rows = [OURS, WEB_OWN, WEB].map(|name| build.row(name));
        let [own, own_web, nginx_web] = &rows;
        match Published::by(field, build, "start", &tree) {
            Ok(published) => {
                line_up.add(own, native(field, &published, &order));
                line_up.add(own_web, web_own(field, &published, &order));
                if !field.gate() {
                    line_up.add(nginx_web, web(field, build, &published, &order));
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                rows.iter().for_each(|row| line_up.missing(row, &why));
            }
        }
    }
    if !field.gate() {
        line_up.add(SSHFS, sshfs(field, &tree, order));
    }
    Ok(line_up)
}

/// One start from a location behind a relay; `server_s` is the processor time of its server so far.
fn from_afar(
    field: &Field,
    published: &Published,
    (far, scheme): (&Far, &str),
    (order, profile): (&[PathBuf], Option<&Path>),
    server_s: impl Fn() -> Result<f64>,
) -> Result<Vec<Reading>> {
    dataset::warm(&published.repo)?;
    let dir = mount_point(field)?;
    let (bytes, began) = (far.bytes(), Instant::now());
    let place = format!("{scheme}://127.0.0.1:{}", far.port);
    let options = profile.map(|file| [OsStr::new("--profile"), file.as_os_str()]);
    let options = options.as_ref().map_or(&[][..], |words| words);
    let waves = far.waves();
    let mounted = published.mount_from(field, &place, options, &dir)?;
    let mount_s = began.elapsed().as_secs_f64();
    // A profile is fetched from the mount on, so its round trips before the start count too.
    let waves = if profile.is_some() {
        waves
    } else {
        far.waves()
    };
    let used_s = || anyhow::Ok(mounted.cpu_s()? + server_s()? + cpu::own_s());
    let before_s = used_s()?;
    let start_s = start(&dir, order)?;
    Ok(vec![
        ("start", start_s),
        ("cpu", used_s()? - before_s),
        ("waves", far.waves().saturating_sub(waves) as f64),
        ("crossed", far.bytes().saturating_sub(bytes) as f64),
        ("mount", mount_s),
    ])
}

/// Records the profile of a start, without a distance.
fn record(field: &Field, published: &Published, order: &[PathBuf]) -> Result<PathBuf> {
    let (_daemon, port) = published.serve(field)?;
    let file = field.fresh("profile")?.join("start");
    let options = [OsStr::new("--record"), file.as_os_str()];
    let dir = mount_point(field)?;
    let place = format!("bulla://127.0.0.1:{port}");
    let mounted = published.mount_from(field, &place, &options, &dir)?;
    start(&dir, order)?;
    drop(mounted);
    let lines = std::fs::read_to_string(&file)?.lines().count();
    ensure!(lines >= order.len(), "the profile has {lines} paths");
    Ok(file)
}

fn native(
    field: &Field,
    published: &Published,
    order: &[PathBuf],
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let (daemon, port) = published.serve(field)?;
    let far = Far::new(port, ONE_WAY_MS)?;
    // An earlier build has no profiles.
    let profile = match field.gate() {
        true => None,
        false => Some(record(field, published, order)?),
    };
    let (field, published, order) = (field.clone(), published.clone(), order.to_vec());
    Ok(move |_| {
        let start = |profile| {
            let how = (&*order, profile);
            from_afar(&field, &published, (&far, "bulla"), how, || daemon.cpu_s())
        };
        let mut readings = start(None)?;
        if let Some(profile) = &profile {
            let names = [
                ("start", "profiled"),
                ("waves", "waves-profiled"),
                ("crossed", "crossed-profiled"),
            ];
            for (name, value) in start(Some(profile))? {
                let named = names.iter().find(|(plain, _)| *plain == name);
                readings.extend(named.map(|(_, name)| (*name, value)));
            }
        }
        Ok(readings)
    })
}

fn web(
    field: &Field,
    build: Build,
    published: &Published,
    order: &[PathBuf],
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let name = format!("{}-start", build.directory());
    let nginx = Nginx::start(field, &name, &published.repo)?;
    let far = Far::new(nginx.http, ONE_WAY_MS)?;
    let (field, published, order) = (field.clone(), published.clone(), order.to_vec());
    Ok(move |_| {
        let how = (&*order, None);
        from_afar(&field, &published, (&far, "http"), how, || nginx.cpu_s())
    })
}

fn web_own(
    field: &Field,
    published: &Published,
    order: &[PathBuf],
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let (daemon, port) = published.serve_web(field)?;
    let far = Far::new(port, ONE_WAY_MS)?;
    let (field, published, order) = (field.clone(), published.clone(), order.to_vec());
    Ok(move |_| {
        let how = (&*order, None);
        from_afar(&field, &published, (&far, "http"), how, || daemon.cpu_s())
    })
}

fn sshfs(
    field: &Field,
    tree: &Path,
    order: Vec<PathBuf>,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let Viewer::Sshfs(ssh) = Viewer::sshfs(field, "start", tree)? else {
        anyhow::bail!("sshfs is not available");
    };
    let field = field.clone();
    Ok(move |_| {
        let far = std::cell::OnceCell::new();
        let way = |port| {
            let it = Far::new(port, ONE_WAY_MS)?;
            Ok(far.get_or_init(|| it).port)
        };
        let began = Instant::now();
        let view = ssh.open_through(&field, way)?;
        let mount_s = began.elapsed().as_secs_f64();
        let far = far.get().context("sshfs was started without a relay")?;
        let used_s = || anyhow::Ok(view.cpu_s()? + cpu::own_s());
        let (waves, before_s) = (far.waves(), used_s()?);
        let start_s = start(view.dir(), &order)?;
        Ok(vec![
            ("start", start_s),
            ("cpu", used_s()? - before_s),
            ("waves", far.waves().saturating_sub(waves) as f64),
            ("crossed", far.bytes() as f64),
            ("mount", mount_s),
        ])
    })
}

fn cached(field: &Field) -> Result<LineUp> {
    let (program, large) = (dataset::program(field)?, dataset::large(field)?);
    let order = dataset::program_start(field);
    let mut line_up = LineUp::new();
    for build in field.builds() {
        line_up.add(
            &build.row(OURS),
            offline(field, build, (&program, &large), &order),
        );
    }
    if field.gate() {
        return Ok(line_up);
    }
    let random = PathBuf::from("random");
    line_up.add(
        LOCAL,
        Ok(move |_| {
            for path in &order {
                reading::evict(&program.join(path))?;
            }
            let start_s = start(&program, &order)?;
            let path = large.join(&random);
            reading::evict(&path)?;
            let (_, read_s) = reading::whole(&path)?;
            Ok(vec![("start", start_s), ("read", read_s)])
        }),
    );
    Ok(line_up)
}

fn with(cache: &Path) -> [&OsStr; 2] {
    [OsStr::new("--cache"), cache.as_os_str()]
}

/// A volume whose blocks are in a cache, without a server.
struct Offline {
    field: Field,
    published: Published,
    cache: PathBuf,
}

impl Offline {
    /// Reads through a mount of the repository's server, then ends the server.
    fn fill(
        field: &Field,
        build: Build,
        (name, tree): (&str, &Path),
        read: impl Fn(&Path) -> Result<()>,
    ) -> Result<Offline> {
        let published = Published::by(field, build, name, tree)?;
        let cache = field.fresh(&format!("cache-{name}-{}", build.directory()))?;
        let (_server, port) = published.serve(field)?;
        let dir = mount_point(field)?;
        let place = format!("bulla://127.0.0.1:{port}");
        // Blocks that arrive faster than the disk can store them are not kept; later reads add them.
        for _ in 0..FILLS {
            let mounted = published.mount_from(field, &place, &with(&cache), &dir)?;
            read(&dir)?;
            drop(mounted);
        }
        process::run(&mut std::process::Command::new("sync"), field.work())?;
        Ok(Offline {
            field: field.clone(),
            published,
            cache,
        })
    }

    fn measure(&self, read: impl Fn(&Path) -> Result<f64>) -> Result<f64> {
        reading::evict_all(&self.cache)?;
        let dir = mount_point(&self.field)?;
        // There is no server at this port.
        let place = format!("bulla://127.0.0.1:{}", process::free_port()?);
        let options = with(&self.cache);
        let _mounted = self
            .published
            .mount_from(&self.field, &place, &options, &dir)?;
        read(&dir)
    }
}

fn offline(
    field: &Field,
    build: Build,
    (program, large): (&Path, &Path),
    order: &[PathBuf],
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let whole = |dir: &Path| reading::whole(&dir.join("random")).map(|(_, seconds)| seconds);
    let order = order.to_vec();
    let small = Offline::fill(field, build, ("offline-start", program), |dir| {
        start(dir, &order).map(drop)
    })?;
    let big = Offline::fill(field, build, ("offline-large", large), |dir| {
        whole(dir).map(drop)
    })?;
    Ok(move |_| {
        let start_s = small.measure(|dir| start(dir, &order))?;
        Ok(vec![("start", start_s), ("read", big.measure(whole)?)])
    })
}
