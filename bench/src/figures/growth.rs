//! Figure 13: how costs grow with the names in a directory, the files in a tree and the blocks in a
//! store.
//!
//! A new client looks one name up. Calls are counted with one call per step of the path; round trips and
//! server time are those of the real reader. Trees of small files are published and verified. A
//! repository of very many blocks is served, and random blocks are requested. Our own row is the worst of
//! all sizes for each metric.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use store::{Repository, Writer};
use trust::frame::Packer;
use trust::{Handle, Kind, Record};

use super::reading;
use crate::dataset;
use crate::field::{Field, Scale};
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::network::Far;
use crate::outcome::Outcome;
use crate::process::{self, Daemon};
use crate::protocol::{self, Load, Place, runtime};
use crate::subject::Published;
use crate::{memory, stats};

const BOUND: &str = "what we said";
/// The smallest directory, at both scales.
const SMALLEST: &str = "1,000 names";
const UNPINNED: Placement = Placement::Unpinned;
const FILE_BYTES: usize = 1 << 10;
/// A delay that distinguishes messages after an answer from those sent with the request.
const ONE_WAY_MS: u64 = 10;
/// Memory limit of a publisher and a server, without their indexes.
const BUDGET_BYTES: u64 = 256 << 20;
const BUDGET_BYTES_A_BLOCK: u64 = 64;

const CALLS: Metric = Metric::count("calls", "a call a step");
const TRIPS: Metric = Metric::count("trips", "round trips begun");
const STEPS_CPU: Metric = Metric::server_cpu("steps");
const LOOK_UP_CPU: Metric = Metric::server_cpu("look-up");
const PUBLISH: Metric = Metric::count("publish", "files/s");
const VERIFY: Metric = Metric::count("verify", "files/s");
const PUBLISHER: Metric = Metric::count("publisher", "bytes at most");
const PUBLISHER_SHARE: Metric = Metric::count("publisher-share", "of its budget");
const START: Metric = Metric::count("start", "s, warm");
const START_COLD: Metric = Metric::count("start-cold", "s, from the disk");
const SERVER: Metric = Metric::count("server", "bytes");
const SERVER_SHARE: Metric = Metric::count("server-share", "of its budget");

/// Growth.
pub const FIGURE: Figure = Figure {
    number: 13,
    title: "growth with names, files and blocks",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        CALLS,
        TRIPS,
        STEPS_CPU,
        LOOK_UP_CPU,
        PUBLISH,
        VERIFY,
        PUBLISHER,
        PUBLISHER_SHARE,
        START,
        START_COLD,
        SERVER,
        SERVER_SHARE,
    ],
    reaches: &[
        // A thousand times as many names have twice the logarithm.
        Reach::new("calls", UNPINNED, SMALLEST, Bound::AtMost(2.0)),
        Reach::new("trips", UNPINNED, SMALLEST, Bound::AtMost(2.0)),
        Reach::new("publish", UNPINNED, BOUND, Bound::AtLeast(1.0)),
        Reach::new("publisher-share", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("start", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("server-share", UNPINNED, BOUND, Bound::AtMost(1.0)),
    ],
    derive: worst,
    line_up,
};

fn bounds() -> Vec<Reading> {
    vec![
        (PUBLISH.name, 20_000.0),
        (PUBLISHER_SHARE.name, 1.0),
        (START.name, 1.0),
        (SERVER_SHARE.name, 1.0),
    ]
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    line_up.add(BOUND, Ok(|_| Ok(bounds())));
    look_ups(field, &mut line_up)?;
    let tree = dataset::many_files(field)?;
    for count in dataset::file_counts(field) {
        let (field, tree) = (field.clone(), tree.clone());
        let measure = move |_| {
            let tree = tree.join(dataset::many_files_within(&field, count));
            publish(&field, &tree, count)
        };
        line_up.add(&name_of(count, "files"), Ok(measure));
    }
    let count = blocks(field.scale);
    let stored = Stored::new(field, count);
    line_up.add(
        &name_of(count, "blocks"),
        stored.map(|stored| move |_| stored.measure()),
    );
    Ok(line_up)
}

const fn blocks(scale: Scale) -> usize {
    match scale {
        Scale::Full => 10_000_000,
        Scale::Quick => 100_000,
    }
}

/// The name of a row, as `1,000 names`.
pub fn name_of(count: usize, what: &str) -> String {
    let digits = count.to_string();
    let mut name = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            name.push(',');
        }
        name.push(digit);
    }
    format!("{name} {what}")
}

/// One server for all directories, and a row for each.
fn look_ups(field: &Field, line_up: &mut LineUp) -> Result<()> {
    let tree = dataset::directories(field)?;
    let served = protocol::serve(field, "directories", &tree).map(Rc::new);
    for size in dataset::directory_sizes(field) {
        let name = name_of(size, "names");
        match &served {
            Ok(served) => {
                let (served, field) = (served.clone(), field.clone());
                line_up.add(&name, Ok(move |_| look_up(&field, &served, size)));
            }
            Err(error) => line_up.missing(&name, &format!("{error:#}")),
        }
    }
    Ok(())
}

/// A new client's look-up of the name in the middle: call by call, and by the real reader.
fn look_up(field: &Field, served: &(Daemon, Place), size: usize) -> Result<Vec<Reading>> {
    let (daemon, place) = served;
    let path = dataset::in_the_middle(size);
    let path = path.to_str().context("a file name is not UTF-8")?;
    let runtime = runtime()?;
    let record = |place: &Place, around_bytes| {
        let state = field.fresh("reader-state")?;
        runtime.block_on(place.record(path, FILE_BYTES, around_bytes, &state))
    };
    let steps = record(place, 0)?;
    let way = record(place, usize::MAX)?;
    let far = Far::new(place.port, ONE_WAY_MS)?;
    let from_afar = Place {
        port: far.port,
        ..place.clone()
    };
    record(&from_afar, usize::MAX)?;
    let mut readings = vec![
        (CALLS.name, steps.len() as f64),
        (TRIPS.name, far.waves() as f64),
    ];
    let count = field.pick((5_000, 100));
    for (calls, cpu) in [(steps, STEPS_CPU), (way, LOOK_UP_CPU)] {
        let before_s = daemon.cpu_s()?;
        runtime.block_on(place.new_connections(&calls, count))?;
        let cpu_s = daemon.cpu_s()? - before_s;
        readings.push((cpu.name, cpu_s * 1e6 / f64::from(count)));
    }
    Ok(readings)
}

/// Publishes a tree of this many files and verifies the volume.
fn publish(field: &Field, tree: &Path, count: usize) -> Result<Vec<Reading>> {
    dataset::warm(tree)?;
    let (published, cost, peak_bytes) = Published::watched(field, "many-files", tree)?;
    let blocks = Repository::open(&published.repo)?.index_entries();
    let (verified, files) = published.verify(field)?;
    ensure!(files == count as u64, "{files} files were verified");
    Ok(vec![
        (PUBLISH.name, count as f64 / cost.wall_s),
        (VERIFY.name, count as f64 / verified.ran_s),
        (PUBLISHER.name, peak_bytes as f64),
        (PUBLISHER_SHARE.name, share(peak_bytes, blocks)),
    ])
}

fn share(bytes: u64, blocks: u64) -> f64 {
    let budget_bytes = BUDGET_BYTES + BUDGET_BYTES_A_BLOCK * blocks;
    bytes as f64 / budget_bytes as f64
}

/// A volume in a repository with very many more blocks than its tree needs.
struct Stored {
    field: Field,
    published: Published,
    blocks: u64,
    /// Some of them, in random order.
    asked: Arc<[Handle]>,
}

impl Stored {
    fn new(field: &Field, count: usize) -> Result<Stored> {
        let tree = dataset::names(field)?;
        let published = Published::new(field, "blocks", &tree)?;
        fill(&published.repo, count)?;
        process::run(&mut std::process::Command::new("sync"), field.work())?;
        let mut dice = dataset::Dice::new(13);
        let asked = (0..field.pick((200_000, 2_000))).map(|_| name(dice.below(count)));
        Ok(Stored {
            field: field.clone(),
            blocks: Repository::open(&published.repo)?.index_entries(),
            asked: asked.collect(),
            published,
        })
    }

    fn measure(&self) -> Result<Vec<Reading>> {
        for file in dataset::files(&self.published.repo)? {
            reading::evict(&file)?;
        }
        let (_, _, cold_s) = self.start()?;
        dataset::warm(&self.published.repo)?;
        let (daemon, place, warm_s) = self.start()?;
        let load = Load {
            connections: 64,
            in_flight: 1,
            requests: self.field.pick((3_200, 64)),
        };
        runtime()?.block_on(place.keep_alive(load, self.asked.clone()))?;
        let bytes = memory::resident_bytes(daemon.pid())?;
        Ok(vec![
            (START.name, warm_s),
            (START_COLD.name, cold_s),
            (SERVER.name, bytes as f64),
            (SERVER_SHARE.name, share(bytes, self.blocks)),
        ])
    }

    /// A server, and the seconds until it has answered a head and a block.
    fn start(&self) -> Result<(Daemon, Place, f64)> {
        let runtime = runtime()?;
        let block = self.asked.first().context("the repository has no blocks")?;
        let start = Instant::now();
        let (daemon, port) = self.published.serve(&self.field)?;
        let volume = self
            .published
            .volume
            .parse()
            .context("parsing the volume id")?;
        let place = Place { volume, port };
        runtime.block_on(place.first_answers(*block))?;
        Ok((daemon, place, start.elapsed().as_secs_f64()))
    }
}

/// Appended blocks between two commits; until a commit they are in memory.
const CHECKPOINT_BLOCKS: usize = 1 << 20;

/// Appends blocks that differ only in their handles; a server does not look into them.
fn fill(repository: &Path, count: usize) -> Result<()> {
    let repository = Repository::open(repository)?;
    let mut writer = Writer::begin(&repository)?;
    let frame = Packer::new().pack(Kind::Data, &[13; 64])?;
    for number in 0..count {
        writer.append(&Record {
            handle: name(number),
            frame: frame.clone(),
        })?;
        if number % CHECKPOINT_BLOCKS == CHECKPOINT_BLOCKS - 1 {
            process::check_stop()?;
            writer.checkpoint()?;
        }
    }
    writer.checkpoint()?;
    Ok(())
}

fn name(number: usize) -> Handle {
    Handle::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Our row: the worst value of all sizes, round by round.
fn worst(outcome: &mut Outcome, placement: Placement) {
    // A size that failed may be the worst one.
    if !outcome.not_measured.is_empty() {
        return;
    }
    for metric in FIGURE.metrics {
        let rows = outcome.series.iter().filter(|s| {
            s.contestant != BOUND && s.placement == placement && s.metric == metric.name
        });
        let rows: Vec<&[f64]> = rows.map(|s| s.samples.as_slice()).collect();
        let choose = match metric.name {
            name if name == PUBLISH.name || name == VERIFY.name => f64::min,
            _ => f64::max,
        };
        let samples = stats::round_by_round(&rows, choose);
        outcome.derived(OURS, placement, *metric, samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::runner;

    #[test]
    fn rows_have_readable_numbers() {
        assert_eq!(name_of(1_000, "names"), SMALLEST);
        assert_eq!(name_of(10_000_000, "blocks"), "10,000,000 blocks");
        assert_eq!(name_of(100, "files"), "100 files");
    }

    fn rows(_: &Field) -> Result<LineUp> {
        let mut line_up = LineUp::new();
        line_up.add(BOUND, Ok(|_| Ok(bounds())));
        for (name, calls, publish) in [("a", 3.0, 9e4), ("b", 4.0, 3e4), ("c", 2.0, 5e4)] {
            let readings = vec![(CALLS.name, calls), (PUBLISH.name, publish)];
            line_up.add(name, Ok(move |_| Ok(readings.clone())));
        }
        Ok(line_up)
    }

    #[test]
    fn ours_is_the_worst_of_all_sizes_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), Scale::Quick, dir.path()).unwrap();
        let figure = Figure {
            line_up: rows,
            ..FIGURE
        };
        let outcome = runner::run(&figure, &field, Environment::default()).unwrap();
        let ours = |metric: Metric| outcome.samples(OURS, UNPINNED, metric.name);
        assert_eq!(ours(CALLS), Some(&[4.0][..]));
        assert_eq!(ours(PUBLISH), Some(&[3e4][..]));

        let figure = Figure {
            line_up: |field| {
                let mut line_up = rows(field)?;
                line_up.missing("d", "no room");
                Ok(line_up)
            },
            ..FIGURE
        };
        let outcome = runner::run(&figure, &field, Environment::default()).unwrap();
        assert!(outcome.samples(OURS, UNPINNED, CALLS.name).is_none());
    }

    #[test]
    fn a_filled_repository_has_its_blocks_and_its_head() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("repo");
        let repository = Repository::create(&place).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        writer.commit(b"head").unwrap();
        drop(writer);
        fill(&place, 1_000).unwrap();
        let repository = Repository::open(&place).unwrap();
        assert_eq!(repository.index_entries(), 1_000);
        assert!(repository.contains(&name(999)).unwrap());
        assert!(!repository.contains(&name(1_000)).unwrap());
        assert_eq!(&repository.statements()[..], b"head");
    }

    #[test]
    fn budget_has_a_fixed_part_and_a_part_per_block() {
        assert_eq!(share(256 << 20, 0), 1.0);
        assert_eq!(share(256 << 20, 4 << 20), 0.5);
    }
}
