//! Figure 28: proofs of paths, by the number of names in the directory.
//!
//! `bulla prove` writes a proof that a name is there, and one that another name is not, from a repository on this
//! machine. `bulla check` judges them in an empty state directory, as a stranger does who knows the volume id.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::growth::name_of;
use crate::dataset;
use crate::field::Field;
use crate::figure::{Figure, LineUp, Metric, Placement, Reading, nothing};
use crate::process;
use crate::subject::Published;

const PRESENT: Metric = Metric::count("present", "bytes");
const ABSENT: Metric = Metric::count("absent", "bytes");
const PROVE: Metric = Metric::time("prove", "s");
const CHECK: Metric = Metric::time("check", "s");

/// Proofs of paths.
pub const FIGURE: Figure = Figure {
    number: 28,
    title: "a proof that a name is in a directory, or is not",
    rounds: (5, 1),
    placements: &[Placement::Unpinned],
    metrics: &[PRESENT, ABSENT, PROVE, CHECK],
    reaches: &[],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::directories(field)?;
    let published = Rc::new(Published::new(field, "proofs", &tree)?);
    let mut line_up = LineUp::new();
    for size in dataset::directory_sizes(field) {
        let (field, published) = (field.clone(), published.clone());
        let measure = move |_| proofs(&field, &published, size);
        line_up.add(&name_of(size, "names"), Ok(measure));
    }
    Ok(line_up)
}

/// Both proofs of a directory: their lengths, and the longer time of each kind.
fn proofs(field: &Field, published: &Published, size: usize) -> Result<Vec<Reading>> {
    let out = field.fresh("proofs-made")?;
    let there = dataset::in_the_middle(size);
    let mut missing = there.clone().into_os_string();
    missing.push("-missing");
    let (mut prove_s, mut check_s) = (0.0_f64, 0.0_f64);
    let mut lengths = Vec::new();
    for (name, path, expected) in [
        ("there", there.as_path(), "present"),
        ("missing", Path::new(&missing), "absent"),
    ] {
        let proof = out.join(name);
        let place = published.repo.display().to_string();
        let mut prove = published.read_command("prove", &place);
        prove.arg(path).arg("--out").arg(&proof);
        prove_s = prove_s.max(process::run(&mut prove, field.work())?.ran_s);
        let mut check = published.check_command(&proof, &out.join("stranger"));
        check.args(["--expect", expected]);
        check_s = check_s.max(process::run(&mut check, field.work())?.ran_s);
        let length = proof.metadata().context("the proof is missing")?.len();
        lengths.push(length as f64);
    }
    let &[present, absent] = lengths.as_slice() else {
        anyhow::bail!("not two proofs");
    };
    Ok(vec![
        (PRESENT.name, present),
        (ABSENT.name, absent),
        (PROVE.name, prove_s),
        (CHECK.name, check_s),
    ])
}
