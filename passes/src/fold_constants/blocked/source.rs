//! Where elements of weights come from: constants behind views, conversions and the unpacking of bytes.

use std::ops::Deref;

use tensorc_abi::DType;
use tensorc_abi::content::{Part, ReadError};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::views::keeps_linear_order;
use tensorc_ir::{DenseType, TensorData};

/// Coordinates in a value of what an element of a matrix is computed from.
#[derive(Clone)]
pub(super) struct Place {
    /// Extents of the matrix, whose coordinates `index` counts.
    pub ranges: [u64; 2],
    pub index: Vec<Index>,
}

/// A position in a constant, in row-major order.
#[derive(Clone)]
pub(super) struct Flat {
    ranges: [u64; 2],
    position: Index,
}

impl Place {
    /// The same in an operand of a map with results of type `ty`, which may broadcast.
    pub fn operand(&self, graph: &Graph, v: Value, ty: &DenseType) -> Option<(Value, Place)> {
        let own = graph.dense(v).ok()?;
        let skipped = ty.rank().checked_sub(own.rank())?;
        let axis = |a: usize| match own.dims.at(a).is_surely(1) {
            true => Index::constant(0),
            false => self.index[skipped + a].clone(),
        };
        Some((v, Place { ranges: self.ranges, index: (0..own.rank()).map(axis).collect() }))
    }

    /// The value that views show, and the place in it. Views of a constant that keep the order of its elements stay.
    pub fn behind_views(&self, graph: &Graph, mut v: Value) -> Option<(Value, Place)> {
        let mut place = self.clone();
        while let NodeKind::Prim(Prim::View(view)) = &graph.node(v.node).kind {
            if reshaped(graph, v).is_some() {
                break;
            }
            let index = view.map.iter().map(|m| m.mapped(&place.index, &place.ranges)).collect::<Option<_>>();
            place.index = index.filter(|_| view.fill.is_none())?;
            v = graph.args(v.node)[0];
        }
        Some((v, place))
    }

    /// The constant behind views, and the position in it.
    fn constant(&self, graph: &Graph, v: Value) -> Option<(TensorData, Flat)> {
        let (v, place) = self.behind_views(graph, v)?;
        let data = reshaped(graph, v)?;
        let position = linearize(&place.index, &graph.dense(v).ok()?.dims).recombine(&self.ranges);
        Some((data.clone(), Flat { ranges: self.ranges, position }))
    }

    /// The constant of floats behind views and conversions to f32.
    pub fn floats(&self, graph: &Graph, v: Value) -> Option<(TensorData, Flat)> {
        let (v, place) = self.behind_views(graph, v)?;
        let (v, place) = match &graph.node(v.node).kind {
            NodeKind::Prim(Prim::Map(f)) if converts(f) => {
                place.operand(graph, graph.args(v.node)[0], &graph.dense(v).ok()?)?
            }
            _ => (v, place),
        };
        let found = place.constant(graph, v)?;
        matches!(found.0.dtype(), DType::F32 | DType::F16 | DType::BF16).then_some(found)
    }

    /// The codes behind views and a conversion to f32.
    pub fn codes(&self, graph: &Graph, v: Value) -> Option<(Codes, Flat)> {
        let (v, place) = self.behind_views(graph, v)?;
        let NodeKind::Prim(Prim::Map(f)) = &graph.node(v.node).kind else { return None };
        let ty = graph.dense(v).ok()?;
        let [arg] = graph.args(v.node)[..] else { return None };
        if !converts(f) {
            let bits = unpacks(f, ty.rank().checked_sub(1)?)?;
            let codes = match bits {
                8 => {
                    Codes { data: reshaped(graph, arg).filter(|data| data.dtype() == DType::U8)?.clone(), packed: None }
                }
                _ => Codes { data: packed(graph, arg, &ty, 8 / bits)?, packed: Some(bits) },
            };
            let position = linearize(&place.index, &ty.dims).recombine(&self.ranges);
            return Some((codes, Flat { ranges: self.ranges, position }));
        }
        let (arg, place) = place.operand(graph, arg, &ty)?;
        let (data, flat) = place.constant(graph, arg)?;
        let codes = matches!(data.dtype(), DType::U8 | DType::I8 | DType::U4 | DType::I4 | DType::U2 | DType::I2);
        codes.then_some((Codes { data, packed: None }, flat))
    }
}

/// A constant, or one behind views that keep the order of its elements.
fn reshaped(graph: &Graph, mut v: Value) -> Option<&TensorData> {
    while let NodeKind::Prim(Prim::View(view)) = &graph.node(v.node).kind {
        let (arg, ty) = (graph.args(v.node)[0], graph.dense(v).ok()?);
        if !keeps_linear_order(view, &graph.dense(arg).ok()?, &ty.dims) {
            return None;
        }
        v = arg;
    }
    graph.constant(v)
}

/// The number that a value is, behind views and conversions to f32.
pub(super) fn number(graph: &Graph, mut v: Value) -> Option<f64> {
    loop {
        match &graph.node(v.node).kind {
            NodeKind::Const(data) => return (data.len() == 1).then(|| data.get(0).as_f64()),
            NodeKind::Prim(Prim::View(view)) if view.fill.is_none() => v = graph.args(v.node)[0],
            NodeKind::Prim(Prim::Map(f)) if converts(f) => v = graph.args(v.node)[0],
            _ => return None,
        }
    }
}

/// Whether a function converts its operand to f32 and does nothing else. A narrow integer is seen as one of 8 bits.
fn converts(f: &ScalarFn) -> bool {
    use ScalarNode::{Input, Op};
    let wide = match f.nodes[..] {
        [Input(0), Op(ScalarOp::Cast(DType::F32), _)] => true,
        [Input(0), Op(ScalarOp::Bitcast(as_byte), _), Op(ScalarOp::Cast(DType::F32), _)] => {
            matches!((f.inputs[0], as_byte), (DType::I4 | DType::I2, DType::I8) | (DType::U4 | DType::U2, DType::U8))
        }
        _ => false,
    };
    wide && f.outputs.len() == 1
}

impl Flat {
    fn is(&self, expected: &Index) -> bool {
        let (low, high) = self.position.sub(expected).interval(&self.ranges);
        low.is_surely(0) && high.is_surely(0)
    }

    /// Elements from one to the next along each axis of the matrix, if the first is at 0.
    pub fn strides(&self) -> Option<[usize; 2]> {
        let first = self.position.is_affine() && self.position.constant.is_surely(0);
        let stride = |axis| usize::try_from(self.position.step(axis)?).ok();
        Some([stride(0)?, stride(1)?]).filter(|_| first)
    }

    /// Elements from one column to the next, and from one block of terms to the next, if so many blocks, perhaps of more
    /// than there are, have one element each.
    pub fn blocks(&self, axes: [usize; 2], [n, k]: [u64; 2], block: u64, padded: u64) -> Option<[usize; 2]> {
        let [column, term] = axes.map(|axis| Index::var(axis as u32));
        let at = term.floor_div(i64::try_from(block).ok()?, &self.ranges);
        let blocks = k.div_ceil(block);
        [[padded, 1], [1, n]].into_iter().find_map(|strides| {
            let [by_column, by_block] = strides.map(|s| i64::try_from(s).ok());
            let expected = column.scale(by_column?).add(&at.scale(by_block?));
            // Of one block, columns may share it or not.
            (self.is(&expected) && (blocks > 1 || n > 1)).then(|| strides.map(|s| s as usize))
        })
    }
}

/// Whole numbers of a few bits, each in a byte or several in one.
#[derive(Clone)]
pub(super) struct Codes {
    data: TensorData,
    /// Bits of each of several in a byte, the low ones first.
    packed: Option<u64>,
}

impl Codes {
    pub fn dtype(&self) -> (DType, Option<u64>) {
        (self.data.dtype(), self.packed)
    }

    pub fn bits(&self) -> u64 {
        self.packed.unwrap_or(self.data.dtype().bits() as u64)
    }

    /// Codes in a byte.
    pub fn each(&self) -> u64 {
        self.packed.map_or(1, |bits| 8 / bits)
    }

    /// The bit to change that makes them unsigned, and larger by it.
    pub fn flip(&self) -> u8 {
        match self.data.dtype() {
            DType::I8 => 0x80,
            DType::I4 => 8,
            DType::I2 => 2,
            _ => 0,
        }
    }

    /// All of them, one in the low bits of each byte.
    pub fn unpacked(&self) -> Result<Bytes<'_>, ReadError> {
        let whole = self.data.content().whole()?;
        let Some(bits) = self.packed else { return Ok(Bytes::Whole(whole)) };
        let (each, mask) = (8 / bits as usize, (1u8 << bits) - 1);
        let mut codes = vec![0; whole.len() * each];
        for (to, byte) in codes.chunks_exact_mut(each).zip(whole.iter()) {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = byte >> (i as u64 * bits) & mask);
        }
        Ok(Bytes::Unpacked(codes))
    }
}

/// Codes, one in the low bits of each byte.
pub(super) enum Bytes<'a> {
    Whole(Part<'a>),
    Unpacked(Vec<u8>),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Whole(part) => part,
            Bytes::Unpacked(codes) => codes,
        }
    }
}

/// The constant of bytes whose numbers, `each` in a byte, a result of type `ty` has.
fn packed(graph: &Graph, v: Value, ty: &DenseType, each: u64) -> Option<TensorData> {
    let last = ty.rank().checked_sub(1)?;
    let NodeKind::Prim(Prim::View(view)) = &graph.node(v.node).kind else { return None };
    let bytes = graph.args(v.node)[0];
    let data = reshaped(graph, bytes)?;
    let mut dims = ty.dims.clone();
    let each = i64::try_from(each).ok()?;
    dims.set(last, ty.dims.at(last).sure_quotient(each)?);
    let own = graph.dense(bytes).ok()?;
    let same = own.dims == dims && data.dtype() == DType::U8 && view.fill.is_none() && view.map.len() == ty.rank();
    let var = |axis: usize| Index::var(axis as u32);
    let expected = |axis: usize| if axis == last { var(axis).floor_div(each, &ty.dims) } else { var(axis) };
    (same && view.map.iter().enumerate().all(|(axis, m)| *m == expected(axis))).then(|| data.clone())
}

/// The number of bits that a function takes of a byte: all, or the ones whose place is the remainder of the last coordinate.
fn unpacks(f: &ScalarFn, last: usize) -> Option<u64> {
    if f.inputs[..] != [DType::U8] || f.outputs.len() != 1 {
        return None;
    }
    [8, 4, 2].into_iter().find(|bits| {
        let each = 8 / bits;
        let remainder = (0..f.nodes.len()).find(|i| is_remainder(f, *i, last as u32, each));
        let mut fixed = f.clone();
        (0..each).all(|place| {
            if let Some(node) = remainder {
                fixed.nodes[node] = ScalarNode::Const(Scalar::i64(place as i64));
            }
            !reads_coordinates(&fixed)
                && (0..=u8::MAX).all(|byte| {
                    let input = Scalar { dtype: DType::U8, bits: byte.into() };
                    let expected = u64::from(byte) >> (place * bits) & ((1 << bits) - 1);
                    fixed.eval(&[input], &vec![0; last + 1])[0].as_f64() == expected as f64
                })
        })
    })
}

/// Whether a node is `c - c / each · each` of the coordinate c.
fn is_remainder(f: &ScalarFn, node: usize, axis: u32, each: u64) -> bool {
    let of = |id: ScalarId| &f.nodes[id.0 as usize];
    let coordinate = |id: ScalarId| *of(id) == ScalarNode::Coord(axis);
    let number = |id: ScalarId| *of(id) == ScalarNode::Const(Scalar::i64(each as i64));
    let operation = |node: &ScalarNode, op: ScalarOp| match node {
        ScalarNode::Op(found, args) if *found == op && args.len() == 2 => Some([args[0], args[1]]),
        _ => None,
    };
    let quotient = |id| operation(of(id), ScalarOp::Div).is_some_and(|[c, d]| coordinate(c) && number(d));
    let whole = |id| {
        operation(of(id), ScalarOp::Mul).is_some_and(|[a, b]| quotient(a) && number(b) || quotient(b) && number(a))
    };
    operation(&f.nodes[node], ScalarOp::Sub).is_some_and(|[c, rest]| coordinate(c) && whole(rest))
}

/// Whether the result depends on a coordinate.
fn reads_coordinates(f: &ScalarFn) -> bool {
    let mut stack = f.outputs.clone();
    let mut seen = vec![false; f.nodes.len()];
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut seen[id.0 as usize], true) {
            continue;
        }
        match &f.nodes[id.0 as usize] {
            ScalarNode::Coord(_) => return true,
            ScalarNode::Op(_, args) => stack.extend(args.iter().copied()),
            _ => {}
        }
    }
    false
}
