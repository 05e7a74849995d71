//! Programs on file systems on a protected device, whose ring is small, so that everything goes home while they run:
//! git, fsx, fio with verification, a compiler. Afterwards the checker of the file system finds nothing, and the raw disk
//! has the same once the device is detached.

use sim::fsx::{self, FsxOptions};

use crate::crashing::{World, is_ready};
use crate::looped::{BTRFS, EXT4, GIT, GIT_AGAIN, Kind, Loop, XFS, sh};

/// Random writes with a checksum in each block, read back when all are written.
const FIO: &str = "fio --name=verify --directory=$1 --size=24m --rw=randwrite --bsrange=1k-64k --ioengine=psync \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --fsync=32 --randseed=7 --output=/dev/null && rm $1/verify*";
/// Some programs, each of several sources, compiled and run.
const COMPILE: &str = "mkdir $1/c && cd $1/c && for i in $(seq 30); do \
    printf 'int part%d(int x) { return x * %d + 1; }\\n' $i $i > p$i.c; done && \
    (for i in $(seq 30); do echo \"int part$i(int);\"; done; echo '#include <stdio.h>'; echo 'int main(void) { int x = 1;'; \
    for i in $(seq 30); do echo \"x = part$i(x) % 1000;\"; done; echo 'printf(\"%d\\n\", x); return 0; }') > main.c && \
    for c in *.c; do cc -O1 -c $c || exit 1; done && cc -o all *.o && ./all > told && sync";

fn work(world: &World) -> Result<String, String> {
    let files = world.files();
    let git = sh(GIT, &files)?;
    sh(FIO, &files)?;
    sh(COMPILE, &files)?;
    fsx::run(&world.at("files/fsx"), &FsxOptions::new(17, 1500), |_| {})
        .map_err(|e| e.to_string())?;
    sh("fstrim $1", &files)?;
    Ok(git)
}

fn check(world: &World, kind: &Kind) -> Result<(), String> {
    sh(kind.check, &world.path())?;
    world.mount()?;
    let again = sh(GIT_AGAIN, &world.files());
    let same = sh("cd $1/c && ./all | cmp - told", &world.files());
    world.unmount()?;
    assert_eq!(again?, "");
    same.map(drop)
}

async fn programs(kind: Kind) {
    let mut world = World::new().await;
    let worked = tokio::task::spawn_blocking(move || {
        world.attach()?;
        kind.make_on(&world.path())?;
        world.mount()?;
        let worked = work(&world);
        world.unmount()?;
        let told = |error| format!("{}: {error}; the server: {}", kind.name, world.told());
        assert_eq!(worked.map_err(told)?, "");
        check(&world, &kind)?;
        let told = world.told();
        assert!(!told.contains("ALARM"), "{told}");
        world.detach()?;
        world.device = Some(Loop::new(&world.at("disks/D/D"), 512));
        check(&world, &kind)
    });
    worked.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_work_on_protected_ext4() {
    if is_ready(&["mkfs.ext4", "git", "fio", "cc"]) {
        programs(EXT4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_work_on_protected_xfs() {
    if is_ready(&["mkfs.xfs", "git", "fio", "cc"]) {
        programs(XFS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_work_on_protected_btrfs() {
    if is_ready(&["mkfs.btrfs", "git", "fio", "cc"]) {
        programs(BTRFS).await;
    }
}
