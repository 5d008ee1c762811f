//! Short messages between the threads of a group: what a rank calls, that it failed, that it leaves.

use tensorc_runtime::DType;

use super::call::{CallKind, CollectiveCall};
use crate::transport::{MAX_TAG, Tag};

/// The tag of short messages; data have others.
pub const CONTROL: Tag = 0;
/// The tags of the data of questions and answers. Tags of collectives are smaller.
pub const ASKED: Tag = MAX_TAG - 1;
pub const ANSWERED: Tag = MAX_TAG;
/// Most bytes of a short message.
pub const MAX_SHORT_MESSAGE: usize = 2048;
/// Most bytes of a key or an error text in a message.
const MAX_TEXT: usize = MAX_SHORT_MESSAGE - 64;

/// A rank takes part in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    pub sequence: u64,
    pub call: CollectiveCall,
    /// Bytes of its contribution to a gathering.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupMessage {
    Header(CallHeader),
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

impl GroupMessage {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            GroupMessage::Header(CallHeader { sequence, call, bytes }) => {
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
            GroupMessage::Failure(text) => {
                out.push(FAILURE);
                out.extend(shortened(text).as_bytes());
            }
            GroupMessage::Leave(after) => {
                out.push(LEAVE);
                out.extend(after.to_le_bytes());
            }
            GroupMessage::Bye => out.push(BYE),
            GroupMessage::Ask(Question { id, subject, detail, bytes }) => {
                out.push(ASK);
                [id, subject, detail, bytes].iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            GroupMessage::Answer { id, bytes } => {
                out.push(ANSWER);
                [id, bytes].iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<GroupMessage> {
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
                Some(GroupMessage::Header(CallHeader {
                    sequence: u64::from_le_bytes(sequence),
                    call: CollectiveCall {
                        kind,
                        key,
                        dtype,
                        count: u64::from_le_bytes(count),
                        leaves: u32::from_le_bytes(leaves),
                    },
                    bytes: u64::from_le_bytes(bytes),
                }))
            }
            FAILURE => Some(GroupMessage::Failure(std::str::from_utf8(rest).ok()?.to_owned())),
            LEAVE => Some(GroupMessage::Leave(numbers::<1>(rest)?[0])),
            BYE => Some(GroupMessage::Bye),
            ASK => {
                let [id, subject, detail, bytes] = numbers(rest)?;
                Some(GroupMessage::Ask(Question { id, subject, detail, bytes }))
            }
            ANSWER => {
                let [id, bytes] = numbers(rest)?;
                Some(GroupMessage::Answer { id, bytes })
            }
            _ => None,
        }
    }
}

impl CallHeader {
    /// Whether two ranks call the same: a long key is compared as far as messages carry it.
    pub fn agrees(&self, call: &CollectiveCall) -> bool {
        let CollectiveCall { kind, key, dtype, count, leaves } = &self.call;
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
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(key: &str) -> CallHeader {
        let call = CollectiveCall::broadcast(key, 3, DType::BF16, 1 << 40);
        CallHeader { sequence: 7, call, bytes: 9 }
    }

    #[test]
    fn messages_round_trip() {
        let all = [
            GroupMessage::Header(header("fc1_weight")),
            GroupMessage::Header(CallHeader { call: CollectiveCall::sum("", DType::F32, 5, 2), ..header("") }),
            GroupMessage::Failure("rank 1: ≥".into()),
            GroupMessage::Leave(12),
            GroupMessage::Bye,
            GroupMessage::Ask(Question { id: 1, subject: 2, detail: 3, bytes: 4 }),
            GroupMessage::Answer { id: 1 << 40, bytes: 0 },
        ];
        for message in all {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_SHORT_MESSAGE);
            assert_eq!(GroupMessage::decode(&bytes), Some(message));
            for cut in 0..bytes.len() {
                let _ = GroupMessage::decode(&bytes[..cut]);
            }
        }
        assert_eq!(GroupMessage::decode(&[]), None);
        assert_eq!(GroupMessage::decode(&[9, 1, 2]), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(MAX_SHORT_MESSAGE);
        let sent = GroupMessage::Header(header(&long)).encode();
        assert!(sent.len() <= MAX_SHORT_MESSAGE);
        let Some(GroupMessage::Header(found)) = GroupMessage::decode(&sent) else { panic!("no header") };
        assert!(found.agrees(&header(&long).call));
        assert!(!found.agrees(&header("é").call));
    }
}
