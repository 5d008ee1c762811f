//! A look at the bytes of a model before they are decoded.
//!
//! The decoder passes over fields that it does not know, and of a field that is given twice it takes the last. In tensors and
//! attributes both would let two programs read the same file differently, so there both are refused. And what the bytes
//! decode to is counted before any of it is allocated: an empty message takes two bytes of the file and hundreds in memory.
//!
//! Bytes that are no messages at all are left to the decoder, which says what is wrong.

use super::error::{NotOnnx, OnnxError, WireProblem};
use super::limits::Budget;
use super::proto::{
    AttributeProto, Dimension, ElementTypeProto, FunctionProto, GraphProto, MapTypeProto, ModelProto, NodeProto,
    OperatorSetIdProto, SparseTensorProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// What is known of a kind of message.
pub(super) struct Schema {
    /// What messages about errors call it, and the field of its name.
    title: (&'static str, Option<u32>),
    /// Bytes in memory.
    size: usize,
    /// Fields that hold messages, or lists of scalars.
    fields: &'static [(u32, Kind)],
    /// All fields that may be given once, and many times; only for kinds in which others are refused.
    closed: Option<(&'static [u32], &'static [u32])>,
}

enum Kind {
    Message(&'static Schema),
    /// Elements of this many bytes in memory.
    List(usize),
}

use Kind::{List, Message};

const STRING: usize = size_of::<String>();

/// A kind of message of which fields that are not known are passed over.
const fn open<T>(title: &'static str, name: Option<u32>, fields: &'static [(u32, Kind)]) -> Schema {
    Schema { title: (title, name), size: size_of::<T>(), fields, closed: None }
}

/// A whole model.
pub(super) static MODEL: Schema = open::<ModelProto>(
    "the model",
    None,
    &[(7, Message(&GRAPH)), (8, Message(&OPSET)), (14, Message(&ENTRY)), (25, Message(&FUNCTION))],
);

static OPSET: Schema = open::<OperatorSetIdProto>("the operator set", None, &[]);

static ENTRY: Schema = open::<StringStringEntryProto>("the entry", Some(1), &[]);

static GRAPH: Schema = open::<GraphProto>(
    "the graph",
    Some(2),
    &[
        (1, Message(&NODE)),
        (5, Message(&TENSOR)),
        (15, Message(&SPARSE)),
        (11, Message(&VALUE)),
        (12, Message(&VALUE)),
        (13, Message(&VALUE)),
    ],
);

static NODE: Schema =
    open::<NodeProto>("the node", Some(3), &[(1, List(STRING)), (2, List(STRING)), (5, Message(&ATTRIBUTE))]);

static FUNCTION: Schema = open::<FunctionProto>(
    "the function",
    Some(1),
    &[
        (4, List(STRING)),
        (5, List(STRING)),
        (6, List(STRING)),
        (7, Message(&NODE)),
        (9, Message(&OPSET)),
        (11, Message(&ATTRIBUTE)),
    ],
);

static ATTRIBUTE: Schema = Schema {
    title: ("the attribute", Some(1)),
    size: size_of::<AttributeProto>(),
    fields: &[
        (5, Message(&TENSOR)),
        (6, Message(&GRAPH)),
        (7, List(4)),
        (8, List(8)),
        (9, List(STRING)),
        (10, Message(&TENSOR)),
        (11, Message(&GRAPH)),
        (14, Message(&TYPE)),
        (15, Message(&TYPE)),
        (22, Message(&SPARSE)),
        (23, Message(&SPARSE)),
    ],
    closed: Some((&[1, 2, 3, 4, 5, 6, 13, 14, 20, 21, 22], &[7, 8, 9, 10, 11, 15, 23])),
};

/// One tensor.
pub(super) static TENSOR: Schema = Schema {
    title: ("the tensor", Some(8)),
    size: size_of::<TensorProto>(),
    fields: &[
        (1, List(8)),
        (4, List(4)),
        (5, List(4)),
        (6, List(STRING)),
        (7, List(8)),
        (10, List(8)),
        (11, List(8)),
        (13, Message(&ENTRY)),
    ],
    closed: Some((&[2, 3, 8, 9, 12, 14], &[1, 4, 5, 6, 7, 10, 11, 13, 16])),
};

static SPARSE: Schema = Schema {
    title: ("the sparse tensor", None),
    size: size_of::<SparseTensorProto>(),
    fields: &[(1, Message(&TENSOR)), (2, Message(&TENSOR)), (3, List(8))],
    closed: Some((&[1, 2], &[3])),
};

static VALUE: Schema = open::<ValueInfoProto>("the value", Some(1), &[(2, Message(&TYPE))]);

static TYPE: Schema = open::<TypeProto>(
    "the type",
    None,
    &[
        (1, Message(&TENSOR_TYPE)),
        (4, Message(&ELEMENT_TYPE)),
        (5, Message(&MAP_TYPE)),
        (8, Message(&TENSOR_TYPE)),
        (9, Message(&ELEMENT_TYPE)),
    ],
);

static ELEMENT_TYPE: Schema = open::<ElementTypeProto>("the element type", None, &[(1, Message(&TYPE))]);

static MAP_TYPE: Schema = open::<MapTypeProto>("the map type", None, &[(2, Message(&TYPE))]);

static TENSOR_TYPE: Schema = open::<TensorTypeProto>("the tensor type", None, &[(2, Message(&SHAPE))]);

static SHAPE: Schema = open::<TensorShapeProto>("the shape", None, &[(1, Message(&DIMENSION))]);

static DIMENSION: Schema = open::<Dimension>("the dimension", None, &[]);

/// Messages within messages that the decoder reads; deeper ones it refuses.
pub(super) const MAX_DEPTH: usize = 100;

/// Looks through the bytes of a message and takes what it decodes to from the budget.
///
/// # Errors
/// A tensor or attribute has a field that ONNX does not define, or one twice that has one value; or the budget is exceeded.
pub(super) fn scan(bytes: &[u8], schema: &Schema, budget: &mut Budget) -> Result<(), OnnxError> {
    Scan { budget, nodes: 0 }.message(bytes, schema, 0)
}

struct Scan<'a> {
    budget: &'a mut Budget,
    nodes: u64,
}

impl Scan<'_> {
    fn message(&mut self, bytes: &[u8], schema: &Schema, depth: usize) -> Result<(), OnnxError> {
        if depth > MAX_DEPTH {
            return Err(OnnxError::NotOnnx(NotOnnx::TooDeep(MAX_DEPTH)));
        }
        if std::ptr::eq(schema, &NODE) {
            self.nodes += 1;
            self.budget.allows_nodes(self.nodes)?;
        }
        let (mut rest, mut seen, mut size) = (bytes, 0u32, schema.size);
        while let Some((field, value)) = next_field(&mut rest) {
            schema.check(field, &value, &mut seen, bytes)?;
            let kind = schema.fields.iter().find(|(number, _)| *number == field);
            match (kind, value) {
                (Some((_, Message(inner))), WireValue::Bytes(inside)) => self.message(inside, inner, depth + 1)?,
                // Packed; an element takes a byte at least.
                (Some((_, List(element))), WireValue::Bytes(inside)) if *element != STRING => {
                    size = size.saturating_add(inside.len().saturating_mul(*element));
                }
                (Some((_, List(element))), _) => size += element,
                _ => {}
            }
        }
        self.budget.take_bytes(size as u64)?;
        Ok(())
    }
}

impl Schema {
    /// The messages that a field holds, if it holds messages.
    pub(super) fn message(&self, field: u64) -> Option<&'static Schema> {
        self.fields.iter().find_map(|(number, kind)| match kind {
            Message(inner) if u64::from(*number) == field => Some(*inner),
            _ => None,
        })
    }

    /// Whether a field holds the elements of a tensor as they are in memory.
    pub(super) fn is_raw_data(&self, field: u64) -> bool {
        const RAW_DATA: u64 = 9;
        std::ptr::eq(self, &TENSOR) && field == RAW_DATA
    }

    /// Whether a field may be there; `seen` has a bit for each that may be there once.
    fn check(&self, field: u32, value: &WireValue<'_>, seen: &mut u32, message: &[u8]) -> Result<(), OnnxError> {
        let fail = |problem: WireProblem| Err(OnnxError::Wire { message: self.describe(message), problem });
        if matches!(value, WireValue::Group) {
            return fail(WireProblem::Group(field));
        }
        let Some((once, many)) = self.closed else { return Ok(()) };
        if once.contains(&field) {
            let bit = 1 << field;
            let again = *seen & bit != 0;
            *seen |= bit;
            return if again { fail(WireProblem::Twice(field)) } else { Ok(()) };
        }
        if many.contains(&field) { Ok(()) } else { fail(WireProblem::Undefined(field)) }
    }

    /// What the message is called, with its name if it has one.
    fn describe(&self, message: &[u8]) -> String {
        let (title, name) = self.title;
        let mut rest = message;
        let fields = std::iter::from_fn(|| next_field(&mut rest));
        let named = fields.filter(|(field, _)| Some(*field) == name).find_map(|(_, value)| match value {
            WireValue::Bytes(name) => Some(String::from_utf8_lossy(name).into_owned()),
            _ => None,
        });
        named.map_or_else(|| title.to_owned(), |name| format!("{title} `{name}`"))
    }
}

pub(super) enum WireValue<'a> {
    Number,
    Bytes(&'a [u8]),
    Group,
}

/// How a value is written that has a length of its own.
pub(super) const LENGTH_DELIMITED: u64 = 2;

/// The number and value of the next field; `None` at the end, or if there is no field.
pub(super) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, WireValue<'a>)> {
    let key = varint(rest)?;
    let value = match key & 7 {
        0 => varint(rest).map(|_| WireValue::Number)?,
        1 => take(rest, 8).map(|_| WireValue::Number)?,
        LENGTH_DELIMITED => {
            let len = varint(rest)?;
            WireValue::Bytes(take(rest, len)?)
        }
        3 | 4 => WireValue::Group,
        5 => take(rest, 4).map(|_| WireValue::Number)?,
        _ => return None,
    };
    Some((u32::try_from(key >> 3).ok()?, value))
}

fn take<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = left;
    Some(taken)
}

pub(super) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for place in 0..10 {
        let (&byte, left) = rest.split_first()?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
