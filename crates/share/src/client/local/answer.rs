//! Answers to calls.

use std::sync::Arc;

use trust::encode::{Decoder, Encoder};
use trust::tree::inode::{FileKind, Inode, MAX_INODE_BYTES};
use trust_shared::hold::Ranges;
use trust_shared::members::Members;
use trust_shared::principal::{Device, Target};

use super::field::{
    Read, device, file, list, option, read_device, read_file, read_list, read_name, read_option,
    read_text, text,
};
use crate::client::Answered;
use crate::files::{
    Answer, Basis, Changed, Feed, File, History, Listed, MAX_LISTED, Refused, Roll,
};

/// Most entries that an answer rests on.
const MAX_BASIS: u64 = 1 << 16;

/// Most devices that hold something of a file.
const MAX_HOLDERS: u64 = 1 << 16;

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::BlockDevice,
    FileKind::CharDevice,
];

pub(super) fn answered(e: &mut Encoder, answered: &Answered) {
    answer(e, &answered.answer);
    e.varint(answered.at);
    let entries = answered.marked.entries();
    let most = entries.len().min(MAX_BASIS as usize);
    list(
        e,
        entries.get(..most).unwrap_or_default(),
        |e, (at, author)| {
            e.varint(*at);
            device(e, author);
        },
    );
}

pub(super) fn read_answered(d: &mut Decoder<'_>) -> Read<Answered> {
    Ok(Answered {
        answer: read_answer(d)?,
        at: d.varint()?,
        marked: Basis::new(read_list(d, MAX_BASIS, |d| {
            Ok((d.varint()?, read_device(d)?))
        })?),
    })
}

fn answer(e: &mut Encoder, answer: &Answer) {
    match answer {
        Answer::Found(found) => {
            e.u8(1);
            known(e, found);
        }
        Answer::Listed {
            directory,
            names,
            next,
        } => {
            e.u8(2);
            file(e, directory);
            list(e, names, |e, listed| {
                e.bytes(listed.name.as_bytes());
                target(e, &listed.target);
                option(e, listed.file.as_ref(), known);
            });
            option(e, next.as_ref(), |e, next| {
                e.bytes(next.as_bytes());
            });
        }
        Answer::Members(roll) => {
            e.u8(3).varint(roll.at);
            roll.members.encode_page(roll.at, e);
        }
        Answer::History(page) => {
            e.u8(4);
            page.encode(e);
        }
        Answer::Root(root) => {
            e.u8(5);
            option(e, root.as_ref(), |e, root| {
                e.raw(root);
            });
        }
        Answer::Done(done) => {
            e.u8(6);
            file(e, done);
        }
        Answer::Settled => {
            e.u8(7);
        }
        Answer::Replaced(done, change) => {
            file(e.u8(10), done);
            changed(e, change);
        }
        Answer::Changed(change) => option(e.u8(11), change.as_ref(), changed),
        Answer::Feed(feed) => feed.encode(e.u8(12)),
        Answer::Holders(all) => list(e.u8(14), all, |e, (device, ranges)| {
            e.varint(device.0.into());
            ranges.encode(e);
        }),
        Answer::Held { file: held, since } => {
            file(e.u8(13), held);
            e.varint(*since);
        }
        Answer::Refused(why) => {
            e.u8(8);
            refused(e, why);
        }
        Answer::Silent {
            position,
            device: silent,
        } => {
            e.u8(9).varint(*position);
            device(e, silent);
        }
    }
}

fn read_answer(d: &mut Decoder<'_>) -> Read<Answer> {
    Ok(match d.u8()? {
        1 => Answer::Found(read_known(d)?),
        2 => Answer::Listed {
            directory: read_file(d)?,
            names: read_list(d, MAX_LISTED.into(), |d| {
                Ok(Listed {
                    name: read_name(d)?,
                    target: read_target(d)?,
                    file: read_option(d, read_known)?,
                })
            })?,
            next: read_option(d, read_name)?,
        },
        3 => Answer::Members(Roll {
            at: d.varint()?,
            members: Arc::new(Members::decode_page(d)?),
        }),
        4 => Answer::History(History::decode(d)?),
        5 => Answer::Root(read_option(d, |d| d.array())?),
        6 => Answer::Done(read_file(d)?),
        7 => Answer::Settled,
        8 => Answer::Refused(read_refused(d)?),
        9 => Answer::Silent {
            position: d.varint()?,
            device: read_device(d)?,
        },
        10 => Answer::Replaced(read_file(d)?, read_changed(d)?),
        11 => Answer::Changed(read_option(d, read_changed)?),
        12 => Answer::Feed(Feed::decode(d)?),
        13 => Answer::Held {
            file: read_file(d)?,
            since: d.varint()?,
        },
        14 => Answer::Holders(read_list(d, MAX_HOLDERS, |d| {
            let device = d.bounded(u64::from(u32::MAX), "a device over 32 bits")? as u32;
            Ok((Device(device), Ranges::decode(d)?))
        })?),
        _ => return Err(d.bad("an unknown kind of answer")),
    })
}

fn known(e: &mut Encoder, known: &File) {
    file(e, &known.id);
    e.bytes(&known.inode.encode());
}

fn read_known(d: &mut Decoder<'_>) -> Read<File> {
    Ok(File {
        id: read_file(d)?,
        inode: Arc::new(Inode::decode(d.bytes(MAX_INODE_BYTES)?)?),
    })
}

fn changed(e: &mut Encoder, changed: &Changed) {
    e.varint(changed.at).varint(changed.device.0.into());
}

fn read_changed(d: &mut Decoder<'_>) -> Read<Changed> {
    Ok(Changed {
        at: d.varint()?,
        device: Device(d.bounded(u64::from(u32::MAX), "a device over 32 bits")? as u32),
    })
}

fn target(e: &mut Encoder, target: &Target) {
    file(e, &target.file);
    let kind = KINDS.iter().position(|kind| *kind == target.kind);
    e.u8(u8::try_from(kind.unwrap_or(KINDS.len())).unwrap_or(u8::MAX));
}

fn read_target(d: &mut Decoder<'_>) -> Read<Target> {
    let file = read_file(d)?;
    let kind = KINDS.get(usize::from(d.u8()?)).copied();
    let kind = kind.ok_or_else(|| d.bad("an unknown kind of file"))?;
    Ok(Target { file, kind })
}

/// Reasons without fields, by their number.
const REASONS: [Refused; 18] = [
    Refused::NotFound,
    Refused::Exists,
    Refused::NotEmpty,
    Refused::NotADirectory,
    Refused::IsADirectory,
    Refused::NotRegular,
    Refused::NotPermitted,
    Refused::BelowItself,
    Refused::Needed,
    Refused::Loop,
    Refused::Stale,
    Refused::Locked,
    Refused::NotLocked,
    Refused::TooLarge,
    Refused::TooMany,
    Refused::NeedsPath,
    Refused::Beyond,
    Refused::Full,
];

fn refused(e: &mut Encoder, why: &Refused) {
    match why {
        Refused::Forgotten(since) => {
            e.u8(100).varint(*since);
        }
        Refused::Damaged(what) => {
            e.u8(101);
            text(e, what);
        }
        Refused::Unsupported(what) => {
            e.u8(102);
            text(e, what);
        }
        why => {
            let number = REASONS.iter().position(|known| known == why);
            e.u8(number
                .and_then(|number| u8::try_from(number).ok())
                .unwrap_or(99));
        }
    }
}

fn read_refused(d: &mut Decoder<'_>) -> Read<Refused> {
    Ok(match d.u8()? {
        100 => Refused::Forgotten(d.varint()?),
        101 => Refused::Damaged(read_text(d)?),
        102 => Refused::Unsupported(read_text(d)?),
        number => match REASONS.get(usize::from(number)) {
            Some(why) => why.clone(),
            None => return Err(d.bad("an unknown reason")),
        },
    })
}
