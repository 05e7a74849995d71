//! Figure 8 (SFSRO Fig. 7): a large package is compiled out of tree, its source on the mount.
//!
//! The package is the Linux kernel in its smallest configuration. Each build starts in a directory on
//! the local disk that holds only the configuration, so it contains no path of another source tree.
//! Cold: the client has cached nothing. Cached: blocks are in the disk cache of an earlier mount. Warm:
//! an earlier build used the same mount. All builds must produce the same objects.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};

use super::reading::{self, LOCAL, SSHFS};
use crate::dataset;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Placement, Reach, Reading, nothing};
use crate::peers::view::{View, Viewer};
use crate::process::{self, Cost};

/// The parts to build: at full scale those parts of the kernel that every machine has.
const TARGETS: (&[&str], &[&str]) = (&["init/", "kernel/", "mm/", "lib/", "fs/"], &["init/"]);
/// Compilations that fill the disk cache. The second one adds blocks that the first read faster than the
/// disk could store them.
const FILLS: u32 = 2;
const UNPINNED: Placement = Placement::Unpinned;

/// The two columns of a state of the caches: elapsed and processor time.
type State = [Metric; 2];
const COLD: State = state("cold", "cold-cpu");
const CACHED: State = state("cached", "cached-cpu");
const WARM: State = state("warm", "warm-cpu");

/// A compilation.
pub const FIGURE: Figure = Figure {
    number: 8,
    title: "the kernel's smallest configuration compiled out of tree, source on the mount",
    rounds: (7, 1),
    placements: &[UNPINNED],
    metrics: &[COLD[0], COLD[1], CACHED[0], CACHED[1], WARM[0], WARM[1]],
    reaches: &[
        reach(COLD[0], COLD[0], 1.05),
        reach(COLD[1], COLD[1], 1.05),
        reach(CACHED[0], COLD[0], 1.05),
        reach(CACHED[1], COLD[1], 1.05),
        reach(WARM[0], WARM[0], 1.02),
        reach(WARM[1], WARM[1], 1.02),
    ],
    derive: nothing,
    line_up,
};

const fn state(elapsed: &'static str, processor: &'static str) -> State {
    [
        Metric::time(elapsed, "s"),
        Metric::processor(processor, "s"),
    ]
}

const fn reach(ours: Metric, locally: Metric, at_most: f64) -> Reach {
    Reach::new(ours.name, UNPINNED, LOCAL, Bound::AtMost(at_most))
        .beside(locally.name)
        .or_even()
}

/// Contestants that are compared with each other are neighbours, so that little time passes between them.
fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::package(field)?;
    let build = Rc::new(Build::new(field, &tree)?);
    let shown: Vec<_> = reading::viewers(field, "compile", &tree, &[LOCAL, SSHFS])
        .into_iter()
        .map(|(name, viewer)| (name, viewer.map(Rc::new)))
        .collect();
    let mut line_up = LineUp::new();
    for (name, viewer) in &shown {
        match viewer {
            Ok(viewer) if name == SSHFS => line_up.add(name, Ok(once(cold(&build, viewer)))),
            Ok(viewer) => line_up.add(name, Ok(cold(&build, viewer))),
            Err(error) => line_up.missing(name, &format!("{error:#}")),
        }
        if let Ok(viewer) = viewer
            && let Viewer::Bulla(_) = **viewer
        {
            line_up.add(name, cached(&build, viewer, name));
        }
    }
    for (name, viewer) in shown {
        match viewer {
            // The copy that is compiled cold loses its pages each time.
            Ok(viewer) if matches!(*viewer, Viewer::Local(_)) => {
                line_up.add(&name, warm(&build, &Viewer::Local(tree.clone())));
            }
            Ok(viewer) if name != SSHFS => line_up.add(&name, warm(&build, &viewer)),
            _ => {}
        }
    }
    Ok(line_up)
}

/// Measures in the first round only: there is no goal for sshfs, which takes as long as all others together.
fn once(
    mut measure: impl FnMut(u32) -> Result<Vec<Reading>>,
) -> impl FnMut(u32) -> Result<Vec<Reading>> {
    move |round| match round {
        0 => measure(round),
        _ => Ok(Vec::new()),
    }
}

fn cold(build: &Rc<Build>, viewer: &Rc<Viewer>) -> impl FnMut(u32) -> Result<Vec<Reading>> + use<> {
    let (build, viewer) = (build.clone(), viewer.clone());
    move |_| build.measure(&afresh(&build.field, &viewer)?, &COLD)
}

fn cached(
    build: &Rc<Build>,
    viewer: &Viewer,
    name: &str,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let build = build.clone();
    let name = name.replace([' ', ','], "");
    let viewer = viewer.with_disk_cache(&build.field, &format!("compile-{name}"))?;
    for _ in 0..FILLS {
        build.run(&viewer.open(&build.field)?)?;
    }
    Ok(move |_| build.measure(&afresh(&build.field, &viewer)?, &CACHED))
}

/// A new view; the pages of files on the client's own disk are dropped.
fn afresh(field: &Field, viewer: &Viewer) -> Result<View> {
    if let Viewer::Local(dir) | Viewer::BullaCached(_, dir) = viewer {
        reading::evict_all(dir)?;
    }
    viewer.open(field)
}

fn warm(
    build: &Rc<Build>,
    viewer: &Viewer,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let build = build.clone();
    let view = viewer.open(&build.field)?;
    build.run(&view)?;
    Ok(move |_| build.measure(&view, &WARM))
}

/// The configuration to compile, from any source tree, and the expected objects.
struct Build {
    field: Field,
    config: PathBuf,
    objects: blake3::Hash,
}

impl Build {
    /// Configures, and compiles once from the data set itself, so that the compiler is in the page cache.
    fn new(field: &Field, tree: &Path) -> Result<Build> {
        let dir = field.fresh("compile-config")?;
        process::run(make(tree, &dir).arg("tinyconfig"), field.work())?;
        let mut build = Build {
            field: field.clone(),
            config: dir.join(".config"),
            objects: blake3::hash(b""),
        };
        let (_, out) = build.compile(tree)?;
        build.objects = build.made(&out)?;
        Ok(build)
    }

    /// Compiles and returns both columns of a state.
    fn measure(&self, view: &View, [wall, cpu]: &State) -> Result<Vec<Reading>> {
        reading::back_free_memory();
        let before_s = view.cpu_s()?;
        let cost = self.run(view)?;
        let behind_s = view.cpu_s()? - before_s;
        Ok(vec![
            (wall.name, cost.ran_s),
            (cpu.name, cost.cpu_s + behind_s),
        ])
    }

    /// Compiles from a view.
    ///
    /// # Errors
    /// When the objects differ from those of the data set itself.
    fn run(&self, view: &View) -> Result<Cost> {
        let (cost, out) = self.compile(view.dir())?;
        ensure!(
            self.made(&out)? == self.objects,
            "the build made different objects"
        );
        Ok(cost)
    }

    /// A hash of the requested objects. The build's own tools contain the path of their source.
    fn made(&self, out: &Path) -> Result<blake3::Hash> {
        objects(out, self.field.pick(TARGETS))
    }

    fn compile(&self, source: &Path) -> Result<(Cost, PathBuf)> {
        let out = self.field.fresh("compile-out")?;
        std::fs::copy(&self.config, out.join(".config")).context("copying the configuration")?;
        let mut command = make(source, &out);
        let jobs = std::thread::available_parallelism()?;
        command.arg(format!("-j{jobs}"));
        command.args(self.field.pick(TARGETS));
        Ok((process::run(&mut command, self.field.work())?, out))
    }
}

/// `make` out of tree, with fixed values for everything that would make two builds differ.
fn make(source: &Path, out: &Path) -> Command {
    let mut command = Command::new("make");
    command.arg("-s").arg("-C").arg(source);
    command.arg(format!("O={}", out.display()));
    for name in ["USER", "HOST"] {
        command.arg(format!("KBUILD_BUILD_{name}=bench"));
    }
    command.arg("KBUILD_BUILD_TIMESTAMP=@0");
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        command.env_remove(name);
    }
    command
}

/// A hash of all object files below these parts of a directory, and of their names.
fn objects(dir: &Path, parts: &[&str]) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        let mut files = dataset::files(&dir.join(part))?;
        files.retain(|path| path.extension().is_some_and(|extension| extension == "o"));
        ensure!(!files.is_empty(), "{part} has no objects");
        for path in files {
            hasher.update(path.strip_prefix(dir)?.as_os_str().as_encoded_bytes());
            hasher.update(blake3::hash(&std::fs::read(&path)?).as_bytes());
        }
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_differ_by_name_and_content_and_nothing_else_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::create_dir(dir.join("part")).unwrap();
        let hash = || objects(dir, &["part"]);
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("tool.o", "1");
        assert!(hash().is_err());
        write("part/a.o", "1");
        let first = hash().unwrap();
        write("part/a.c", "1");
        write("tool.o", "2");
        assert_eq!(hash().unwrap(), first);
        write("part/a.o", "2");
        let second = hash().unwrap();
        assert_ne!(second, first);
        std::fs::rename(dir.join("part/a.o"), dir.join("part/b.o")).unwrap();
        assert_ne!(hash().unwrap(), second);
    }
}
