//! Arbitrary status and headers as a web server's answer, and arbitrary bytes as the table after an index
//! run's pages. They are refused, or they stay within the request.
#![no_main]

use bulla_fuzz::{plant, repository_files};
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use store::head::{Head, RunName};
use store::index::pages;
use store::index::table::{Table, behind_pages};
use store::names::FileId;
use wire::http::answer::{Asked, MAX_RETRY_AFTER, MAX_UNRANGED_BYTES, Verdict};
use wire::http::answer::{judge, looks_like_html};
use wire::http::content_range::parse_content_range;
use wire::http::parts::{Part, boundary_of, most_bytes, range_header, split};

const MAX_BYTES: u64 = 1000;

fn seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "206 64 32\ncontent-range: bytes 64-95/1000\n",
        "206 64 32\nContent-Range: bytes 64-80/81\ncontent-length: 17\n",
        "206 0 10\ncontent-range: bytes 0-9/*\ncontent-encoding: gzip\n",
        "200 64 32\ncontent-length: 1000\ncontent-type: text/html\n",
        "206 3 4\ncontent-type: multipart/byteranges; boundary=b\n",
        "--b\r\nContent-Range: bytes 3-6/20\r\n\r\n3456\r\n--b\r\nContent-Range: bytes 7-7/20\r\n\r\na\r\n--b--",
        "503 64 32\nretry-after: 7\n",
        "304 1 1\netag: \"x\"\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let (runs, head) = repository_files(".idx");
    all.extend(runs);
    all.push(head);
    all
}

fn answer(data: &[u8]) -> Option<()> {
    let text = std::str::from_utf8(data).ok()?;
    let (first, headers) = text.split_once('\n')?;
    let mut numbers = first.split(' ');
    let status: u16 = numbers.next()?.parse().ok()?;
    let offset: u64 = numbers.next()?.parse().ok()?;
    let len_bytes: u64 = numbers.next()?.parse::<u64>().ok()?.max(1);
    let status = StatusCode::from_u16(status).ok()?;
    let mut map = HeaderMap::new();
    let mut headers = headers.lines().filter_map(|line| line.split_once(": "));
    for (name, value) in headers.clone() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_str(value).ok()?);
    }
    for asked in [
        Asked::Range { offset, len_bytes },
        Asked::Whole {
            max_bytes: MAX_BYTES,
            known: len_bytes.is_multiple_of(2),
        },
    ] {
        match (judge(asked, status, &map), asked) {
            (Verdict::Body(take), Asked::Range { .. }) => {
                assert!(take.take_bytes <= len_bytes);
                if take.skip_bytes > 0 {
                    assert!(take.skip_bytes + take.take_bytes <= MAX_UNRANGED_BYTES);
                }
            }
            (Verdict::Body(take), Asked::Whole { max_bytes, .. }) => {
                assert_eq!((take.skip_bytes, take.take_bytes), (0, max_bytes));
            }
            (Verdict::Busy(_, after), _) => assert!(after.is_none_or(|a| a <= MAX_RETRY_AFTER)),
            _ => {}
        }
    }
    let announced = headers.clone().find_map(|(_, value)| boundary_of(value));
    let parts = [(offset, len_bytes), (offset.saturating_add(len_bytes), 1)];
    let parts = parts.map(|(offset, len_bytes)| Part { offset, len_bytes });
    let body = Bytes::copy_from_slice(data);
    if let Some(cut) = split(&body, announced.unwrap_or("x"), &parts) {
        assert!(range_header(&parts).is_some() && data.len() as u64 <= most_bytes(&parts));
        let lens = cut.iter().map(|part| part.len() as u64);
        assert!(lens.eq(parts.iter().map(|part| part.len_bytes)));
    }
    if let Some(range) = parse_content_range(headers.next_back()?.1) {
        assert!(range.first <= range.last && range.total.is_none_or(|t| range.last < t));
    }
    Some(())
}

/// The bytes as the table of runs of several sizes. An accepted table has the right number of pages.
fn table(data: &[u8]) {
    for entries in [1, 120, 10_000] {
        let name = RunName {
            id: FileId([1; 16]),
            entries,
            len_bytes: pages(entries) * 4096 + data.len() as u64,
        };
        if let Ok(table) = Table::parse(&name, data) {
            assert_eq!(table.pages() as u64, pages(entries));
        }
    }
    if let Ok(head) = Head::decode(data) {
        for name in &head.runs {
            if let Ok(behind) = behind_pages(name) {
                assert!(behind < name.len_bytes);
            }
        }
    }
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let _ = answer(data);
    table(data);
    let html = looks_like_html(data);
    assert!(!html || data.contains(&b'<'));
});
