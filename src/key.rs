//! Exact descriptions of programs as bytes, by which they are found again.

use std::cell::Cell;

use tensorc_abi::content::Place;
use tensorc_ir::graph::Value;
use tensorc_ir::op::OpRef;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{DType, TensorData};
use tensorc_passes::parts::Required;
use tensorc_runtime::Device;
use tensorc_runtime::array::ArraySpace;

thread_local! {
    /// Memory of the last description, for the next: calls that are looked up allocate nothing.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A growing description. Every part begins with its length or kind, so that no two different
/// descriptions have the same bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramKey(Vec<u8>);

impl Drop for ProgramKey {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        _ = SPARE.try_with(|spare| spare.set(bytes));
    }
}

impl ProgramKey {
    /// Begins the description of a kind of program; in a cache of several, none is the beginning of another.
    pub fn of(kind: &str) -> ProgramKey {
        let mut bytes = SPARE.take();
        bytes.clear();
        bytes.extend_from_slice(kind.as_bytes());
        ProgramKey(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A count, a position, or anything else of 64 bits.
    pub fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    /// A byte, such as a kind.
    pub fn small(&mut self, n: u8) {
        self.0.push(n);
    }

    /// What code for a device is for: a driver's device, or processors.
    pub fn device(&mut self, space: &ArraySpace, device: Device) {
        self.number(if space.is_driven(device) { u64::from(device.id) + 1 } else { 0 });
    }

    /// What parts have whatever numbers tell.
    pub fn required(&mut self, required: &Required) {
        let Required { inputs, outputs, given, hosts, deciding } = required;
        for values in [inputs, outputs, deciding] {
            self.number(values.len() as u64);
            values.iter().for_each(|v| self.value(*v));
        }
        self.number(hosts.len() as u64);
        hosts.iter().for_each(|node| self.number(node.0.into()));
        self.number(given.len() as u64);
        for ((node, position), v) in given {
            [node.0.into(), *position as u64].into_iter().for_each(|n| self.number(n));
            self.value(*v);
        }
    }

    fn value(&mut self, v: Value) {
        [v.node.0.into(), v.port.into()].into_iter().for_each(|n| self.number(n));
    }

    /// Bytes, with their number.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// The operator, by its address: entries live as long as their registry.
    pub fn op(&mut self, def: &OpRef) {
        self.number(std::sync::Arc::as_ptr(def).addr() as u64);
    }

    /// The type of a tensor.
    pub fn ty(&mut self, dtype: DType, dims: &[u64]) {
        self.small(dtype as u8);
        self.number(dims.len() as u64);
        dims.iter().for_each(|d| self.number(*d));
    }

    /// A tensor, with its elements.
    pub fn tensor(&mut self, data: &TensorData) {
        self.ty(data.dtype(), data.dims());
        self.raw(data.bytes());
    }

    /// Where the elements of a tensor are.
    pub fn place(&mut self, place: Place) {
        let words = match place {
            Place::Memory(address, len) => [0, 0, address as u64, len as u64],
            Place::File(file, at, len) => [1, file, at, len as u64],
            Place::Computed(number, len) => [2, number as u64, (number >> 64) as u64, len as u64],
        };
        words.into_iter().for_each(|word| self.number(word));
    }

    /// The parameters of an operator.
    pub fn params(&mut self, params: &Params) {
        self.number(params.iter().count() as u64);
        for (name, value) in params.iter() {
            self.raw(name.as_bytes());
            self.param(value);
        }
    }

    fn param(&mut self, value: &ParamValue) {
        self.raw(value.kind().name().as_bytes());
        match value {
            ParamValue::Int(i) => self.number(*i as u64),
            ParamValue::Float(x) => self.number(x.to_bits()),
            ParamValue::Bool(b) => self.small(u8::from(*b)),
            ParamValue::Str(s) => self.raw(s.as_bytes()),
            ParamValue::DType(d) => self.small(*d as u8),
            ParamValue::Ints(list) => {
                self.number(list.len() as u64);
                list.iter().for_each(|i| self.number(*i as u64));
            }
            ParamValue::Floats(list) => {
                self.number(list.len() as u64);
                list.iter().for_each(|x| self.number(x.to_bits()));
            }
            ParamValue::Strs(list) => {
                self.number(list.len() as u64);
                list.iter().for_each(|s| self.raw(s.as_bytes()));
            }
            ParamValue::Tensor(data) => self.tensor(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dims: &[u64]) -> Vec<u8> {
        let mut key = ProgramKey::of("");
        key.ty(DType::F32, dims);
        key.0.clone()
    }

    #[test]
    fn lengths_are_told_apart() {
        assert_ne!(key(&[1; 257])[..8 + 1 + 8], key(&[1])[..]);
        let described = |params: &Params| {
            let mut key = ProgramKey::of("");
            key.params(params);
            key.0.clone()
        };
        let with = |value: ParamValue| described(&Params::new().with("a", value));
        let all = [
            described(&Params::new()),
            with(ParamValue::Int(1)),
            with(ParamValue::Float(f64::from_bits(1))),
            with(ParamValue::Ints(vec![1])),
            with(ParamValue::Ints(vec![])),
            with(ParamValue::Str("a".into())),
            with(ParamValue::Strs(vec!["a".into()])),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }
}
