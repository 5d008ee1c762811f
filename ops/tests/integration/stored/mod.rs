//! The cases of `data/mxnet.txt`: an operator, its parameters, operands, results, and gradients.

use tensorc_ir::op::OpDef;
use tensorc_ir::params::{ParamKind, ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

#[derive(Default)]
pub struct Case {
    pub op: String,
    tolerance: Option<f64>,
    settings: Vec<(String, String)>,
    pub inputs: Vec<(String, TensorData)>,
    pub outputs: Vec<TensorData>,
    /// By operand.
    pub gradients: Vec<(String, TensorData)>,
}

pub fn cases() -> Vec<Case> {
    let text = include_str!("../data/mxnet.txt");
    let mut all = vec![];
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap();
        if word == "op" {
            all.push(Case { op: rest.to_owned(), ..Case::default() });
            continue;
        }
        let case: &mut Case = all.last_mut().unwrap();
        let named = || rest.split_once(' ').map(|(name, t)| (name.to_owned(), tensor(t))).unwrap();
        match word {
            "tol" => case.tolerance = Some(rest.parse().unwrap()),
            "param" => {
                let pairs = rest.split(' ').map(|p| p.split_once('=').unwrap());
                case.settings = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            }
            "in" => case.inputs.push(named()),
            "out" => case.outputs.push(tensor(rest)),
            "grad" => case.gradients.push(named()),
            other => panic!("{other}"),
        }
    }
    all
}

fn dtype(name: &str) -> DType {
    match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        other => panic!("{other}"),
    }
}

/// `float32 [2,3] 1 2 3 4 5 6`.
fn tensor(text: &str) -> TensorData {
    let mut words = text.split(' ');
    let dtype = dtype(words.next().unwrap());
    let dims = words.next().unwrap().trim_matches(|c| c == '[' || c == ']');
    let dims: Vec<u64> = dims.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().unwrap()).collect();
    let values: Vec<f64> = words.filter(|w| !w.is_empty()).map(|w| w.parse().unwrap()).collect();
    TensorData::from_fn(DenseType::new(dtype, &dims), |i| Scalar::from_f64(dtype, values[i as usize]))
}

fn param(text: &str, kind: ParamKind) -> ParamValue {
    let (tag, text) = text.split_once(':').unwrap();
    let ints = || text.split(',').filter(|x| !x.is_empty()).map(|x| x.parse().unwrap()).collect();
    match (tag, kind) {
        ("i", _) if text == "none" => ParamValue::Int(ParamValue::NONE),
        ("i", ParamKind::Float) => ParamValue::Float(text.parse().unwrap()),
        ("i", ParamKind::Ints) => ParamValue::Ints(ints()),
        ("i", _) => ParamValue::Int(text.parse().unwrap()),
        ("f", _) => ParamValue::Float(text.parse().unwrap()),
        ("b", _) => ParamValue::Bool(text == "1"),
        ("I", _) => ParamValue::Ints(ints()),
        ("F", _) => ParamValue::Floats(text.split(',').map(|x| x.parse().unwrap()).collect()),
        ("d", _) => ParamValue::DType(dtype(text)),
        _ => ParamValue::Str(text.to_owned()),
    }
}

impl Case {
    pub fn title(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
        format!("{}({})", self.op, settings.join(" "))
    }

    pub fn params(&self, def: &OpDef) -> Params {
        self.settings.iter().fold(Params::new(), |params, (name, value)| {
            let spec = def.params.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("{name} of {}", self.op));
            params.with(spec.name, param(value, spec.kind))
        })
    }

    /// Operands by formal position, each made by `place`.
    pub fn operands<V: Copy>(&self, def: &OpDef, mut place: impl FnMut(&str, &TensorData) -> V) -> Vec<Option<V>> {
        let given: Vec<V> = self.inputs.iter().map(|(name, t)| place(name, t)).collect();
        if def.variadic {
            return given.into_iter().map(Some).collect();
        }
        let find = |name: &str| self.inputs.iter().position(|(n, _)| n == name).map(|i| given[i]);
        let formal: Vec<Option<V>> = def.inputs.iter().map(|spec| find(spec.name)).collect();
        assert_eq!(formal.iter().flatten().count(), given.len(), "operands of {}", self.op);
        formal
    }

    /// Where results differ from the stored ones.
    pub fn differences(&self, found: &[TensorData]) -> Vec<String> {
        let pairs = found.iter().zip(&self.outputs).enumerate();
        pairs.filter_map(|(i, (f, e))| self.difference(&format!("result {i}"), f, e)).collect()
    }

    pub fn difference(&self, what: &str, found: &TensorData, expected: &TensorData) -> Option<String> {
        let title = self.title();
        if found.ty != expected.ty {
            return Some(format!("{title}, {what}: {}, expected {}", found.ty, expected.ty));
        }
        let (f, e) = (found.to_f64s(), expected.to_f64s());
        let tolerance = self.tolerance.unwrap_or(2e-6);
        let close =
            |(f, e): (&f64, &f64)| f == e || (f - e).abs() <= tolerance * e.abs().max(1.0) || f.is_nan() && e.is_nan();
        let fine = f.iter().zip(&e).all(close);
        (!fine).then(|| format!("{title}, {what}: {f:?}, expected {e:?}"))
    }
}
