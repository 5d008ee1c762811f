//! The arrays that initialisers make.

use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, TensorData};
use tensorc_runtime::Device;

use super::{FanFactor, InitValue, RandomKind, Variable};
use crate::error::{Error, TrainError};
use tensorc::{DType, Tensor};
use tensorc_nd::{NDArray, Runtime};

/// Where an array is made, and for what.
pub struct InitTarget<'a> {
    pub rt: &'a Runtime,
    pub device: Device,
    pub variable: Variable<'a>,
}

impl InitTarget<'_> {
    pub fn error(&self, why: impl Into<String>) -> TrainError {
        TrainError::Initial { variable: self.variable.name.to_owned(), why: why.into() }
    }

    pub fn full(&self, value: f64) -> Result<NDArray, Error> {
        Ok(self.rt.full(self.device, self.variable.dtype, self.variable.dims, value)?)
    }

    /// Elements given by their position.
    fn by_position(&self, mut f: impl FnMut(u64) -> f64) -> Result<NDArray, Error> {
        let dtype = self.variable.dtype;
        let data = TensorData::from_fn(DenseType::new(dtype, self.variable.dims), |i| Scalar::from_f64(dtype, f(i)));
        Ok(self.rt.from_tensor(&Tensor::from(data), self.device)?)
    }

    /// Uniform in `[-c, c)`, or normal with standard deviation `c`.
    pub fn random(&self, kind: RandomKind, c: f64, dims: &[u64], dtype: DType) -> Result<NDArray, Error> {
        let shape: Vec<i64> = dims.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
        let call = match kind {
            RandomKind::Uniform => self.rt.op("random_uniform")?.param("low", -c).param("high", c),
            RandomKind::Gaussian => self.rt.op("random_normal")?.param("mean", 0.0).param("scale", c),
        };
        Ok(call.param("shape", shape).param("dtype", dtype).on(self.device).invoke()?)
    }

    pub fn xavier(&self, kind: RandomKind, factor: FanFactor, magnitude: f64) -> Result<NDArray, Error> {
        let dims = self.variable.dims;
        let [first, second, kernel @ ..] = dims else {
            return Err(self.error(format!("it has shape {dims:?}, Xavier needs two axes")).into());
        };
        let kernel: f64 = kernel.iter().map(|d| *d as f64).product();
        let (inputs, outputs) = (*second as f64 * kernel, *first as f64 * kernel);
        let fan = match factor {
            FanFactor::Avg => (inputs + outputs) / 2.0,
            FanFactor::In => inputs,
            FanFactor::Out => outputs,
        };
        self.random(kind, (magnitude / fan).sqrt(), dims, self.variable.dtype)
    }

    pub fn orthogonal(&self, scale: f64, kind: RandomKind) -> Result<NDArray, Error> {
        let dims = self.variable.dims;
        let Some(rows) = dims.first().map(|d| *d as usize) else {
            return Err(self.error("it is a number; orthogonal rows need an axis").into());
        };
        let columns = dims[1..].iter().product::<u64>() as usize;
        let drawn = self.random(kind, 1.0, &[(rows * columns) as u64], DType::F64)?.to_vec::<f64>()?;
        // The shorter side becomes the vectors that are made orthogonal to each other.
        let vectors = rows.min(columns);
        let length = rows.max(columns);
        let at = |vector: usize, i: usize| match rows <= columns {
            true => vector * columns + i,
            false => i * columns + vector,
        };
        let mut basis: Vec<Vec<f64>> = (0..vectors).map(|v| (0..length).map(|i| drawn[at(v, i)]).collect()).collect();
        orthonormalise(&mut basis);
        self.by_position(|position| {
            let (row, column) = (position as usize / columns, position as usize % columns);
            let (vector, i) = if rows <= columns { (row, column) } else { (column, row) };
            scale * basis[vector][i]
        })
    }

    pub fn bilinear(&self) -> Result<NDArray, Error> {
        let [.., height, width] = *self.variable.dims else {
            return Err(self.error("it has less than two axes, interpolation needs them").into());
        };
        let f = (width as f64 / 2.0).ceil();
        let center = (2.0 * f - 1.0 - f % 2.0) / (2.0 * f);
        let along = |i: u64| 1.0 - (i as f64 / f - center).abs();
        self.by_position(|position| along(position % width) * along(position / width % height))
    }

    pub fn lstm_bias(&self, forget: f64) -> Result<NDArray, Error> {
        let &[gates] = self.variable.dims else {
            return Err(self.error("it is not a vector, as the bias of an LSTM is").into());
        };
        let hidden = gates / 4;
        self.by_position(|i| if (hidden..2 * hidden).contains(&i) { forget } else { 0.0 })
    }

    pub fn constant(&self, value: &InitValue) -> Result<NDArray, Error> {
        let mut numbers = vec![];
        value.flatten(&mut numbers);
        let elements: u64 = self.variable.dims.iter().product();
        match numbers[..] {
            [one] => self.full(one),
            _ if numbers.len() as u64 == elements => self.by_position(|i| numbers[i as usize]),
            _ => Err(self.error(format!("{} numbers do not fill {:?}", numbers.len(), self.variable.dims)).into()),
        }
    }
}

impl InitValue {
    fn flatten(&self, to: &mut Vec<f64>) {
        match self {
            InitValue::One(x) => to.push(*x),
            InitValue::List(list) => list.iter().for_each(|n| n.flatten(to)),
        }
    }
}

/// Gram-Schmidt, each vector twice: once is not enough for vectors that are nearly parallel.
fn orthonormalise(basis: &mut [Vec<f64>]) {
    for v in 0..basis.len() {
        let (before, rest) = basis.split_at_mut(v);
        let vector = &mut rest[0];
        for other in before.iter().chain(before.iter()) {
            let overlap: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(other).for_each(|(a, b)| *a -= overlap * b);
        }
        let length = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|a| *a /= length);
    }
}
