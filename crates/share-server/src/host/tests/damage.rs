//! Damage on the server's own disk: it is named, and never served.

use store::disk::{Disk, read_whole, replace_file};

use super::super::HostError;
use super::super::examine::{Examined, examine_parts};
use super::devices::{Device, nonce};
use super::world::World;
use ordering::engine::Request;

/// A server with some leaves in a file, and its files.
fn world() -> (World, String) {
    let world = World::new();
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    for number in 0..600 {
        device
            .session
            .receive(&Request::Mark(nonce(number)))
            .unwrap();
        core.pump();
        device.draw().unwrap();
    }
    core.move_leaves().unwrap();
    let names = world.disk.files();
    let name = names.into_iter().find(|name| name.starts_with("leaves/"));
    (world, name.unwrap())
}

fn replace(world: &World, name: &str, bytes: &[u8]) {
    replace_file(&*world.disk, name, "aside.tmp", "leaves", bytes).unwrap();
}

fn examine(world: &World) -> Examined {
    examine_parts(&world.parts(), true, &mut |_| {}).unwrap()
}

#[test]
fn damaged_leaf_is_named_and_not_served() {
    let (world, name) = world();
    let whole = read_whole(&*world.disk, &name, 1 << 20).unwrap();
    let (mut refused, mut unread) = (0, 0);
    for at in (0..whole.len()).step_by(97) {
        let mut bad = whole.clone();
        bad[at] ^= 1 << (at % 8);
        replace(&world, &name, &bad);
        let found = world.open().and_then(|core| {
            let mut device = Device::connect(&core, 1)?;
            device.draw()?;
            Ok(device.leaves)
        });
        match found {
            Err(HostError::Disk(error)) => {
                assert!(error.to_string().contains(&name) || error.to_string().contains("leaf"));
                refused += 1;
            }
            Err(other) => panic!("byte {at}: {other}"),
            // The table of offsets has more than is needed to read all leaves.
            Ok(leaves) => {
                assert_eq!(leaves.len(), 600, "byte {at}");
                unread += 1;
            }
        }
    }
    assert!(refused > 200 && unread == 0, "{refused} and {unread}");
}

#[test]
fn missing_file_of_leaves_is_named() {
    let (world, name) = world();
    world.disk.remove(&name).unwrap();
    let error = world.open().err().unwrap();
    assert!(
        error
            .to_string()
            .contains("0 leaves, and 600 were written: files of leaves are missing"),
        "{error}"
    );
}

#[test]
fn file_that_is_cut_or_prolonged_is_refused() {
    let (world, name) = world();
    let whole = read_whole(&*world.disk, &name, 1 << 20).unwrap();
    let longer = [&whole[..], &[0]].concat();
    for bad in [
        &whole[..whole.len() - 1],
        &whole[..50],
        &whole[..0],
        &longer,
    ] {
        replace(&world, &name, bad);
        let error = world.open().err().unwrap();
        assert!(error.to_string().contains(&name), "{error}");
    }
}

#[test]
fn check_names_the_file_and_the_place_of_each_changed_byte() {
    let (world, name) = world();
    let whole = examine(&world);
    assert_eq!((whole.fault_count, whole.files), (0, 1));
    assert_eq!(whole.leaves, 600);
    let bytes = read_whole(&*world.disk, &name, 1 << 20).unwrap();
    let (mut leaves, mut named) = (0, 0);
    for at in (0..bytes.len()).step_by(61) {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        replace(&world, &name, &bad);
        let found = examine(&world);
        assert!(found.fault_count > 0, "byte {at}");
        let all = found.faults.iter().all(|fault| fault.why.contains(&name));
        assert!(all, "byte {at}: {:?}", found.faults);
        named += usize::from(found.faults.iter().any(|fault| fault.why.contains("leaf ")));
        leaves = leaves.max(found.leaves);
    }
    // All leaves but the changed one are read.
    assert!(named > 200 && leaves == 599, "{named} and {leaves}");
    replace(&world, &name, &bytes);
    assert_eq!(examine(&world).fault_count, 0);
}
