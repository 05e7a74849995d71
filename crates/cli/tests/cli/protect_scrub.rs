//! Scrubs of attached devices whose disks lose bits: what is found, what is repaired, and what is right afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::lab::{BLOCK, Lab, MIB, attached_place, can_mount, has_loops, sh};
use crate::support::{Ran, noise};

/// Where the map begins on the log's disk.
const AREA: u64 = MIB;
/// Pages of the map of 64 MiB: the one above the leaves comes first.
const PAGES: u64 = 65;

/// The log's disk as it is, past the page cache.
fn log_disk(lab: &Lab) -> Vec<u8> {
    let (from, to) = (lab.path("l"), lab.path("l.seen"));
    let copy = format!(
        "dd if={} of={} bs=1M iflag=direct status=none",
        from.display(),
        to.display()
    );
    sh(&copy).unwrap();
    std::fs::read(to).unwrap()
}

/// Flips a bit of a file that is in use, past the page cache.
fn flip(lab: &Lab, name: &str, offset: u64) {
    let (file, page) = (lab.path(name), lab.path("page"));
    let (file, page, block) = (file.display(), page.display(), offset / BLOCK);
    let dd = "bs=4096 count=1 status=none";
    sh(&format!(
        "dd if={file} of={page} skip={block} iflag=direct {dd}"
    ))
    .unwrap();
    let mut content = std::fs::read(lab.path("page")).unwrap();
    content[(offset % BLOCK) as usize] ^= 4;
    std::fs::write(lab.path("page"), content).unwrap();
    let write = "oflag=direct conv=notrunc,fsync";
    sh(&format!("dd if={page} of={file} seek={block} {write} {dd}")).unwrap();
}

/// The page of the log's disk with this content.
fn page_of(disk: &[u8], content: &[u8]) -> u64 {
    let mut pages = disk.chunks(BLOCK as usize);
    pages.position(|page| page == content).unwrap() as u64 * BLOCK
}

/// The page of the header of the frame with the content there.
fn header_of(disk: &[u8], content: u64) -> u64 {
    let is_header = |at: &u64| disk[*at as usize..].starts_with(b"bullafrm");
    let mut before = (0..content / BLOCK).rev().map(|block| block * BLOCK);
    before.find(is_header).unwrap()
}

/// Runs beside somebody who writes all the time: nothing leaves the log because the device is idle.
fn busily(lab: &Lab, work: impl FnOnce()) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                lab.write(8000 * BLOCK, &[9; BLOCK as usize]);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        end.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

fn parts(ran: &Ran) -> Vec<(String, u64, bool)> {
    let defects = ran.records("log_defect");
    let part = |one: &Value| {
        let offset = one["offset"].as_u64().unwrap();
        let part = one["part"].as_str().unwrap().to_owned();
        (part, offset, one["repaired"] == true)
    };
    defects.iter().map(part).collect()
}

#[test]
fn bits_that_flip_on_the_logs_disk_cost_nothing_after_a_scrub() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(64);
    let filled = lab.fill();
    lab.enrol(&[]).ends(0);
    lab.attach(&[]).ends(0);
    lab.scrub().ends(0);
    let (one, two) = (noise(11, BLOCK as usize), noise(12, BLOCK as usize));
    busily(&lab, || {
        lab.write(500 * BLOCK, &one);
        lab.write(501 * BLOCK, &two);
        let disk = log_disk(&lab);
        let content = page_of(&disk, &one);
        let header = header_of(&disk, page_of(&disk, &two));
        // Superblocks, key slots, and the page above the leaves in both slots, of which one is in use.
        let places = [
            0,
            64 << 10,
            512 << 10,
            AREA,
            AREA + PAGES * BLOCK,
            content,
            header,
        ];
        for place in places {
            flip(&lab, "l", place + 40);
        }
        let scrub = lab.scrub().ends(0);
        let found = parts(&scrub);
        let expect = |part: &str, offset| (part.to_owned(), offset, true);
        for one in [
            expect("superblock", 0),
            expect("superblock", 64 << 10),
            expect("key_slots", 512 << 10),
            expect("content", content),
            expect("frame", header),
        ] {
            assert!(found.contains(&one), "{one:?} is not in {found:?}");
        }
        let pages = [AREA, AREA + PAGES * BLOCK].map(|offset| expect("map_page", offset));
        assert!(pages.iter().any(|page| found.contains(page)), "{found:?}");
        assert_eq!(scrub.field("log_defects"), 6, "{found:?}");
        assert_eq!(scrub.field("log_repaired"), 6);
        assert!(scrub.field("log_checked_bytes").as_u64().unwrap() > 64 << 10);
        let again = lab.run(&["protect", "scrub", "d"]).ends(0);
        assert!(
            again.err.contains("everything is what was written"),
            "{}",
            again.err
        );
    });
    lab.kill();
    let attached = lab.attach(&[]).ends(0);
    assert_eq!(attached.field("recovered")["wrong_pages"], 0);
    assert!(lab.read(0, filled.len()).unwrap() == filled);
    assert!(lab.read(500 * BLOCK, 8192).unwrap() == [one, two].concat());
    lab.scrub().ends(0);
    lab.detach().ends(0);
}

/// As a person reads it, with a loop device.
#[test]
fn scrub_says_what_it_repaired() {
    if !has_loops() {
        return;
    }
    let lab = Lab::new(64);
    lab.fill();
    lab.enrol(&[]).ends(0);
    let place = attached_place(lab.attach_loop(&[]).ends(0));
    flip(&lab, "l", 128 << 10);
    flip(&lab, "d", 40 * MIB + 5);
    let scrub = lab.run(&["protect", "scrub", &place]).ends(0);
    for line in [
        "log: a copy of the superblock at offset 131072 is wrong: repaired",
        "block 10240 at offset 41943040 is not zeros: repaired",
    ] {
        assert!(scrub.out.contains(line), "{}", scrub.out);
    }
    assert!(
        scrub.err.contains("2 defects were found and repaired"),
        "{}",
        scrub.err
    );
    assert_eq!(lab.report()["repaired_blocks"], 1);
    lab.detach().ends(0);
}

#[test]
fn key_slots_that_nobody_has_are_told_and_the_scrub_ends_with_20() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.enrol(&[]).ends(0);
    lab.attach(&[]).ends(0);
    for place in [256 << 10, 512 << 10] {
        flip(&lab, "l", place + 40);
    }
    let scrub = lab.scrub().ends_json(20);
    let lost = |offset| ("key_slots".to_owned(), offset, false);
    assert_eq!(parts(&scrub), [lost(256 << 10), lost(512 << 10)]);
    assert!(
        scrub
            .err
            .contains("2 defects of the log's disk are not repaired"),
        "{}",
        scrub.err
    );
    lab.detach().ends(0);
}

#[test]
fn interior_page_of_the_map_with_one_wrong_copy_costs_nothing() {
    if !can_mount() {
        return;
    }
    for copies in [[0, PAGES], [2 * PAGES, 2 * PAGES + 1]] {
        let lab = Lab::new(64);
        let filled = lab.fill();
        lab.enrol(&[]).ends(0);
        for page in copies {
            flip(&lab, "l", AREA + page * BLOCK + 7);
        }
        lab.attach(&[]).ends(0);
        assert!(lab.read(0, filled.len()).unwrap() == filled);
        lab.write(3 * BLOCK, &filled[..BLOCK as usize]);
        lab.detach().ends(0);
        let device = std::fs::read(lab.path("d")).unwrap();
        assert!(device[3 * BLOCK as usize..][..BLOCK as usize] == filled[..BLOCK as usize]);
        lab.attach(&[]).ends(0);
        assert_eq!(parts(&lab.scrub().ends(0)), []);
        lab.detach().ends(0);
    }
}

#[test]
fn block_of_zeros_that_is_not_zero_is_repaired_before_the_device_is_used_without_bulla() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(8);
    lab.fill();
    lab.enrol(&[]).ends(0);
    lab.attach(&[]).ends(0);
    let block = 1500;
    flip(&lab, "d", block * BLOCK + 99);
    assert!(lab.read(block * BLOCK, BLOCK as usize).unwrap() == [0; BLOCK as usize]);
    let scrub = lab.scrub().ends(0);
    let told = scrub.records("bad");
    assert_eq!(
        (&told[0]["block"], &told[0]["repaired"]),
        (&block.into(), &true.into())
    );
    assert_eq!((told.len(), scrub.field("repaired_blocks")), (1, 1.into()));
    assert_eq!(scrub.field("bad_blocks"), 0);
    assert_eq!(lab.scrub().ends(0).records("bad").len(), 0);
    lab.detach().ends(0);
    let device = std::fs::read(lab.path("d")).unwrap();
    assert!(device[MIB as usize..].iter().all(|byte| *byte == 0));
}
