//! Rust bindings of a compiled model: a module with its signature in types, for programs that link it.

use std::collections::BTreeSet;
use std::fmt::Write;

use tensorc_abi::DType;
use tensorc_runtime::artifact::{Manifest, TensorInfo};

/// Words that are no names in Rust.
const KEYWORDS: &str = " as async await break const continue crate dyn else enum extern false fn for gen if impl in let \
    loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while \
    abstract become box do final macro override priv try typeof unsized virtual yield ";

/// The text of the bindings. They name the crate `tensorc_runtime` and hold no unsafe code.
pub fn write(manifest: &Manifest) -> String {
    let bindings = Bindings::new(manifest);
    let mut rs = format!("// Bindings of the model `{}`, written by tensorc {}.\n\n", manifest.name, manifest.compiler);
    let _ = write!(
        rs,
        "/// The model `{name}`, compiled ahead of time for `{target}`.\n\
         #[allow(dead_code, unreachable_pub, unused_imports, reason = \"a program uses a part\")]\n\
         pub mod {module} {{\n",
        name = manifest.name,
        target = manifest.target,
        module = identifier(&manifest.name),
    );
    for part in [bindings.signature(), bindings.structs(), bindings.model(), bindings.context()] {
        for line in part.lines() {
            let _ = writeln!(rs, "{}{line}", if line.is_empty() { "" } else { "    " });
        }
    }
    rs.push_str("}\n");
    rs
}

/// A tensor and its field.
struct Field<'m> {
    info: &'m TensorInfo,
    name: String,
    dtype: DType,
}

struct Bindings<'m> {
    manifest: &'m Manifest,
    inputs: Vec<Field<'m>>,
    outputs: Vec<Field<'m>>,
    /// Dynamic dimensions of inputs whose extents are stated by name: name, field, least and greatest extent, step.
    dims: Vec<(&'m str, String, u64, u64, u64)>,
}

impl<'m> Bindings<'m> {
    fn new(manifest: &'m Manifest) -> Bindings<'m> {
        let fields = |tensors: &'m [TensorInfo]| {
            let mut taken = BTreeSet::new();
            let field = |info: &'m TensorInfo| Field {
                info,
                name: unique(&info.name, &mut taken),
                dtype: DType::from_name(&info.dtype).unwrap_or(DType::U8),
            };
            tensors.iter().map(field).collect::<Vec<_>>()
        };
        let inputs = fields(&manifest.inputs);
        let stated = |name: &str| inputs.iter().any(|f| f.has_shape() && f.info.dims.iter().any(|dim| dim == name));
        let mut taken = BTreeSet::new();
        let used = manifest.ranges().filter(|(name, ..)| stated(name));
        let dims = used.map(|(name, min, max, step)| (name, unique(name, &mut taken), min, max, step)).collect();
        Bindings { manifest, inputs, outputs: fields(&manifest.outputs), dims }
    }

    /// Imports and the constants that describe the model.
    fn signature(&self) -> String {
        let mut rs = "use tensorc_runtime::artifact::{Artifact, ArtifactError, ModelContext, Port, PortExtent};\n\
                      use tensorc_runtime::{DType, Pool, TensorMut, TensorRef};\n\n"
            .to_owned();
        let sides = [("INPUTS", "takes", &self.inputs), ("OUTPUTS", "gives", &self.outputs)];
        for (constant, verb, fields) in sides {
            let _ = writeln!(rs, "/// What the model {verb}, in its order.");
            let _ = writeln!(rs, "pub const {constant}: [Port; {}] = [", fields.len());
            for Field { info, dtype, .. } in fields {
                let dims: Vec<String> = info.dims.iter().map(|dim| self.extent(dim)).collect();
                let dims = dims.join(", ");
                let _ = writeln!(rs, "    Port {{ name: {:?}, dtype: DType::{dtype:?}, dims: &[{dims}] }},", info.name);
            }
            rs.push_str("];\n");
        }
        rs
    }

    fn extent(&self, dim: &str) -> String {
        match dim.parse::<u64>() {
            _ if self.manifest.dims.iter().any(|(name, _, _)| name == dim) => format!("PortExtent::Named({dim:?})"),
            Ok(extent) => format!("PortExtent::Fixed({extent})"),
            Err(_) => "PortExtent::Open".to_owned(),
        }
    }

    /// The types that runs take.
    fn structs(&self) -> String {
        let mut rs = String::new();
        if !self.dims.is_empty() {
            rs.push_str("\n/// Extents of the dynamic dimensions.\n");
            rs.push_str("#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub struct Extents {\n");
            for (name, field, min, max, step) in &self.dims {
                let by = if *step == 1 { String::new() } else { format!(", in steps of {step}") };
                let _ = writeln!(rs, "    /// `{}`: {min} to {max}{by}.\n    pub {field}: u64,", plain(name));
            }
            rs.push_str("}\n\nimpl Extents {\n");
            for (i, (name, field, min, max, _)) in self.dims.iter().enumerate() {
                let gap = if i > 0 { "\n" } else { "" };
                let constant = field.to_uppercase();
                let _ = writeln!(rs, "{gap}    /// What `{}` may be.", plain(name));
                let _ = writeln!(rs, "    pub const {constant}: std::ops::RangeInclusive<u64> = {min}..={max};");
            }
            rs.push_str("}\n");
        }
        if !self.inputs.is_empty() {
            rs.push_str("\n/// The inputs: elements in row-major order.\n");
            rs.push_str("#[derive(Clone, Copy, Debug)]\npub struct Inputs<'a> {\n");
            for field in &self.inputs {
                let ty = match field.has_shape() {
                    true => format!("&'a [{}]", field.element()),
                    false => "TensorRef<'a>".to_owned(),
                };
                let _ = writeln!(rs, "    /// {}\n    pub {}: {ty},", field.text(), field.name);
            }
            rs.push_str("}\n");
        }
        rs.push_str(
            "\n/// Where the elements of the outputs go, in row-major order; what lies behind them is left alone.\n",
        );
        rs.push_str("#[derive(Debug)]\npub struct Outputs<'a> {\n");
        for field in &self.outputs {
            let _ = writeln!(rs, "    /// {}\n    pub {}: &'a mut [{}],", field.text(), field.name, field.element());
        }
        rs.push_str("}\n");
        rs
    }

    fn model(&self) -> String {
        let name = &self.manifest.name;
        let functions = "memory_bytes memory_for init describe run error free weights_open weights_view weights_close";
        let functions: Vec<String> = functions.split(' ').map(|f| format!("{name}_{f}")).collect();
        let in_file = !self.manifest.weights.embedded && self.manifest.weights.bytes > 0;
        let (about, errors, parameter, argument) = match in_file {
            false => ("The model inside this program.", "The run-time library is of another version.", "", "None"),
            true => (
                "The model inside this program, with its file of weights, which is mapped and checked.",
                "The file cannot be read, or its weights are not those of the model.",
                "weights: impl AsRef<std::path::Path>",
                "Some(weights.as_ref())",
            ),
        };
        format!(
            "\n/// The model with its weights. Cloning shares them.\n#[derive(Clone, Debug)]\npub struct Model(Artifact);\n\n\
             impl Model {{\n    /// {about}\n    ///\n    /// # Errors\n    /// {errors}\n    \
             pub fn load({parameter}) -> Result<Model, ArtifactError> {{\n        \
             let artifact = tensorc_runtime::linked_artifact!(INPUTS, OUTPUTS, {argument};\n            {});\n        \
             artifact.map(Model)\n    }}\n\n    \
             /// Makes the memory of one run at a time, whose work the threads of a pool share.\n    ///\n    \
             /// # Errors\n    /// Memory is short, or the run-time library is of another version.\n    \
             pub fn context<'p>(&self, pool: &'p Pool) -> Result<Context<'p>, ArtifactError> {{\n        \
             self.0.context(pool).map(Context)\n    }}\n\n    \
             /// The same in memory of the caller's, at a multiple of 64 bytes, in which nothing is allocated.\n    ///\n    \
             /// # Errors\n    /// The memory is not aligned or too small, or the run-time library is of another version.\n    \
             pub fn context_in<'p>(&self, pool: &'p Pool, memory: &'p mut [u8]) -> Result<Context<'p>, ArtifactError> {{\n        \
             self.0.context_in(pool, memory).map(Context)\n    }}\n\n    \
             /// Bytes of memory that a context takes for any shapes.\n    \
             pub fn memory_bytes(&self, threads: usize) -> u64 {{\n        \
             self.0.memory_bytes(threads)\n    }}\n{}}}\n",
            functions.join(" "),
            self.memory_for(),
        )
    }

    /// The method for the memory of one shape, where dynamic dimensions say all of it.
    fn memory_for(&self) -> String {
        if self.dims.is_empty() || !self.inputs.iter().all(Field::has_shape) {
            return String::new();
        }
        let shape = |field: &Field<'_>| {
            let extents: Vec<String> = field.info.dims.iter().map(|dim| self.extent_of(dim)).collect();
            format!("&[{}]", extents.join(", "))
        };
        let shapes: Vec<String> = self.inputs.iter().map(shape).collect();
        format!(
            "\n    /// Bytes of memory that a context takes for these extents; `None` if the model was not compiled for them.\n    \
             pub fn memory_for(&self, extents: Extents, threads: usize) -> Option<u64> {{\n        \
             self.0.memory_for(&[{}], threads)\n    }}\n",
            shapes.join(", "),
        )
    }

    /// An extent of an input as an expression.
    fn extent_of(&self, dim: &str) -> String {
        match self.dims.iter().find(|(name, ..)| *name == dim) {
            Some((_, field, ..)) => format!("extents.{field}"),
            None => dim.to_owned(),
        }
    }

    fn context(&self) -> String {
        let mut parameters = String::new();
        if !self.dims.is_empty() {
            parameters.push_str(", extents: Extents");
        }
        if !self.inputs.is_empty() {
            parameters.push_str(", inputs: Inputs<'_>");
        }
        let reads = self.reads();
        format!(
            "\n/// The memory of one run at a time. Threads that run the model at the same time have one each.\n\
             pub struct Context<'p>(ModelContext<'p>);\n\nimpl Context<'_> {{\n    \
             /// Runs the model. The results have the same bits for every number of threads.\n    ///\n    \
             /// # Errors\n    \
             /// The model was not compiled for these extents, or a tensor has fewer elements than they say.\n    \
             pub fn run(&mut self{parameters}, outputs: Outputs<'_>) -> Result<(), ArtifactError> {{\n{reads}        \
             let Outputs {{ {fields} }} = outputs;\n        \
             let mut outputs: [TensorMut<'_>; {count}] = [{writes}];\n        \
             self.0.run(&inputs, &mut outputs)\n    }}\n\n    \
             /// The shapes of the outputs, in the order of [`OUTPUTS`]{most}.\n    ///\n    /// # Errors\n    \
             /// The model was not compiled for these extents.\n    \
             pub fn shapes(&mut self{parameters}) -> Result<Vec<Vec<u64>>, ArtifactError> {{\n{reads}        \
             let types = inputs.each_ref().map(|tensor| (tensor.dtype, tensor.dims));\n        \
             Ok(self.0.outputs(&types)?.into_iter().map(|(_, dims)| dims).collect())\n    }}\n{found}}}\n",
            found = self.found(),
            most = if self.manifest.found.is_empty() { "" } else { ": where they depend on values, the greatest" },
            fields = self.fields(),
            count = self.outputs.len(),
            writes = self.writes(),
        )
    }

    /// The method for the shapes that depend on values.
    fn found(&self) -> &'static str {
        match self.manifest.found.is_empty() {
            true => "",
            false => {
                "\n    /// The shapes of the outputs of the last run, which fill the beginning of their memory.\n    \
                 pub fn found_shapes(&self) -> &[Vec<u64>] {\n        self.0.found_shapes()\n    }\n"
            }
        }
    }

    /// Lines that make the inputs what a context takes.
    fn reads(&self) -> String {
        let (mut lines, mut tensors) = (String::new(), vec![]);
        for (i, Field { info, name, dtype }) in self.inputs.iter().enumerate() {
            if !self.inputs[i].has_shape() {
                tensors.push(format!("inputs.{name}"));
                continue;
            }
            let extents: Vec<String> = info.dims.iter().map(|dim| self.extent_of(dim)).collect();
            let _ = writeln!(lines, "        let dims{i}: [u64; {}] = [{}];", extents.len(), extents.join(", "));
            tensors.push(match dtype {
                dtype if is_bytes(*dtype) => format!("TensorRef::new(DType::{dtype:?}, &dims{i}, inputs.{name})"),
                _ => format!("TensorRef::from_slice(&dims{i}, inputs.{name})"),
            });
        }
        let count = self.inputs.len();
        let _ = writeln!(lines, "        let inputs: [TensorRef<'_>; {count}] = [{}];", tensors.join(", "));
        lines
    }

    /// A pattern that takes the outputs apart.
    fn fields(&self) -> String {
        let pattern = |(i, f): (usize, &Field<'_>)| match format!("output{i}") {
            local if local == f.name => local,
            local => format!("{}: {local}", f.name),
        };
        self.outputs.iter().enumerate().map(pattern).collect::<Vec<_>>().join(", ")
    }

    /// The outputs as a context takes them: runs do not read their shapes.
    fn writes(&self) -> String {
        let write = |(i, f): (usize, &Field<'_>)| match f.dtype {
            dtype if is_bytes(dtype) => format!("TensorMut::new(DType::{dtype:?}, &[], output{i})"),
            _ => format!("TensorMut::from_slice(&[], output{i})"),
        };
        self.outputs.iter().enumerate().map(write).collect::<Vec<_>>().join(", ")
    }
}

impl Field<'_> {
    /// Whether its shape follows from the extents of dynamic dimensions.
    fn has_shape(&self) -> bool {
        self.info.dims.iter().all(|dim| dim != "?")
    }

    /// The Rust type of an element.
    fn element(&self) -> &'static str {
        match self.dtype {
            DType::F16 => "tensorc_runtime::half::f16",
            DType::BF16 => "tensorc_runtime::half::bf16",
            dtype if is_bytes(dtype) => "u8",
            other => other.name(),
        }
    }

    /// Its documentation.
    fn text(&self) -> String {
        let bytes = match self.dtype {
            DType::Bool => ", a byte for each element, 0 or 1",
            dtype if is_bytes(dtype) => ", a byte for each element",
            _ => "",
        };
        let TensorInfo { name, dtype, dims } = self.info;
        format!("`{}`: `{dtype}[{}]`{bytes}.", plain(name), plain(&dims.join(", ")))
    }
}

/// Whether Rust has no type for the elements, which are passed as bytes.
fn is_bytes(dtype: DType) -> bool {
    dtype == DType::Bool || dtype.is_narrow()
}

/// A name of the model's for a comment: it may hold anything, and is to end neither line nor quotation.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '`' { ' ' } else { c }).collect()
}

/// A name in Rust, in lower case, from any text.
pub fn identifier(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("_");
    if name.is_empty() {
        name.push_str("tensor");
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    if KEYWORDS.contains(&format!(" {name} ")) {
        name.push('_');
    }
    name
}

/// A name that is not taken, which it is then.
fn unique(text: &str, taken: &mut BTreeSet<String>) -> String {
    let base = identifier(text);
    let mut name = base.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{}_{number}", base.trim_end_matches('_'));
        number += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_a_name() {
        let cases =
            [("x", "x"), ("input.1", "input_1"), ("a//b:0", "a_b_0"), ("0", "_0"), ("Self", "self_"), ("ß", "tensor")];
        for (text, name) in cases {
            assert_eq!(identifier(text), name, "{text}");
        }
        let mut taken = BTreeSet::new();
        let names = ["type", "Type", "type_2", "x"].map(|text| unique(text, &mut taken));
        assert_eq!(names, ["type_", "type_2", "type_2_2", "x"]);
        assert_eq!(plain("a\n`b\r"), "a  b ");
    }
}
