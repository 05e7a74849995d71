//! Single calls: what the kernel's directory does not show.

use bytes::Bytes;
use share::files::{Answer, Attributes, Call, FileRef, Over, Place, Refused};
use trust::inode::{Content, FileContent, Inode, Owner, Time, Xattrs};
use trust_shared::decision::Role;
use trust_shared::principal::{Name, Principal};

use crate::asks::{directory, name, regular, symlink, text, text_of};
use crate::net::Net;
use crate::world::{refused, user};

#[test]
fn file_of_one_device_is_read_by_another() {
    let mut net = Net::new(2, 1);
    let create = net.create("notes", regular("first"), false);
    let file = net.done(0, create);
    let found = net.found(1, "notes");
    assert_eq!((found.id, text_of(&found)), (file, "first".to_owned()));
    assert_eq!(file.number.device.0, 0);
    assert_eq!(file.principal, net.root().principal);
    // The body came because it was asked for.
    assert!(net.fetched > 0);
    net.rest();
    net.check();
}

/// The server of this network leaves out bodies, and both the log and the journal get those that the device has sent.
#[test]
fn device_fetches_nothing_that_it_wrote() {
    let mut net = Net::new(1, 40);
    let make = net.create("f", regular("one"), false);
    net.done(0, make);
    let write = net.write("f", "two");
    net.done(0, write);
    assert_eq!(net.fetched, 0, "while it runs");
    net.rest();
    net.crash(0, false);
    net.rest();
    assert_eq!(text_of(&net.found(0, "f")), "two");
    assert_eq!(net.fetched, 0, "after it was killed");
}

#[test]
fn unchanged_names_are_refused_with_the_meaning_of_an_errno() {
    let mut net = Net::new(1, 2);
    let make = net.create("d", directory(), false);
    net.done(0, make);
    let make = net.create("d/f", regular("x"), false);
    net.done(0, make);
    let again = net.create("d/f", regular("y"), false);
    let below = net.create("d/f/g", regular("y"), false);
    let inside = net.rename("d", "d/e", Over::Replace);
    let dot = Call::Rmdir { place: net.at("") };
    let cases = [
        (again, Refused::Exists),
        (below, Refused::NotADirectory),
        (inside, Refused::BelowItself),
        (dot, Refused::Needed),
        (net.rmdir("d"), Refused::NotEmpty),
        (net.rmdir("d/f"), Refused::NotADirectory),
        (net.unlink("d"), Refused::IsADirectory),
        (net.unlink("nothing"), Refused::NotFound),
        (net.write("d", "text"), Refused::IsADirectory),
        (net.list("d/f", None, 10, false), Refused::NotADirectory),
        (net.rename("d/f", "d", Over::Refuse), Refused::Exists),
        (net.rename("d", "none", Over::Exchange), Refused::NotFound),
        (net.link("d", "e"), Refused::IsADirectory),
    ];
    let before = net.entries;
    for (call, why) in cases {
        assert_eq!(net.call(0, call.clone()), refused(why), "{call:?}");
    }
    assert_eq!(
        net.entries, before,
        "a refusal that is known costs no entry"
    );
}

#[test]
fn names_are_listed_in_pages_with_and_without_inodes() {
    let mut net = Net::new(2, 3);
    let names: Vec<String> = (0..10).map(|number| format!("n{number}")).collect();
    for name in &names {
        let make = net.create(name, regular(name), false);
        net.done(0, make);
    }
    let gone = net.unlink("n4");
    net.done(1, gone);
    let left: Vec<String> = names.into_iter().filter(|name| name != "n4").collect();
    assert_eq!(net.names(1, ""), left);
    let call = net.list("", Some("n2"), 3, true);
    let Answer::Listed { names, next, .. } = net.call(1, call) else {
        panic!("not listed");
    };
    assert_eq!(next, Some(Name::new(b"n6").unwrap()));
    let texts: Vec<String> = names
        .iter()
        .map(|listed| text_of(listed.file.as_ref().unwrap()))
        .collect();
    assert_eq!(texts, ["n3", "n5", "n6"]);
    let call = net.list("", Some("n8"), 3, false);
    let Answer::Listed { names, next, .. } = net.call(0, call) else {
        panic!("not listed");
    };
    assert_eq!((names.len(), next), (1, None));
    assert_eq!(names[0].file, None);
}

#[test]
fn exchange_and_refusing_rename_keep_both_files() {
    let mut net = Net::new(2, 4);
    for path in ["a", "b"] {
        let make = net.create(path, regular(path), false);
        net.done(0, make);
    }
    let call = net.rename("a", "b", Over::Exchange);
    net.done(1, call);
    let read = |net: &mut Net, path: &str| text_of(&net.found(0, path));
    assert_eq!(
        (read(&mut net, "a"), read(&mut net, "b")),
        ("b".into(), "a".into())
    );
    let call = net.rename("a", "b", Over::Refuse);
    assert_eq!(net.call(1, call), refused(Refused::Exists));
    let call = net.rename("a", "c", Over::Refuse);
    net.done(1, call);
    assert_eq!(net.names(0, ""), ["b", "c"]);
}

#[test]
fn absolute_links_begin_at_the_root_of_the_volume() {
    let mut net = Net::new(1, 5);
    for (path, inode) in [
        ("d", directory()),
        ("d/f", regular("here")),
        ("d/l", symlink("/d/./f")),
        ("d/up", symlink("../../..")),
        ("d/odd", symlink(&"x".repeat(300))),
    ] {
        let make = net.create(path, inode, false);
        net.done(0, make);
    }
    assert_eq!(text_of(&net.found(0, "d/l")), "here");
    assert_eq!(text_of(&net.found(0, "d/up/d/f")), "here");
    let odd = net.lookup("d/odd", true);
    assert_eq!(net.call(0, odd), refused(Refused::NotFound));
    let link = net.lookup("d/l", false);
    let Answer::Found(link) = net.call(0, link) else {
        panic!("the link itself is a file");
    };
    assert!(matches!(link.inode.content, Content::Symlink(_)));
    // From another start, the way up is not known.
    let start = net.found(0, "d").id;
    let path = vec![name("up")];
    let place = Place { start, path };
    let follow = true;
    let call = Call::Lookup { place, follow };
    assert_eq!(net.call(0, call), refused(Refused::NeedsPath));
}

#[test]
fn directory_is_moved_only_with_the_way_from_the_root() {
    let mut net = Net::new(1, 6);
    for path in ["a", "a/b", "c"] {
        let make = net.create(path, directory(), false);
        net.done(0, make);
    }
    let start = net.found(0, "a").id;
    let from = Place {
        start,
        path: vec![name("b")],
    };
    let over = Over::Replace;
    let (to, here) = (net.at("c/b"), from.clone());
    let call = Call::Rename {
        from,
        to,
        over: over.clone(),
    };
    assert_eq!(net.call(0, call), refused(Refused::NeedsPath));
    // Within its directory it may be renamed.
    let to = Place {
        start,
        path: vec![name("new")],
    };
    let from = here;
    net.done(0, Call::Rename { from, to, over });
    let call = net.rename("a/new", "c/b", Over::Replace);
    net.done(0, call);
    assert_eq!(net.names(0, "c"), ["b"]);
}

#[test]
fn attributes_are_set_one_by_one() {
    let mut net = Net::new(2, 7);
    let make = net.create("f", regular("text"), false);
    let file = FileRef::File(net.done(0, make));
    let xattr = |value: Option<&str>| {
        let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
        (Bytes::from_static(b"user.a"), value)
    };
    let set = |attributes| Call::SetAttributes {
        file: file.clone(),
        attributes,
        expect: None,
    };
    let mtime = Time {
        seconds: -5,
        nanos: 7,
    };
    let owner = Owner { uid: 1, gid: 2 };
    net.done(
        1,
        set(Attributes {
            mtime: Some(mtime),
            owner: Some(owner),
            xattrs: vec![xattr(Some("1"))],
            mode: None,
        }),
    );
    net.done(
        0,
        set(Attributes {
            mode: Some(0o4711),
            ..Attributes::default()
        }),
    );
    let found = net.found(1, "f");
    assert_eq!((found.inode.mtime, found.inode.owner), (mtime, Some(owner)));
    assert_eq!((found.inode.mode, text_of(&found)), (0o4711, "text".into()));
    assert!(matches!(&found.inode.xattrs, Xattrs::Inline(list) if list.len() == 1));
    let gone = Attributes {
        xattrs: vec![xattr(None)],
        ..Attributes::default()
    };
    net.done(0, set(gone.clone()));
    assert_eq!(net.found(1, "f").inode.xattrs, Xattrs::None);
    assert_eq!(net.call(0, set(gone)), refused(Refused::NotFound));
    let long = Attributes {
        xattrs: vec![xattr(Some(&"x".repeat(2000)))],
        ..Attributes::default()
    };
    assert_eq!(net.call(0, set(long)), refused(Refused::TooLarge));
}

#[test]
fn call_on_a_changed_file_is_refused_as_stale() {
    let mut net = Net::new(2, 8);
    let make = net.create("f", regular("one"), false);
    let file = FileRef::File(net.done(0, make));
    let write = |content: &str, expect: &str| Call::SetContent {
        file: file.clone(),
        content: text(content),
        mtime: Time::default(),
        expect: Some(text(expect)),
    };
    net.done(1, write("two", "one"));
    assert_eq!(net.call(0, write("three", "one")), refused(Refused::Stale));
    net.done(0, write("three", "two"));
    let seen = net.found(1, "f").inode;
    let expect = Some(net.files(1).terms().inode_hash(&seen));
    let chmod = Call::SetAttributes {
        file: file.clone(),
        attributes: Attributes {
            mode: Some(0o600),
            ..Attributes::default()
        },
        expect,
    };
    net.done(1, chmod.clone());
    assert_eq!(net.call(1, chmod), refused(Refused::Stale));
}

#[test]
fn removed_file_is_stale_by_its_number_and_its_number_is_not_used_again() {
    let mut net = Net::new(1, 9);
    let make = net.create("f", regular("one"), false);
    let id = net.done(0, make.clone());
    let again = match make.clone() {
        Call::Create {
            number,
            inode,
            owner,
            replace,
            ..
        } => Call::Create {
            place: net.at("g"),
            number,
            inode,
            owner,
            replace,
        },
        _ => panic!("not a create"),
    };
    assert_eq!(net.call(0, again), refused(Refused::Exists));
    let gone = net.unlink("f");
    assert_eq!(net.done(0, gone), id);
    let place = Place {
        start: id,
        path: Vec::new(),
    };
    let follow = false;
    let look = Call::Lookup { place, follow };
    assert_eq!(net.call(0, look), refused(Refused::Stale));
    let write = Call::SetContent {
        file: FileRef::File(id),
        content: text("x"),
        mtime: Time::default(),
        expect: None,
    };
    assert_eq!(net.call(0, write), refused(Refused::Stale));
}

#[test]
fn call_that_no_entry_can_hold_is_refused_and_the_device_goes_on() {
    let mut net = Net::new(1, 10);
    // Content in an inode has at most 512 bytes.
    let long = net.create("long", regular(&"x".repeat(513)), false);
    assert_eq!(net.call(0, long), refused(Refused::TooLarge));
    let fits = net.create("fits", regular(&"x".repeat(512)), false);
    net.done(0, fits);
    let write = net.write("fits", &"y".repeat(600));
    assert_eq!(net.call(0, write), refused(Refused::TooLarge));
    let odd = Inode::new(
        0o644,
        Time::default(),
        Content::Regular(FileContent::Inline(Bytes::new())),
    );
    let odd = net.create("odd", odd, false);
    assert_eq!(net.call(0, odd), refused(Refused::TooLarge));
    let make = net.create("f", regular("ok"), false);
    net.done(0, make);
    net.rest();
    net.check();
}

#[test]
fn user_sees_only_files_of_its_groups() {
    let mut net = Net::new(2, 11);
    net.admit(2, None);
    net.admit(3, Some(Role::Reader));
    let make = net.create("f", regular("secret"), false);
    net.done(0, make);
    let mine = Call::Create {
        place: net.at("mine"),
        number: 7,
        inode: Box::new(regular("private")),
        owner: Some(user(1)),
        replace: false.into(),
    };
    let file = net.done(1, mine);
    assert_eq!(file.principal, user(1));
    let denied = || refused(Refused::NotPermitted);
    // Device 2 has no role, device 3 reads.
    for call in [net.lookup("f", true), net.list("", None, 9, false)] {
        assert_eq!(net.call(2, call), denied());
    }
    assert_eq!(text_of(&net.found(3, "f")), "secret");
    let before = net.entries;
    let make = net.create("g", regular(""), false);
    for call in [net.write("f", "x"), net.unlink("f"), make] {
        assert_eq!(net.call(3, call), denied());
    }
    // A file of user 1 in everybody's directory.
    assert_eq!(text_of(&net.found(1, "mine")), "private");
    let look = net.lookup("mine", true);
    assert_eq!(net.call(0, look), denied());
    assert_eq!(net.entries, before);
    let call = net.list("", None, 9, true);
    let Answer::Listed { names, .. } = net.call(0, call) else {
        panic!("not listed");
    };
    let seen: Vec<bool> = names.iter().map(|listed| listed.file.is_some()).collect();
    assert_eq!(seen, [true, false]);
    // Who writes the directory may take the name away. The file stays with its owner.
    let gone = net.unlink("mine");
    net.done(0, gone);
    let place = Place {
        start: file,
        path: Vec::new(),
    };
    let follow = false;
    let Answer::Found(kept) = net.call(1, Call::Lookup { place, follow }) else {
        panic!("the owner's file is gone");
    };
    assert_eq!(text_of(&kept), "private");
}

#[test]
fn new_file_may_belong_only_to_whom_its_author_writes_for() {
    let mut net = Net::new(2, 12);
    for owner in [user(1), Principal::from_bytes([77; 32])] {
        let call = Call::Create {
            place: net.at("f"),
            number: 1,
            inode: Box::new(regular("")),
            owner: Some(owner),
            replace: false.into(),
        };
        assert_eq!(net.call(0, call), refused(Refused::NotPermitted));
    }
}
