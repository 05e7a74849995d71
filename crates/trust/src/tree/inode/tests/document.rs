//! The tables of docs/formats/inode.md, read from the page itself: what must be refused, and what is just accepted.

use super::super::*;
use super::unhex::unhex;

const PAGE: &str = include_str!("../../../../../../docs/formats/inode.md");

/// A row of one of the tables: where the inode lies, its bytes, and the cells after them.
struct Row {
    place: &'static str,
    bytes: Vec<u8>,
    rest: Vec<&'static str>,
}

impl Row {
    fn decode(&self) -> Result<Vec<u8>, Reject> {
        match self.place {
            "entry" => Entry::decode(&self.bytes).map(|entry| entry.encode()),
            _ => Inode::decode(&self.bytes).map(|inode| inode.encode()),
        }
    }
}

/// The rows that say where an inode lies, with `cells` cells.
fn rows(cells: usize) -> Vec<Row> {
    let row = |line: &'static str| {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let found: Vec<&str> = line.split(" | ").collect();
        let [place @ ("entry" | "block"), bytes, rest @ ..] = found.as_slice() else {
            return None;
        };
        let bytes = bytes.strip_prefix('`')?.strip_suffix('`')?;
        (found.len() == cells).then(|| Row {
            place,
            bytes: unhex(bytes),
            rest: rest.to_vec(),
        })
    };
    PAGE.lines().filter_map(row).collect()
}

#[test]
fn every_refused_vector_of_the_page_is_refused_with_its_verdict() {
    let rows = rows(4);
    assert!(rows.len() >= 38, "{} rows", rows.len());
    for row in &rows {
        let refused = row.decode();
        let fits = match row.rest[0] {
            "malformed" => matches!(refused, Err(Reject::Malformed { .. })),
            "unsupported" => matches!(refused, Err(Reject::Unsupported { .. })),
            other => panic!("{other} is no verdict"),
        };
        assert!(fits, "{}: {refused:?}", row.rest[1]);
    }
}

#[test]
fn every_accepted_vector_of_the_page_is_canonical() {
    let rows = rows(3);
    assert_eq!(rows.len(), 5);
    for row in &rows {
        let again = row.decode();
        assert_eq!(again.as_ref(), Ok(&row.bytes), "{}", row.rest[0]);
    }
}

#[test]
fn vectors_are_those_of_the_page() {
    for inode in super::vector_inodes() {
        let hex = super::hex(&inode.encode());
        assert!(PAGE.contains(&format!("| `{hex}` |")), "{hex}");
        assert_eq!(Inode::decode(&unhex(&hex)), Ok(inode));
    }
    let hasher = Hasher::new(&std::array::from_fn(|i| i as u8));
    let group = super::hex(&link_group(&hasher, b"dir/first"));
    assert!(PAGE.contains(&format!("is `{group}`.")), "{group}");
}
