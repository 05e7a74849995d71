//! Random calls of several devices, one after the other: each has the answer that the kernel gives for a directory.

use share::files::{Answer, Call, File, Over, Refused};
use trust::inode::{Content, FileKind};

use crate::asks::{directory, regular, symlink, text_of};
use crate::kernel::{Kernel, Seen, Told};
use crate::net::Net;

/// Few names, so that calls meet. All calls are about a directory `w`: above it is nothing else, so that `..` in a
/// symbolic link does not leave what is compared.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn path(net: &mut Net) -> String {
    let names: Vec<&str> = (0..=net.random(3))
        .map(|_| NAMES[net.random(NAMES.len() as u64) as usize])
        .collect();
    format!("w/{}", names.join("/"))
}

fn told(net: &mut Net) -> Told {
    let one = path(net);
    let two = path(net);
    let text = format!("text {}", net.random(1000));
    let up = net.random(3) == 0;
    let names = two.trim_start_matches("w/");
    let target = if up {
        format!("../{names}")
    } else {
        names.to_owned()
    };
    match net.random(22) {
        0..=1 => Told::Create(one),
        2 => Told::Put(one, text),
        3..=6 => Told::Mkdir(one),
        7 => Told::Symlink(target, one),
        8..=9 => Told::Write(one, text),
        10 => Told::Chmod(one, 0o600 + net.random(0o100) as u16),
        11 => Told::Link(one, two),
        12 => Told::Unlink(one),
        13 => Told::Rmdir(one),
        14..=16 => Told::Rename(one, two),
        17 => Told::Read(one),
        18..=19 => Told::Look(one, up),
        _ => Told::List(one),
    }
}

fn call(net: &mut Net, told: &Told) -> Call {
    match told {
        Told::Create(path) => net.create(path, regular(""), false),
        Told::Put(path, text) => net.create(path, regular(text), true),
        Told::Mkdir(path) => net.create(path, directory(), false),
        Told::Symlink(target, path) => net.create(path, symlink(target), false),
        Told::Write(path, text) => net.write(path, text),
        Told::Chmod(path, mode) => net.chmod(path, *mode),
        Told::Link(file, to) => net.link(file, to),
        Told::Unlink(path) => net.unlink(path),
        Told::Rmdir(path) => net.rmdir(path),
        Told::Rename(from, to) => net.rename(from, to, Over::Replace),
        Told::Read(path) => net.lookup(path, true),
        Told::Look(path, follow) => net.lookup(path, *follow),
        Told::List(path) => net.list(path, None, 1000, true),
    }
}

fn seen(told: &Told, answer: Answer) -> Result<Seen, Refused> {
    match (told, answer) {
        (_, Answer::Refused(why)) => Err(why),
        (_, Answer::Done(_) | Answer::Replaced(..)) => Ok(Seen::Nothing),
        (Told::Read(_), Answer::Found(file)) if file.inode.kind() == FileKind::Directory => {
            Err(Refused::IsADirectory)
        }
        (Told::Read(_), Answer::Found(file)) => Ok(Seen::Text(text_of(&file))),
        (_, Answer::Found(file)) => Ok(file_seen(&file)),
        (_, Answer::Listed { names, .. }) => {
            let names = names.into_iter().map(|listed| {
                let file = listed.file.expect("the inode was asked for");
                assert_eq!(file.inode.kind(), listed.target.kind);
                String::from_utf8(listed.name.as_bytes().to_vec()).unwrap()
            });
            Ok(Seen::Names(names.collect()))
        }
        (_, other) => panic!("{told:?}: {other:?}"),
    }
}

fn file_seen(file: &File) -> Seen {
    let inode = &file.inode;
    let (kind, text) = match &inode.content {
        Content::Directory { .. } => ('d', String::new()),
        Content::Symlink(target) => ('l', String::from_utf8(target.to_vec()).unwrap()),
        _ => ('f', text_of(file)),
    };
    Seen::File(kind, inode.mode, u64::from(inode.links), text)
}

#[test]
fn calls_of_several_devices_have_the_answers_of_the_kernel() {
    let long = std::env::var_os("BULLA_LONG").is_some();
    let (mut effects, mut refusals) = (0, 0);
    for seed in 0..if long { 40 } else { 3 } {
        let mut net = Net::new(3, seed);
        let kernel = Kernel::new();
        let (top, made) = (
            Told::Mkdir("w".to_owned()),
            net.create("w", directory(), false),
        );
        kernel.run(&top).unwrap();
        net.done(0, made);
        for number in 0..250 {
            let told = told(&mut net);
            let call = call(&mut net, &told);
            let at = net.random(3) as usize;
            let answer = net.call(at, call);
            let (ours, theirs) = (seen(&told, answer), kernel.run(&told));
            assert_eq!(ours, theirs, "seed {seed}, call {number}: {told:?}");
            match ours {
                Ok(_) => effects += 1,
                Err(_) => refusals += 1,
            }
            if net.random(60) == 0 {
                let (at, power) = (net.random(3) as usize, net.random(2) == 0);
                net.crash(at, power);
            }
        }
        net.rest();
        net.check();
    }
    assert!(effects > 100 && refusals > 100, "{effects}, {refusals}");
}
