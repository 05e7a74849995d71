//! Checks offline that a path is in a volume, or that it is not:
//!
//! ```text
//! cargo run --example check_proof -- VOLUMEID PATH PROOF_FILE
//! ```
//!
//! The proof is a file (docs/formats/path-proof.md) that holds the volume's signed statements and the
//! blocks on the way to the path. Only the volume id and the clock are trusted; no network is used
//! and no state is kept. So the proof shows the path in a version that is still valid, and not
//! that there is no newer version.

use std::time::{SystemTime, UNIX_EPOCH};

use trust::Reject;
use trust::path_proof::{Demands, MAX_PATH_PROOF_BYTES, PathProof};
use trust::reach::Outcome;
use trust::volume_id::VolumeId;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [volume, path, file] = arguments.as_slice() else {
        return Err("usage: check_proof VOLUMEID PATH PROOF_FILE".into());
    };
    if std::fs::metadata(file)?.len() > MAX_PATH_PROOF_BYTES as u64 {
        return Err(format!("{file}: too long for a proof").into());
    }
    let proof = std::fs::read(file)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    println!("{}", check(volume.parse()?, path.as_bytes(), &proof, now)?);
    Ok(())
}

/// Checks a proof at the time `now` (unix seconds) and says what it shows.
fn check(volume: VolumeId, path: &[u8], proof: &[u8], now: u64) -> Result<String, Reject> {
    let demands = Demands {
        now,
        least_policy: 0,
    };
    let shown = PathProof::decode(proof)?.verify(volume, path, &demands)?;
    let version = shown.record.version;
    Ok(match shown.outcome {
        Outcome::Present(inode) => {
            format!(
                "in version {version}: {} bytes, mode {:o}",
                inode.size, inode.mode
            )
        }
        Outcome::Absent(_) => format!("not in version {version}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sim::model::Model;
    use sim::random::noise;
    use trust::head::Head;
    use trust::path_proof::Prover;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// A volume with `docs/file` in it, and its head.
    fn world() -> (Model, Head) {
        let mut model = Model::new(7).unwrap();
        let file = model.file(&noise(1, 3000), 1024).unwrap();
        let docs = model.directory(vec![(b"file".to_vec(), file)]).unwrap();
        let root = model.directory(vec![(b"docs".to_vec(), docs)]).unwrap();
        let head = model.publish(&root, NOW, 3600).unwrap();
        (model, Head::decode(&head).unwrap())
    }

    fn prove(model: &Model, head: &Head, path: &[u8]) -> Vec<u8> {
        let mut prover = Prover::new(head, &[], model.id(), path).unwrap();
        while let Some(wanted) = prover.wants() {
            let handle = wanted.handle();
            let record = model.records.iter().find(|r| r.handle == handle);
            prover
                .supply(record.unwrap().frame.unpack().unwrap())
                .unwrap();
        }
        prover.finish().unwrap().encode().unwrap()
    }

    #[test]
    fn proofs_of_presence_and_absence_are_told_apart() {
        let (model, head) = world();
        let present = prove(&model, &head, b"docs/file");
        let shown = check(model.id(), b"docs/file", &present, NOW).unwrap();
        assert_eq!(shown, "in version 1: 3000 bytes, mode 644");
        let absent = prove(&model, &head, b"docs/none");
        let shown = check(model.id(), b"docs/none", &absent, NOW).unwrap();
        assert_eq!(shown, "not in version 1");
    }

    #[test]
    fn wrong_volume_path_time_and_damage_are_refused() {
        let (model, head) = world();
        let proof = prove(&model, &head, b"docs/file");
        let other = Model::new(8).unwrap().id();
        assert!(check(other, b"docs/file", &proof, NOW).is_err());
        assert!(check(model.id(), b"docs/none", &proof, NOW).is_err());
        assert!(check(model.id(), b"docs/file", &proof, NOW + 7200).is_err());
        for at in (0..proof.len()).step_by(31) {
            let mut damaged = proof.clone();
            damaged[at] ^= 1;
            assert!(
                check(model.id(), b"docs/file", &damaged, NOW).is_err(),
                "byte {at}"
            );
        }
    }
}
