//! Short messages between the threads of a group: what a rank calls, that it failed, that it leaves.

use tensorc_runtime::DType;

use super::call::{Call, CallKind};
use crate::transport::Tag;

/// The tag of short messages; data have others.
pub const CONTROL: Tag = 0;
/// Most bytes of a short message.
pub const LONGEST: usize = 2048;
/// Most bytes of a key or an error text in a message.
const LONGEST_TEXT: usize = LONGEST - 64;

/// A rank takes part in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub sequence: u64,
    pub call: Call,
    /// Bytes of its contribution to a gathering.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Header(Header),
    /// The group has failed.
    Failure(String),
    /// The rank takes part in nothing after this many collectives.
    Leave(u64),
    /// The last message of a rank: it has left, and so have all others as far as it is concerned.
    Bye,
    /// The rank asks for something; so many bytes follow.
    Ask(Question),
    /// The answer to the question of this number; so many bytes follow.
    Answer {
        id: u64,
        bytes: u64,
    },
}

/// What one rank asks another, in the terms of whoever serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u64,
    pub subject: u64,
    pub detail: u64,
    pub bytes: u64,
}

const HEADER: u8 = 1;
const FAILURE: u8 = 2;
const LEAVE: u8 = 3;
const ASK: u8 = 4;
const ANSWER: u8 = 5;
const BYE: u8 = 6;

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            Message::Header(Header { sequence, call, bytes }) => {
                let (kind, root) = match call.kind {
                    CallKind::Sum => (0, 0),
                    CallKind::Gather => (1, 0),
                    CallKind::Broadcast { root } => (2, root),
                    CallKind::Barrier => (3, 0),
                };
                let dtype = DType::ALL.iter().position(|dtype| *dtype == call.dtype).unwrap_or(usize::MAX) as u8;
                out.extend([HEADER, kind, dtype, 0]);
                out.extend(root.to_le_bytes());
                out.extend(sequence.to_le_bytes());
                out.extend(call.count.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                out.extend(call.leaves.to_le_bytes());
                out.extend(shortened(&call.key).as_bytes());
            }
            Message::Failure(text) => {
                out.push(FAILURE);
                out.extend(shortened(text).as_bytes());
            }
            Message::Leave(after) => {
                out.push(LEAVE);
                out.extend(after.to_le_bytes());
            }
            Message::Bye => out.push(BYE),
            Message::Ask(Question { id, subject, detail, bytes }) => {
                out.push(ASK);
                [id, subject, detail, bytes].iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            Message::Answer { id, bytes } => {
                out.push(ANSWER);
                [id, bytes].iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (first, rest) = bytes.split_first()?;
        match *first {
            HEADER => {
                let ([kind, dtype, _], rest) = take::<3>(rest)?;
                let (root, rest) = take(rest)?;
                let (sequence, rest) = take(rest)?;
                let (count, rest) = take(rest)?;
                let (bytes, rest) = take(rest)?;
                let (leaves, key) = take(rest)?;
                let kind = match kind {
                    0 => CallKind::Sum,
                    1 => CallKind::Gather,
                    2 => CallKind::Broadcast { root: u32::from_le_bytes(root) },
                    3 => CallKind::Barrier,
                    _ => return None,
                };
                let dtype = *DType::ALL.get(usize::from(dtype))?;
                let key = std::str::from_utf8(key).ok()?.to_owned();
                Some(Message::Header(Header {
                    sequence: u64::from_le_bytes(sequence),
                    call: Call {
                        kind,
                        key,
                        dtype,
                        count: u64::from_le_bytes(count),
                        leaves: u32::from_le_bytes(leaves),
                    },
                    bytes: u64::from_le_bytes(bytes),
                }))
            }
            FAILURE => Some(Message::Failure(std::str::from_utf8(rest).ok()?.to_owned())),
            LEAVE => Some(Message::Leave(numbers::<1>(rest)?[0])),
            BYE => Some(Message::Bye),
            ASK => {
                let [id, subject, detail, bytes] = numbers(rest)?;
                Some(Message::Ask(Question { id, subject, detail, bytes }))
            }
            ANSWER => {
                let [id, bytes] = numbers(rest)?;
                Some(Message::Answer { id, bytes })
            }
            _ => None,
        }
    }
}

impl Header {
    /// Whether two ranks call the same: a long key is compared as far as messages carry it.
    pub fn agrees(&self, call: &Call) -> bool {
        let Call { kind, key, dtype, count, leaves } = &self.call;
        (*kind, *dtype, *count, *leaves) == (call.kind, call.dtype, call.count, call.leaves)
            && *key == shortened(&call.key)
    }
}

fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<[u64; N]> {
    let mut found = [0; N];
    for number in &mut found {
        let (own, rest) = take(bytes)?;
        (*number, bytes) = (u64::from_le_bytes(own), rest);
    }
    Some(found)
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    Some((*head, rest))
}

/// As much of a text as a message carries.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(key: &str) -> Header {
        let call = Call::broadcast(key, 3, DType::BF16, 1 << 40);
        Header { sequence: 7, call, bytes: 9 }
    }

    #[test]
    fn messages_round_trip() {
        let all = [
            Message::Header(header("fc1_weight")),
            Message::Header(Header { call: Call::sum("", DType::F32, 5, 2), ..header("") }),
            Message::Failure("rank 1: ≥".into()),
            Message::Leave(12),
            Message::Bye,
            Message::Ask(Question { id: 1, subject: 2, detail: 3, bytes: 4 }),
            Message::Answer { id: 1 << 40, bytes: 0 },
        ];
        for message in all {
            let bytes = message.encode();
            assert!(bytes.len() <= LONGEST);
            assert_eq!(Message::decode(&bytes), Some(message));
            for cut in 0..bytes.len() {
                let _ = Message::decode(&bytes[..cut]);
            }
        }
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[9, 1, 2]), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(LONGEST);
        let sent = Message::Header(header(&long)).encode();
        assert!(sent.len() <= LONGEST);
        let Some(Message::Header(found)) = Message::decode(&sent) else { panic!("no header") };
        assert!(found.agrees(&header(&long).call));
        assert!(!found.agrees(&header("é").call));
    }
}
