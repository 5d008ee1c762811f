//! Sequences whose length a run decides: two tensors hold what is in them, the elements of all tensors one after the other, and
//! their shapes. So operators on sequences become operators on tensors, and loops carry sequences.

use std::rc::Rc;
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;

use super::error::OnnxError;
use super::import::Importer;
use super::lists::integer;
use super::meaning::Meaning;
use super::proto::NodeProto;
use super::scope::CommonType;
use super::unsupported::{Stop, UNDECIDED, unsupported};
use super::upgrade::int;
use super::writer::{NodeWriter, ints};

const DIFFERENT: &str = "a sequence whose length a run decides has tensors of different element types or ranks";

/// A sequence of tensors of one element type and rank.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// A tensor with one axis: the elements of the tensors, one tensor after the other, each row by row.
    pub elements: Rc<str>,
    /// Their shapes: i64, `[length, rank]`.
    pub shapes: Rc<str>,
    /// What is known of the type of each.
    pub element: CommonType,
}

impl Packed {
    /// The types of the two tensors of a sequence of such elements.
    pub fn types(element: &CommonType) -> [CommonType; 2] {
        let elements = CommonType { dtype: element.dtype, dims: vec![None] };
        [elements, CommonType { dtype: DType::I64, dims: vec![None, Some(element.dims.len() as u64)] }]
    }
}

impl From<Packed> for Meaning {
    fn from(list: Packed) -> Meaning {
        Meaning::Packed(Rc::new(list))
    }
}

impl Importer<'_> {
    /// What an operator on sequences gives where a run decides lengths or positions.
    pub(super) fn packed_result(
        &mut self,
        node: &NodeProto,
        operands: &[Meaning],
        label: &Arc<str>,
    ) -> Result<Meaning, Stop> {
        if node.op_type() == "SplitToSequence" {
            return self.packed_split(node, label);
        }
        let (Some(list), count) = (operands.first(), operands.len()) else { return unsupported(UNDECIDED) };
        let list = self.packed(list, label)?;
        let position = node.input.get(if node.op_type() == "SequenceInsert" { 2 } else { 1 });
        let position = position.filter(|name| !name.is_empty()).map(String::as_str);
        let mut w = PackedWriter(NodeWriter { importer: self, label });
        match (node.op_type(), position) {
            ("SequenceLength", _) => {
                let length = w.length(&list)?;
                let length = w.0.node("Squeeze", &[&length], vec![])?;
                Ok(self.meaning(&length)?)
            }
            ("SequenceAt", Some(position)) => {
                let tensor = w.at(&list, position)?;
                Ok(self.meaning(&tensor)?)
            }
            ("SequenceInsert", position) if count > 1 => {
                let tensor = w.0.importer.pack_one(&node.input[1], label)?;
                let Some(element) = list.element.with(&tensor.element) else { return unsupported(DIFFERENT) };
                let mut w = PackedWriter(NodeWriter { importer: self, label });
                let (elements, shapes) = w.insert(&list, &tensor, position)?;
                Ok(Packed { elements, shapes, element }.into())
            }
            ("SequenceErase", position) => {
                let (elements, shapes) = w.erase(&list, position)?;
                Ok(Packed { elements, shapes, element: list.element.clone() }.into())
            }
            ("ConcatFromSequence", _) => {
                let Some(axis) = integer(node, "axis") else { return unsupported("attribute `axis` is missing") };
                let is_new = integer(node, "new_axis").unwrap_or(0) != 0;
                let rank = list.element.dims.len() as i64 + i64::from(is_new);
                if !(-rank..rank).contains(&axis) {
                    return unsupported(&format!("it goes along axis {axis} of a tensor of rank {rank}"));
                }
                let joined = w.joined(&list, axis.rem_euclid(rank) as usize, is_new)?;
                Ok(self.meaning(&joined)?)
            }
            ("Identity" | "Optional" | "OptionalGetElement", _) => Ok(list.into()),
            ("OptionalHasElement", _) => {
                let there = w.0.constant(TensorData::scalar(Scalar::bool(true)));
                Ok(self.meaning(&there)?)
            }
            (name, _) => unsupported(&format!("{name} of a sequence whose length a run decides")),
        }
    }

    /// A sequence as two tensors.
    pub(super) fn packed(&mut self, list: &Meaning, label: &Arc<str>) -> Result<Packed, Stop> {
        match list {
            Meaning::Packed(list) => Ok(Packed::clone(list)),
            Meaning::Sequence(tensors) => {
                let (mut elements, mut shapes, mut common): (Vec<Rc<str>>, Vec<Rc<str>>, Option<CommonType>) =
                    (vec![], vec![], None);
                for name in tensors.iter() {
                    let one = self.pack_one(name, label)?;
                    common = match common {
                        None => Some(one.element),
                        Some(common) => Some(common.with(&one.element).map_or_else(|| unsupported(DIFFERENT), Ok)?),
                    };
                    elements.push(one.elements);
                    shapes.push(one.shapes);
                }
                let Some(element) = common else { return unsupported("its sequence is empty") };
                let mut w = PackedWriter(NodeWriter { importer: self, label });
                let (elements, shapes) = (w.concat(&elements, 0)?, w.concat(&shapes, 0)?);
                Ok(Packed { elements, shapes, element })
            }
            _ => unsupported("its operand is not a sequence"),
        }
    }

    /// A sequence of no tensor.
    pub(super) fn packed_empty(&mut self, element: &CommonType, label: &Arc<str>) -> Packed {
        let mut writer = NodeWriter { importer: self, label };
        let elements = writer.constant(TensorData::splat(&[0], Scalar::zero(element.dtype))).into();
        let none = [0, element.dims.len() as u64];
        let shapes = writer.constant(TensorData::splat(&none, Scalar::i64(0))).into();
        Packed { elements, shapes, element: element.clone() }
    }

    /// A sequence of one tensor.
    fn pack_one(&mut self, name: &str, label: &Arc<str>) -> Result<Packed, Stop> {
        let element = self.common_type(name)?;
        let mut w = PackedWriter(NodeWriter { importer: self, label });
        let elements = w.flat(name)?;
        let shape = w.0.node("Shape", &[name], vec![])?;
        Ok(Packed { elements, shapes: w.unsqueezed(&shape, 0)?, element })
    }

    /// A tensor along an axis, divided into as many parts as a run finds.
    fn packed_split(&mut self, node: &NodeProto, label: &Arc<str>) -> Result<Meaning, Stop> {
        let Some(name) = node.input.first() else { return unsupported("it has no operand") };
        let axis = integer(node, "axis").unwrap_or(0);
        let rank = self.axis_in(name, axis)?;
        let axis = axis.rem_euclid(rank) as usize;
        let whole = self.common_type(name)?;
        let sizes = node.input.get(1).filter(|sizes| !sizes.is_empty());
        let keeps = sizes.is_some() || integer(node, "keepdims") != Some(0);
        let is_scalar = match sizes {
            Some(sizes) => self.common_type(sizes)?.dims.is_empty(),
            None => false,
        };
        if axis > 0 && sizes.is_some() {
            return unsupported("a run decides how it divides a tensor, along another axis than the first");
        }
        let front = self.along_first(name, axis as i64, label)?;
        let mut element = whole;
        let mut w = PackedWriter(NodeWriter { importer: self, label });
        let elements = w.flat(&front)?;
        let shape = w.0.node("Shape", &[name], vec![])?;
        let extent = w.piece(&shape, axis)?;
        let (parts, count) = match sizes {
            None => (None::<Rc<str>>, extent),
            Some(sizes) => {
                let sizes: Rc<str> = w.0.node("Cast", &[sizes], vec![int("to", I64)])?.into();
                let sizes = match is_scalar {
                    true => w.chunks(&extent, &sizes)?,
                    false => w.sizes_of(&extent, &sizes)?,
                };
                let count = w.op("Shape", &[&sizes])?;
                (Some(sizes), count)
            }
        };
        let mut columns = vec![];
        for (i, dim) in element.dims.iter_mut().enumerate() {
            if i == axis {
                *dim = if sizes.is_none() { Some(1) } else { None };
            }
            match (&parts, i == axis) {
                (_, true) if !keeps => {}
                (Some(parts), true) => columns.push(w.unsqueezed(parts, 1)?),
                _ => {
                    let one = w.0.i64s(&[1]);
                    let extent = if i == axis { one.into() } else { w.piece(&shape, i)? };
                    columns.push(w.repeated(&extent, &count)?);
                }
            }
        }
        if !keeps {
            element.dims.remove(axis);
        }
        let shapes = match columns.is_empty() {
            false => w.concat(&columns, 1)?,
            true => {
                let none = w.0.constant(TensorData::splat(&[1, 0], Scalar::i64(0)));
                let dims = w.0.i64s(&[0]);
                let dims = w.concat(&[count, dims.into()], 0)?;
                w.op("Expand", &[&none, &dims])?
            }
        };
        Ok(Packed { elements, shapes, element }.into())
    }
}

/// The number of i64 in ONNX's list of element types.
const I64: i64 = 7;

/// Writes nodes on the tensors of sequences. What it calls a number is an i64 tensor with one element along one axis.
struct PackedWriter<'a, 'b>(NodeWriter<'a, 'b>);

impl PackedWriter<'_, '_> {
    fn op(&mut self, op: &str, inputs: &[&str]) -> Result<Rc<str>, OnnxError> {
        Ok(self.0.node(op, inputs, vec![])?.into())
    }

    fn concat(&mut self, parts: &[Rc<str>], axis: i64) -> Result<Rc<str>, OnnxError> {
        match parts {
            [part] => Ok(part.clone()),
            _ => {
                let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
                Ok(self.0.node("Concat", &parts, vec![int("axis", axis)])?.into())
            }
        }
    }

    fn flat(&mut self, tensor: &str) -> Result<Rc<str>, OnnxError> {
        let all = self.0.i64s(&[-1]);
        self.op("Reshape", &[tensor, &all])
    }

    fn unsqueezed(&mut self, tensor: &str, axis: i64) -> Result<Rc<str>, OnnxError> {
        let axes = self.0.i64s(&[axis]);
        self.op("Unsqueeze", &[tensor, &axes])
    }

    /// Elements from one number to another along the first axis.
    fn slice(&mut self, tensor: &str, from: &str, to: &str) -> Result<Rc<str>, OnnxError> {
        let front = self.0.i64s(&[0]);
        self.op("Slice", &[tensor, from, to, &front])
    }

    /// A tensor of a computed shape, in which 0 means 0.
    fn reshaped(&mut self, tensor: &str, shape: &str) -> Result<Rc<str>, OnnxError> {
        Ok(self.0.node("Reshape", &[tensor, shape], vec![int("allowzero", 1)])?.into())
    }

    /// The number at a position of a list of numbers.
    fn piece(&mut self, list: &str, i: usize) -> Result<Rc<str>, OnnxError> {
        let [from, to] = [i, i + 1].map(|n| n as i64);
        let (from, to) = (self.0.i64s(&[from]), self.0.i64s(&[to]));
        self.slice(list, &from, &to)
    }

    /// A number so many times, below each other: `[count, 1]`.
    fn repeated(&mut self, number: &str, count: &str) -> Result<Rc<str>, OnnxError> {
        let all = self.op("Expand", &[number, count])?;
        self.unsqueezed(&all, 1)
    }

    fn reduced(&mut self, op: &str, tensor: &str, axis: i64, keeps: bool) -> Result<Rc<str>, OnnxError> {
        let axes = self.0.i64s(&[axis]);
        Ok(self.0.node(op, &[tensor, &axes], vec![int("keepdims", keeps.into())])?.into())
    }

    /// How many tensors there are, as a number.
    fn length(&mut self, list: &Packed) -> Result<Rc<str>, OnnxError> {
        Ok(self.0.node("Shape", &[&list.shapes], vec![int("start", 0), int("end", 1)])?.into())
    }

    /// Numbers from 0 on, as many as a number says.
    fn counted(&mut self, count: &str) -> Result<Rc<str>, OnnxError> {
        let count = self.op("Squeeze", &[count])?;
        let [none, one] = [0, 1].map(|n| self.0.constant(TensorData::scalar(Scalar::i64(n))));
        self.op("Range", &[&none, &count, &one])
    }

    /// A position as a number below `count`: negative ones count from the end of `length`. What is outside is an error of the run.
    fn position(&mut self, name: &str, length: &str, count: &str) -> Result<Rc<str>, OnnxError> {
        let given = self.0.node("Cast", &[name], vec![int("to", I64)])?;
        let given = self.flat(&given)?;
        let none = self.0.i64s(&[0]);
        let from_end = self.op("Add", &[&given, length])?;
        let is_negative = self.op("Less", &[&given, &none])?;
        let position = self.op("Where", &[&is_negative, &from_end, &given])?;
        let is_negative = self.op("Less", &[&position, &none])?;
        let position = self.op("Where", &[&is_negative, count, &position])?;
        let all = self.counted(count)?;
        self.op("Gather", &[&all, &position])
    }

    /// The numbers of elements of the tensors before one, and up to and with it.
    fn span(&mut self, list: &Packed, position: &str) -> Result<[Rc<str>; 2], OnnxError> {
        let (none, one) = (self.0.i64s(&[0]), self.0.i64s(&[1]));
        let sizes = self.reduced("ReduceProd", &list.shapes, 1, false)?;
        let next = self.op("Add", &[position, &one])?;
        let [before, with] = [position, &next].map(|to| {
            let sizes = self.slice(&sizes, &none, to)?;
            self.reduced("ReduceSum", &sizes, 0, true)
        });
        Ok([before?, with?])
    }

    /// The tensor at a position.
    fn at(&mut self, list: &Packed, position: &str) -> Result<Rc<str>, OnnxError> {
        let length = self.length(list)?;
        let position = self.position(position, &length, &length)?;
        if let Some(dims) = fixed(&list.element.dims) {
            let all = self.stack(list, &dims)?;
            let scalar = self.op("Squeeze", &[&position])?;
            return self.op("Gather", &[&all, &scalar]);
        }
        let [from, to] = self.span(list, &position)?;
        let part = self.slice(&list.elements, &from, &to)?;
        let row = self.op("Gather", &[&list.shapes, &position])?;
        let shape = self.shape(&list.element.dims, &row)?;
        self.reshaped(&part, &shape)
    }

    /// Tensors that all have the same known shape, with elements, along a new first axis.
    fn stack(&mut self, list: &Packed, dims: &[i64]) -> Result<Rc<str>, OnnxError> {
        let dims: Vec<i64> = [-1].into_iter().chain(dims.iter().copied()).collect();
        let dims = self.0.i64s(&dims);
        self.op("Reshape", &[&list.elements, &dims])
    }

    /// A shape, of which some extents are known, and which all stand in a row `[1, rank]`.
    fn shape(&mut self, known: &[Option<u64>], row: &str) -> Result<Rc<str>, OnnxError> {
        self.shape_with(known, row, None)
    }

    /// As [`PackedWriter::shape`], with the extent of an axis.
    fn shape_with(
        &mut self,
        known: &[Option<u64>],
        row: &str,
        with: Option<(usize, Rc<str>)>,
    ) -> Result<Rc<str>, OnnxError> {
        let row = self.flat(row)?;
        let mut dims = vec![];
        for (i, known) in known.iter().enumerate() {
            dims.push(match (&with, known) {
                (Some((axis, extent)), _) if i == *axis => extent.clone(),
                (_, Some(n)) => self.0.i64s(&[*n as i64]).into(),
                (_, None) => self.piece(&row, i)?,
            });
        }
        if dims.is_empty() { Ok(row) } else { self.concat(&dims, 0) }
    }

    fn insert(&mut self, list: &Packed, one: &Packed, at: Option<&str>) -> Result<(Rc<str>, Rc<str>), OnnxError> {
        let Some(at) = at else {
            let elements = self.concat(&[list.elements.clone(), one.elements.clone()], 0)?;
            return Ok((elements, self.concat(&[list.shapes.clone(), one.shapes.clone()], 0)?));
        };
        let (none, end, more) = (self.0.i64s(&[0]), self.0.i64s(&[i64::MAX]), self.0.i64s(&[1]));
        let length = self.length(list)?;
        let count = self.op("Add", &[&length, &more])?;
        let at = self.position(at, &length, &count)?;
        let [before, _] = self.span(list, &at)?;
        let [elements, shapes] =
            [(&list.elements, &one.elements, &before), (&list.shapes, &one.shapes, &at)].map(|(all, one, at)| {
                let parts = [self.slice(all, &none, at)?, one.clone(), self.slice(all, at, &end)?];
                self.concat(&parts, 0)
            });
        Ok((elements?, shapes?))
    }

    fn erase(&mut self, list: &Packed, at: Option<&str>) -> Result<(Rc<str>, Rc<str>), OnnxError> {
        let (none, end, more) = (self.0.i64s(&[0]), self.0.i64s(&[i64::MAX]), self.0.i64s(&[1]));
        let (last, length) = (self.0.i64s(&[-1]), self.length(list)?);
        let at = self.position(at.unwrap_or(&last), &length, &length)?;
        let next = self.op("Add", &[&at, &more])?;
        let [before, with] = self.span(list, &at)?;
        let [elements, shapes] =
            [(&list.elements, &before, &with), (&list.shapes, &at, &next)].map(|(all, from, to)| {
                let parts = [self.slice(all, &none, from)?, self.slice(all, to, &end)?];
                self.concat(&parts, 0)
            });
        Ok((elements?, shapes?))
    }

    /// All tensors one after the other along an axis, which may be a new one.
    fn joined(&mut self, list: &Packed, axis: usize, is_new: bool) -> Result<Rc<str>, OnnxError> {
        let (mut dims, mut shapes) = (list.element.dims.clone(), list.shapes.clone());
        if let Some(known) = fixed(&dims).filter(|_| is_new) {
            let all = self.stack(list, &known)?;
            let order: Vec<i64> = (1..=axis).chain([0]).chain(axis + 1..=dims.len()).map(|n| n as i64).collect();
            return Ok(self.0.node("Transpose", &[&all], vec![ints("perm", &order)])?.into());
        }
        if is_new {
            let (length, one) = (self.length(list)?, self.0.i64s(&[1]));
            let ones = self.repeated(&one, &length)?;
            let [before, behind] = [(0, axis as i64), (axis as i64, i64::MAX)].map(|(from, to)| {
                let (from, to, along) = (self.0.i64s(&[from]), self.0.i64s(&[to]), self.0.i64s(&[1]));
                self.op("Slice", &[&shapes, &from, &to, &along])
            });
            shapes = self.concat(&[before?, ones, behind?], 1)?;
            dims.insert(axis, Some(1));
        }
        let first = self.0.i64s(&[0]);
        let row = self.op("Gather", &[&shapes, &first])?;
        let row = self.alike(&shapes, &row, &dims, axis)?;
        let list = Packed { shapes, element: CommonType { dims, ..list.element.clone() }, ..list.clone() };
        if list.element.dims[..axis].iter().all(|n| *n == Some(1)) {
            let rest = list.element.dims.iter().enumerate().map(|(i, n)| if i == axis { Some(1) } else { *n });
            let extent = match fixed(&rest.collect::<Vec<_>>()) {
                Some(_) => self.0.i64s(&[-1]).into(),
                None => {
                    let extents = self.column(&list, axis)?;
                    self.reduced("ReduceSum", &extents, 0, true)?
                }
            };
            let shape = self.shape_with(&list.element.dims, &row, Some((axis, extent)))?;
            return self.reshaped(&list.elements, &shape);
        }
        self.side_by_side(&list, &row, axis)
    }

    /// The extents of the tensors along an axis.
    fn column(&mut self, list: &Packed, axis: usize) -> Result<Rc<str>, OnnxError> {
        let axis = self.0.constant(TensorData::scalar(Scalar::i64(axis as i64)));
        Ok(self.0.node("Gather", &[&list.shapes, &axis], vec![int("axis", 1)])?.into())
    }

    /// The shape of the first tensor, a row, which all others have but for one axis; else it is an error of the run.
    fn alike(&mut self, shapes: &str, row: &str, dims: &[Option<u64>], axis: usize) -> Result<Rc<str>, OnnxError> {
        let differs = |i: usize| i != axis && dims[i].is_none();
        if !(0..dims.len()).any(differs) {
            return Ok(row.into());
        }
        let counted: Vec<i64> = (0..dims.len()).map(|i| i64::from(differs(i))).collect();
        let counted = self.0.i64s(&counted);
        let distance = self.op("Sub", &[shapes, row])?;
        let distance = self.op("Mul", &[&distance, &counted])?;
        let none = self.none_of(&distance)?;
        self.op("Add", &[row, &none])
    }

    /// The number 0 if all elements of a tensor are 0; else it is an error of the run.
    fn none_of(&mut self, tensor: &str) -> Result<Rc<str>, OnnxError> {
        let sizes = self.op("Abs", &[tensor])?;
        let sum = self.0.node("ReduceSum", &[&sizes], vec![int("keepdims", 0)])?;
        let (one, none) = (self.0.i64s(&[1]), self.0.i64s(&[0]));
        let sum = self.op("Min", &[&sum, &one])?;
        self.op("Gather", &[&none, &sum])
    }

    /// Tensors side by side along an axis: each element of the result is gathered from where it lies in its tensor.
    fn side_by_side(&mut self, list: &Packed, row: &str, axis: usize) -> Result<Rc<str>, OnnxError> {
        let dims = &list.element.dims;
        let sizes = self.reduced("ReduceProd", &list.shapes, 1, false)?;
        let extents = self.column(list, axis)?;
        let [starts, offsets] = [&extents, &sizes].map(|sizes| {
            let first = self.0.constant(TensorData::scalar(Scalar::i64(0)));
            Ok::<Rc<str>, OnnxError>(self.0.node("CumSum", &[sizes, &first], vec![int("exclusive", 1)])?.into())
        });
        let (starts, offsets) = (starts?, offsets?);
        let total = self.reduced("ReduceSum", &extents, 0, true)?;
        // The tensor at each position along the axis: so many end there or before.
        let positions = self.counted(&total)?;
        let ends = self.op("Add", &[&starts, &extents])?;
        let [below, ends] = [(&positions, 1), (&ends, 0)].map(|(tensor, axis)| self.unsqueezed(tensor, axis));
        let ended = self.op("GreaterOrEqual", &[&below?, &ends?])?;
        let ended = self.0.node("Cast", &[&ended], vec![int("to", I64)])?;
        let tensor = self.reduced("ReduceSum", &ended, 1, false)?;
        let [extent, start, offset] = [&extents, &starts, &offsets].map(|all| self.op("Gather", &[all, &tensor]));
        let local = self.op("Sub", &[&positions, &start?])?;
        // Rows before the axis, elements behind it.
        let one = self.0.i64s(&[1]);
        let front = self.shape_with(dims, row, Some((axis, one.into())))?;
        let [rows, inner] = [(0, axis), (axis + 1, dims.len())].map(|(from, to)| {
            let (from, to) = (self.0.i64s(&[from as i64]), self.0.i64s(&[to as i64]));
            let part = self.slice(&front, &from, &to)?;
            let count = self.reduced("ReduceProd", &part, 0, true)?;
            Ok::<_, OnnxError>((self.counted(&count)?, count))
        });
        let ((rows, _), (inner, per_row)) = (rows?, inner?);
        let rows = self.unsqueezed(&rows, 1)?;
        let above = self.op("Mul", &[&rows, &extent?])?;
        let lines = self.op("Add", &[&above, &local])?;
        let lines = self.op("Mul", &[&lines, &per_row])?;
        let lines = self.op("Add", &[&lines, &offset?])?;
        let lines = self.unsqueezed(&lines, 2)?;
        let places = self.op("Add", &[&lines, &inner])?;
        let elements = self.op("Gather", &[&list.elements, &places])?;
        let shape = self.shape_with(dims, row, Some((axis, total)))?;
        self.reshaped(&elements, &shape)
    }

    /// Sizes whose sum is an extent; else it is an error of the run.
    fn sizes_of(&mut self, extent: &str, sizes: &str) -> Result<Rc<str>, OnnxError> {
        let sum = self.reduced("ReduceSum", sizes, 0, true)?;
        let missing = self.op("Sub", &[&sum, extent])?;
        let none = self.none_of(&missing)?;
        self.op("Add", &[sizes, &none])
    }

    /// Sizes of the parts of an extent: all the same but for the last.
    fn chunks(&mut self, extent: &str, size: &str) -> Result<Rc<str>, OnnxError> {
        let (size, one) = (self.flat(size)?, self.0.i64s(&[1]));
        let most = self.op("Add", &[extent, &size])?;
        let most = self.op("Sub", &[&most, &one])?;
        let count = self.op("Div", &[&most, &size])?;
        let numbers = self.counted(&count)?;
        let starts = self.op("Mul", &[&numbers, &size])?;
        let left = self.op("Sub", &[extent, &starts])?;
        self.op("Min", &[&left, &size])
    }
}

/// Extents that are all known, of tensors with elements.
fn fixed(dims: &[Option<u64>]) -> Option<Vec<i64>> {
    dims.iter().map(|n| n.filter(|n| *n > 0).map(|n| n as i64)).collect()
}
