//! The kinds of failure: one table has the exit code and the hint of each.

use crate::exit::Exit;

/// The kinds of failure, each with its exit code and its hint.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident => $exit:ident, $hint:expr;)*) => {
        /// What went wrong. Failures with different hints are different kinds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// The exit code.
            pub fn exit(self) -> Exit {
                match self {
                    $(Kind::$name => Exit::$exit,)*
                }
            }

            /// The default hint.
            pub fn hint(self) -> &'static str {
                match self {
                    $(Kind::$name => $hint,)*
                }
            }

            /// Every kind, for the test of the hints.
            #[cfg(test)]
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];
        }
    };
}

kinds! {
    /// The command line is wrong.
    Usage => Usage, "`bulla --help` lists the commands, `bulla COMMAND --help` the flags of one";
    /// The configuration file or a `BULLA_*` variable is wrong.
    Config => Usage, "correct or remove the value; `bulla config show` prints where each value comes from, and docs/cli.md lists the settings";
    /// The syntax of SOURCE or LOCATION is wrong.
    BadSource => Usage, "write VOLUMEID@LOCATION: copy the whole volume id from the publisher, and write LOCATION as a directory, bulla://host[:port] or http(s)://host/path";
    /// SOURCE has no volume id.
    NoVolumeId => Usage, "write VOLUMEID@LOCATION with the volume id that the publisher gave you, or a name from `bulla source list`; there is no shared volume of this name here (`bulla share join LINE` makes this machine a device of one)";
    /// No source has this name.
    NoName => NotFound, "`bulla source list` lists the names; `bulla source add NAME SOURCE` adds one";
    /// A name that a configuration file or a shared volume has already.
    NameTaken => Usage, "choose another name, or change the file: `bulla source` does not touch what people wrote";
    /// The words that were said are not those of the volume id.
    OtherVolumeWords => Integrity, "nothing was added. Compare the spelling of the words with the publisher. If they are right, somebody gave you the id of another volume";
    /// A pattern of `--exclude` is not valid.
    BadPattern => Usage, "patterns are written as in .gitignore: `*.o`, `build/`, `/docs/*.html`";
    /// A passphrase is needed, but cannot be asked for.
    NoInput => Usage, "give the passphrase with --passphrase-file FILE, --passphrase-fd N or --passphrase-command CMD";
    /// The volume proves that a path does not exist.
    NotFound => NotFound, "check the path; `bulla ls SOURCE` lists what the volume has";
    /// A path has another kind than needed.
    Misfit => Failed, "`bulla stat SOURCE PATH` shows what it is";
    /// A file or directory of this machine does not exist.
    NoFile => NotFound, "check the path; a relative path starts at the current directory";
    /// The named key file does not exist.
    NoKey => NotFound, "name the publisher's key file with --key FILE (or the setting `key`); `bulla key new --out FILE` creates one";
    /// The named repository does not exist.
    NoRepository => NotFound, "check the path; `bulla publish DIR REPO --key FILE` creates a repository";
    /// Another process holds the lock of the repository.
    Locked => Locked, "run the same command again when the other publish, renew, prune or pull has finished (--wait 10m of these commands waits for that); a process that dies releases its lock";
    /// The repository belongs to another volume.
    OtherVolume => Usage, "each repository holds one volume: name another one, or an empty or missing directory for a new replica";
    /// The key does not belong to the volume.
    WrongKey => WrongKey, "`bulla policy show REPO` lists the keys that may sign, and `bulla key show FILE` shows the public key of a file; to make a volume of your own, publish into an empty repository";
    /// The passphrase does not open the key file.
    WrongPassphrase => WrongKey, "try again; a key cannot be recovered without its passphrase";
    /// The key file cannot be used.
    KeyFile => WrongKey, "use a key file from `bulla key new --out FILE` that only you can read (chmod 600 FILE)";
    /// The file names a program, and belongs to another user.
    ForeignKeyFile => WrongKey, "it names a program or an agent, which its owner could replace by another: use only a file of your own or of root (chown), or write one with `bulla key refer`";
    /// The file refers to a key elsewhere, and the command needs the key itself.
    KeyElsewhere => WrongKey, "this command signs too often for a token or an agent: name a key file that `bulla key new` has written; `bulla key show FILE` shows how the key of a file signs";
    /// A file is no profile.
    Profile => Usage, "a profile has one path on each line; `bulla mount SOURCE DIR --record FILE` writes one";
    /// A file that would be overwritten.
    Exists => Failed, "choose another name, or move the existing file away; bulla does not overwrite it";
    /// The target of `extract` holds something else.
    NotEmpty => Failed, "name an empty or a new directory; only an extraction of the same volume and path that was interrupted goes on, and bulla overwrites nothing else";
    /// Another `extract` writes to the same directory.
    TargetInUse => Locked, "wait until the other extract has finished, or name another directory";
    /// The target's file system has one entry for two names.
    OneEntry => Failed, "extract to an empty directory of a file system that distinguishes capital and small letters, and let no other program change it meanwhile";
    /// The tree contains something that cannot be published.
    Unreadable => Failed, "nothing was published; make the file readable, leave it out with --exclude, or publish the rest with --skip-unreadable";
    /// The input is not a tar archive, or contains something that cannot be published.
    Archive => Failed, "nothing was published; the input must be a complete, uncompressed tar archive (`zcat FILE | bulla publish - REPO`), and its names must not lead outside of it";
    /// An address where a path of this machine is needed.
    NotLocal => Usage, "name a directory or a file of this machine here; one whose name looks like an address is written ./NAME";
    /// The tree has a key file, or another file of bulla's own.
    OwnFile => Usage, "move it out of the tree; `publish` leaves it out with --exclude, and `publish` and `put` take it with --publish-keys";
    /// The repository is inside the tree to publish.
    RepositoryInside => Usage, "put the repository outside of the tree, or leave it out with --exclude";
    /// The clock of this machine is wrong.
    Clock => Failed, "set this machine's clock (`timedatectl` shows it), then publish again. If it is right, the last version was signed with a clock that was ahead, and no reader with a right clock believes it: go on with --accept-clock";
    /// A version to be installed begins in the future.
    EarlyRequest => Failed, "compare the clocks of both machines (`timedatectl`), set the one that is wrong, and make the request again. If a publisher has signed it already, docs/cli.md (*One request*) says how to go on with --accept-clock";
    /// The memory of a machine that signs is damaged.
    SignerMemory => Integrity, "nothing was signed. Find the newest version that this machine signed: compare `bulla log SOURCE --seen` of readers, the signed files and the repository. Then move the damaged file of the volume out of the state directory";
    /// A new volume without the key of its publisher.
    NoPublisher => Usage, "name the key that will sign it with --publisher KEY1...; `bulla key show FILE` prints it on the machine that has the key";
    /// The repository is older than what this machine has signed.
    SetBack => Failed, "install the newer version from its signed file if you have one: `bulla publish --install FILE REPO`. Otherwise the repository was restored or rolled back: `bulla publish` the tree again, and the version gets a higher number";
    /// The record has expired, so a timestamp cannot extend it.
    RecordOver => Expired, "the publisher's own key must make a new version: `bulla renew REPO --key FILE`, or publish again";
    /// The file is not a valid signing request.
    BadRequest => Integrity, "the file was damaged or changed on its way; create it again with `bulla publish --unsigned`";
    /// A request that is not signed yet.
    NotYetSigned => Integrity, "`bulla sign` it on the machines that have these keys, one after another or each a copy; then install what `sign` has written, several copies with --install FILE --install FILE";
    /// More keys must sign than those that are here.
    TooFewKeys => WrongKey, "name the files of more keys with --key FILE --key FILE; if they are on other machines, make a request with --unsigned --out FILE, `bulla sign` it there, and install it with `bulla publish --install`";
    /// The policy demands a timestamp, and no timestamp key is here.
    NoTimestamp => WrongKey, "name the file of a timestamp key too: --key FILE. If that key is on another machine, docs/cli.md (*Signatures of several keys*) says how a request for a timestamp gets there and back";
    /// A later version was confirmed already.
    ConfirmedLater => Rollback, "nothing was signed: this machine has confirmed a later version, so the repository of the request was set back, or its machine is compromised. `bulla log SOURCE --seen` shows what readers have";
    /// Another record of the version was confirmed already.
    ConfirmedOther => Fork, "nothing was signed: this machine has confirmed another record of that version, or other policies. The keys have signed two, or they are stolen: find out which one readers have (`bulla log SOURCE --seen`)";
    /// A timestamp of another head.
    OtherTimestamp => Integrity, "the repository has got another version or policy since, or the file belongs to another one: write a new request with --timestamp-out FILE, and have it signed";
    /// A timestamp that ends before the shown one.
    OlderTimestamp => Rollback, "nothing needs to be installed: the file is older than what the repository shows. Write a new request with --timestamp-out FILE when that ends";
    /// A key that lies elsewhere did not sign.
    NoSignature => WrongKey, "nothing was signed. See that the token is plugged in, its program runs, or the agent has the key (`ssh-add -L`), and run the same command again; `bulla key show FILE` shows how a key signs";
    /// The policy demands cosignatures, and no witness was named.
    NoWitness => Usage, "name the witnesses with --witness URL; those without a network cosign a file: --checkpoint-out FILE and --cosigned FILE of `bulla publish --install` and `bulla policy install`";
    /// No key of the log is here.
    NoLogKey => WrongKey, "name the file of a key that signs the log's checkpoints too: --key FILE. `bulla policy show REPO` lists the role `log`; where it is empty, a publisher's key signs them";
    /// Too few witnesses have cosigned.
    NotCosigned => Unavailable, "nothing is lost: run the same command again when more witnesses answer. If one says that it has cosigned another log, ask its operator (`bulla witness list`); owners replace one that is gone with `bulla policy new --replace-key`";
    /// So many witnesses have cosigned another log that no quorum is left for this one.
    TwoHistories => Fork, "two logs of this volume exist, and nothing was shown: the key is used on two machines, or stolen, or this machine and the repository were set back. Ask the operator of the witness for both checkpoints (`bulla witness list`)";
    /// The file is not a checkpoint.
    BadNote => Integrity, "the file was damaged or changed on its way; write it again with --checkpoint-out";
    /// The checkpoint is of another version.
    OtherNote => Integrity, "only files for this version count: write one with --checkpoint-out, and have it cosigned";
    /// A checkpoint that the log's key did not sign.
    NotTheLog => Integrity, "the key of --volume VOLUMEID=KEY has not signed this checkpoint: `bulla policy show REPO` lists the keys of the roles `log` and `publishers`";
    /// The witness has seen more of this log.
    WitnessSawMore => Rollback, "the witness has cosigned more of this volume's history than the file shows; write the file again from the newest repository";
    /// No proof that the log continues what the witness cosigned.
    NoConsistency => Integrity, "write the file again with --checkpoint-out, and --checkpoint-from with the size that `bulla witness list` shows. If it is refused again, the log was changed";
    /// The repository lacks tiles or leaves of its log.
    NoLogProof => Failed, "restore the files of log/ from a mirror. For a witness that has cosigned nothing of this volume, --checkpoint-from 0 needs no proof";
    /// The memory of a witness cannot be used.
    WitnessMemory => Failed, "a witness that forgets what it has cosigned must not go on: repair the file or its disk. If it is lost, make a new witness with a new key, and have the owners replace the old one";
    /// The file is not a valid proposal of a policy.
    BadProposal => Integrity, "the file was damaged or changed on its way; create it again with `bulla policy new REPO --out FILE`";
    /// The key of no owner.
    NotOwner => WrongKey, "`bulla policy show FILE` lists the owners until now and from now on; `bulla key show KEYFILE` shows the public key of a file";
    /// A later policy was signed here.
    SignedLaterPolicy => Rollback, "this machine has signed a later policy: create a new proposal with `bulla policy new` from the newest repository";
    /// Another policy of the same number was signed here.
    SignedOtherPolicy => Fork, "if both find enough owners, every reader sees a fork and stops. If you know that the other policy will never be installed, sign with --replace";
    /// Policies lie between the proposal and the policy that was signed last.
    SkippedPolicies => Failed, "if you know that the owners have signed the policies in between, sign with --accept-skipped-policies";
    /// Owners have not signed the policy yet.
    PolicyNotSigned => Integrity, "`bulla policy sign` it on the machines that have these keys, one after another or each a copy; then `bulla policy install FILE FILE REPO` with all that `policy sign` has written";
    /// The policy does not follow the repository's.
    PolicyNotNext => Fork, "the repository has got another policy or version since: look at `bulla policy show REPO`, propose again with `bulla policy new`, and have the new file signed";
    /// The policy has ended.
    PolicyOver => Expired, "nothing of the volume is believed until its owners renew the policy: `bulla policy new REPO --out FILE`, `bulla policy sign`, `bulla policy install`";
    /// Roles for a new volume, and a repository with a volume.
    HasRoles => Usage, "the roles of a volume change with `bulla policy new`; without these flags, `bulla publish` makes its next version";
    /// Copies of different requests.
    OtherCopy => Integrity, "only copies of one request can be installed together. Where one publisher suffices, one copy alone must be signed by a publisher, and the others by owners";
    /// The user did not confirm.
    NotConfirmed => Usage, "check the shown version and answer yes, or give --yes to sign without a question";
    /// The policy has keys that the signer did not name, and nobody can be asked.
    UnknownRoles => Usage, "check every key: whoever has one of the others shares or controls the volume. If you expect them all, name them with --expect ROLE=KEYS, or run the command at a terminal; --yes does not answer this";
    /// A policy changes what the signer did not name, and nobody can be asked.
    UnknownChange => Usage, "check every line with + and -: who has a new key can use it against you. If you expect them all, run the command at a terminal, or name them with --expect, --expect-last and --expect-drastic; --yes is no answer";
    /// The policy names another last version than the owner expects.
    OtherLast => Integrity, "a policy makes the version that it names count, whoever signed it. Look what that version is (`bulla log SOURCE`); if it is not yours, restore the repository and propose the policy again";
    /// The policy has other roles than the signer expects.
    OtherRoles => Integrity, "the policy gives roles to other keys than --expect says: do not sign it, and find out who made it. The machine that it comes from may be compromised";
    /// A later version was signed already.
    SignedLater => Rollback, "this machine has signed a later version; create a new request with `bulla publish --unsigned` from the newest repository";
    /// Another tree was signed as this version.
    SignedOther => Fork, "this key has signed another tree as this version, and a second one would be a fork: install the first one (sign its request again if the file is lost), then publish again";
    /// Versions lie between the request and the last version that this machine signed.
    SkippedVersions => Failed, "if you know that the versions in between were signed with your consent on another machine, sign with --accept-skipped-versions";
    /// The repository shows another record of a version that this machine has signed.
    TwoRecords => Fork, "the key has signed this version twice, here and on another machine, or it is stolen: nothing was signed now. Find out which version readers have, and publish from the machine that signed that one";
    /// The signed version is not newer than that of the repository.
    OldRequest => Rollback, "the repository has a later version already; nothing needs to be installed";
    /// The signed version does not follow that of the repository.
    NotNext => Fork, "the repository has got another version or policy since: run `bulla publish --unsigned` again and sign the new request";
    /// Blocks are missing.
    Incomplete => Failed, "the repository has lost blocks of this version; run `bulla publish --unsigned` on the same tree again, then install this file (an unchanged tree needs no new signature)";
    /// No location has the version.
    NoVersion => NotFound, "`bulla log SOURCE` lists the versions of the log; another LOCATION may have more";
    /// A shared volume has no snapshot of this name.
    NoSnapshot => NotFound, "`bulla share snapshots VOLUME` shows the names; `bulla log VOLUME` shows the numbers of entries";
    /// The head of the repository does not verify.
    BadHead => Integrity, "the repository was damaged or changed; restore it from a mirror, or publish into an empty one (which creates a new volume)";
    /// A file of the repository is damaged.
    Damaged => Integrity, "restore the repository from a mirror or publish the tree again; `bulla verify` lists the damaged files";
    /// Made by a later bulla.
    Newer => Unsupported, "install a newer bulla; `bulla version` shows the version of this one";
    /// The disk is full, or a quota is used up.
    DiskFull => Failed, "free some space on the disk that the message names, or raise the quota, and run the same command again; what was there before is unchanged";
    /// The place of --from has nothing of the volume, or cannot be read.
    NoOtherPlace => Unavailable, "nothing was changed. Name the directory with which `bulla serve` served this volume, or the address of a server of it; what is lacking stays owed meanwhile";
    /// The place of --from failed before it gave everything.
    NotLent => Unavailable, "all that others gave is back. Run the command again when that place answers, or with --from of another one; what is lacking stays owed";
    /// This process or the system has too many files open.
    Descriptors => Failed, "too many files are open: raise the limit of this process (`ulimit -n`, or LimitNOFILE= of its unit), or end what holds many (`lsof`), and run the same command again";
    /// The system denies the permission.
    Denied => Failed, "check the permissions of the file and of the directories above it, and that the file system is not read-only; or run the command as another user";
    /// Another error of the system.
    System => Failed, "the cause is an error of the operating system; run the command again when it is solved";
    /// The state directory cannot be used.
    State => Failed, "bulla needs this directory to remember the newest version that it has seen; make it writable, or name another with BULLA_STATE_DIR";
    /// Another process holds the lock of the state directory.
    StateLocked => Locked, "run the same command again when the other bulla has finished; one that is stopped keeps its lock: resume it (kill -CONT PID) or end it (kill PID)";
    /// The disk with the state directory does not answer.
    StateStalled => Failed, "the disk with the state directory is slow or hangs; run the same command again when it answers, or name another directory with BULLA_STATE_DIR";
    /// The cache directory cannot be used.
    Cache => Failed, "make the cache directory writable, name another with --cache DIR, or turn it off; its content can be deleted at any time";
    /// Bytes differ from those that the publisher signed.
    Integrity => Integrity, "the location serves changed data, because of an attack or a bad disk. Read from another LOCATION, and tell the operator of this one";
    /// The publisher signed data that breaks the format.
    Malformed => Integrity, "the data that the publisher signed breaks the format, so another mirror does not help; tell the publisher";
    /// Signed by the wrong key.
    NotSigned => Integrity, "the publisher of this volume did not sign this. Check the volume id, and read from another LOCATION";
    /// The location has another volume.
    WrongVolume => Integrity, "the location serves another volume than you named; check the volume id with the publisher, and check the location";
    /// The version is older than one already seen.
    Rollback => Rollback, "the location serves an older version than this machine has seen; use another LOCATION. If the publisher went back on purpose, ask for a new version with a higher number";
    /// Two statements that contradict each other.
    Fork => Fork, "ask the publisher over a channel that you trust: keys of this volume have signed two statements that contradict each other, and may be stolen. `bulla fork show VOLUME` shows both; nothing new is adopted until this is settled";
    /// No fork is remembered that has this policy or record.
    NoFork => NotFound, "`bulla fork show VOLUME` lists the forks that this machine remembers; a settled one is not among them";
    /// Another fork stands than the one that was shown.
    OtherFork => Failed, "another bulla has learned something about this volume meanwhile; look again with `bulla fork show VOLUME`";
    /// The floor cannot hold another refusal.
    Unsettled => Failed, "this machine has refused too many policies and records of this volume already; ask its owners for a policy that settles the fork";
    /// This machine has never seen the volume.
    NeverSeen => NotFound, "check the volume id, and read the volume once (`bulla ls SOURCE`); forks are remembered by the machine and user that saw them (setting `state-dir`)";
    /// The user refused this side of a fork.
    Refused => Unavailable, "a fork was settled on this machine (`bulla fork settle`), and the locations show only the side that was refused; use a LOCATION that has the other one";
    /// The statement is under a policy that has a successor.
    Superseded => Expired, "the owners have replaced the policy of this version: it is old, and nobody lied. Use another LOCATION, because this one is behind, or ask the publisher for a version under the new policy";
    /// A policy beside one that has a successor.
    StrayPolicy => Integrity, "the location shows a policy beside those that count, which keys of earlier owners can sign at any time. It changes nothing here and is kept as evidence; read from another LOCATION, and tell the owners of the volume";
    /// The version has expired.
    Expired => Expired, "try another LOCATION, check this machine's clock, or ask the publisher to renew the version (each is valid for a limited time)";
    /// The validity begins in the future.
    NotYetValid => Expired, "the validity begins in the future: this machine's clock is slow or the publisher's is fast; `timedatectl` shows this machine's clock";
    /// The owners revoked the volume.
    Revoked => Expired, "the owners revoked this volume; ask them for its successor, and use that volume id";
    /// The location does not have the pinned version.
    NotPinned => Unavailable, "no location has the version or the policy that you pinned; use another LOCATION, or pin another one";
    /// No replica answers.
    Unavailable => Unavailable, "see that the location can be reached (its address, the network, the proxy if the message names one) and that a server runs there, or use another LOCATION";
    /// The location does not have the volume.
    NoVolume => Unavailable, "the server does not have this volume; check LOCATION, or ask the publisher where it is served";
    /// The location cannot be used.
    Place => Unavailable, "check LOCATION: it must be a repository that `bulla publish` made, or a server that has the volume, written bulla://HOST or https://HOST/PATH";
    /// Listening on an address failed.
    Listen => Failed, "choose another address with --listen, --http or --shared; port 0 takes any free one";
    /// A loop device cannot be made or detached.
    LoopDevice => Mount, "loop devices need root, the module loop and the program losetup; --file DIR and --nbd SOCKET do without";
    /// Mounting failed.
    Mount => Mount, "`bulla doctor` checks this machine: the directory and /dev/fuse must exist, and users other than root need fusermount3 (package fuse3)";
    /// Something is mounted on the directory already.
    Occupied => Mount, "unmount it with `bulla umount DIR`, or choose another directory";
    /// The shared volume is mounted already.
    VolumeMounted => Locked, "a device mounts a volume once: `bulla status` says where. `mount --bind` shows it at another place too";
    /// A dead mount is on the directory.
    Stale => Mount, "unmount the dead mount with `bulla umount DIR`, then mount again";
    /// Unmounting failed.
    Unmount => Mount, "`bulla status` lists the mounts of this user, and `cat /proc/mounts` all; only root or the user who mounted a volume can unmount it";
    /// `extract` cannot create an entry.
    Extract => Failed, "special files and owners need root; `--skip-special` leaves special files out";
    /// A device that something else uses.
    DeviceInUse => Locked, "unmount the file system on it, or end what uses it (`lsblk`, `losetup -l` and `fuser -v` show that), then run the command again";
    /// The device or its log is attached, here or on another host.
    Attached => Locked, "`bulla protect status` shows what is attached here; a log that another host has attached must be detached there";
    /// Another host, or a process that this one does not know, uses the log.
    AttachedElsewhere => Locked, "detach it there. If that host is to lose it, `attach --force` takes it: programs there get errors, and what they have not flushed is lost";
    /// No attached device has this name.
    NotAttached => NotFound, "`bulla protect status` lists the attached devices of this user; `bulla protect attach DEVICE --log LOG` attaches one";
    /// The daemon of an attached device does not answer.
    DeviceSilent => Failed, "its process is stuck or was stopped: its log is in the state directory, in `devices`; `bulla doctor` looks for stale attachments";
    /// The named log is no log.
    NoLog => NotFound, "check the path; `bulla protect enrol DEVICE --log LOG` makes a log";
    /// The log belongs to another device.
    OtherLog => Usage, "name the log with which this device was enrolled; if the device was replaced or written by something else, enrol it anew";
    /// The log does not fit.
    LogTooSmall => Usage, "choose a larger device or file for the log, or a smaller --ring; `--dry-run` shows how much is needed";
    /// Nothing opens the log.
    VolumeKey => WrongKey, "try again; `bulla protect key list LOG` shows which kinds of keys open it: a passphrase, --key-file, --key-command, or --recovery for the recovery key";
    /// No recovery key.
    RecoveryText => WrongKey, "type all 36 letters and digits of the recovery key; small letters, spaces and hyphens make no difference";
    /// A number that no slot has.
    NoSlot => NotFound, "`bulla protect key list LOG` shows the numbers";
    /// The last slot.
    LastSlot => Usage, "add another key first: `bulla protect key add LOG`; a log without a slot could never be opened again";
    /// All slots are used.
    SlotsFull => Failed, "remove a key that is not needed any more: `bulla protect key remove LOG N`";
    /// Slots that are a trap.
    CostlySlot => Integrity, "no bulla wrote such a slot: the log was changed. Try only your own slot with --slot N, or another kind of key";
    /// A key that is too short or too long.
    WeakKey => Usage, "a key file or the output of a command needs 32 bytes or more that nobody can guess: `head -c 64 /dev/urandom > FILE`; for words that people remember, use a passphrase";
    /// The log is older than what was seen.
    LogRollback => Rollback, "the log was put back to an earlier state, and with it all that was written since. Restore the newest copy; if you put it back yourself, and know why, `bulla protect anchor set FILE --log LOG` accepts it";
    /// The log was changed.
    LogDamaged => Integrity, "the log was damaged or changed, by its disk or by an attack. Restore the newest copy of both devices; with what is on the data device alone, a new `bulla protect enrol` begins anew";
    /// The log device fails.
    LogDevice => Failed, "the disk with the log reports errors: `dmesg` shows them. Nothing was given up; if its end cannot be read any more, `attach --cut-at-error` gives up what lies behind the error";
    /// The data device fails.
    DataDevice => Failed, "the disk reports errors: `dmesg` shows them";
    /// The device was written while it was enrolled.
    DeviceChanged => Failed, "enrol it anew (--restart), and let nothing write to it until the enrolment has ended, over all its runs";
    /// Blocks of the device are not what was written.
    DeviceDamaged => Integrity, "restore the files that have these blocks from a backup: a block reads as an error until all of it is written anew or trimmed. If the device was changed without bulla, `detach --force` and enrol it anew";
    /// Many blocks of the device are not what the log says.
    ChangedDevice => Integrity, "nothing was written. Is this the device of this log, and not a clone or an old copy? If it was used without bulla, enrol it anew; `attach --accept-changed-device` writes what waits in the log to it, whatever it holds";
    /// The anchor file cannot be used.
    AnchorFile => Failed, "the anchor must be a file that bulla wrote, on a disk that you trust, which only you can write (chmod 600 FILE); `bulla protect anchor set FILE --log LOG` makes a new one";
    /// The anchor is older than the log.
    StaleAnchor => Failed, "the device was attached without this anchor, or the anchor was put back, so it proves nothing of the log. If you trust the log, `bulla protect anchor set FILE --log LOG` moves the anchor to it";
    /// The anchor of another volume.
    OtherAnchor => Usage, "name the anchor that was made for this log";
    /// Another process has the anchor.
    AnchorLocked => Locked, "an attached device moves this anchor; `bulla protect status` shows it. Detach it first";
    /// Stopped while it worked on a device.
    Stopped => Interrupted, "run the same command again: it goes on where it stopped";
    /// The file of evidence convicts nobody.
    NoEvidence => Integrity, "the file proves nothing: it was damaged or changed on its way, or nobody signed what it claims. Ask for it again, and trust nothing that is said about it";
    /// The evidence is about another volume.
    OtherEvidence => Usage, "check the volume id. Nothing in the file was verified; leave --volume out to judge it for the volume that it names";
    /// A text is no text to compare with a published volume.
    NoSighting => Usage, "copy the whole text that `bulla log SOURCE --seen` printed at the other reader, from its first line to `end`; it must be of the same volume";
    /// Nobody signed what a text to compare says.
    BadSighting => Integrity, "copy the whole text that `bulla log SOURCE --seen` printed at the other reader; if it is whole, the keys of this volume did not sign what it says";
    /// The other reader has seen more of the log.
    SeenMore => Unavailable, "compare the other way round: give the text of `bulla log SOURCE --seen` to the other reader. If no location shows this reader the newer version for long, they hide it";
    /// The owners have begun the log again between what two readers have seen.
    SeenEpochs => Unavailable, "the reader with the older log reads the volume once more, and then compare again";
    /// Two readers were shown two histories.
    SplitView => Fork, "rely on nothing new in this volume: its keys signed two histories. Give the evidence to the publisher and the other readers (`bulla check FILE` verifies it), over a channel that does not depend on these keys";
    /// One of two histories is signed by keys that the owners have removed.
    SplitByRemoved => Fork, "the reader whose history is signed with removed keys reads the volume from another LOCATION, and then compare again. If the histories part before the keys were removed, tell the publisher (`bulla check FILE` shows both)";
    /// The file is no proof, or a changed one.
    NoProof => Integrity, "the file proves nothing: it was damaged or changed on its way, or it is no proof. Ask for it again (`bulla prove SOURCE PATH --out FILE` makes one)";
    /// The proof is about another path.
    OtherProof => Usage, "the proof is good, but it is about another path: leave --path out to see which one, or ask for another proof";
    /// The proof is of an older policy than the reader knows.
    OldProof => Rollback, "a newer policy may have taken the rights of those keys: ask for a new proof. To judge it as of an earlier time, and by nothing that this machine remembers, give --at-time TIME";
    /// The proof contradicts what this machine knows of the volume.
    ContradictedProof => Fork, "do not rely on the proof: keys that were replaced or stolen may have made it. `bulla fork show VOLUME` shows a fork that this machine has seen; --at-time TIME judges by nothing that it remembers";
    /// A proof has expired, or is not valid yet.
    ProofOver => Expired, "a proof ends with the version that it was made of: ask for a new one. `--at-time TIME` judges it as of another time; `date` shows this machine's clock";
    /// A proof shows that a path is present, and it should be absent.
    Unexpected => Failed, "the proof is valid, and shows the opposite of --expect";
    /// The volume does not permit it to this user.
    NoPermission => Refused, "an administrator of the group can permit it: `bulla share grant VOLUME GROUP USER ROLE`; `bulla share user list VOLUME` shows the roles";
    /// The device is no member of the volume.
    NotMember => Refused, "an administrator admits devices with `bulla share invite VOLUME`. A device that was removed cannot come back with its old key: `bulla share forget VOLUME` removes it from this machine, which can join again then";
    /// The author of an entry stays silent.
    Unattested => Unavailable, "the device may be off, or the server hides what it says: try again when it is on. If it is lost, an administrator accepts what it wrote: `bulla share accept VOLUME DEVICE`";
    /// A beacon is silent for too long.
    Overdue => Unavailable, "compare with another device before you go on: `bulla share compare VOLUME`. If the beacon is off or gone, and the two agree, `bulla share beacon VOLUME DEVICE --none` ends the wait for it";
    /// The process with the engine of a shared volume has ended in the middle of a call.
    EngineEnded => Unavailable, "look whether the change is there before you repeat it: `bulla log VOLUME` shows what this device has written";
    /// Another version of bulla runs the engine of a shared volume.
    OtherBuild => Locked, "use one version for all programs: end that process when its work is done, and start it again with this one (`systemctl --user restart 'bulla-share@*'`)";
    /// No shared volume of this machine has the name.
    NoShared => NotFound, "name a shared volume by its name on this machine or by its id; `bulla share init` begins one, `bulla share join LINE` joins one";
    /// Several shared volumes of this machine have one name.
    SameName => Usage, "name the volume by its id: the directories in `shared` of the state directory (`bulla config show`) have the ids as their names";
    /// A path that no file of a volume can have.
    BadPath => Usage, "paths begin at the root directory of the volume; a name has at most 255 bytes, and `..` is not used";
    /// The log has no such entry, or this device has forgotten the volume at that time.
    NoEntry => NotFound, "`bulla log VOLUME` shows the numbers of entries; a device that has joined later, or has folded what is old, does not know the volume as it was before";
    /// The server of a shared volume does not answer.
    NoServer => Unavailable, "check that `bulla serve` runs there and that this machine reaches it, and run the command again. A command that changes something may still have its effect: look before you repeat it";
    /// The same, for a command that has changed nothing.
    NoAnswer => Unavailable, "check that `bulla serve` runs there and that this machine reaches it, and run the command again; a slow connection needs a longer --deadline";
    /// Something of a device would be lost.
    Unsent => Failed, "`bulla share forget VOLUME --discard` gives up what this device alone has";
    /// Several devices have one name.
    SameDevice => Usage, "name the device by its number or its key: `bulla share device list VOLUME` shows them";
    /// No user, group or device has the name.
    NoMember => NotFound, "`bulla share user list VOLUME`, `share group list` and `share device list` show who is there";
    /// Another device was faster, again and again.
    Overtaken => Failed, "another device changes the same file; look at it, and run the command again";
    /// Something was changed after the entry that the user has named.
    Conflict => Conflict, "read what is there (`bulla cat VOLUME PATH`; `bulla diff VOLUME N` lists what has changed since entry N), put your change into that, and repeat with --expect and the number of the newer entry";
    /// Another device has the lock of a file.
    FileLocked => Locked, "another device works on this file; run the command again when it is done";
    /// More than the format or a device holds.
    TooMuch => Failed, "a shared volume has limits (docs/formats/shared.md): use fewer and smaller pieces";
    /// The home of a shared volume cannot be used.
    BadHome => Failed, "the state directory holds the keys and the memory of this machine's devices: restore what is missing, or remove this device from the volume and join anew";
    /// The memory of a device is damaged.
    DeviceMemory => Integrity, "a device does not start without its memory, because then a server could set it back. Put the file back; or remove this device with another one (`bulla share device remove`), move its directory away, and join anew";
    /// The server has another key than the orderer of the volume.
    OtherServer => Integrity, "this is not the server of the volume, or somebody sits in between. Check the location, and whether the server has the key that the volume names (`bulla key show FILE` there)";
    /// The server knows less of the log than the device.
    Restored => Rollback, "the server was put back to an earlier state, and signs nothing more until its newest state is restored. Nothing was lost on this device; tell the operator";
    /// The server has another log than the device.
    OtherHistory => Fork, "the server says that this device's log is not its own. One of the two was shown another log: `bulla share compare` with another device finds out, and makes evidence";
    /// The owners have begun the log again, and this device has not gone over.
    OtherEpoch => Fork, "the owners have begun the log again after a fork: `bulla share follow VOLUME` goes over to it, or `bulla share follow VOLUME RULES` with the file of the owners if the server is another one";
    /// The server has not accepted what the owners have signed.
    NotAccepted => Unavailable, "this device goes on with the log that the owners let stand, and the server does not have their rules yet. Its operator stops it and runs `bulla serve REPO --accept RULES` with the file of `bulla share recover`";
    /// The owners have signed two rules with one number.
    OwnersFork => Fork, "the owners have signed two different rules, or somebody has their keys. Ask them which file counts, over a channel where you know them; a device follows the one that it knew first";
    /// The directory of a server does not have the log that stands.
    OtherStart => Fork, "this directory belongs to another branch of the fork, or is an older copy: accept the rules with the directory whose log the owners chose (`bulla share recover --at SIZE` on a device that has seen it)";
    /// The server signed a lie.
    Convicted => Fork, "nothing more is written to this volume. Keep the evidence, show it to the other members (`bulla share check FILE` verifies it anywhere), and ask an owner to go on: `bulla share recover VOLUME`";
    /// The server shows another log than the invitation names.
    OtherBeginning => Fork, "the server shows the inviter and this device two different logs. Tell the inviter: `bulla share compare` on his device";
    /// The key of this device is used elsewhere.
    Elsewhere => WrongKey, "a copy of this machine's state directory is in use. Remove this device with another one (`bulla share device remove VOLUME DEVICE`), move its directory away, and join anew";
    /// The policies are not those of the volume.
    BadPolicies => Integrity, "the policies are not those of this volume, or not the ones that the inviter knows: check the line of the invitation or the file, and who runs the server";
    /// The file with the genesis policy cannot be used.
    BadGenesis => Integrity, "name the file that `bulla share init --out GENESIS` wrote, copied whole";
    /// The keys are not those of the volume's owners.
    OwnerKey => WrongKey, "name the owner's key file of `bulla share init` with --owner-key FILE (`bulla key show FILE` shows its public key); several owners: repeat the flag";
    /// The key is not that of the volume's orderer.
    OrdererKey => WrongKey, "name the key file that `bulla orderer new` wrote for this volume with --orderer-key FILE; `bulla key show FILE` shows its public key";
    /// The server of a shared volume was put back.
    ServerRestored => Rollback, "this directory was restored from an older copy. Whatever the server signed now would be a fork, so it signs nothing: restore the newest state. If that is lost, the owners must name a new server";
    /// A file of a shared volume's server is damaged.
    ServerDamaged => Integrity, "stop the server; `bulla verify DIR` names what is damaged, and `bulla verify DIR --repair` mends it, with --from COPY from a backup. Do not start an older directory: the server would sign a fork";
    /// The directory of a shared volume's server cannot be mended.
    ServerUnmended => Integrity, "nothing was changed. Name a copy of the directory with --from COPY, of any age. If none has it, an owner lets stand what a device has seen (`bulla share recover VOLUME`), and the server goes on with that";
    /// A copy of a server's directory is newer, so the directory is the old one.
    NewerCopy => Rollback, "nothing was changed. This directory is the older one: started, its server would sign a fork. Look for the newest backup. Never serve the directory of a device: an owner lets stand what it has seen (`bulla share recover VOLUME`)";
    /// A copy of a server's directory has another log.
    ForkedCopy => Fork, "nothing was changed. One of the two directories is of a fork: find out which of them the devices know (`bulla share compare`), and do not serve the other one";
    /// Blocks are lost on the server of a shared volume.
    BlocksLost => Partial, "the log is whole, and the server can start. Files with these blocks cannot be read until a device that has the same content puts it again, or a backup that has them is named with --from COPY";
    /// The disk or the directory of a shared volume's server fails.
    ServerDisk => Failed, "look at the disk, and start the server again. If that does not help, `bulla verify DIR` names what is damaged in its directory";
    /// The line is no invitation.
    BadInvitation => Usage, "copy the whole line that `bulla share invite VOLUME` printed; it begins with inv1";
    /// The other side of an admission does not answer.
    NoAdmission => Unavailable, "both sides must be there: `bulla share invite VOLUME` waits for the device, and an administrator must type the words. Begin again with a new invitation";
    /// An invitation that another device has used.
    UsedInvitation => Refused, "an invitation is for one device: ask for a new one (`bulla share invite VOLUME`). If no other device of yours has used the line, somebody else has read it: tell the inviter to admit nobody with it";
    /// This machine is a device of the volume already.
    JoinedAlready => Failed, "use the volume by that name; to become another device, `bulla share forget VOLUME` first";
    /// Somebody else answers in an admission.
    ForgedAdmission => Integrity, "somebody without the invitation answers, perhaps the server itself. Nothing was admitted; begin again with a new invitation, and tell the operator";
    /// The words are those of no device that asks.
    OtherWords => Integrity, "nothing was admitted. Compare the spelling of the words. If they are right, somebody sits between the two devices: begin again with a new invitation";
    /// A text is no text to compare, or one of another volume or server.
    NoSeen => Usage, "copy the whole text that `bulla share compare VOLUME` printed on the other device, with its last line; it must be of the same volume, and after a fork of the same epoch of its log";
    /// The server did not sign a text to compare.
    BadSeen => Integrity, "copy the whole text that `bulla share compare VOLUME` printed on the other device; if it is whole, the server did not sign it";
    /// The other device has seen more.
    NotSeenYet => Unavailable, "the server has not shown this device as much as the other one: try again when it answers. If it stays so, it hides something from one of the two";
    /// There is no checkpoint.
    NoCheckpoint => NotFound, "a checkpointer makes one with `bulla share checkpoint VOLUME`";
    /// A checkpoint is not what this device's log comes to.
    OtherState => Integrity, "start no device from this checkpoint (`bulla share join --replay`), and show both devices to who looks after the volume. If its signer is wrong, `bulla share checkpoint VOLUME --anew` proposes what this device has replayed";
    /// No device has asked for admission.
    NoRequest => NotFound, "invite the device first: `bulla share invite VOLUME` prints a line for it and waits until it has asked";
    /// The doctor found a problem.
    Unwell => Failed, "each finding has a hint; `bulla doctor --fix` removes dead mounts and sockets of dead daemons";
    /// Ctrl-C.
    Interrupted => Interrupted, "run the same command again to continue; no partial result is visible to readers";
    /// A bug in bulla.
    Defect => Failed, "this is a bug in bulla; please report it with the output of -vv";
}
