//! Random requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protect::{Block, Protected};
use sim::device::{Machine, Stop};
use sim::random::{Random, noise};
use wal::Device;

use super::attached::{attach, machine};

const BYTES: u64 = 300 * 4096 + 1536;

struct Model {
    now: Vec<u8>,
    flushed: Vec<u8>,
}

fn request(device: &Protected, model: &mut Model, random: &mut Random) {
    let sectors = BYTES / 512;
    let start = random.below(sectors);
    let most = if random.below(4) == 0 { 400 } else { 16 };
    let count = (1 + random.below(most)).min(sectors - start);
    let (offset, bytes) = (start * 512, (count * 512) as usize);
    let range = offset as usize..offset as usize + bytes;
    match random.below(8) {
        0..4 => {
            let content = noise(random.number(), bytes);
            // The front end's way: at once if that is possible.
            if !device.write_at_once(offset, &content).unwrap() {
                device.write(offset, &content).unwrap();
            }
            model.now[range].copy_from_slice(&content);
        }
        4 => {
            device.zero(offset, bytes as u64).unwrap();
            model.now[range].fill(0);
        }
        5 if random.below(3) == 0 => {
            device.flush().unwrap();
            model.flushed.copy_from_slice(&model.now);
        }
        _ => {
            let mut found = vec![1; bytes];
            if !device.read_at_once(offset, &mut found).unwrap() {
                device.read(offset, &mut found).unwrap();
            }
            assert!(
                found == model.now[range],
                "read of {bytes} bytes at {offset}"
            );
        }
    }
}

fn content(device: &Protected) -> Vec<u8> {
    let mut content = vec![1; BYTES as usize];
    device.read(0, &mut content).unwrap();
    content
}

fn raw(machine: &Machine) -> Vec<u8> {
    let mut content = wal::Buffer::zeroed(BYTES as usize);
    machine.device("D").read(0, &mut content).unwrap();
    content.to_vec()
}

#[test]
fn device_returns_what_was_written_and_detached_it_is_a_raw_disk() {
    for seed in 0..6 {
        let machine = machine(BYTES, 256 << 10);
        let mut random = Random::new(seed);
        let zeros = vec![0; BYTES as usize];
        let mut model = Model {
            now: zeros.clone(),
            flushed: zeros,
        };
        for _ in 0..3 {
            let (device, recovered, alarms) = attach(&machine).unwrap();
            assert!(recovered.was_detached, "seed {seed}");
            for _ in 0..300 {
                request(&device, &mut model, &mut random);
            }
            assert!(content(&device) == model.now, "seed {seed}");
            device.detach(Duration::from_secs(20)).unwrap();
            drop(device);
            assert_eq!(alarms.0.load(Ordering::Relaxed), 0, "seed {seed}");
            assert!(raw(&machine) == model.now, "detached, seed {seed}");
        }
    }
}

#[test]
fn killed_device_has_what_was_flushed() {
    for seed in 10..16 {
        let mut machine = machine(BYTES, 256 << 10);
        let mut random = Random::new(seed);
        let zeros = vec![0; BYTES as usize];
        let mut model = Model {
            now: zeros.clone(),
            flushed: zeros,
        };
        for _ in 0..4 {
            let (device, _, alarms) = attach(&machine).unwrap();
            for _ in 0..200 {
                request(&device, &mut model, &mut random);
            }
            device.flush().unwrap();
            model.flushed.copy_from_slice(&model.now);
            let stop = [Stop::Kill, Stop::Power][random.below(2) as usize];
            let left = machine.fork();
            drop(device);
            assert_eq!(alarms.0.load(Ordering::Relaxed), 0, "seed {seed}");
            let mut outcomes = left.outcomes(stop, 2, 1, random.number());
            machine = left.restart(stop, 2, &outcomes.next().unwrap());
            let (device, _, _) = attach(&machine).unwrap();
            assert!(content(&device) == model.flushed, "seed {seed}");
        }
    }
}
